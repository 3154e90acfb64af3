"""The worker's application, hearing one sentence in every picture, with every logger of every library turned on."""

from __future__ import annotations

import logging
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from celery.signals import worker_process_init

from pipeline import registry
from tests.notifications.hearing import BY_FAMILY, HEARD

registry.PIPELINES = (HEARD,)
registry._BY_FAMILY = BY_FAMILY

from config.celery import app  # noqa: E402

__all__ = ["app"]


@worker_process_init.connect
def _turn_all_on(**_: Any) -> None:
    import httpcore  # noqa: F401  (its loggers are there once it is)

    for name in list(logging.root.manager.loggerDict):
        logging.getLogger(name).setLevel(logging.DEBUG)
