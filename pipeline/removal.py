"""Deleting an attachment: one transaction takes away its bytes, names and texts, and the right to work on it.

The row, its idempotency key and its history stay. Objects become trash, which the sweep deletes; a running attempt
finds its job cancelled at its next renewal or record, both of which come after this in the lock order, and publishes
nothing.
"""

from __future__ import annotations

import logging
import uuid

from django.db import transaction
from django.db.models.functions import Now

from attachments import objects
from attachments.models import Attachment, BucketRole, StoredObject, Transcript, Variant
from pipeline import lifecycle
from pipeline.models import Job

logger = logging.getLogger(__name__)


def remove(attachment_id: uuid.UUID, *, actor: str) -> bool:
    """Delete the attachment; False when there is none or it was deleted before."""
    with transaction.atomic():
        attachment = Attachment.objects.select_for_update().filter(id=attachment_id, deleted_at__isnull=True).first()
        if attachment is None:
            return False
        trash = objects.lock_all_of(attachment.id)
        lifecycle.request_cancel(attachment)
        Variant.objects.filter(attachment=attachment).delete()
        Transcript.objects.filter(attachment=attachment).delete()
        _clear(attachment)
        StoredObject.objects.filter(id__in=[stored.id for stored in trash]).update(bucket_role=BucketRole.TRASH)
    logger.info("deleted", extra={"attachment_id": str(attachment_id), "actor": actor, "objects": len(trash)})
    return True


def _clear(attachment: Attachment) -> None:
    Job.objects.filter(attachment=attachment).update(media={})
    Attachment.objects.filter(id=attachment.id).update(
        deleted_at=Now(),
        original=None,
        name="",
        claimed_type="",
        language="",
        media={},
    )
