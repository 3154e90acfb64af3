"""Retention: what nothing needs any more is chosen by its row, turned into trash, and then deleted.

The dispatcher runs this on its own clock, and beat's task calls the same function; each alone is enough.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from attachments import objects
from attachments.errors import StorageUnavailable
from attachments.models import BucketRole, StoredObject
from pipeline import metrics
from pipeline.models import OutboxMessage
from pipeline.states import State

SWEEP_LIMIT = 200
SWEEP_SECONDS = 60.0

logger = logging.getLogger(__name__)


def sweep() -> int:
    """Retention, a bounded batch at a time: forgotten staging, trash, sent outbox rows. Returns what was removed."""
    _trash_forgotten_staging()
    erased = _erase_trash()
    sent = _delete_sent_messages()
    metrics.SWEPT.labels(kind="object").inc(erased)
    metrics.SWEPT.labels(kind="outbox").inc(sent)
    return erased + sent


def _trash_forgotten_staging() -> None:
    """Objects whose upload or attempt died before anything pointed at them."""
    age = timedelta(seconds=settings.STAGING_RETENTION_SECONDS)
    with transaction.atomic():
        forgotten = list(
            StoredObject.objects.select_for_update(skip_locked=True, of=("self",))
            .filter(
                bucket_role=BucketRole.STAGING,
                created_at__lt=Now() - age,
                attachment__isnull=True,
                variant__isnull=True,
            )
            .values_list("id", flat=True)[:SWEEP_LIMIT]
        )
        # Asked again under the lock: an intake may have pointed at one since.
        StoredObject.objects.filter(
            id__in=forgotten, bucket_role=BucketRole.STAGING, attachment__isnull=True, variant__isnull=True
        ).update(bucket_role=BucketRole.TRASH)


def _erase_trash() -> int:
    """Stops at the first sign that the storage is away: each further try would only wait for it again."""
    erased, until = 0, time.monotonic() + SWEEP_SECONDS
    try:
        while (batch := _trash()) and time.monotonic() < until:
            erased += sum(objects.erase(object_id) for object_id in batch)
    except StorageUnavailable as error:
        logger.warning("sweep_stopped", extra={"cause": str(error)})
    return erased


def _trash() -> list[int]:
    return list(
        StoredObject.objects.filter(bucket_role=BucketRole.TRASH, attachment__isnull=True, variant__isnull=True)
        .order_by("created_at")
        .values_list("id", flat=True)[:SWEEP_LIMIT]
    )


def _delete_sent_messages() -> int:
    """Sent rows past their retention, unless their job still waits for that very message."""
    old = OutboxMessage.objects.filter(
        sent_at__lt=Now() - timedelta(seconds=settings.OUTBOX_RETENTION_SECONDS)
    ).exclude(job__state=State.QUEUED, job__attempt=F("attempt"))
    ids = list(old.values_list("id", flat=True)[: SWEEP_LIMIT * 10])
    deleted, _ = OutboxMessage.objects.filter(id__in=ids).delete()
    return deleted
