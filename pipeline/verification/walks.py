"""The two walks: from rows to objects, and from objects to rows."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import islice

from django.conf import settings
from django.db import connection, transaction

from attachments import objects, storage
from attachments.models import Attachment, BucketRole
from pipeline.selection import Selection, newest_first
from pipeline.verification.findings import Finding, Kind, Snapshot, Step, contradictions, load, of_object
from pipeline.verification.looks import Flaw, look, require_our_storage
from pipeline.verification.repairs import repaired

ATTACHMENTS_AT_ONCE = 50
#: As many as S3 gives with one answer.
KEYS_AT_ONCE = 1000
#: So many objects are looked at side by side: each is mostly a wait for the storage.
HANDS = 8


def attachments(selection: Selection, *, digests: bool, repair: bool = False) -> Iterator[Step]:
    """From rows to objects, the newest attachments first.

    1. Load a page of attachments with all that hangs on them, without a lock.
    2. Look at every object that is needed, outside of any transaction. `digests` reads all of its bytes.
    3. Look once more at what seems wrong, and read its rows again under the attachment's lock, which every move takes
       that publishes, replaces or removes an object: what was superseded or swept meanwhile is no finding.
    4. With `repair`, mend what can be mended.
    """
    chosen = selection.attachments().select_related("original")
    with ThreadPoolExecutor(HANDS, thread_name_prefix="verify") as hands:
        for page in newest_first(chosen, size=ATTACHMENTS_AT_ONCE):
            snapshots = load(page)
            used = [pointer.stored for snapshot in snapshots for pointer in snapshot.pointers()]
            looks = zip(used, hands.map(partial(look, digests=digests), used), strict=True)
            flaws = {stored.id: flaw for stored, flaw in looks if flaw is not None}
            if Flaw.MISSING in flaws.values():
                require_our_storage()
            findings = [
                finding
                for snapshot in snapshots
                if _is_suspect(snapshot, flaws)
                for finding in _confirmed(snapshot, digests=digests, repair=repair)
            ]
            reached = page[-1].created_at
            yield Step(taken=len(page), objects=len(used), findings=tuple(findings), reached=reached)


def unknown_objects(ids: Iterable[uuid.UUID] = ()) -> Iterator[Step]:
    """From objects to rows: all that the storage lists in our folder, or of these attachments alone.

    A row is committed before the first byte and deleted after the last. An object without one is what a request made
    that arrived after its writer had given up, and retention removes it when it is old; or it is a stranger's.
    """
    for folder in [f"{objects.FOLDER}/{attachment_id}" for attachment_id in ids] or [objects.FOLDER]:
        listed = storage.listing(settings.STORAGE_BUCKET, folder=folder)
        while page := list(islice(listed, KEYS_AT_ONCE)):
            before = _now() - timedelta(seconds=settings.STAGING_RETENTION_SECONDS)
            unknown = objects.unknown(settings.STORAGE_BUCKET, [found.key for found in page])
            old = [found.key for found in page if found.key in unknown and found.modified_at < before]
            findings = tuple(
                Finding(kind=Kind.UNKNOWN_OBJECT, about=f"{settings.STORAGE_BUCKET}/{key}")
                for key in old
                if _is_unknown_still(key)
            )
            yield Step(taken=len(page), findings=findings, young=len(unknown) - len(old))


def _is_suspect(snapshot: Snapshot, flaws: dict[int, Flaw]) -> bool:
    return bool(contradictions(snapshot)) or any(pointer.stored.id in flaws for pointer in snapshot.pointers())


def _confirmed(suspect: Snapshot, *, digests: bool, repair: bool) -> list[Finding]:
    looks = [(pointer.stored.id, look(pointer.stored, digests=digests)) for pointer in suspect.pointers()]
    flaws = {object_id: flaw for object_id, flaw in looks if flaw is not None}
    with transaction.atomic():
        locked = Attachment.objects.select_for_update(of=("self",)).select_related("original")
        (now,) = load([locked.get(id=suspect.attachment.id)])
    found = contradictions(now)
    for pointer in now.pointers():
        flaw = flaws.get(pointer.stored.id)
        if flaw is not None and pointer.stored.bucket_role != BucketRole.TRASH:
            needed_as = "variant" if pointer.variant else "original"
            found.append(of_object(Kind(f"{needed_as}_{flaw.value}"), pointer, now))
    return repaired(found, original=now.attachment.original) if repair else found


def _is_unknown_still(key: str) -> bool:
    """What was swept since it was listed is gone, bytes and row."""
    return storage.size_of(settings.STORAGE_BUCKET, key) is not None and bool(
        objects.unknown(settings.STORAGE_BUCKET, [key])
    )


def _now() -> datetime.datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        now: datetime.datetime = cursor.fetchone()[0]
    return now
