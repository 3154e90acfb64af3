"""What begins anew, or is accepted, while a sweep chooses or waits for a lock is kept: on connections of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models.functions import Now

from attachments.models import Attachment, BucketRole, StoredObject
from pipeline import intake, lifecycle, registry
from pipeline.intake import Received
from pipeline.lifecycle import Gone, Lease
from pipeline.models import Job
from pipeline.origins import Origin
from pipeline.registry import Pipeline
from pipeline.retention import Sweeper
from pipeline.states import Source
from tests.leases import VARIANTS, finish
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
    intake.accept(received, intake.Request(owner=user, origin=Origin(Source.REST)))


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


def take_original(job: Job) -> None:
    StoredObject.objects.filter(attachment=job.attachment_id).update(bucket_role=BucketRole.TRASH)


def take_texts(job: Job) -> None:
    Attachment.objects.filter(id=job.attachment_id).update(texts_expired_at=Now())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("act", "take"),
    [
        ("claim", take_original),
        ("replay", take_original),
        ("repair", take_original),
        ("reprocess", take_original),
        ("replay", take_texts),
        ("repair", take_texts),
        ("reprocess", take_texts),
    ],
)
def test_who_begins_work_waits_for_each_lock_of_a_sweep_and_finds_what_it_took(
    act: str,
    take: Callable[[Job], None],
    queued: Callable[..., Job],
    leased: Callable[..., Lease],
    release_image_v2: Callable[[], Pipeline],
) -> None:
    job = queued()
    release_image_v2()
    if act == "replay":
        failed(leased(job))
    if act == "repair":
        finish(leased(job))
    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            take(job)
            begun = thread.submit(finds_it_gone, act, job)
            until(lambda: begun.done() or somebody_waits_for_a_lock())
        assert begun.result()


def finds_it_gone(act: str, job: Job) -> bool:
    try:
        match act:
            case "claim":
                lease = lifecycle.claim(job.job_id, attempt=1, worker="worker-a")
                return lease is not None and lease.original is None
            case "replay":
                lifecycle.replay(job.job_id, attempt=1, actor="operator:ann", reason="again")
            case "repair":
                lifecycle.repair(job.job_id, variants=VARIANTS, actor="verify", detail="missing")
            case "reprocess":
                lifecycle.reprocess(job.attachment_id, pipeline=registry.newest("image"), actor="operator:ann")
    except Gone:
        return True
    finally:
        connection.close()
    return False
