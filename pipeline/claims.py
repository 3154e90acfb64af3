"""Who may work on what: a message's right to a job, and the heartbeat that keeps it.

The heartbeat thread starts before any native code runs. It needs only the lease token, tries five times as often after
an error, and never goes past the attempt's own deadline; after that the lease runs out and the job is recovered.
"""

from __future__ import annotations

import enum
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from django.conf import settings
from django.db import Error, connection

from attachments.outages import is_conflict, is_database_away, sqlstate_of
from pipeline import lifecycle, metrics, shutdown
from pipeline.confined import Interrupted
from pipeline.failures import CANCELLED, ORIGINAL_GONE, Failure
from pipeline.lifecycle import Cancelled, Lease, LeaseLost
from pipeline.models import Job
from pipeline.registry import UnknownPipeline
from pipeline.states import State

#: Those who met each other in a conflict try again at different moments.
CONFLICT_PAUSE_SECONDS = (0.02, 0.2)

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class Unclaimable(enum.Enum):
    """Why a message entitles to no work; each is a success, and the message is acknowledged."""

    MISSING = "missing"
    STALE = "stale"
    LEASED = "leased"
    FINISHED = "finished"
    NOT_DUE = "not_due"
    CANCELLED = "cancelled"
    ORIGINAL_GONE = "original_gone"
    UNKNOWN_PIPELINE = "unknown_pipeline"


class StopReason(enum.Enum):
    """Why work under a lease should end now."""

    LOST = "lost"
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"
    DEADLINE = "deadline"


class ShuttingDown(Exception):
    """The worker is stopping while it waits for the database; the message goes back to its queue."""


def take(job_id: uuid.UUID, *, attempt: int, worker: str) -> Lease | Unclaimable:
    """Claim the attempt that a message names, or say why not ([transcription]: неделимость захвата)."""
    token = uuid.uuid4()
    try:
        lease = patiently(lambda: lifecycle.claim(job_id, attempt=attempt, worker=worker, token=token))
    except UnknownPipeline as error:
        # A newer release made it, and its workers will get it: redispatch sends it again.
        logger.warning("unknown_pipeline", extra={"job_id": str(job_id), "pipeline": str(error)})
        metrics.UNCLAIMED.labels(reason=Unclaimable.UNKNOWN_PIPELINE.value).inc()
        return Unclaimable.UNKNOWN_PIPELINE
    if lease is None:
        reason = patiently(lambda: explain(job_id, attempt=attempt))
        metrics.UNCLAIMED.labels(reason=reason.value).inc()
        logger.debug("not_claimed", extra={"job_id": str(job_id), "attempt": attempt, "reason": reason.value})
        return reason
    return _usable(lease)


def explain(job_id: uuid.UUID, *, attempt: int) -> Unclaimable:
    """Why a claim found nothing to take. A hint: the row may have moved on since."""
    job = Job.objects.filter(job_id=job_id).first()
    if job is None:
        return Unclaimable.MISSING
    if job.state in (State.READY, State.FAILED):
        return Unclaimable.FINISHED
    if job.attempt != attempt:
        return Unclaimable.STALE
    return Unclaimable.LEASED if job.state == State.PROCESSING else Unclaimable.NOT_DUE


def patiently(ask: Callable[[], Answer], *, stop: Callable[[], bool] = lambda: False) -> Answer:
    """Ask the database until it answers: an outage is waited out, a conflict tried again, nothing is burnt.

    Only for acts that are guarded and idempotent. Raises Interrupted when `stop` says that the answer would come too
    late, and ShuttingDown when the worker was told to stop and has to be gone.
    """
    while True:
        try:
            return ask()
        except Error as error:
            if not is_database_away(error):
                raise
            pause = _pause_after(error)
        if shutdown.is_last_call():
            raise ShuttingDown
        if stop():
            raise Interrupted
        time.sleep(pause)


@contextmanager
def renewing(lease: Lease) -> Iterator[Heartbeat]:
    """Keep the lease while the block runs."""
    heartbeat = Heartbeat(lease)
    heartbeat.start()
    try:
        yield heartbeat
    finally:
        heartbeat.end()


class Heartbeat(threading.Thread):
    """Renews one lease, and says when and why the work should stop."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(name=f"heartbeat-{lease.job_id}", daemon=True)
        self._lease = lease
        self._ended = threading.Event()
        self._began = self._renewed = time.monotonic()
        self._excused = 0.0
        self._done: float | None = None
        self.stop_reason: StopReason | None = None

    def tell(self, done: float) -> None:
        """How much of the work is done, from 0 to 1; goes along with the next renewal."""
        self._done = done

    def should_stop(self) -> bool:
        """True once the lease is lost, cancelled or past its deadline, or the worker has to go."""
        if self.stop_reason is None and shutdown.is_overdue():
            self.stop_reason = StopReason.SHUTDOWN
        if self.stop_reason is None and self.worked_seconds() > self._lease.pipeline.attempt_limit.total_seconds():
            self.stop_reason = StopReason.DEADLINE
        return self.stop_reason is not None

    def worked_seconds(self) -> float:
        """Since it began, without the time in which the database did not answer."""
        return time.monotonic() - self._began - self._waited_seconds()

    def run(self) -> None:
        pause = settings.RENEW_SECONDS
        try:
            while not self._ended.wait(pause) and self._is_to_be_kept():
                pause = self._renew()
        finally:
            connection.close()

    def end(self) -> None:
        self._ended.set()
        self.join(timeout=settings.LEASE_SECONDS)

    def _is_to_be_kept(self) -> bool:
        """Also while the worker stops: what cannot be interrupted at once is handed back under this lease."""
        return not self.should_stop() or self.stop_reason is StopReason.SHUTDOWN

    def _renew(self) -> float:
        try:
            lifecycle.renew(self._lease, progress=self._done)
        except LeaseLost:
            self.stop_reason = StopReason.LOST
        except Cancelled:
            self.stop_reason = StopReason.CANCELLED
        except Error as error:
            logger.warning("renewal_failed", extra={"job_id": str(self._lease.job_id), "cause": type(error).__name__})
            connection.close()
            return _again_seconds()
        self._excused, self._renewed = self._waited_seconds(), time.monotonic()
        return float(settings.RENEW_SECONDS)

    def _waited_seconds(self) -> float:
        """For how long nobody answered a renewal: an outage must not be taken for work that takes too long."""
        return self._excused + max(0.0, time.monotonic() - self._renewed - float(settings.RENEW_SECONDS))


def _pause_after(error: Error) -> float:
    if is_conflict(error):
        logger.info("database_conflict", extra={"sqlstate": sqlstate_of(error)})
        return random.uniform(*CONFLICT_PAUSE_SECONDS)  # noqa: S311  (no secret)
    logger.warning("database_unavailable", extra={"cause": type(error).__name__, "sqlstate": sqlstate_of(error)})
    connection.close()
    return _again_seconds()


def _again_seconds() -> float:
    """Often enough for several tries in what is left of a lease when the database is back."""
    return float(settings.RENEW_SECONDS / 5)


def _usable(lease: Lease) -> Lease | Unclaimable:
    """End at once what should not be worked on: a cancelled job, or one whose original was swept away."""
    if lease.cancel_requested:
        _end_at_once(lease, CANCELLED)
        return Unclaimable.CANCELLED
    if lease.original is None:
        _end_at_once(lease, ORIGINAL_GONE)
        return Unclaimable.ORIGINAL_GONE
    return lease


def _end_at_once(lease: Lease, failure: Failure) -> None:
    # Asked again after a COMMIT that got no answer, it finds that it has ended the job already.
    with suppress(LeaseLost):
        patiently(lambda: lifecycle.fail(lease, failure))
