"""What must happen without anybody asking: recover and redispatch, in short transactions, any number at once.

The dispatcher runs these on its own clock, and beat's tasks call the same functions; each alone is enough.
"""

from __future__ import annotations

import datetime
import logging
import time
from datetime import timedelta

from django.conf import settings
from django.db import connection
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from pipeline import lifecycle, metrics, outbox
from pipeline.broker import QUEUE_NAMES, Publisher
from pipeline.models import OutboxMessage
from pipeline.states import Runner, State

REDISPATCH_LIMIT = 500
REDISPATCH_CAP = timedelta(hours=1)

logger = logging.getLogger(__name__)


def recover() -> int:
    """Take back jobs whose lease ran out; returns how many.

    Nothing is taken back for one lease after the database, or this process, was away: the living workers need a
    moment to renew.
    """
    if not _trust.is_earned():
        return 0
    moved = lifecycle.recover()
    if moved:
        metrics.RECOVERED.inc(moved)
        logger.warning("recovered", extra={"jobs": moved})
    return moved


def redispatch(publisher: Publisher | None = None) -> int:
    """Send again the messages of stranded jobs; a plain backlog is left alone. Returns how many.

    A job is stranded when its message was sent a while ago and either one sent later has been claimed already or its
    queue holds no message that waits. Each further time waits twice as long, up to an hour.
    """
    own = publisher or Publisher()
    try:
        resent = sum(_redispatch_queue(own, queue) for queue in QUEUE_NAMES)
    finally:
        if publisher is None:
            own.close()
    if resent:
        metrics.REDISPATCHED.inc(resent)
        logger.warning("redispatched", extra={"messages": resent})
        outbox.nudge()
    return resent


class Trust:
    """Whether an expired lease means a dead worker, and not a database that answered nobody for a while."""

    def __init__(self) -> None:
        self._looked_at: float | None = None
        self._from = 0.0

    def is_earned(self) -> bool:
        """Ask the database how old this connection is; a long time since the last answer begins the wait anew."""
        age, now = _connection_seconds(), time.monotonic()
        silence = now - self._looked_at if self._looked_at is not None else 0.0
        self._looked_at = now
        if silence > settings.LEASE_SECONDS - settings.RENEW_SECONDS:
            self._from = now + settings.LEASE_SECONDS
        return age >= settings.LEASE_SECONDS and now >= self._from


_trust = Trust()


def _connection_seconds() -> float:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM clock_timestamp() - backend_start) FROM pg_stat_activity"
            " WHERE pid = pg_backend_pid()"
        )
        row = cursor.fetchone()
    return float(row[0]) if row else 0.0


def _redispatch_queue(publisher: Publisher, queue: str) -> int:
    waiting = _long_waiting(queue)
    if not waiting.exists():
        return 0
    if not publisher.queue_is_empty(queue):
        overtaken_before = _newest_claimed(queue)
        if overtaken_before is None:
            return 0
        waiting = waiting.filter(sent_at__lt=overtaken_before - _patience())
    ids = list(waiting.order_by("sent_at").values_list("id", flat=True)[:REDISPATCH_LIMIT])
    return OutboxMessage.objects.filter(id__in=ids, sent_at__isnull=False).update(
        sent_at=None, due_at=Now(), redispatches=F("redispatches") + 1
    )


def _long_waiting(queue: str) -> QuerySet[OutboxMessage]:
    """Messages of jobs that still wait for their claim, sent longer ago than their patience lasts."""
    overdue = Q()
    for times in range(7):
        patience = min(_patience() * 2**times, REDISPATCH_CAP)
        matches = Q(redispatches=times) if times < 6 else Q(redispatches__gte=times)
        overdue |= matches & Q(sent_at__lt=Now() - patience)
    return OutboxMessage.objects.filter(
        overdue,
        queue=queue,
        job__state=State.QUEUED,
        job__runner=Runner.WORKER,
        job__attempt=F("attempt"),
    )


def _newest_claimed(queue: str) -> datetime.datetime | None:
    """When the newest message that has been claimed was sent; None when there is none of late."""
    return (
        OutboxMessage.objects.filter(Q(job__attempt__gt=F("attempt")) | ~Q(job__state=State.QUEUED))
        # One that was sent again may have been claimed by its first copy, and proves nothing.
        .filter(queue=queue, redispatches=0, sent_at__gt=Now() - 2 * REDISPATCH_CAP)
        .order_by("-sent_at")
        .values_list("sent_at", flat=True)
        .first()
    )


def _patience() -> timedelta:
    return timedelta(seconds=settings.REDISPATCH_AFTER_SECONDS)
