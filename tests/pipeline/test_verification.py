"""Rows and objects are compared while everything runs: what is wrong is told and mended, nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models.functions import Now

from attachments import storage
from attachments.errors import StorageUnavailable
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from attachments.storage import Listed
from pipeline import confined, intake, lifecycle, removal, retention, verification
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.origins import Origin
from pipeline.registry import Pipeline
from pipeline.selection import Selection
from pipeline.states import Source, State
from pipeline.verification import Finding, Kind, findings
from tests.leases import VARIANTS, finish, record
from tests.pictures import jpeg, png
from tests.waiting import somebody_waits_for_a_lock, until
from tests.work import make_quick, work

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _decoder() -> Iterator[None]:
    yield
    confined.shut_down()


def found(*, repair: bool = False) -> list[Finding]:
    return [
        finding
        for step in verification.attachments(Selection(), digests=True, repair=repair)
        for finding in step.findings
    ]


def kinds() -> list[Kind]:
    return sorted(finding.kind for finding in found())


def bytes_of(variant: str, *, version: int = 1) -> Path:
    stored = StoredObject.objects.get(variant__variant=variant, variant__pipeline_version=version)
    return Path(configured.STORAGE_ROOT, stored.bucket, stored.key)


def bytes_of_original(lease: Lease) -> Path:
    stored = StoredObject.objects.get(attachment=lease.attachment_id)
    return Path(configured.STORAGE_ROOT, stored.bucket, stored.key)


def test_work_in_every_state_is_no_finding(leased: Callable[..., Lease], queued: Callable[..., Job]) -> None:
    queued()
    held = leased()
    record(held, "crop")
    finish(leased())
    failed, deleted, forgotten = leased(), leased(), leased()
    lifecycle.fail(failed, Failure(code="bad_file", sentence="Damaged."))
    finish(deleted)
    removal.remove(deleted.attachment_id, actor="test")
    lifecycle.fail(forgotten, Failure(code="bad_file", sentence="Damaged."))
    Attachment.objects.filter(id=forgotten.attachment_id).update(original=None)
    unmeasured = StoredObject.objects.filter(variant__attachment=held.attachment_id)
    unmeasured.update(bucket_role=BucketRole.RESULTS, size=None, sha256=None)
    for digests in (True, False):
        (step,) = verification.attachments(Selection(), digests=digests)
        assert (step.findings, step.taken, step.objects) == ((), 6, 1 + 2 + 4 + 1)


def test_a_damaged_variant_is_made_again_and_the_timeline_says_why(queued: Callable[..., Job]) -> None:
    """From a real picture, by the real executor."""
    job = queued(jpeg())
    assert work(job) == "ready"
    intact = bytes_of("crop").read_bytes()
    bytes_of("thumbnail").unlink()
    bytes_of("optimized").write_bytes(b"")
    told = {(finding.variant, finding.kind, finding.is_repaired) for finding in found(repair=True)}
    assert told == {
        ("thumbnail", Kind.VARIANT_MISSING, True),
        ("optimized", Kind.VARIANT_DAMAGED, True),
    }
    event = JobEvent.objects.filter(job=job).latest("id")
    assert (event.from_state, event.to_state, event.attempt, event.actor) == ("ready", "queued", 2, "verify")
    assert event.detail == "optimized: variant_damaged, thumbnail: variant_missing"
    assert found(repair=True) == []
    assert work(job) == "ready"
    assert (found(), bytes_of("crop").read_bytes()) == ([], intact)
    assert Job.objects.get().attempt == 2


def test_what_only_a_newer_release_can_make_again_is_left_and_keeps_nothing_else_waiting(
    leased: Callable[..., Lease], queued: Callable[..., Job]
) -> None:
    """As after a rollback."""
    newer, ours = leased(), leased(queued(jpeg()))
    for lease in (newer, ours):
        finish(lease)
    Job.objects.filter(job_id=newer.job_id).update(pipeline_version=7)
    Variant.objects.filter(attachment=newer.attachment_id).update(pipeline_version=7)
    Attachment.objects.filter(id=newer.attachment_id).update(served_version=7)
    for crop in Variant.objects.filter(variant="crop"):
        Path(configured.STORAGE_ROOT, crop.stored_object.bucket, crop.stored_object.key).unlink()
    told = {finding.job_id: (finding.is_repaired, finding.outcome) for finding in found(repair=True)}
    assert told[newer.job_id] == (False, "not repaired: only a newer release knows image v7")
    assert told[ours.job_id][0]


def test_without_an_intact_original_the_variants_are_left_as_they_are(leased: Callable[..., Lease]) -> None:
    """Putting the job back would only lose what is still served."""
    lease = leased()
    finish(lease)
    bytes_of("crop").unlink()
    original = bytes_of_original(lease)
    original.write_bytes(original.read_bytes()[:-1] + b"?")
    told = {finding.kind: finding for finding in found(repair=True)}
    assert set(told) == {Kind.ORIGINAL_DAMAGED, Kind.VARIANT_MISSING}
    assert told[Kind.VARIANT_MISSING].outcome == "cannot be made again: the original is damaged"
    assert not any(finding.is_repaired for finding in told.values())
    assert (Job.objects.get().state, Variant.objects.count()) == (State.READY, 3)


def test_damage_of_a_job_that_is_not_ready_waits_until_it_is(leased: Callable[..., Lease]) -> None:
    lease = leased()
    record(lease, "crop")
    bytes_of("crop").unlink()
    (told,) = found(repair=True)
    assert (told.kind, told.is_repaired, told.outcome) == (
        Kind.VARIANT_MISSING,
        False,
        "not repaired: the job is processing",
    )
    for variant in ("optimized", "thumbnail"):
        record(lease, variant)
    lifecycle.complete(lease)
    assert [finding.is_repaired for finding in found(repair=True)] == [True]


def test_a_queued_job_without_its_message_is_found_and_sent(queued: Callable[..., Job]) -> None:
    """Without one it would wait for ever: redispatch sends only what has a row."""
    now, later = queued(), queued()
    Job.objects.filter(job_id=later.job_id).update(due_at=Now() + timedelta(hours=1))
    OutboxMessage.objects.all().delete()
    assert kinds() == [Kind.MESSAGE_MISSING, Kind.MESSAGE_MISSING]
    assert [finding.is_repaired for finding in found(repair=True)] == [True, True]
    assert found() == []
    due = OutboxMessage.objects.filter(due_at__lte=Now()).values_list("message_id", flat=True)
    assert (list(due), OutboxMessage.objects.count()) == ([f"{now.job_id}:1"], 2)
    for job in (now, later):
        event = JobEvent.objects.filter(job=job).latest("id")
        assert (event.reason, event.actor, event.attempt) == ("message_restored", "verify", 1)
        job.refresh_from_db()
        assert (job.state, job.attempt) == (State.QUEUED, 1)


def test_the_rows_of_what_is_served_are_compared_with_what_was_promised(leased: Callable[..., Lease]) -> None:
    unrecorded, failed, jobless, trashed = leased(), leased(), leased(), leased()
    for lease in (unrecorded, failed, jobless, trashed):
        finish(lease)
    Variant.objects.filter(attachment=unrecorded.attachment_id, variant="crop").delete()
    lifecycle.repair(failed.job_id, variants=VARIANTS, actor="test", detail="")
    again = lifecycle.claim(failed.job_id, attempt=2, worker="worker-b")
    assert again is not None
    lifecycle.fail(again, Failure(code="bad_file", sentence="Damaged."))
    Attachment.objects.filter(id=jobless.attachment_id).update(served_version=7)
    StoredObject.objects.filter(
        variant__attachment=trashed.attachment_id, variant__variant="optimized"
    ).update(bucket_role=BucketRole.TRASH)  # fmt: skip
    told = {finding.attachment_id: (finding.kind, finding.about) for finding in found()}
    assert told.pop(trashed.attachment_id)[0] == Kind.TRASH_IN_USE
    assert told == {
        unrecorded.attachment_id: (Kind.VARIANT_UNRECORDED, "crop of version 1"),
        failed.attachment_id: (Kind.SERVED_NOT_READY, "version 1 failed: bad_file"),
        jobless.attachment_id: (Kind.SERVED_NOT_READY, "version 7 has no job"),
    }
    assert [finding.is_repaired for finding in found(repair=True) if finding.kind == Kind.TRASH_IN_USE] == [True]


def test_what_a_newer_version_superseded_is_about_to_go_and_needs_no_bytes(
    leased: Callable[..., Lease], release_image_v2: Callable[[], Pipeline]
) -> None:
    first = leased()
    finish(first)
    job = lifecycle.reprocess(first.attachment_id, pipeline=release_image_v2(), actor="test")
    newer = lifecycle.claim(job.job_id, attempt=1, worker="worker-b")
    assert newer is not None
    record(newer, "crop", b"newer")
    bytes_of("thumbnail").unlink()
    assert kinds() == [Kind.VARIANT_MISSING]
    for variant in ("optimized", "thumbnail"):
        record(newer, variant, b"newer")
    lifecycle.complete(newer)
    assert kinds() == []
    bytes_of("thumbnail", version=2).unlink()
    assert kinds() == [Kind.VARIANT_MISSING]


def removed_and_swept(lease: Lease) -> None:
    removal.remove(lease.attachment_id, actor="test")
    retention.sweep()


def repaired_and_swept(lease: Lease) -> None:
    lifecycle.repair(lease.job_id, variants=VARIANTS, actor="test", detail="")
    again = lifecycle.claim(lease.job_id, attempt=2, worker="worker-b")
    assert again is not None
    finish(again)
    retention.sweep()


@pytest.mark.parametrize("meanwhile", [removed_and_swept, repaired_and_swept])
def test_what_changes_while_it_is_looked_at_is_no_finding(
    meanwhile: Callable[[Lease], None], leased: Callable[..., Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the rows and the look at the storage, the objects were swept: lawfully missing."""
    lease = leased()
    finish(lease)
    real, loads = findings.load, 0

    def load(page: Any) -> Any:
        nonlocal loads
        snapshots, loads = real(page), loads + 1
        if loads == 1:
            meanwhile(lease)
        return snapshots

    monkeypatch.setattr("pipeline.verification.walks.load", load)
    assert found(repair=True) == []
    assert loads == 2, "nothing seemed wrong at first, so nothing was shown"


@pytest.mark.django_db(transaction=True)
def test_a_move_that_is_being_made_is_waited_for(leased: Callable[..., Lease]) -> None:
    """Its rows are read again only when it is over, and then there is nothing to tell."""
    lease = leased()
    finish(lease)
    bytes_of("crop").unlink()

    def walk() -> list[Finding]:
        try:
            return found()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            lifecycle.repair(lease.job_id, variants=["crop"], actor="test", detail="")
            walking = thread.submit(walk)
            until(lambda: walking.done() or somebody_waits_for_a_lock())
        assert walking.result() == []


def test_what_is_swept_after_it_was_listed_is_no_finding(
    leased: Callable[..., Lease], monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    lease = leased()
    finish(lease)
    settings.STAGING_RETENTION_SECONDS = -60.0
    real = storage.listing

    def listing(bucket: str, *, folder: str | None = None) -> Iterator[Listed]:
        listed = list(real(bucket, folder=folder))
        removed_and_swept(lease)
        assert StoredObject.objects.count() == 0
        return iter(listed)

    monkeypatch.setattr(storage, "listing", listing)
    (step,) = verification.unknown_objects()
    assert (step.taken, step.findings) == (4, ())


def test_an_empty_storage_in_place_of_ours_is_not_thousands_of_findings(
    leased: Callable[..., Lease], settings: Any, tmp_path: Path
) -> None:
    """A volume that is not mounted may leave its empty folder."""
    for _ in range(5):
        finish(leased())
    own = settings.STORAGE_ROOT
    settings.STORAGE_ROOT = str(tmp_path / "empty")
    storage.make_bucket(settings.STORAGE_BUCKET)
    with pytest.raises(StorageUnavailable, match="none of"):
        found(repair=True)
    settings.STORAGE_ROOT = own
    for stored in StoredObject.objects.exclude(variant__variant="crop"):
        storage.delete(stored.bucket, stored.key)
    assert len(found(repair=True)) == 15
    assert Job.objects.exclude(state=State.READY).count() == 0


@pytest.mark.django_db(transaction=True)
def test_beside_uploads_work_repairs_deletion_and_sweeps_nothing_is_found(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real executor, in threads on connections of their own; whatever is found, or repaired, is a false alarm."""
    make_quick(monkeypatch)
    threads, uploads = 2, 6

    def upload_and_work(number: int) -> None:
        try:
            for count in range(uploads):
                received = intake.receive([png()], created_by="test")
                job = intake.accept(received, intake.Request(owner=user, origin=Origin(Source.REST), name="a.png")).job
                assert work(job, worker=f"worker-{number}") == "ready"
                lifecycle.repair(job.job_id, variants=["crop"], actor="test", detail="")
                assert work(job, worker=f"worker-{number}") == "ready"
                if count % 3 == 0:
                    removal.remove(job.attachment_id, actor="test")
        finally:
            connection.close()

    def keep_sweeping() -> None:
        while not all(one.done() for one in working):
            retention.sweep()
        connection.close()

    looked_at, walks_made = 0, 0
    with ThreadPoolExecutor(threads + 1) as pool:
        working = [pool.submit(upload_and_work, number) for number in range(threads)]
        sweeping = pool.submit(keep_sweeping)
        while not all(one.done() for one in working):
            for step in verification.attachments(Selection(), digests=True, repair=True):
                assert step.findings == ()
                looked_at += step.objects
            for step in verification.unknown_objects():
                # One that is swept between its listing and the look at the rows counts as young, and is no finding.
                assert step.findings == ()
            walks_made += 1
        for one in [*working, sweeping]:
            one.result()
    assert walks_made > 1
    assert looked_at > threads * uploads
    assert not JobEvent.objects.filter(actor="verify").exists()
    until(lambda: retention.sweep() == 0)
    assert found() == []
