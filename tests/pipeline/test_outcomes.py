"""What each kind of error means for its job."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from attachments.errors import BadFile, ObjectCorrupt, ObjectMissing, StorageUnavailable, TooManyPixels
from pipeline import outcomes
from pipeline.claims import Heartbeat, StopReason
from pipeline.confined import Crashed, Interrupted, MemoryLimit, NoProcess, TimeLimit
from pipeline.lifecycle import Cancelled, Incomplete, Lease, LeaseLost
from pipeline.models import Job, JobEvent
from pipeline.states import State
from tests.conftest import expire_lease

pytestmark = pytest.mark.django_db


def settle(lease: Lease, error: Exception, reason: StopReason | None = None) -> tuple[str, Job]:
    heartbeat = Heartbeat(lease)
    heartbeat.stop_reason = reason
    return outcomes.settle(lease, error, heartbeat, step="image"), Job.objects.get(job_id=lease.job_id)


@pytest.mark.parametrize("error", [BadFile("cut short"), TooManyPixels("999 MP")])
def test_a_permanent_error_fails_at_once(error: BadFile, leased: Callable[..., Lease]) -> None:
    outcome, job = settle(leased(), error)
    assert (outcome, job.state, job.error_code, job.error) == ("failed", State.FAILED, error.code, error.sentence)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TimeLimit(), "time_limit"),
        (MemoryLimit(), "memory_limit"),
        (Crashed(signal=11), "crashed"),
        (MemoryError(), "memory_limit"),
        (ObjectMissing("gone"), "object_missing"),
        (ObjectCorrupt("other bytes"), "object_corrupt"),
        (Incomplete("missing: crop"), "internal_error"),
        (ZeroDivisionError("division by zero"), "internal_error"),
    ],
)
def test_a_failure_of_the_jobs_own_is_tried_again_and_at_last_is_dead(
    error: Exception, code: str, leased: Callable[..., Lease], settings: Any
) -> None:
    """[attachments] processing → queued: временная ошибка и остались попытки; [transcription] «мертва»."""
    settings.RETRY_PAUSE_SECONDS, settings.RETRY_PAUSE_CAP_SECONDS = 3600.0, 1e6
    lease = leased()
    for failures in range(1, settings.MAX_FAILURES):
        outcome, job = settle(lease, error)
        assert (outcome, job.state, job.failures) == ("retried", State.QUEUED, failures)
        assert JobEvent.objects.filter(job=job).latest("id").reason == code
        assert 0.8 <= (job.due_at - job.created_at) / timedelta(hours=3 ** (failures - 1)) < 1.3
        lease = leased_again(job)
    outcome, job = settle(lease, error)
    assert (outcome, job.state, job.failures, job.error_code) == ("dead", State.FAILED, settings.MAX_FAILURES, code)
    assert job.error


def leased_again(job: Job) -> Lease:
    from pipeline import lifecycle

    with connection.cursor() as cursor:
        cursor.execute("UPDATE pipeline_job SET due_at = now() WHERE job_id = %s", [job.job_id])
    lease = lifecycle.claim(job.job_id, attempt=job.attempt, worker="worker-a")
    assert lease is not None
    return lease


@pytest.mark.parametrize("error", [StorageUnavailable("503"), NoProcess("fork"), OperationalError("gone")])
def test_an_outage_spends_no_chance(error: Exception, leased: Callable[..., Lease]) -> None:
    outcome, job = settle(leased(), error)
    assert (outcome, job.state, job.failures, job.outage_since is not None) == ("released", State.QUEUED, 0, True)
    assert job.due_at - job.created_at >= 0.8 * outcomes.OUTAGE_PAUSE


def test_an_outage_of_a_day_is_given_up(leased: Callable[..., Lease], settings: Any) -> None:
    outcome, job = settle(leased(), StorageUnavailable("503"))
    outcome, job = settle(leased_again(job), StorageUnavailable("503"))
    assert (outcome, job.state, job.attempt) == ("released", State.QUEUED, 3)
    settings.OUTAGE_GIVE_UP_SECONDS = 0.0
    outcome, job = settle(leased_again(job), StorageUnavailable("503"))
    assert (outcome, job.state, job.error_code) == ("gave_up", State.FAILED, "outage")


def test_a_shutdown_hands_the_work_back_at_once(leased: Callable[..., Lease]) -> None:
    outcome, job = settle(leased(), Interrupted(), StopReason.SHUTDOWN)
    assert (outcome, job.state, job.attempt, job.failures) == ("released", State.QUEUED, 2, 0)


def test_an_attempt_past_its_own_deadline_took_too_long(
    leased: Callable[..., Lease], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        outcome, job = settle(leased(), Interrupted(), StopReason.DEADLINE)
    assert (outcome, job.failures) == ("retried", 1)
    assert JobEvent.objects.filter(job=job).latest("id").reason == "time_limit"
    (record,) = [record for record in caplog.records if record.message == "attempt_ended"]
    assert vars(record)["error"] == "time_limit"


def test_a_cancelled_job_ends(leased: Callable[..., Lease]) -> None:
    outcome, job = settle(leased(), Cancelled())
    assert (outcome, job.state, job.error_code) == ("cancelled", State.FAILED, "cancelled")


@pytest.mark.parametrize("error", [LeaseLost(), BadFile("cut short"), StorageUnavailable("503"), MemoryError()])
def test_who_lost_the_lease_decides_nothing(error: Exception, leased: Callable[..., Lease]) -> None:
    from pipeline import lifecycle

    lease = leased()
    expire_lease(lease.job_id)
    lifecycle.recover()
    before = list(Job.objects.values())
    outcome, _ = settle(lease, error)
    assert outcome == "lease_lost"
    assert list(Job.objects.values()) == before


@pytest.mark.parametrize(("error", "level"), [(ZeroDivisionError("oops"), "ERROR"), (BadFile("cut"), "INFO")])
def test_the_operator_is_told_of_what_nobody_expected(
    error: Exception, level: str, leased: Callable[..., Lease], caplog: pytest.LogCaptureFixture
) -> None:
    lease = leased()
    with caplog.at_level("INFO"):
        settle(lease, error)
    (record,) = [record for record in caplog.records if record.message == "attempt_ended"]
    cause = record.__dict__.get("cause", "")
    assert (record.levelname, "ZeroDivisionError: oops" in cause) == (level, level == "ERROR")


def test_what_the_database_says_of_an_error_is_told_to_nobody(
    leased: Callable[..., Lease], caplog: pytest.LogCaptureFixture
) -> None:
    """It quotes the row, and with it what was said in a recording."""
    error = refused("the canary sang")
    assert "the canary sang" in str(error.__cause__)
    lease = leased()
    settle(lease, error)
    cause = JobEvent.objects.filter(job=lease.job_id).latest("id").detail
    assert "IntegrityError 23514" in cause and "in execute" in cause
    (record,) = [record for record in caplog.records if record.message == "attempt_ended"]
    assert record.__dict__["cause"] == cause
    assert "canary" not in cause + repr(record.__dict__)


def refused(text: str) -> Exception:
    """The error of a row that the database does not take, met while it was written."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE said (text text CHECK (false))")
        with pytest.raises(IntegrityError) as met, transaction.atomic():
            cursor.execute("INSERT INTO said VALUES (%s)", [text])
    error = ValueError("not written")
    error.__cause__ = met.value
    return error


def test_the_pause_grows_by_three_and_is_capped() -> None:
    """[transcription] нарастающая пауза перед повтором."""
    for failures, seconds in ((1, 5), (2, 15), (3, 45), (4, 135), (9, 600)):
        pauses = [outcomes.pause_after(failures).total_seconds() for _ in range(200)]
        assert 0.8 * seconds <= min(pauses) < seconds < max(pauses) <= 1.2 * seconds


def test_the_operators_cause_names_the_chain(leased: Callable[..., Lease]) -> None:
    try:
        try:
            raise OSError("disk on fire")
        except OSError as cause:
            raise BadFile("cut short") from cause
    except BadFile as error:
        _, job = settle(leased(), error)
    detail = JobEvent.objects.filter(job=job).latest("id").detail
    assert "disk on fire" in detail
    assert "cut short" in detail
    assert "disk on fire" not in job.error
