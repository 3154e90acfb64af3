"""Celery's entry points: each makes one call."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from config.logging import bound_carrier
from pipeline import envelopes
from pipeline.tasks import deciding


@shared_task(name="notifications.fetch")
def fetch(*args: Any, **kwargs: Any) -> str:
    """Fetch the file of one Telegram message. The database decides; then the message is acknowledged."""
    with deciding():
        # Loaded by those who fetch; every worker knows this task.
        from notifications.telegram import fetching

        document = envelopes.checked("telegram", args, kwargs)
        with bound_carrier(document["carrier"]):
            return fetching.fetch(document["telegram_update_id"], attempt=document["attempt"])
