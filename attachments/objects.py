"""Rows of the storage: born before their first byte, thrown away by role, never forgotten."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection

from django.conf import settings
from django.db import Error, transaction
from django.db.models import Q

from attachments import storage
from attachments.errors import StorageUnavailable
from attachments.models import BucketRole, StoredObject
from attachments.outages import is_database_away

#: Where all keys begin; the bucket's other folders are none of ours.
FOLDER = "attachments"

logger = logging.getLogger(__name__)


def register(key: str, *, content_type: str, created_by: str) -> StoredObject:
    """Commit the row of an object that is about to be written; it stays `staging` until something points at it.

    Keys are made for one writer, so asking twice (the first commit's outcome was unknown) gives the same row.
    """
    with transaction.atomic(durable=True):
        stored, _ = StoredObject.objects.get_or_create(
            bucket=settings.STORAGE_BUCKET,
            key=key,
            defaults={"content_type": content_type, "created_by": created_by},
        )
    return stored


def original_key(attachment_id: object) -> str:
    return f"{FOLDER}/{attachment_id}/original"


def variant_key(attachment_id: object, *, version: int, attempt: int, variant: str) -> str:
    """A fresh key for every attempt, so no attempt ever overwrites what another one published."""
    return f"{FOLDER}/{attachment_id}/v{version}/{attempt}/{variant}"


def lock(ids: Collection[int]) -> list[StoredObject]:
    """Lock these objects until the caller's transaction ends, in the one order that keeps two of them apart."""
    return list(StoredObject.objects.select_for_update().filter(id__in=ids).order_by("id"))


def lock_all_of(attachment_id: uuid.UUID) -> list[StoredObject]:
    """Lock the original and every variant of an attachment, whose row the caller has locked."""
    belongs = Q(attachment=attachment_id) | Q(variant__attachment=attachment_id)
    return lock(list(StoredObject.objects.filter(belongs).values_list("id", flat=True)))


def unknown(bucket: str, keys: Collection[str]) -> set[str]:
    """Those of the keys that no row names; to be asked after the storage listed them, for a row comes first."""
    named = StoredObject.objects.filter(bucket=bucket).values_list("key", flat=True)
    # First without `results`, so that the unique index serves; only what is left is looked for among them.
    unnamed = set(keys).difference(named.exclude(bucket_role=BucketRole.RESULTS).filter(key__in=keys))
    return unnamed.difference(named.filter(key__in=unnamed)) if unnamed else unnamed


def throw_away(object_id: int) -> None:
    """Turn an object that nothing points at into trash and delete it now if that works; the sweep does the rest."""
    unused = StoredObject.objects.filter(
        id=object_id, bucket_role=BucketRole.STAGING, attachment__isnull=True, variant__isnull=True
    )
    try:
        if unused.update(bucket_role=BucketRole.TRASH):
            erase(object_id)
    except (Error, StorageUnavailable) as error:
        if isinstance(error, Error) and not is_database_away(error):
            raise
        logger.warning("object_left_to_the_sweep", extra={"object_id": object_id, "cause": type(error).__name__})


def erase(object_id: int) -> bool:
    """Delete the bytes of a trashed object, then its row; False when it is none. StorageUnavailable when it is away."""
    found = StoredObject.objects.filter(
        id=object_id, bucket_role=BucketRole.TRASH, attachment__isnull=True, variant__isnull=True
    ).first()
    if found is None:
        return False
    storage.delete(found.bucket, found.key)
    StoredObject.objects.filter(id=object_id, bucket_role=BucketRole.TRASH).delete()
    return True
