"""What happens without anybody asking, and that it leaves living work alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import kombu
import pytest
from django.db import connection

from attachments import objects, storage
from attachments.models import BucketRole, StoredObject
from pipeline import lifecycle, maintenance
from pipeline.broker import Publisher
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job, OutboxMessage
from pipeline.relay import relay_batch
from tests.conftest import expire_lease
from tests.rabbit import drain_queue
from tests.waiting import until

pytestmark = pytest.mark.django_db


def sent_ago(job: Job, seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pipeline_outbox SET sent_at = now() - make_interval(secs => %s) WHERE job_id = %s",
            [seconds, job.job_id],
        )


def test_a_young_connection_recovers_nothing(leased: Callable[..., Lease], settings: Any) -> None:
    """After an outage of the database the living workers need a moment to renew their leases."""
    lease = leased()
    expire_lease(lease.job_id)
    settings.LEASE_SECONDS = 1_000_000.0
    assert maintenance.recover() == 0
    settings.LEASE_SECONDS = 0.0
    assert maintenance.recover() == 1


def test_a_silence_of_the_database_recovers_nothing_for_a_lease(leased: Callable[..., Lease], settings: Any) -> None:
    """A database that stood still answered no renewal either, though its connections are old."""
    settings.LEASE_SECONDS, settings.RENEW_SECONDS = 0.6, 0.1
    trust = maintenance.Trust()
    until(trust.is_earned)
    trust._looked_at = time.monotonic() - 1.0
    assert not trust.is_earned()
    until(trust.is_earned)


def test_trash_of_any_number_is_swept_in_one_go(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SWEEP_LIMIT", 2)
    for number in range(5):
        objects.register(f"attachments/{number}/original", content_type="image/png", created_by="test")
    StoredObject.objects.update(bucket_role=BucketRole.TRASH)
    maintenance.sweep()
    assert StoredObject.objects.count() == 0


def test_a_job_whose_message_was_lost_is_sent_again(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    job = queued()
    relay_batch(publisher)
    drain_queue(rabbit, "images")
    assert maintenance.redispatch(publisher) == 0
    sent_ago(job, 61)
    assert maintenance.redispatch(publisher) == 1
    relay_batch(publisher)
    assert len(drain_queue(rabbit, "images")) == 1


def test_each_redispatch_waits_twice_as_long(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    job = queued()
    OutboxMessage.objects.filter(job=job).update(redispatches=2)
    sent_ago(job, 239)
    assert maintenance.redispatch(publisher) == 0
    sent_ago(job, 241)
    assert maintenance.redispatch(publisher) == 1
    OutboxMessage.objects.filter(job=job).update(redispatches=40)
    sent_ago(job, 3590)
    assert maintenance.redispatch(publisher) == 0
    sent_ago(job, 3610)
    assert maintenance.redispatch(publisher) == 1


def test_a_plain_backlog_is_never_amplified(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    """Long waiting alone is no loss: the queue still holds the messages, and nothing sent later was claimed."""
    jobs = [queued() for _ in range(3)]
    relay_batch(publisher)
    for job in jobs:
        sent_ago(job, 3000)
    assert maintenance.redispatch(publisher) == 0


def test_a_message_overtaken_by_a_later_one_is_lost(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    lost, later, waiting = queued(), queued(), queued()
    relay_batch(publisher)
    sent_ago(lost, 300)
    sent_ago(later, 100)
    sent_ago(waiting, 90)
    assert lifecycle.claim(later.job_id, attempt=1, worker="w") is not None
    assert maintenance.redispatch(publisher) == 1
    assert OutboxMessage.objects.get(sent_at=None).job_id == lost.job_id


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
    maintenance.sweep()
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
    maintenance.sweep()
    assert (len(asked), StoredObject.objects.count()) == (1, 3)
    settings.STORAGE_ROOT = root
    maintenance.sweep()
    assert StoredObject.objects.count() == 0


def test_trash_is_kept_while_something_points_at_it(queued: Callable[..., Job]) -> None:
    job = queued()
    StoredObject.objects.filter(attachment=job.attachment).update(bucket_role=BucketRole.TRASH)
    maintenance.sweep()
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
    maintenance.sweep()
    assert set(OutboxMessage.objects.values_list("job_id", flat=True)) == {waiting.job_id, unsent.job_id}
