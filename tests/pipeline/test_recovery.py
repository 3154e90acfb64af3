"""What becomes of a job whose worker is gone: by `recover`, once, and never while anybody still holds it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from pipeline import lifecycle
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.states import State
from tests.conftest import expire_lease
from tests.pictures import jpeg

pytestmark = pytest.mark.django_db

BROKEN = Failure(code="internal_error", sentence="Something went wrong.", cause="Traceback …")


def test_an_expired_lease_that_nobody_took_back_still_counts(leased: Callable[..., Lease]) -> None:
    """Renewal needs only the token: a slow database alone costs nobody the work."""
    lease = leased()
    expire_lease(lease.job_id)
    lifecycle.renew(lease)
    assert lifecycle.recover() == 0


def test_recover_puts_an_expired_job_back_with_a_new_attempt(leased: Callable[..., Lease]) -> None:
    """[attachments] processing → queued: истёк lease после смерти worker."""
    lease = leased()
    assert lifecycle.recover() == 0
    expire_lease(lease.job_id)
    assert lifecycle.recover() == 1
    job = Job.objects.get(job_id=lease.job_id)
    assert (job.state, job.attempt, job.failures) == (State.QUEUED, 2, 1)
    assert OutboxMessage.objects.filter(job=job, attempt=2, sent_at=None).exists()


@pytest.mark.django_db(transaction=True)
def test_recover_leaves_a_lease_that_is_being_renewed(leased: Callable[..., Lease]) -> None:
    lease = leased()
    expire_lease(lease.job_id)

    def recover_without_waiting() -> int:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '1s'")
            return lifecycle.recover()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as dispatcher, transaction.atomic():
        lifecycle.renew(lease)
        assert dispatcher.submit(recover_without_waiting).result() == 0
    assert Job.objects.get().state == State.PROCESSING


def test_a_lease_that_ran_out_after_the_look_is_left_for_the_next_one(leased: Callable[..., Lease]) -> None:
    """The question may be held up on its way, and with it the renewals of the living."""
    lease = leased()
    expire_lease(lease.job_id)
    assert lifecycle.recover(looked_at=ago(minutes=1)) == 0
    assert lifecycle.recover(looked_at=ago(minutes=0)) == 1


def test_a_lease_lost_in_an_outage_costs_no_chance_but_not_twice_in_a_row(
    queued: Callable[..., Job], settings: Any
) -> None:
    """Its worker may have renewed it until the outage began, and may have been told to stop within it."""
    job = queued()
    for attempt, counted, reason in ((1, 0, "outage"), (2, 1, "lease_expired"), (3, 1, "outage")):
        assert lifecycle.claim(job.job_id, attempt=attempt, worker="w") is not None
        expire_lease(job.job_id)
        assert lifecycle.recover(outage_ended=ago(seconds=settings.LEASE_SECONDS / 2)) == 1
        job.refresh_from_db()
        assert (job.state, job.attempt, job.failures) == (State.QUEUED, attempt + 1, counted)
        assert OutboxMessage.objects.filter(job=job, attempt=attempt + 1, sent_at=None).exists()
        assert JobEvent.objects.filter(job=job).latest("id").reason == reason


def test_a_lease_that_was_renewed_since_an_outage_was_not_lost_in_it(
    leased: Callable[..., Lease], settings: Any
) -> None:
    lease = leased()
    expire_lease(lease.job_id)
    assert lifecycle.recover(outage_ended=ago(seconds=settings.LEASE_SECONDS + 2)) == 1
    assert Job.objects.get().failures == 1


def ago(**time: float) -> datetime.datetime:
    """By the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        now: datetime.datetime = cursor.fetchone()[0]
    return now - timedelta(**time)


def test_one_job_that_cannot_be_put_back_does_not_keep_the_others_waiting(
    leased: Callable[..., Lease], queued: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    broken, whole = leased(), leased(queued(jpeg()))
    # As only somebody with SQL can do it.
    Job.objects.filter(job_id=broken.job_id).update(carrier={"traceparent": "x"})
    for lease in (broken, whole):
        expire_lease(lease.job_id)
    assert lifecycle.recover() == 1
    assert Job.objects.get(job_id=broken.job_id).state == State.PROCESSING
    assert Job.objects.get(job_id=whole.job_id).state == State.QUEUED
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["job_not_recovered"]


def test_a_job_that_loses_its_worker_five_times_is_dead(queued: Callable[..., Job]) -> None:
    """[transcription] число попыток и состояние «мертва»."""
    job = queued()
    for _ in range(5):
        job.refresh_from_db()
        assert lifecycle.claim(job.job_id, attempt=job.attempt, worker="w") is not None
        expire_lease(job.job_id)
        lifecycle.recover()
    job.refresh_from_db()
    assert (job.state, job.error_code, job.failures, job.attempt) == (State.FAILED, "worker_lost", 5, 5)
