"""`?wait=`: many requests wait for a change of state, one thread asks the database for all of them.

A waiting request holds a thread of the web server and nothing else; the watching thread's connection ends with
the last waiter.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import dataclass, field

from django.conf import settings
from django.db import Error, connection

from attachments.listing import with_state
from attachments.models import Attachment

POLL_SECONDS = 0.2

logger = logging.getLogger(__name__)


class TooManyWaiters(Exception):
    """This process holds as many waiting requests as it may."""


@dataclass(eq=False)
class Waiter:
    attachment_id: uuid.UUID
    state: str
    changed: threading.Event = field(default_factory=threading.Event)


class Watcher:
    """Knows who waits in this process. Its thread is there only while somebody does, so a fork never inherits it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[Waiter] = set()
        self._thread: threading.Thread | None = None

    def wait(self, attachment_id: uuid.UUID, *, state: str, seconds: float) -> None:
        """Return once the attachment is not in `state` any more or is gone, at the latest after `seconds`.

        Raises TooManyWaiters at once when MAX_WAITERS others wait already.
        """
        waiter = self._enter(attachment_id, state)
        try:
            waiter.changed.wait(seconds)
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def is_idle(self) -> bool:
        with self._lock:
            return self._thread is None

    def _enter(self, attachment_id: uuid.UUID, state: str) -> Waiter:
        waiter = Waiter(attachment_id, state)
        with self._lock:
            if len(self._waiters) >= settings.MAX_WAITERS:
                raise TooManyWaiters
            self._waiters.add(waiter)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
                self._thread.start()
        return waiter

    def _watch(self) -> None:
        try:
            while waiters := self._present():
                _tell(waiters)
                time.sleep(POLL_SECONDS)
        finally:
            connection.close()

    def _present(self) -> list[Waiter]:
        """Who waits; with nobody left the thread counts as gone before the next one can come."""
        with self._lock:
            if not self._waiters:
                self._thread = None
            return list(self._waiters)


def _tell(waiters: list[Waiter]) -> None:
    """Wake those whose attachment changed. An outage is waited out: each request asks once more when its time is up."""
    living = Attachment.objects.filter(id__in={waiter.attachment_id for waiter in waiters}, deleted_at__isnull=True)
    try:
        states = dict(with_state(living).values_list("id", "state"))
    except Error as error:
        logger.warning("watching_failed", extra={"cause": type(error).__name__})
        connection.close()
        return
    for waiter in waiters:
        if states.get(waiter.attachment_id) != waiter.state:
            waiter.changed.set()


watcher = Watcher()
