"""Retention removes what nothing needs any more, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from prometheus_client import REGISTRY
from rest_framework.authtoken.models import Token

from attachments import objects, storage
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from pipeline import lifecycle, retention
from pipeline.failures import Failure
from pipeline.lifecycle import Gone, Lease
from pipeline.models import Job, OutboxMessage
from pipeline.retention import Sweeper
from tests.leases import VARIANTS, finish, record
from tests.messages import sent_ago

pytestmark = pytest.mark.django_db
DAY = 24 * 3600.0
BROKEN = Failure(code="bad_file", sentence="Damaged.")


def let_pass(seconds: float) -> None:
    """Let everything have happened that much earlier, without waiting for the clock."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE s3_object SET created_at = created_at - make_interval(secs => %s)", [seconds])
        cursor.execute("UPDATE pipeline_job SET finished_at = finished_at - make_interval(secs => %s)", [seconds])


def record_internal(lease: Lease) -> None:
    record(lease, "converted")
    Variant.objects.filter(variant="converted").update(is_internal=True)


def failed(lease: Lease) -> Attachment:
    lifecycle.fail(lease, BROKEN)
    return Attachment.objects.get(id=lease.attachment_id)


def test_trash_of_any_number_is_swept_in_one_go(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SWEEP_LIMIT", 2)
    for number in range(5):
        objects.register(f"attachments/{number}/original", content_type="image/png", created_by="test")
    StoredObject.objects.update(bucket_role=BucketRole.TRASH)
    retention.sweep()
    assert StoredObject.objects.count() == 0


def refuse_to_delete(stored: StoredObject) -> Path:
    """As under an object lock, until the folder goes."""
    folder = (Path(configured.STORAGE_ROOT) / stored.bucket / stored.key).parent
    folder.parent.mkdir(exist_ok=True)
    # It leads to itself, so nothing below it can be deleted, by root neither.
    folder.symlink_to(folder)
    return folder


def trash(count: int) -> list[StoredObject]:
    stored = [
        objects.register(f"attachments/{number}/original", content_type="image/png", created_by="test")
        for number in range(count)
    ]
    StoredObject.objects.update(bucket_role=BucketRole.TRASH)
    return stored


def test_what_the_storage_will_not_delete_keeps_nothing_else_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Three in a row: the next sweep leaves out those at which the one before stopped."""
    monkeypatch.setattr(retention, "SWEEP_LIMIT", 2)
    stored = trash(5)
    folders = [refuse_to_delete(locked) for locked in stored[:3]]
    sweeper = Sweeper()
    assert sweeper.run() == 0
    assert "sweep_stopped" in caplog.messages
    assert sweeper.run() == 2
    assert set(StoredObject.objects.all()) == set(stored[:3])
    for folder in folders:
        folder.unlink()
    assert sweeper.run() == 3


def test_a_refusal_here_and_there_is_no_storage_that_is_away() -> None:
    stored = trash(5)
    for locked in stored[::2]:
        refuse_to_delete(locked)
    assert Sweeper().run() == 2
    assert set(StoredObject.objects.all()) == set(stored[::2])


def test_forgotten_staging_is_swept_and_current_work_is_not(queued: Callable[..., Job]) -> None:
    """[attachments] непривязанные исходники имеют retention и cleanup; он не удаляет текущую работу."""
    job = queued()
    forgotten = objects.register("attachments/x/original", content_type="image/png", created_by="test")
    with storage.writer(forgotten.bucket, forgotten.key, content_type="image/png") as writer:
        writer.write(b"abandoned")
        writer.finish()
    fresh = objects.register("attachments/y/original", content_type="image/png", created_by="test")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE s3_object SET created_at = now() - interval '25 hours' WHERE id <> %s", [fresh.id])
    retention.sweep()
    assert not StoredObject.objects.filter(id=forgotten.id).exists()
    assert storage.size_of(forgotten.bucket, forgotten.key) is None
    assert StoredObject.objects.filter(id=fresh.id).exists()
    original = StoredObject.objects.get(attachment=job.attachment)
    assert storage.size_of(original.bucket, original.key) == original.size


def test_storage_that_is_away_stops_the_sweep_soon(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further try would wait for the storage again, and the trash is still there when it comes back."""
    for number in range(3):
        objects.register(f"attachments/{number}/original", content_type="image/png", created_by="test")
    StoredObject.objects.update(bucket_role=BucketRole.TRASH)
    asked: list[str] = []
    real = storage.delete

    def delete(bucket: str, key: str) -> None:
        asked.append(key)
        real(bucket, key)

    monkeypatch.setattr(storage, "delete", delete)
    root, settings.STORAGE_ROOT = settings.STORAGE_ROOT, settings.STORAGE_ROOT + "-not-mounted"
    retention.sweep()
    assert (len(asked), StoredObject.objects.count()) == (2, 3)
    settings.STORAGE_ROOT = root
    retention.sweep()
    retention.sweep()
    assert StoredObject.objects.count() == 0


def test_trash_is_kept_while_something_points_at_it_and_is_in_nobodys_way(
    queued: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SWEEP_LIMIT", 1)
    monkeypatch.setattr(retention, "SWEEP_SECONDS", 0.0)
    original = StoredObject.objects.get(attachment=queued().attachment)
    let_pass(DAY)
    objects.register("attachments/x/original", content_type="image/png", created_by="test")
    StoredObject.objects.update(bucket_role=BucketRole.TRASH)
    Sweeper().run()
    assert StoredObject.objects.get() == original
    assert not objects.erase(original.id)
    assert storage.size_of(original.bucket, original.key) == original.size


def test_an_original_that_failed_long_ago_goes_and_its_attachment_says_so(
    leased: Callable[..., Lease], user: User
) -> None:
    """[attachments] неуспешные исходники имеют retention и cleanup; the row stays, and nothing pretends otherwise."""
    lease = leased()
    record(lease, "thumbnail")
    attachment = failed(lease)
    original = attachment.original
    assert original is not None
    address = f"/api/v1/attachments/{attachment.id}/"
    door = Client(headers={"Authorization": f"Token {Token.objects.create(user=user).key}"})
    let_pass(29 * DAY)
    Sweeper().run()
    assert door.get(f"{address}original/").status_code == 200
    let_pass(2 * DAY)
    Sweeper().run()
    assert not StoredObject.objects.exists()
    assert storage.size_of(original.bucket, original.key) is None
    answer = door.get(f"{address}original/")
    assert (answer.status_code, answer.json()["code"]) == (410, "original_gone")
    status = door.get(address).json()
    assert (status["state"], status["error_code"], status["original"]) == ("failed", "bad_file", None)
    with pytest.raises(Gone):
        lifecycle.replay(lease.job_id, attempt=1, actor="operator:ann", reason="again")


@pytest.mark.parametrize("change", ["for ever", "replayed", "failed again of late"])
def test_what_failed_long_ago_is_kept(change: str, leased: Callable[..., Lease], settings: Any) -> None:
    lease = leased()
    record(lease, "thumbnail")
    attachment = failed(lease)
    let_pass(31 * DAY)
    if change == "for ever":
        settings.FAILED_RETENTION_DAYS = 0
    else:
        lifecycle.replay(lease.job_id, attempt=1, actor="operator:ann", reason="again")
    if change == "failed again of late":
        failed(leased(Job.objects.get()))
    Sweeper().run()
    attachment.refresh_from_db()
    assert attachment.original is not None
    assert storage.size_of(attachment.original.bucket, attachment.original.key) == attachment.size
    assert attachment.variants.get().stored_object.bucket_role == BucketRole.VARIANTS


def test_an_older_version_goes_a_day_after_a_newer_one_is_served(
    superseded: Callable[[], tuple[Attachment, Job]],
) -> None:
    attachment, _ = superseded()
    older = [variant.stored_object for variant in attachment.variants.filter(pipeline_version=1)]
    Sweeper().run()
    assert attachment.variants.count() == 2 * len(VARIANTS)
    let_pass(1.1 * DAY)
    Sweeper().run()
    assert set(attachment.variants.values_list("pipeline_version", "variant")) == {(2, name) for name in VARIANTS}
    assert [storage.size_of(stored.bucket, stored.key) for stored in older] == [None] * len(VARIANTS)
    served = StoredObject.objects.filter(variant__attachment=attachment)
    assert {storage.size_of(stored.bucket, stored.key) == stored.size for stored in served} == {True}


def test_what_only_the_work_needed_goes_a_day_after_it(leased: Callable[..., Lease]) -> None:
    lease = leased()
    record_internal(lease)
    let_pass(31 * DAY)
    Sweeper().run()
    assert Variant.objects.filter(variant="converted").exists()
    finish(lease)
    let_pass(1.1 * DAY)
    Sweeper().run()
    assert set(Variant.objects.values_list("variant", flat=True)) == set(VARIANTS)


def test_what_is_swept_is_counted_by_kind(
    superseded: Callable[[], tuple[Attachment, Job]], leased: Callable[..., Lease], settings: Any
) -> None:
    superseded()
    spent, lost = leased(), leased()
    record_internal(spent)
    finish(spent)
    record(lost, "crop")
    failed(lost)
    objects.register("attachments/x/original", content_type="image/png", created_by="test")
    let_pass(31 * DAY)
    sent_ago(Job.objects.get(job_id=lost.job_id), 8 * DAY)
    settings.STAGING_RETENTION_SECONDS = 0.0
    with storage.writer(settings.STORAGE_BUCKET, "attachments/y/original", content_type="image/png") as writer:
        writer.finish()
    unfinished = storage.writer(settings.STORAGE_BUCKET, "attachments/z/original", content_type="image/png")
    before = swept()
    Sweeper().run()
    unfinished.abort()
    counted = {kind: count - before.get(kind, 0) for kind, count in swept().items()}
    assert {kind: count for kind, count in counted.items() if count} == {
        "staging": 1,
        "superseded": 3,
        "internal": 1,
        "original": 1,
        "unserved": 1,
        "object": 7,
        "unknown": 1,
        "upload": 1,
        "outbox": 1,
    }


def swept() -> dict[str, float]:
    (metric,) = [metric for metric in REGISTRY.collect() if metric.name == "holdfast_swept"]
    return {sample.labels["kind"]: sample.value for sample in metric.samples if sample.name.endswith("_total")}


def test_sent_rows_are_swept_unless_their_job_still_waits(
    leased: Callable[..., Lease], queued: Callable[..., Job]
) -> None:
    lease, put_back, waiting = leased(), leased(), queued()
    unsent = queued()
    lifecycle.fail(lease, Failure(code="bad_file", sentence="Damaged."))
    lifecycle.release(put_back, reason="shutdown", pause=timedelta(0))
    for job_id in (lease.job_id, put_back.job_id, waiting.job_id):
        sent_ago(Job.objects.get(job_id=job_id), 8 * 24 * 3600)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pipeline_outbox SET created_at = now() - interval '1 year'")
    retention.sweep()
    assert set(OutboxMessage.objects.values_list("message_id", flat=True)) == {
        f"{put_back.job_id}:2",
        f"{waiting.job_id}:1",
        f"{unsent.job_id}:1",
    }
