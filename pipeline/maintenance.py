"""What must happen without anybody asking: recover and redispatch, in short transactions, any number at once.

The dispatcher runs these on its own clock, and beat's tasks call the same functions; each alone is enough.
"""

from __future__ import annotations

import datetime
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import Error, connection, transaction
from django.db.models import F, Min, Q, QuerySet
from django.db.models.functions import Now

from notifications import fetches
from notifications.models import FetchState
from pipeline import lifecycle, metrics, outbox
from pipeline.broker import QUEUE_NAMES, Publisher
from pipeline.models import Job, OutboxMessage
from pipeline.states import TERMINAL, Runner, State

REDISPATCH_LIMIT = 100_000
REDISPATCH_BATCH = 2000
REDISPATCH_SECONDS = 5.0
REDISPATCH_CAP = timedelta(hours=1)

logger = logging.getLogger(__name__)


def recover() -> int:
    """Take back jobs whose lease ran out; returns how many.

    Nothing is taken back for one lease after the database, or this process, was away: the living workers need a
    moment to renew. What nobody renewed since an outage was lost in it, perhaps by a worker that was told to stop and
    could not hand it back, and counts as no failure.
    """
    looked_at = _trust.look()
    if looked_at is None:
        return 0
    moved = lifecycle.recover(looked_at=looked_at, outage_ended=_trust.outage_ended)
    moved += fetches.recover(looked_at=looked_at, outage_ended=_trust.outage_ended)
    if moved:
        metrics.RECOVERED.inc(moved)
        logger.warning("recovered", extra={"jobs": moved})
    return moved


def redispatch(publisher: Publisher | None = None) -> int:
    """Send again the messages of stranded jobs; a plain backlog is left alone. Returns how many.

    A job is stranded when its message was sent a while ago and, at two looks in a row, its queue had got past it.
    Looks closer together than half of REDISPATCH_EVERY_SECONDS are one. Counts the dead letters on the way. Raises
    BrokerUnavailable.
    """
    own = publisher or Publisher()
    try:
        resent = _looks.take(own) + _send_fetches_again()
        if resent:
            metrics.REDISPATCHED.inc(resent)
            logger.warning("redispatched", extra={"messages": resent})
            outbox.nudge()
        # Nobody else asks the broker anything as regularly.
        own.count_dead_letters()
    finally:
        if publisher is None:
            own.close()
    return resent


def patience_after(redispatches: int) -> timedelta:
    """For how long a message that was sent again so often is not suspected."""
    return min(_patience() * 2.0 ** min(redispatches, _doublings()), REDISPATCH_CAP)


class Trust:
    """Whether an expired lease means a dead worker, and not a database that answered nobody for a while.

    `outage_ended` is when the last outage was over that this process has seen; None when it has seen none.
    """

    def __init__(self) -> None:
        self._answered_at: float | None = None
        self._from = 0.0
        self._connected_at: datetime.datetime | None = None
        self._is_unanswered = False
        self.outage_ended: datetime.datetime | None = None

    def look(self) -> datetime.datetime | None:
        """The database's time when leases that had run out by then meant dead workers; None when they do not yet.

        A long time since the last answer begins the wait anew.
        """
        asked_at = time.monotonic()
        try:
            connected_at, looked_at = _connection_times()
        except Error:
            self._is_unanswered = True
            raise
        answered_at = time.monotonic()
        was_silent = self._is_unanswered or answered_at - asked_at > _longest_silence()
        if was_silent or (self._answered_at is not None and answered_at - self._answered_at > _longest_silence()):
            self._from = answered_at + settings.LEASE_SECONDS
        # A long absence of this process is no outage: work that brings a whole machine to a halt has to count.
        if was_silent or self._connected_at not in (None, connected_at):
            self.outage_ended = looked_at
        self._answered_at, self._connected_at, self._is_unanswered = answered_at, connected_at, False
        is_young = looked_at - connected_at < timedelta(seconds=settings.LEASE_SECONDS)
        return None if is_young or answered_at < self._from else looked_at

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notice each question of this thread that the database left unanswered for long."""
        with connection.execute_wrapper(self._time):
            yield

    def _time(self, execute: Callable[..., Any], *question: Any) -> Any:
        asked_at = time.monotonic()
        try:
            return execute(*question)
        finally:
            self._is_unanswered |= time.monotonic() - asked_at > _longest_silence()


_trust = Trust()
#: For whoever asks the database between two looks: of a question that hung, the next look sees only a long gap.
watching_for_silence = _trust.watching


def _longest_silence() -> float:
    return float(settings.LEASE_SECONDS - settings.RENEW_SECONDS)


def _connection_times() -> tuple[datetime.datetime, datetime.datetime]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT backend_start, clock_timestamp() FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        connected_at, now = cursor.fetchone()
    return connected_at, now


class Looks:
    """Remembers how far each queue had got at the last look.

    A message in a worker's hands, but not yet claimed, looks like a lost one. By the next look it is claimed.
    """

    def __init__(self) -> None:
        self._passed: dict[str, datetime.datetime] = {}
        self._taken_at = -math.inf

    def take(self, publisher: Publisher) -> int:
        """Look, and send again what both this look and the one before found passed over; returns how many."""
        if time.monotonic() - self._taken_at < settings.REDISPATCH_EVERY_SECONDS / 2:
            return 0
        # Forgotten should this one end in an error: during an outage nobody claims.
        before, self._passed, self._taken_at = self._passed, {}, time.monotonic()
        resent = 0
        for queue, now, oldest in _queues_waited_for():
            passed = now if publisher.ready(queue) == 0 else _newest_claimed(queue, since=oldest)
            if passed is None:
                continue
            self._passed[queue] = passed
            if queue in before:
                sent_before = min(before[queue], passed - patience_after(0))
                resent += _send_again(queue, due_before=passed, sent_before=sent_before)
        return resent


_looks = Looks()


def _queues_waited_for() -> list[tuple[str, datetime.datetime, datetime.datetime]]:
    """The queues with jobs that wait for a worker; with each the database's time, and since when its oldest waits."""
    waiting = Job.objects.filter(state=State.QUEUED, runner=Runner.WORKER, due_at__lte=Now(), queue__in=QUEUE_NAMES)
    return list(waiting.values_list("queue").annotate(now=Now(), oldest=Min("due_at")))


def _newest_claimed(queue: str, *, since: datetime.datetime) -> datetime.datetime | None:
    """When the newest job was accepted that somebody has claimed; None when there is none accepted after `since`.

    No copy of its message was sent before it was accepted, however often it was sent and whenever it was confirmed. So
    what had been sent by then stood before all of them in the queue.
    """
    claimed = Job.objects.filter(queue=queue, runner=Runner.WORKER, created_at__gt=since).order_by("-created_at")
    newest = [
        claimed.filter(state=state).values_list("created_at", flat=True).first()
        for state in (State.PROCESSING, *TERMINAL)
    ]
    return max(filter(None, newest), default=None)


def _send_again(queue: str, *, due_before: datetime.datetime, sent_before: datetime.datetime) -> int:
    """Make messages unsent again; what the time does not suffice for waits until the queue has got past these.

    Begins with the jobs, which are few in a plain backlog, and not with all that was ever sent.
    """
    waiting = Job.objects.filter(queue=queue, state=State.QUEUED, runner=Runner.WORKER, due_at__lt=due_before)
    jobs = list(waiting.order_by("due_at").values_list("job_id", flat=True)[:REDISPATCH_LIMIT])
    resent, until = 0, time.monotonic() + REDISPATCH_SECONDS
    for start in range(0, len(jobs), REDISPATCH_BATCH):
        if time.monotonic() > until:
            break
        stranded = _long_waiting().filter(
            job__in=jobs[start : start + REDISPATCH_BATCH],
            job__state=State.QUEUED,
            job__runner=Runner.WORKER,
            job__attempt=F("attempt"),
            sent_at__lt=sent_before,
        )
        with transaction.atomic():
            locked = stranded.select_for_update(skip_locked=True, of=("self",))
            ids = list(locked.values_list("id", flat=True))
            resent += _make_unsent(ids)
    return resent


def _send_fetches_again() -> int:
    """A fetch takes seconds, so its message is suspected by its age alone; each time twice as late."""
    stranded = _long_waiting().filter(telegram_update__state=FetchState.WAITING, telegram_update__attempt=F("attempt"))
    with transaction.atomic():
        ids = list(stranded.select_for_update(skip_locked=True, of=("self",)).values_list("id", flat=True))
        return _make_unsent(ids)


def _make_unsent(ids: list[int]) -> int:
    return OutboxMessage.objects.filter(id__in=ids).update(
        sent_at=None, due_at=Now(), redispatches=F("redispatches") + 1
    )


def _long_waiting() -> QuerySet[OutboxMessage]:
    """Messages sent longer ago than their patience lasts."""
    overdue = Q()
    for times in range(_doublings() + 1):
        matches = Q(redispatches=times) if times < _doublings() else Q(redispatches__gte=times)
        overdue |= matches & Q(sent_at__lt=Now() - patience_after(times))
    return OutboxMessage.objects.filter(overdue)


def _doublings() -> int:
    """After so many the patience is at its cap."""
    return math.ceil(math.log2(max(1.0, REDISPATCH_CAP / max(_patience(), timedelta.resolution))))


def _patience() -> timedelta:
    return timedelta(seconds=settings.REDISPATCH_AFTER_SECONDS)
