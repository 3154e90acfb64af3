"""Every move of a job, and that nobody but the holder of the lease makes one."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from attachments import objects, storage
from attachments.errors import StorageUnavailable
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from attachments.storage import Written
from pipeline import failures, lifecycle, origins, registry
from pipeline.failures import Failure
from pipeline.lifecycle import Cancelled, Incomplete, Lease, LeaseLost
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.origins import Origin
from pipeline.states import Source, State
from tests.conftest import expire_lease
from tests.leases import VARIANTS, finish, record

pytestmark = pytest.mark.django_db

BROKEN = Failure(code="internal_error", sentence="Something went wrong.", cause="Traceback …")


def test_acceptance_stores_original_job_message_and_event_together(queued: Callable[..., Job]) -> None:
    """[attachments] нет → queued: the verified original in staging, metadata, the intention to process."""
    job = queued()
    original = StoredObject.objects.get(attachment=job.attachment)
    assert original.bucket_role == BucketRole.STAGING
    assert (original.size, original.sha256) == (job.attachment.size, job.attachment.sha256)
    message = OutboxMessage.objects.get(job=job)
    assert (message.attempt, message.message_id, message.sent_at) == (1, f"{job.job_id}:1", None)
    event = JobEvent.objects.get(job=job)
    assert (event.from_state, event.to_state, event.attempt) == ("", "queued", 1)


def test_claim_takes_a_lease(leased: Callable[..., Lease]) -> None:
    """[attachments] queued → processing: attempt, lease and deadline are stored."""
    lease = leased()
    job = Job.objects.get(job_id=lease.job_id)
    assert (job.state, job.lease_token, job.leased_by) == (State.PROCESSING, lease.token, "worker-a")
    assert job.lease_until is not None


def test_a_claim_whose_commit_got_no_answer_is_found_again(queued: Callable[..., Job]) -> None:
    """The same token asks again: a lost answer to COMMIT costs the job nothing."""
    job, token = queued(), uuid.uuid4()
    first = lifecycle.claim(job.job_id, attempt=1, worker="w", token=token)
    assert lifecycle.claim(job.job_id, attempt=1, worker="w", token=token) == first
    assert lifecycle.claim(job.job_id, attempt=1, worker="w", token=uuid.uuid4()) is None
    assert JobEvent.objects.filter(job=job, reason="claimed").count() == 1


def test_a_completion_whose_commit_got_no_answer_is_found_again(leased: Callable[..., Lease]) -> None:
    lease = leased()
    finish(lease)
    lifecycle.complete(lease)
    with pytest.raises(LeaseLost):
        lifecycle.complete(replace(lease, worker="worker-b"))


def test_a_cause_with_strangers_bytes_is_stored(leased: Callable[..., Lease]) -> None:
    """PostgreSQL takes neither NUL nor half a surrogate pair, and a decoder's message may hold both."""
    lease = leased()
    lifecycle.fail(lease, replace(BROKEN, cause="at \x00 and \ud800"))
    assert JobEvent.objects.filter(job=lease.job_id).latest("id").detail == "at \N{REPLACEMENT CHARACTER} and ?"


def test_only_the_jobs_own_failures_count(leased: Callable[..., Lease]) -> None:
    lease = leased()
    lifecycle.fail(lease, failures.CANCELLED)
    assert Job.objects.get(job_id=lease.job_id).failures == 0


def test_recovery_ends_an_outage_too(queued: Callable[..., Job]) -> None:
    """A worker that died is no outage: the next one begins anew."""
    job = queued()
    lease = lifecycle.claim(job.job_id, attempt=1, worker="w")
    assert lease is not None
    lifecycle.release(lease, reason="outage", pause=timedelta(0), is_outage=True)
    assert lifecycle.claim(job.job_id, attempt=2, worker="w") is not None
    expire_lease(job.job_id)
    lifecycle.recover()
    assert Job.objects.get(job_id=job.job_id).outage_since is None


def test_claim_refuses_another_attempt_a_second_time_and_what_is_not_due(queued: Callable[..., Job]) -> None:
    job = queued()
    assert lifecycle.claim(job.job_id, attempt=2, worker="w") is None
    assert lifecycle.claim(uuid.uuid4(), attempt=1, worker="w") is None
    lease = lifecycle.claim(job.job_id, attempt=1, worker="w")
    assert lease is not None
    assert lifecycle.claim(job.job_id, attempt=1, worker="x") is None
    lifecycle.retry_later(lease, BROKEN, pause=timedelta(hours=1))
    assert lifecycle.claim(job.job_id, attempt=2, worker="w") is None


@pytest.mark.django_db(transaction=True)
def test_of_many_claims_at_once_exactly_one_wins(queued: Callable[..., Job]) -> None:
    """[transcription] неделимость захвата: proved on real connections."""
    job = queued()
    barrier, won = threading.Barrier(8), []

    def claim(number: int) -> None:
        barrier.wait()
        if lifecycle.claim(job.job_id, attempt=1, worker=f"w{number}"):
            won.append(number)
        connection.close()

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_record_publishes_an_object_with_its_variant(leased: Callable[..., Lease]) -> None:
    lease = leased()
    stored = record(lease, "thumbnail")
    variant = Variant.objects.get(attachment=lease.attachment_id)
    assert (variant.variant, variant.stored_object_id, variant.facts) == ("thumbnail", stored.id, {"width": 1})
    stored.refresh_from_db()
    assert (stored.bucket_role, stored.size) == (BucketRole.VARIANTS, 5)
    assert Job.objects.get(job_id=lease.job_id).media == {"width": 9}
    assert Attachment.objects.get(id=lease.attachment_id).media == {}


def test_recording_the_same_object_twice_changes_nothing(leased: Callable[..., Lease]) -> None:
    lease = leased()
    stored = record(lease, "thumbnail")
    stored.refresh_from_db()
    assert stored.size is not None and stored.sha256 is not None
    written = storage.Written(stored.size, stored.sha256)
    lifecycle.record(
        lease, variant="thumbnail", object_id=stored.id, written=written, facts={"width": 1}, original_facts={}
    )
    assert Variant.objects.count() == 1
    assert StoredObject.objects.filter(bucket_role=BucketRole.TRASH).count() == 0


def test_a_second_object_for_one_effect_key_supersedes_the_first(leased: Callable[..., Lease]) -> None:
    """Ключ эффекта — (attachment_id, pipeline_version, variant)."""
    lease = leased()
    first = record(lease, "thumbnail")
    second = record(replace(lease, attempt=9), "thumbnail")
    assert Variant.objects.get().stored_object_id == second.id
    first.refresh_from_db()
    assert first.bucket_role == BucketRole.TRASH


def test_what_was_swept_before_it_was_recorded_costs_no_chance(leased: Callable[..., Lease]) -> None:
    lease = leased()
    stored = objects.register("attachments/x/v1/1/crop", content_type="image/webp", created_by="test")
    StoredObject.objects.filter(id=stored.id).update(bucket_role=BucketRole.TRASH)
    with pytest.raises(StorageUnavailable):
        lifecycle.record(
            lease, variant="crop", object_id=stored.id, written=Written(1, "0" * 64), facts={}, original_facts={}
        )
    assert not Variant.objects.exists()


def test_complete_publishes_the_result_and_promotes_the_original(leased: Callable[..., Lease]) -> None:
    """[attachments] processing → ready; staging is kept until then."""
    lease = leased()
    original = Attachment.objects.get(id=lease.attachment_id).original
    assert original is not None
    assert original.bucket_role == BucketRole.STAGING
    finish(lease)
    job = Job.objects.get(job_id=lease.job_id)
    assert (job.state, job.lease_token, job.finished_at is not None) == (State.READY, None, True)
    assert job.attachment.served_version == 1
    original.refresh_from_db()
    assert original.bucket_role == BucketRole.ORIGINALS


def test_complete_needs_every_promised_variant(leased: Callable[..., Lease]) -> None:
    """Заявляйте готовность только когда все обещанные варианты доступны."""
    lease = leased()
    record(lease, "thumbnail")
    with pytest.raises(Incomplete, match="crop, optimized"):
        lifecycle.complete(lease)
    assert Job.objects.get(job_id=lease.job_id).state == State.PROCESSING


def test_served_version_never_moves_back(leased: Callable[..., Lease]) -> None:
    """Конкурентные попытки не перезаписывают более новый pipeline_version."""
    lease = leased()
    Attachment.objects.filter(id=lease.attachment_id).update(served_version=2, media={"width": 2})
    finish(lease)
    attachment = Attachment.objects.get(id=lease.attachment_id)
    assert (attachment.served_version, attachment.media) == (2, {"width": 2})
    assert Job.objects.get(job_id=lease.job_id).state == State.READY


def test_retry_later_counts_a_failure_and_waits(leased: Callable[..., Lease]) -> None:
    """[attachments] processing → queued: the reason without secrets, and the time of the next attempt."""
    lease = leased()
    lifecycle.retry_later(lease, BROKEN, pause=timedelta(hours=1))
    job = Job.objects.get(job_id=lease.job_id)
    assert (job.state, job.attempt, job.failures, job.lease_token) == (State.QUEUED, 2, 1, None)
    message = OutboxMessage.objects.get(job=job, attempt=2)
    assert message.due_at >= job.due_at > job.created_at + timedelta(minutes=59)
    assert JobEvent.objects.filter(job=job).latest("id").reason == "internal_error"


def test_release_spends_no_chance(leased: Callable[..., Lease]) -> None:
    lease = leased()
    lifecycle.release(lease, reason="shutdown", pause=timedelta(0))
    job = Job.objects.get(job_id=lease.job_id)
    assert (job.state, job.attempt, job.failures, job.outage_since) == (State.QUEUED, 2, 0, None)


def test_an_unbroken_outage_is_remembered_from_its_beginning(queued: Callable[..., Job]) -> None:
    job = queued()
    since = []
    for _ in range(2):
        job.refresh_from_db()
        lease = lifecycle.claim(job.job_id, attempt=job.attempt, worker="w")
        assert lease is not None
        lifecycle.release(lease, reason="outage", pause=timedelta(0), is_outage=True)
        since.append(Job.objects.get(job_id=job.job_id).outage_since)
    assert since[0] is not None
    assert since[0] == since[1]


def test_fail_keeps_code_and_sentence_for_the_owner_and_the_cause_for_the_operator(
    leased: Callable[..., Lease],
) -> None:
    """[attachments] processing → failed: error_code и запись, доступная оператору."""
    lease = leased()
    lifecycle.fail(lease, BROKEN)
    job = Job.objects.get(job_id=lease.job_id)
    assert (job.state, job.error_code, job.error) == (State.FAILED, "internal_error", "Something went wrong.")
    assert JobEvent.objects.filter(job=job).latest("id").detail == "Traceback …"


MOVES_OF_A_HOLDER: dict[str, Callable[[Lease], object]] = {
    "renew": lifecycle.renew,
    "record": lambda lease: record(lease, "preview"),
    "retry_later": lambda lease: lifecycle.retry_later(lease, BROKEN, pause=timedelta(0)),
    "release": lambda lease: lifecycle.release(lease, reason="shutdown", pause=timedelta(0)),
    "complete": lifecycle.complete,
    "fail": lambda lease: lifecycle.fail(lease, BROKEN),
}


def with_all_recorded(lease: Lease) -> Lease:
    """So that nothing but the lease decides whether it can be completed."""
    for variant in VARIANTS:
        record(lease, variant)
    return lease


@pytest.mark.parametrize("move", ["retry_later", "release", "complete", "fail"])
def test_an_attempt_that_ends_otherwise_breaks_an_outage(move: str, leased: Callable[..., Lease]) -> None:
    lease = with_all_recorded(leased())
    lifecycle.release(lease, reason="outage", pause=timedelta(0), is_outage=True)
    MOVES_OF_A_HOLDER[move](leased(Job.objects.get()))
    assert Job.objects.get().outage_since is None


@pytest.mark.parametrize("move", MOVES_OF_A_HOLDER)
def test_who_lost_the_lease_changes_nothing(move: str, leased: Callable[..., Lease]) -> None:
    """[transcription] результат пишет только держатель захвата."""
    stale = with_all_recorded(leased())
    expire_lease(stale.job_id)
    lifecycle.recover()
    newer = leased(Job.objects.get(job_id=stale.job_id), worker="worker-b")
    before = list(Job.objects.values()), list(Variant.objects.values()), JobEvent.objects.count()
    with pytest.raises(LeaseLost):
        MOVES_OF_A_HOLDER[move](stale)
    assert (list(Job.objects.values()), list(Variant.objects.values()), JobEvent.objects.count()) == before
    finish(newer)


def test_cancel_ends_the_holder_at_its_next_write(leased: Callable[..., Lease]) -> None:
    lease = leased()
    lifecycle.request_cancel(Attachment.objects.get(id=lease.attachment_id))
    with pytest.raises(Cancelled):
        lifecycle.renew(lease)
    with pytest.raises(Cancelled):
        record(lease, "thumbnail")
    with pytest.raises(Cancelled):
        lifecycle.complete(lease)


def test_nothing_is_promised_by_an_object_that_became_trash(leased: Callable[..., Lease]) -> None:
    lease = leased()
    StoredObject.objects.filter(attachment=lease.attachment_id).update(bucket_role=BucketRole.TRASH)
    expire_lease(lease.job_id)
    lifecycle.recover()
    again = lifecycle.claim(lease.job_id, attempt=2, worker="w")
    assert again is not None
    assert again.original is None


@pytest.mark.parametrize(
    "columns",
    [
        "state = 'done'",
        "state = 'processing'",
        "state = 'failed', finished_at = now()",
        "state = 'ready'",
        "finished_at = now()",
        "lease_token = gen_random_uuid()",
        "attempt = 0",
        "source = 'fax'",
    ],
)
def test_the_database_refuses_what_must_never_be(columns: str, queued: Callable[..., Job]) -> None:
    job = queued()
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE pipeline_job SET {columns} WHERE job_id = %s", [job.job_id])


def test_history_cannot_be_changed(queued: Callable[..., Job]) -> None:
    queued()
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        JobEvent.objects.update(reason="nothing happened")
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        JobEvent.objects.all()._raw_delete("default")


def test_no_move_touches_where_the_file_came_from(queued: Callable[..., Job]) -> None:
    """[transcription] инвариант про колонки очереди: every move leaves the origin as it was."""
    given = (Source.TELEGRAM, -1001, 5, 7, "b1", "ru")
    job = queued(origin=Origin(given[0], chat_id=-1001, message_id=5, thread_id=7, business_id="b1", language="ru"))
    moves = ("retry_later", "release", "recover", "fail", "replay", "complete", "repair", "complete", "reprocess")
    for move in moves:
        of_version = make(move, Job.objects.get(job_id=job.job_id))
        after = Job.objects.filter(job_id=of_version)
        assert after.values_list(*origins.COLUMNS).get() == given
        assert after.values_list("carrier", "attachment_id").get() == (job.carrier, job.attachment_id)


def make(move: str, job: Job) -> uuid.UUID:
    """Let the job go through one move, from the state that the one before left it in; the id of what it leads to."""
    if move == "replay":
        return lifecycle.replay(job.job_id, attempt=job.attempt, actor="ann", reason="mended").job_id
    if move == "repair":
        return lifecycle.repair(job.job_id, variants=["crop"], actor="verify", detail="lost").job_id
    if move == "reprocess":
        return lifecycle.reprocess(
            job.attachment_id, pipeline=replace(registry.newest("image"), version=2), actor="a"
        ).job_id
    lease = lifecycle.claim(job.job_id, attempt=job.attempt, worker="w")
    assert lease is not None
    if move == "recover":
        expire_lease(job.job_id)
        lifecycle.recover()
    else:
        MOVES_OF_A_HOLDER[move](with_all_recorded(lease))
    return job.job_id
