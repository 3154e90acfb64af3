"""Long polling: asks Telegram for updates, and confirms them by asking for the next only once they are committed.

One at a time: of two pollers each ends the other's wait. What neither has confirmed comes again, and counts once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import Error, connection

from attachments.outages import sqlstate_of
from config.logging import bound_carrier, new_carrier
from notifications.telegram import updates
from notifications.telegram.client import Line, call
from notifications.telegram.outgoing import CallFailed, NotAlone

POLL_SECONDS = 25
#: Between a poll's end and Telegram's giving up on it.
READ_SECONDS = POLL_SECONDS + 10.0
LOOK_SECONDS = 0.1
PAUSE_SECONDS = 1.0
PAUSE_CAP_SECONDS = 30.0

logger = logging.getLogger(__name__)


def run(stop: threading.Event) -> None:
    """Take updates until `stop` is set. Nothing ends it but that: an outage, or another poller, is waited out."""
    _take_over(stop)
    offset, pause = 0, PAUSE_SECONDS
    logger.info("poller_started")
    while not stop.is_set():
        try:
            asked = asyncio.run(_poll(offset, stop))
        except CallFailed as failed:
            _tell(failed)
            stop.wait(max(pause, failed.retry_after or 0.0))
            pause = min(pause * 2, PAUSE_CAP_SECONDS)
            continue
        pause = PAUSE_SECONDS
        offset = _take_all(asked, offset, stop)
    logger.info("poller_stopped")


def _take_over(stop: threading.Event) -> None:
    """While a webhook is set, Telegram answers no poll. What waits for it stays."""
    while not stop.is_set():
        try:
            call("deleteWebhook", drop_pending_updates=False)
        except CallFailed as failed:
            _tell(failed)
            stop.wait(max(PAUSE_CAP_SECONDS / 6, failed.retry_after or 0.0))
        else:
            return


async def _poll(offset: int, stop: threading.Event) -> list[Any]:
    """What has come since `offset`, or nothing when told to stop. A torn poll confirms nothing."""
    parameters = {"offset": offset, "timeout": POLL_SECONDS, "allowed_updates": list(updates.KINDS)}
    async with Line(read_seconds=READ_SECONDS) as line:
        asking = asyncio.ensure_future(line.call("getUpdates", parameters))
        while not asking.done() and not stop.is_set():
            await asyncio.wait({asking}, timeout=LOOK_SECONDS)
        if not asking.done():
            asking.cancel()
            await asyncio.wait({asking})
            return []
        return list(asking.result())


def _take_all(asked: Iterable[Any], offset: int, stop: threading.Event) -> int:
    """Commit them in order; the offset after the last that was."""
    for update in asked:
        with bound_carrier(new_carrier()):
            if not _take_patiently(update, stop):
                break
        offset = update["update_id"] + 1
    return offset


def _take_patiently(update: Mapping[str, Any], stop: threading.Event) -> bool:
    """False when told to stop while the database was away."""
    while not stop.is_set():
        try:
            updates.take(update)
        except Error as error:
            connection.close()
            facts = {"cause": type(error).__name__, "sqlstate": sqlstate_of(error)}
            logger.warning("database_unavailable", extra=facts)
            stop.wait(PAUSE_SECONDS)
        else:
            return True
    return False


def _tell(failed: CallFailed) -> None:
    """A revoked token and a second poller want an operator; the rest passes."""
    if isinstance(failed, NotAlone):
        logger.error("poller_not_alone")
    else:
        logger.warning("poll_failed", extra={"reason": failed.reason.value})
