"""Retention removes what nothing needs any more, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from attachments import objects, storage
from attachments.models import BucketRole, StoredObject
from pipeline import lifecycle, retention
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job, OutboxMessage
from tests.messages import sent_ago

pytestmark = pytest.mark.django_db


def test_trash_of_any_number_is_swept_in_one_go(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SWEEP_LIMIT", 2)
    for number in range(5):
        objects.register(f"attachments/{number}/original", content_type="image/png", created_by="test")
    StoredObject.objects.update(bucket_role=BucketRole.TRASH)
    retention.sweep()
    assert StoredObject.objects.count() == 0


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


def test_storage_that_is_away_stops_the_sweep_at_the_first_object(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (len(asked), StoredObject.objects.count()) == (1, 3)
    settings.STORAGE_ROOT = root
    retention.sweep()
    assert StoredObject.objects.count() == 0


def test_trash_is_kept_while_something_points_at_it(queued: Callable[..., Job]) -> None:
    job = queued()
    StoredObject.objects.filter(attachment=job.attachment).update(bucket_role=BucketRole.TRASH)
    retention.sweep()
    assert StoredObject.objects.filter(attachment=job.attachment).exists()


def test_sent_rows_are_swept_unless_their_job_still_waits(
    leased: Callable[..., Lease], queued: Callable[..., Job]
) -> None:
    lease, waiting = leased(), queued()
    unsent = queued()
    lifecycle.fail(lease, Failure(code="bad_file", sentence="Damaged."))
    for job_id in (lease.job_id, waiting.job_id):
        sent_ago(Job.objects.get(job_id=job_id), 8 * 24 * 3600)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pipeline_outbox SET created_at = now() - interval '1 year'")
    retention.sweep()
    assert set(OutboxMessage.objects.values_list("job_id", flat=True)) == {waiting.job_id, unsent.job_id}
