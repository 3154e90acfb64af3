"""What a message entitles to, and the heartbeat that keeps what was taken."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, transaction
from django.db.models.functions import Now
from psycopg.errors import DeadlockDetected

from attachments.models import BucketRole, StoredObject
from pipeline import claims, lifecycle, registry, shutdown
from pipeline.claims import StopReason, Unclaimable
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job
from pipeline.states import State
from pipeline.steps import Given, StepResult
from tests.conftest import expire_lease
from tests.waiting import end_other_sessions, until
from tests.work import QuickStep, work

pytestmark = pytest.mark.django_db

BROKEN = Failure(code="bad_file", sentence="Damaged.")


def test_each_reason_not_to_work_has_its_name(queued: Callable[..., Job]) -> None:
    """docs/contract.md: message arrives → row is X. An empty run is a success ([transcription]: пустой прогон)."""
    job = queued()
    assert claims.take(uuid.uuid4(), attempt=1, worker="w") is Unclaimable.MISSING
    assert claims.take(job.job_id, attempt=7, worker="w") is Unclaimable.STALE
    lease = claims.take(job.job_id, attempt=1, worker="w")
    assert isinstance(lease, Lease)
    assert claims.take(job.job_id, attempt=1, worker="x") is Unclaimable.LEASED
    lifecycle.retry_later(lease, BROKEN, pause=timedelta(hours=1))
    assert claims.take(job.job_id, attempt=1, worker="w") is Unclaimable.STALE
    assert claims.take(job.job_id, attempt=2, worker="w") is Unclaimable.NOT_DUE


def test_a_pipeline_version_of_a_newer_release_is_left_to_its_workers(queued: Callable[..., Job]) -> None:
    job = queued()
    Job.objects.filter(job_id=job.job_id).update(pipeline_version=999)
    assert claims.take(job.job_id, attempt=1, worker="w") is Unclaimable.UNKNOWN_PIPELINE
    job.refresh_from_db()
    assert (job.state, job.attempt, job.failures) == (State.QUEUED, 1, 0)


def test_the_lease_of_a_newer_releases_job_is_recovered_too(leased: Callable[..., Lease]) -> None:
    lease = leased()
    Job.objects.filter(job_id=lease.job_id).update(pipeline_version=999)
    expire_lease(lease.job_id)
    assert lifecycle.recover() == 1


def test_a_message_for_a_finished_job_is_a_no_op(leased: Callable[..., Lease]) -> None:
    """[attachments] повторная доставка уже завершённой задачи — no-op с ack."""
    lease = leased()
    lifecycle.fail(lease, BROKEN)
    before = list(Job.objects.values())
    assert claims.take(lease.job_id, attempt=1, worker="w") is Unclaimable.FINISHED
    assert list(Job.objects.values()) == before


def test_an_empty_run_logs_nothing_above_debug(queued: Callable[..., Job], caplog: pytest.LogCaptureFixture) -> None:
    """[transcription] пустой прогон воркера."""
    job = queued()
    caplog.clear()
    with caplog.at_level("INFO"):
        claims.take(job.job_id, attempt=7, worker="w")
    assert caplog.records == []


def test_an_end_at_the_claim_whose_commit_got_no_answer_is_content(
    queued: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, fail = queued(), lifecycle.fail
    lifecycle.request_cancel(job.attachment)

    def fail_and_hear_nothing(lease: Lease, failure: Failure) -> None:
        fail(lease, failure)
        monkeypatch.setattr(lifecycle, "fail", fail)
        raise OperationalError from DeadlockDetected()

    monkeypatch.setattr(lifecycle, "fail", fail_and_hear_nothing)
    assert claims.take(job.job_id, attempt=1, worker="w") is Unclaimable.CANCELLED
    assert Job.objects.get(job_id=job.job_id).state == State.FAILED


def test_the_claim_of_a_cancelled_job_ends_it(queued: Callable[..., Job]) -> None:
    job = queued()
    lifecycle.request_cancel(job.attachment)
    assert claims.take(job.job_id, attempt=1, worker="w") is Unclaimable.CANCELLED
    job.refresh_from_db()
    assert (job.state, job.error_code) == (State.FAILED, "cancelled")


def test_the_claim_of_a_job_whose_original_was_swept_says_so(queued: Callable[..., Job]) -> None:
    job = queued()
    StoredObject.objects.filter(attachment=job.attachment).update(bucket_role=BucketRole.TRASH)
    assert claims.take(job.job_id, attempt=1, worker="w") is Unclaimable.ORIGINAL_GONE
    job.refresh_from_db()
    assert (job.state, job.error_code) == (State.FAILED, "original_gone")


@pytest.mark.django_db(transaction=True)
def test_the_heartbeat_renews_while_the_work_runs(leased: Callable[..., Lease], settings: Any) -> None:
    settings.RENEW_SECONDS, settings.LEASE_SECONDS = 0.05, 5.0
    lease = leased()
    expire_lease(lease.job_id)
    with claims.renewing(lease) as heartbeat:
        until(lambda: Job.objects.filter(lease_until__gt=Job.objects.get().created_at + timedelta(seconds=4)).exists())
        assert not heartbeat.should_stop()


@pytest.mark.django_db(transaction=True)
def test_the_heartbeat_runs_before_any_step_does(queued: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code may hold the interpreter for longer than a lease."""
    running: list[str] = []

    @dataclass(frozen=True)
    class Looking(QuickStep):
        def run(self, given: Given) -> StepResult:
            running.extend(thread.name for thread in threading.enumerate())
            return super().run(given)

    monkeypatch.setattr(registry, "PIPELINES", (replace(registry.newest("image"), steps=(Looking(),)),))
    job = queued()
    assert work(job) == "ready"
    assert f"heartbeat-{job.job_id}" in running


@pytest.mark.django_db(transaction=True)
def test_the_lease_is_kept_until_a_stopping_worker_hands_back(
    leased: Callable[..., Lease], stopping: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code hears late that it is to stop; that must not cost a chance."""
    settings.RENEW_SECONDS, settings.LEASE_SECONDS = 0.05, 5.0
    monkeypatch.setattr(shutdown, "GRACE_SECONDS", 0.0)
    with claims.renewing(leased()) as heartbeat:
        assert heartbeat.should_stop()
        expire_lease(Job.objects.get().job_id)
        until(lambda: Job.objects.filter(lease_until__gt=Now()).exists())


@pytest.mark.django_db(transaction=True)
def test_the_heartbeat_survives_its_connection(leased: Callable[..., Lease], settings: Any) -> None:
    settings.RENEW_SECONDS, settings.LEASE_SECONDS = 0.05, 5.0
    with claims.renewing(leased()) as heartbeat:
        until(lambda: end_other_sessions() == 1)
        expire_lease(Job.objects.get().job_id)
        until(lambda: Job.objects.filter(lease_until__gt=Now()).exists())
        assert not heartbeat.should_stop()


def lose(lease: Lease) -> None:
    expire_lease(lease.job_id)
    lifecycle.recover()


def cancel(lease: Lease) -> None:
    lifecycle.request_cancel(Job.objects.get(job_id=lease.job_id).attachment)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (lose, StopReason.LOST),
        (cancel, StopReason.CANCELLED),
    ],
)
def test_the_heartbeat_stops_the_work(
    happens: Callable[[Lease], None], reason: StopReason, leased: Callable[..., Lease], settings: Any
) -> None:
    settings.RENEW_SECONDS = 0.05
    lease = leased()
    with claims.renewing(lease) as heartbeat:
        happens(lease)
        until(heartbeat.should_stop)
    assert heartbeat.stop_reason is reason


@pytest.mark.django_db(transaction=True)
def test_the_heartbeat_never_goes_past_the_attempts_own_deadline(leased: Callable[..., Lease], settings: Any) -> None:
    settings.RENEW_SECONDS = 0.05
    lease = leased()
    lease = replace(lease, pipeline=replace(lease.pipeline, attempt_limit=timedelta(seconds=0.2)))
    with claims.renewing(lease) as heartbeat:
        until(heartbeat.should_stop)
        assert heartbeat.stop_reason is StopReason.DEADLINE
        until(lambda: not heartbeat.is_alive())


@pytest.mark.django_db(transaction=True)
def test_an_outage_is_not_taken_for_work_that_takes_too_long(leased: Callable[..., Lease], settings: Any) -> None:
    settings.RENEW_SECONDS = 0.05
    lease = leased()
    lease = replace(lease, pipeline=replace(lease.pipeline, attempt_limit=timedelta(seconds=0.5)))
    with claims.renewing(lease) as heartbeat:
        with transaction.atomic():
            list(Job.objects.select_for_update())  # no renewal is answered
            began = time.monotonic()
            until(lambda: time.monotonic() - began > 1.0)
            assert not heartbeat.should_stop()
        until(heartbeat.should_stop)
    assert heartbeat.stop_reason is StopReason.DEADLINE


def away(times: int) -> Callable[[], str]:
    """Asks a database that is away so many times before it answers."""
    answers: Iterator[Exception | str] = iter([*[OperationalError("gone")] * times, "answer"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def test_an_outage_of_the_database_is_waited_out(settings: Any) -> None:
    settings.RENEW_SECONDS = 0.05
    assert claims.patiently(away(2)) == "answer"


def test_a_stopping_worker_tries_to_hand_back_until_it_has_to_be_gone(
    stopping: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RENEW_SECONDS = 0.05
    assert claims.patiently(away(2)) == "answer"
    monkeypatch.setattr(shutdown, "LAST_CALL_SECONDS", 0.0)
    with pytest.raises(claims.ShuttingDown):
        claims.patiently(away(1))


def test_work_in_hand_has_its_grace_when_the_worker_stops(stopping: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shutdown.is_requested()
    assert not shutdown.is_overdue()
    monkeypatch.setattr(shutdown, "GRACE_SECONDS", 0.0)
    assert shutdown.is_overdue()


@pytest.fixture
def stopping() -> Iterator[None]:
    shutdown.request()
    yield
    shutdown.withdraw()
