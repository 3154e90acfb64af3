"""What an error means for its job, decided in one table: stop for good, hand back, or try again later.

Only the job's own failures count towards dead; an outage or a shutdown never spends a chance.
"""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Iterator
from datetime import timedelta

from django.conf import settings
from django.db import Error, connection

from attachments.errors import AttachmentError, BadFile, Refused, StorageUnavailable
from attachments.outages import is_database_away, sqlstate_of
from pipeline import claims, lifecycle, metrics
from pipeline.claims import Heartbeat, StopReason
from pipeline.confined import ConfinedError, Interrupted, MemoryLimit, NoProcess, TimeLimit
from pipeline.failures import CANCELLED, GAVE_UP, Failure
from pipeline.lifecycle import Cancelled, Lease, LeaseLost

#: Trying again cannot help.
PERMANENT: tuple[type[Exception], ...] = (Refused, BadFile)
#: Not the job's fault: it waits. An error of the database that got past `patiently` counts as one too.
OUTAGE: tuple[type[Exception], ...] = (StorageUnavailable, NoProcess)
OUTAGE_PAUSE = timedelta(seconds=10)
JITTER = 0.2
CAUSE_LIMIT = 4000

logger = logging.getLogger(__name__)


class SliceOver(Exception):
    """The attempt has worked for as long as one delivery should take; what it recorded stays, and the next goes on."""


def settle(lease: Lease, error: BaseException, heartbeat: Heartbeat, *, step: str) -> str:
    """End the attempt as its error demands; returns a word for the log. Nothing is raised but ShuttingDown.

    `step` names the stage that the error came from.
    """
    if isinstance(error, Interrupted) and heartbeat.stop_reason is StopReason.DEADLINE:
        error = TimeLimit(f"the attempt took longer than {lease.pipeline.attempt_limit}")
    try:
        outcome = claims.patiently(lambda: _decide(lease, error, heartbeat, step=step))
    except LeaseLost:
        outcome = "lease_lost"
    metrics.OUTCOMES.labels(pipeline=lease.pipeline.name, outcome=outcome).inc()
    _tell(lease, outcome, error)
    return outcome


def hand_back(lease: Lease) -> None:
    """End the attempt of a process that was itself told to end, as systemd tells all of a service; it has one try."""
    # The signal may have interrupted a question to the database, whose answer would be taken for the next one's.
    connection.close()
    try:
        lifecycle.release(lease, reason="shutdown", pause=timedelta(0))
    except (Error, LeaseLost):
        return
    metrics.OUTCOMES.labels(pipeline=lease.pipeline.name, outcome="released").inc()
    _tell(lease, "released", Interrupted())


def pause_after(failures: int) -> timedelta:
    """The growing pause before the next try: 5 s × 3ⁿ ± 20 %, capped; n counts the failures before this one."""
    seconds = min(settings.RETRY_PAUSE_SECONDS * 3 ** (failures - 1), settings.RETRY_PAUSE_CAP_SECONDS)
    return timedelta(seconds=seconds * _jitter())


def _jitter() -> float:
    """Spreads retries of jobs that failed together."""
    return random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311  (no secret)


def _decide(lease: Lease, error: BaseException, heartbeat: Heartbeat, *, step: str) -> str:
    reason = heartbeat.stop_reason
    if isinstance(error, LeaseLost) or reason is StopReason.LOST:
        raise LeaseLost
    if isinstance(error, Cancelled) or reason is StopReason.CANCELLED:
        lifecycle.fail(lease, CANCELLED)
        return "cancelled"
    if isinstance(error, Interrupted) and reason is StopReason.SHUTDOWN:
        lifecycle.release(lease, reason="shutdown", pause=timedelta(0))
        return "released"
    if isinstance(error, SliceOver):
        lifecycle.release(lease, reason="slice", pause=timedelta(0))
        return "sliced"
    if isinstance(error, OUTAGE) or is_database_away(error):
        return _wait_out(lease)
    if isinstance(error, PERMANENT):
        lifecycle.fail(lease, _failure(error, step=step))
        return "failed"
    return _try_again(lease, _failure(error, step=step))


def _wait_out(lease: Lease) -> str:
    if lifecycle.outage_seconds(lease) > settings.OUTAGE_GIVE_UP_SECONDS:
        lifecycle.fail(lease, GAVE_UP)
        return "gave_up"
    lifecycle.release(lease, reason="outage", pause=OUTAGE_PAUSE * _jitter(), is_outage=True)
    return "released"


def _try_again(lease: Lease, failure: Failure) -> str:
    failures = lease.failures + 1
    if failures >= settings.MAX_FAILURES:
        lifecycle.fail(lease, failure)
        return "dead"
    lifecycle.retry_later(lease, failure, pause=pause_after(failures))
    return "retried"


def _tell(lease: Lease, outcome: str, error: BaseException) -> None:
    """What the operator should look at is an ERROR with its traceback; the rest is the log of a day's work."""
    failure = _failure(error)
    code = "" if isinstance(error, SliceOver) else failure.code
    is_alarming = outcome == "dead" or (outcome == "retried" and failure.code == ConfinedError.code)
    logger.log(
        logging.ERROR if is_alarming else logging.INFO,
        "attempt_ended",
        extra={
            "job_id": str(lease.job_id),
            "attempt": lease.attempt,
            "outcome": outcome,
            "error": code,
            **({"cause": failure.cause} if is_alarming else {}),
        },
    )


def _failure(error: BaseException, *, step: str = "") -> Failure:
    known = MemoryLimit() if isinstance(error, MemoryError) else error
    told = known if isinstance(known, (AttachmentError, ConfinedError)) else ConfinedError
    return Failure(code=told.code, sentence=told.sentence, cause=_cause(error), step=step)


def _cause(error: BaseException) -> str:
    """For the operator: where it happened and why, without what the database says of an error: that quotes the row."""
    if not any(isinstance(each, Error) for each in _chain(error)):
        return "".join(traceback.format_exception(error, limit=-6))[-CAUSE_LIMIT:]
    told = [
        "".join(traceback.format_tb(each.__traceback__, limit=-6))
        + f"{type(each).__name__} {sqlstate_of(each)}".rstrip()
        for each in _chain(error)
    ]
    return "\n".join(reversed(told))[-CAUSE_LIMIT:]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
