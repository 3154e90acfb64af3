"""What begins anew, or is accepted, while a sweep chooses or waits for a lock is kept: on connections of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from attachments.models import Attachment, BucketRole, StoredObject
from pipeline import intake, lifecycle
from pipeline.intake import Received
from pipeline.lifecycle import Lease
from pipeline.models import Job
from pipeline.retention import Sweeper
from pipeline.states import Source
from tests.leases import VARIANTS
from tests.pictures import png
from tests.pipeline.test_retention import DAY, failed, let_pass
from tests.waiting import somebody_waits_for_a_lock, until

pytestmark = pytest.mark.django_db


@pytest.mark.django_db(transaction=True)
def test_a_version_that_begins_anew_while_a_sweep_waits_for_its_lock_is_kept(
    superseded: Callable[[], tuple[Attachment, Job]],
) -> None:
    attachment, job = superseded()
    let_pass(2 * DAY)
    variants = StoredObject.objects.filter(variant__attachment=attachment)
    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            list(variants.select_for_update(of=("self",)))
            sweep = swept_meanwhile(thread)
            begin_anew(job)
        sweep.result()
    assert attachment.variants.count() == 2 * len(VARIANTS)
    assert variants.filter(bucket_role=BucketRole.VARIANTS).count() == 2 * len(VARIANTS)


@pytest.mark.django_db(transaction=True)
def test_an_original_whose_job_begins_anew_while_a_sweep_waits_for_its_lock_is_kept(
    leased: Callable[..., Lease],
) -> None:
    """[attachments] cleanup не удаляет текущую работу: whoever begins a job holds this lock, as `claim` does."""
    attachment = failed(leased())
    let_pass(31 * DAY)
    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            list(StoredObject.objects.select_for_update(of=("self",)).filter(attachment=attachment))
            sweep = swept_meanwhile(thread)
            begin_anew(Job.objects.get())
        sweep.result()
    attachment.refresh_from_db()
    assert attachment.original is not None
    assert attachment.original.bucket_role == BucketRole.STAGING


def test_staging_that_is_accepted_while_a_sweep_chooses_is_kept(user: User) -> None:
    """What it chose is as of a moment before it had the locks."""
    uploads = [intake.receive([png()], created_by="test")]
    let_pass(2 * DAY)

    def accept_first(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql.startswith("UPDATE") and uploads:
            accept(uploads.pop(), user)
        return execute(sql, *rest)

    with connection.execute_wrapper(accept_first):
        Sweeper().run()
    assert not uploads
    assert StoredObject.objects.get().bucket_role == BucketRole.STAGING


@pytest.mark.django_db(transaction=True)
def test_a_sweep_leaves_staging_that_an_acceptance_holds(user: User) -> None:
    received = intake.receive([png()], created_by="test")
    let_pass(2 * DAY)
    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            accept(received, user)
            sweep = thread.submit(sweep_on_its_own_connection)
            until(lambda: sweep.done() or somebody_waits_for_a_lock())
        sweep.result()
    assert StoredObject.objects.get().bucket_role == BucketRole.STAGING


def accept(received: Received, user: User) -> None:
    intake.accept(received, intake.Request(owner=user, source=Source.REST))


def swept_meanwhile(thread: ThreadPoolExecutor) -> Future[None]:
    """A sweep that has chosen already, and waits for a lock that we hold."""
    sweep = thread.submit(sweep_on_its_own_connection)
    until(somebody_waits_for_a_lock)
    return sweep


def sweep_on_its_own_connection() -> None:
    try:
        Sweeper().run()
    finally:
        connection.close()


def begin_anew(job: Job) -> None:
    """The part of a replay that a sweep looks at."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pipeline_job SET state = 'queued', finished_at = NULL, attempt = attempt + 1 WHERE job_id = %s",
            [job.job_id],
        )


@pytest.mark.django_db(transaction=True)
def test_a_sweep_does_not_wait_for_a_replay_and_leaves_what_it_holds(leased: Callable[..., Lease]) -> None:
    lease = leased()
    attachment = failed(lease)
    let_pass(31 * DAY)
    with ThreadPoolExecutor(1) as thread, transaction.atomic():
        lifecycle.replay(lease.job_id, attempt=1, actor="operator:ann", reason="again")
        thread.submit(sweep_on_its_own_connection).result()
    Sweeper().run()
    attachment.refresh_from_db()
    assert attachment.original is not None
    assert lifecycle.claim(lease.job_id, attempt=2, worker="worker-a") is not None
