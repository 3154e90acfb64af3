"""`manage.py telegram`: take Telegram's updates by long polling until SIGTERM, or set the webhook that takes them."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from config import scraping
from notifications.telegram import polling, updates
from notifications.telegram.client import call
from notifications.telegram.outgoing import CallFailed

WEBHOOK_PATH = "/telegram/webhook"
#: At once; the web process has other visitors.
WEBHOOK_CONNECTIONS = 8


class Command(BaseCommand):
    help = "Takes Telegram's updates by long polling. Run one."
    # All of Django's would load every view.
    requires_system_checks = ("holdfast",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--set-webhook",
            metavar="URL",
            help=f"instead of polling, let Telegram post updates to https://your.host{WEBHOOK_PATH}, and end",
        )

    def handle(self, *_args: Any, set_webhook: str | None, **_options: Any) -> None:
        if not settings.TELEGRAM_BOT_TOKEN:
            raise CommandError("Set TELEGRAM_BOT_TOKEN; see docs/telegram.md.")
        if set_webhook:
            return self._set_webhook(set_webhook)
        if settings.TELEGRAM_WEBHOOK_SECRET:
            raise CommandError("TELEGRAM_WEBHOOK_SECRET is set: updates come by the webhook. Unset it to poll.")
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        scraping.serve()
        return polling.run(stop)

    def _set_webhook(self, url: str) -> None:
        if not settings.TELEGRAM_WEBHOOK_SECRET:
            raise CommandError("Set TELEGRAM_WEBHOOK_SECRET for the web process and for this command.")
        try:
            call(
                "setWebhook",
                url=url,
                secret_token=settings.TELEGRAM_WEBHOOK_SECRET,
                allowed_updates=list(updates.KINDS),
                max_connections=WEBHOOK_CONNECTIONS,
            )
        except CallFailed as failed:
            raise CommandError(f"Telegram did not take the webhook: {failed.reason.value}.") from None
        self.stdout.write(f"Telegram posts updates to {url}.")
