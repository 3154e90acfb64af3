"""What an operator begins anew: a failed job, a ready one that lost its bytes, a newer version of what is served."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from django.db import DatabaseError, connection, transaction

from attachments import listing
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from pipeline import lifecycle, removal
from pipeline.failures import Failure
from pipeline.lifecycle import AlreadyThere, Gone, Lease, LeaseLost, NotFailed, NotReady
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.registry import Pipeline
from pipeline.states import State
from tests.leases import finish, record

pytestmark = pytest.mark.django_db
BROKEN = Failure(code="bad_file", sentence="Damaged.", step="image")


def failed(lease: Lease) -> Job:
    lifecycle.fail(lease, BROKEN)
    return Job.objects.get(job_id=lease.job_id)


def shown(lease: Lease) -> tuple[State, set[str]]:
    attachment = Attachment.objects.get(id=lease.attachment_id)
    status = listing.find_status(attachment.owner, attachment.id)
    assert status is not None
    return status.state, set(status.variants)


def claimed(job: Job) -> Lease:
    lease = lifecycle.claim(job.job_id, attempt=job.attempt, worker="worker-b")
    assert lease is not None
    return lease


def test_a_replayed_job_keeps_its_id_and_gets_a_new_attempt_and_message(leased: Callable[..., Lease]) -> None:
    """[attachments] failed → queued: новая попытка, прежний логический эффект защищён от дубля."""
    lease = leased()
    record(lease, "thumbnail")
    job = failed(lease)
    assert (job.error_code, job.error_step, job.failures) == ("bad_file", "image", 1)
    reopened = lifecycle.replay(job.job_id, attempt=1, actor="operator:ann", reason="decoder updated")
    assert (reopened.before["state"], reopened.before["error_code"], reopened.after["attempt"]) == (
        "failed",
        "bad_file",
        2,
    )
    job.refresh_from_db()
    assert (job.state, job.attempt, job.failures, job.finished_at) == (State.QUEUED, 2, 0, None)
    assert (job.error_code, job.error_step, job.error) == ("", "", "")
    assert OutboxMessage.objects.get(job=job, attempt=2).message_id == f"{job.job_id}:2"
    event = JobEvent.objects.filter(job=job).latest("id")
    assert (event.from_state, event.to_state, event.actor, event.detail) == (
        "failed",
        "queued",
        "operator:ann",
        "decoder updated",
    )
    again = claimed(job)
    assert lifecycle.recorded(again).keys() == {"thumbnail"}
    finish(again)
    assert Variant.objects.filter(attachment=job.attachment_id).count() == 3


@pytest.mark.django_db(transaction=True)
def test_of_many_replays_at_once_exactly_one_puts_the_job_back(leased: Callable[..., Lease]) -> None:
    job = failed(leased())
    together = Barrier(6)

    def click(number: int) -> bool:
        together.wait()
        try:
            lifecycle.replay(job.job_id, attempt=1, actor=f"operator:{number}", reason="again")
        except NotFailed:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(6) as operators:
        assert sorted(operators.map(click, range(6))) == [False] * 5 + [True]
    assert Job.objects.get().attempt == 2
    assert OutboxMessage.objects.filter(job=job).count() == 2


def test_a_click_on_an_old_page_replays_nothing(leased: Callable[..., Lease]) -> None:
    """The job failed again since; whoever looks at its first failure decides about that one only."""
    job = failed(leased())
    lifecycle.replay(job.job_id, attempt=1, actor="operator:ann", reason="again")
    job.refresh_from_db()
    lifecycle.fail(claimed(job), BROKEN)
    with pytest.raises(NotFailed):
        lifecycle.replay(job.job_id, attempt=1, actor="operator:bob", reason="again")
    assert Job.objects.get().state == State.FAILED


def test_a_replay_withdraws_the_wish_to_cancel(leased: Callable[..., Lease]) -> None:
    lease = leased()
    lifecycle.request_cancel(Attachment.objects.get(id=lease.attachment_id))
    job = failed(lease)
    lifecycle.replay(job.job_id, attempt=1, actor="operator:ann", reason="cancelled by mistake")
    job.refresh_from_db()
    finish(claimed(job))
    assert shown(lease)[0] == State.READY


def test_only_a_failed_job_can_be_replayed(leased: Callable[..., Lease], queued: Callable[..., Job]) -> None:
    waiting, held, done = queued(), leased(), leased()
    finish(done)
    for job_id in (waiting.job_id, held.job_id, done.job_id, uuid.uuid4()):
        with pytest.raises(NotFailed):
            lifecycle.replay(job_id, attempt=1, actor="operator:ann", reason="again")
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}


def test_without_an_original_nothing_is_replayed(leased: Callable[..., Lease]) -> None:
    swept, deleted = failed(leased()), failed(leased())
    StoredObject.objects.filter(attachment=swept.attachment_id).update(bucket_role=BucketRole.TRASH)
    removal.remove(deleted.attachment_id, actor="test")
    for job in (swept, deleted):
        with pytest.raises(Gone):
            lifecycle.replay(job.job_id, attempt=1, actor="operator:ann", reason="again")
    assert set(Job.objects.values_list("state", flat=True)) == {State.FAILED}


def test_the_old_version_is_served_until_the_new_one_is_complete(
    leased: Callable[..., Lease], release_image_v2: Callable[[], Pipeline]
) -> None:
    first = leased()
    finish(first)
    served = set(Variant.objects.values_list("stored_object_id", flat=True))
    job = lifecycle.reprocess(first.attachment_id, pipeline=release_image_v2(), actor="operator:ann")
    newer = claimed(job)
    for variant in ("crop", "optimized"):
        record(newer, variant, b"newer")
    attachment = Attachment.objects.get()
    assert (attachment.served_version, shown(first)) == (1, (State.READY, {"crop", "optimized", "thumbnail"}))
    status = listing.find_status(attachment.owner, attachment.id)
    assert status is not None
    assert {variant.stored_object_id for variant in status.variants.values()} == served
    record(newer, "thumbnail", b"newer")
    lifecycle.complete(newer)
    assert Attachment.objects.get().served_version == 2


def test_what_is_served_stays_when_the_new_version_fails(
    leased: Callable[..., Lease], release_image_v2: Callable[[], Pipeline]
) -> None:
    first = leased()
    finish(first)
    job = lifecycle.reprocess(first.attachment_id, pipeline=release_image_v2(), actor="operator:ann")
    lifecycle.fail(claimed(job), BROKEN)
    assert shown(first) == (State.READY, {"crop", "optimized", "thumbnail"})


def test_of_two_versions_that_race_the_newer_is_left(
    leased: Callable[..., Lease], release_image_v2: Callable[[], Pipeline]
) -> None:
    """[attachments] Конкурентные попытки не перезаписывают более новый pipeline_version."""
    older = leased()
    newer = claimed(lifecycle.reprocess(older.attachment_id, pipeline=release_image_v2(), actor="operator:ann"))
    for variant in ("crop", "thumbnail", "optimized"):
        record(older, variant)
        record(newer, variant, b"newer")
    lifecycle.complete(newer)
    served = set(Variant.objects.filter(pipeline_version=2).values_list("stored_object_id", flat=True))
    lifecycle.complete(older)
    attachment = Attachment.objects.get()
    status = listing.find_status(attachment.owner, attachment.id)
    assert status is not None
    assert attachment.served_version == 2
    assert {variant.stored_object_id for variant in status.variants.values()} == served
    assert set(Job.objects.values_list("state", flat=True)) == {State.READY}


def test_a_late_duplicate_of_the_old_version_changes_nothing(
    leased: Callable[..., Lease], release_image_v2: Callable[[], Pipeline]
) -> None:
    """[attachments] Нельзя откатывать ready в processing из-за старого дубля."""
    older = leased()
    finish(older)
    finish(claimed(lifecycle.reprocess(older.attachment_id, pipeline=release_image_v2(), actor="operator:ann")))
    before = (Attachment.objects.values().get(), list(Variant.objects.order_by("id").values()))
    assert lifecycle.claim(older.job_id, attempt=1, worker="worker-c") is None
    with pytest.raises(LeaseLost):
        lifecycle.renew(older)
    lifecycle.complete(older)
    assert (Attachment.objects.values().get(), list(Variant.objects.order_by("id").values())) == before


def test_a_version_is_begun_once(leased: Callable[..., Lease], release_image_v2: Callable[[], Pipeline]) -> None:
    lease, newer = leased(), release_image_v2()
    lifecycle.reprocess(lease.attachment_id, pipeline=newer, actor="operator:ann")
    with pytest.raises(AlreadyThere):
        lifecycle.reprocess(lease.attachment_id, pipeline=newer, actor="operator:ann")
    assert Job.objects.count() == 2


def test_what_never_had_a_job_of_the_pipeline_cannot_be_made_anew(
    leased: Callable[..., Lease], release_image_v2: Callable[[], Pipeline]
) -> None:
    lease = leased()
    speech = replace(release_image_v2(), name="speech")
    for attachment_id in (lease.attachment_id, uuid.uuid4()):
        with pytest.raises(Gone):
            lifecycle.reprocess(attachment_id, pipeline=speech, actor="test")
    assert Job.objects.count() == 1


def test_repair_makes_again_what_was_damaged_and_nothing_else(leased: Callable[..., Lease]) -> None:
    lease = leased()
    finish(lease)
    kept = Variant.objects.exclude(variant="crop").values_list("stored_object_id", flat=True)
    intact, damaged = set(kept), Variant.objects.get(variant="crop").stored_object_id
    lifecycle.repair(lease.job_id, variants=["crop"], actor="verify", detail="crop: object_missing")
    job = Job.objects.get()
    assert (job.state, job.attempt, Attachment.objects.get().served_version) == (State.QUEUED, 2, 1)
    assert StoredObject.objects.get(id=damaged).bucket_role == BucketRole.TRASH
    again = claimed(job)
    assert lifecycle.recorded(again).keys() == {"optimized", "thumbnail"}
    record(again, "crop", b"made again")
    Attachment.objects.update(media={"width": 8})  # as it was measured the first time
    lifecycle.complete(again)
    assert shown(lease) == (State.READY, {"crop", "optimized", "thumbnail"})
    assert Attachment.objects.get().media == {"width": 9}
    assert intact < set(Variant.objects.values_list("stored_object_id", flat=True))


def test_what_is_not_ready_or_not_damaged_is_not_repaired(leased: Callable[..., Lease]) -> None:
    held, done = leased(), leased()
    finish(done)
    for job_id, variants in ((held.job_id, ["crop"]), (done.job_id, ["no_such_variant"])):
        with pytest.raises(NotReady):
            lifecycle.repair(job_id, variants=variants, actor="verify", detail="")
    StoredObject.objects.filter(attachment=done.attachment_id).update(bucket_role=BucketRole.TRASH)
    with pytest.raises(Gone):
        lifecycle.repair(done.job_id, variants=["crop"], actor="verify", detail="")
    assert Variant.objects.filter(attachment=done.attachment_id).count() == 3


def test_the_audit_of_replays_cannot_be_changed(leased: Callable[..., Lease]) -> None:
    """[attachments] failed → queued: Audit."""
    job = failed(leased())
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pipeline_replay (actor, via, reason, chosen_by, matching) VALUES ('a', 'test', 'r', '{}', 1)"
            " RETURNING id"
        )
        (act,) = cursor.fetchone()
        cursor.execute(
            "INSERT INTO pipeline_replayed_job (replay_id, job_id, before, after) VALUES (%s, %s, '{}', '{}')",
            [act, job.job_id],
        )
    for table in ("pipeline_replay", "pipeline_replayed_job"):
        for statement in (f"UPDATE {table} SET id = id", f"DELETE FROM {table}"):
            with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(statement)
