"""`manage.py dispatcher`: relay the outbox and look after the jobs until SIGTERM."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand

from config import scraping
from pipeline import dispatcher


class Command(BaseCommand):
    help = "Relays the outbox to RabbitMQ and recovers, redispatches and sweeps. Any number may run."
    # All of Django's would load every view.
    requires_system_checks = ("holdfast",)

    def handle(self, *_args: Any, **_options: Any) -> None:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        scraping.serve()
        dispatcher.run(stop)
