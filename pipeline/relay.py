"""Rows to confirmed messages, a batch at a time.

One batch is one transaction whose row locks are its lease: select what is due, publish it, mark what the broker
confirmed, commit. It is the one place that waits inside a transaction, bounded by CONFIRM_SECONDS; a relay that
dies leaves its rows unsent, at worst sent twice, which claim absorbs. Any number may run at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import NamedTuple

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from pipeline import failpoints, metrics
from pipeline.broker import WRITE_SECONDS, Publisher, Receipt
from pipeline.models import OutboxMessage
from pipeline.wire import Message

BATCH = 500
#: A backlog is shared by this many threads: one encodes while another waits for the database or the broker.
LANES = 2
SHARE_SECONDS = 2.0
#: A message that the broker would not take waits this long before it is tried again.
AGAIN_AFTER = timedelta(seconds=5)

logger = logging.getLogger(__name__)


class Relayed(NamedTuple):
    """What one batch came to: rows taken, and how many of them the broker confirmed."""

    taken: int
    confirmed: int

    @property
    def is_last(self) -> bool:
        """Whether nothing more is to be done now: nothing is due, or the broker leaves something unconfirmed."""
        return self.taken < BATCH or self.confirmed < self.taken


class Relay:
    """Sends what is due. Every lane has a publisher and a database connection of its own."""

    def __init__(self, *, stop: threading.Event | None = None) -> None:
        self._publishers = [Publisher() for _ in range(LANES)]
        self._stop = stop or threading.Event()

    def run(self) -> int:
        """Publish until nothing is due, `stop` is set or SHARE_SECONDS are over; returns how many were confirmed.

        Raises BrokerUnavailable when the broker is away, and then nothing more is marked.
        """
        first = relay_batch(self._publishers[0])
        if first.is_last:
            return first.confirmed
        with ThreadPoolExecutor(LANES, thread_name_prefix="relay") as lanes:
            return first.confirmed + sum(lanes.map(self._share, self._publishers))

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()

    def _share(self, publisher: Publisher) -> int:
        """One lane's part of a backlog, for so long that the dispatcher's other chores are not starved."""
        confirmed, until = 0, time.monotonic() + SHARE_SECONDS
        try:
            while not self._stop.is_set() and time.monotonic() < until:
                batch = relay_batch(publisher)
                confirmed += batch.confirmed
                if batch.is_last:
                    break
        finally:
            connection.close()
        return confirmed


def relay_batch(publisher: Publisher, *, limit: int = BATCH) -> Relayed:
    """Publish up to `limit` due rows; BrokerUnavailable when the broker is away (nothing is marked)."""
    if not publisher.is_open:
        # Connecting may take a while, which must not happen in the transaction; nor when nothing is due.
        if not _due().exists():
            return Relayed(0, 0)
        publisher.open()
    with transaction.atomic():
        _bound_transaction()
        rows = _take(limit)
        if not rows:
            return Relayed(0, 0)
        receipts = publisher.publish([message for _, message in rows])
        failpoints.hit("after_confirm")
        _mark([row_id for row_id, _ in rows], receipts)
    counts = Counter(receipts)
    for receipt, count in counts.items():
        metrics.RELAYED.labels(receipt=receipt.value).inc(count)
    return Relayed(len(rows), counts[Receipt.CONFIRMED])


def _bound_transaction() -> None:
    """A frozen relay must free its rows: the server ends the transaction when it stays idle too long."""
    seconds = settings.CONFIRM_SECONDS + WRITE_SECONDS + 5
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, true)", [f"{int(seconds * 1000)}ms"]
        )


def _due() -> QuerySet[OutboxMessage]:
    return OutboxMessage.objects.filter(sent_at__isnull=True, due_at__lte=Now())


def _take(limit: int) -> list[tuple[int, Message]]:
    rows = (
        _due().order_by("due_at", "id").select_for_update(skip_locked=True).values_list("id", *Message._fields)[:limit]
    )
    return [(row_id, Message(*fields)) for row_id, *fields in rows]


def _mark(ids: list[int], receipts: list[Receipt]) -> None:
    by_receipt: dict[Receipt, list[int]] = {}
    for row_id, receipt in zip(ids, receipts, strict=True):
        by_receipt.setdefault(receipt, []).append(row_id)
    _mark_sent(by_receipt.pop(Receipt.CONFIRMED, []))
    for receipt, left in by_receipt.items():
        logger.warning("not_confirmed", extra={"receipt": receipt.value, "count": len(left)})
        OutboxMessage.objects.filter(id__in=left).update(
            tries=F("tries") + 1, last_error=receipt.value, due_at=Now() + AGAIN_AFTER
        )


def _mark_sent(ids: list[int]) -> None:
    """In SQL, because one array is adapted much faster than five hundred parameters."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pipeline_outbox SET sent_at = statement_timestamp(), last_error = '' WHERE id = ANY(%s)", [ids]
        )
