"""What the storage says of one object, and whether it is the storage that we mean."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator

from django.db.models import Max, Min, Q

from attachments import storage
from attachments.errors import ObjectCorrupt, ObjectMissing, StorageUnavailable
from attachments.models import BucketRole, StoredObject

#: When not one object of a sample is there, this is not the storage that they were put into.
SAMPLES = 20


class Flaw(enum.Enum):
    """What is wrong with an object's bytes."""

    MISSING = "missing"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


def look(stored: StoredObject, *, digests: bool) -> Flaw | None:
    """Compare an object with its row: all of its bytes, or presence and size alone.

    StorageUnavailable means that the storage is away for all objects; one that alone cannot be read is UNREADABLE.
    """
    try:
        return _read(stored) if digests else _measure(stored)
    except StorageUnavailable:
        storage.check()
        return Flaw.UNREADABLE


def require_our_storage() -> None:
    """An empty or foreign storage in place of ours must not read as thousands of lost files: StorageUnavailable."""
    asked = set()
    for stored in _samples():
        if storage.size_of(stored.bucket, stored.key) is not None:
            return
        asked.add(stored.id)
    if len(asked) > SAMPLES // 2:
        raise StorageUnavailable(
            f"It holds none of {len(asked)} objects that the database names, taken from everywhere. Is it the right"
            " storage, and is it mounted?"
        )


def _read(stored: StoredObject) -> Flaw | None:
    digest = hashlib.sha256()
    try:
        with storage.open_object(stored.bucket, stored.key) as stream:
            if _differs(stored.size, stream.remaining):
                return Flaw.DAMAGED
            for chunk in stream:
                digest.update(chunk)
    except ObjectMissing:
        return Flaw.MISSING
    except ObjectCorrupt:
        return Flaw.DAMAGED
    return Flaw.DAMAGED if _differs(stored.sha256, digest.hexdigest()) else None


def _measure(stored: StoredObject) -> Flaw | None:
    size = storage.size_of(stored.bucket, stored.key)
    if size is None:
        return Flaw.MISSING
    return Flaw.DAMAGED if _differs(stored.size, size) else None


def _differs(told: int | str | None, found: int | str) -> bool:
    """Of what an outside service stored, size and digest may never have been told."""
    return told is not None and told != found


def _samples() -> Iterator[StoredObject]:
    """Objects in use, from all parts of the table."""
    is_used = Q(attachment__isnull=False) | Q(variant__isnull=False)
    used = StoredObject.objects.filter(is_used).exclude(bucket_role=BucketRole.TRASH).order_by("id")
    ends = StoredObject.objects.aggregate(first=Min("id"), last=Max("id"))
    first, last = ends["first"] or 0, ends["last"] or 0
    for number in range(SAMPLES):
        found = used.filter(id__gte=first + (last - first) * number // SAMPLES).first()
        if found is not None:
            yield found
