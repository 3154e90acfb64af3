"""Retention: what nothing needs any more is chosen by its row, turned into trash, and then deleted.

What is kept for how long, and why nothing in use can go, is docs/retention.md. The dispatcher runs this on its own
clock, and beat's task calls the same function; each alone is enough. Locks: attachment, then object, as everywhere.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Value, When
from django.db.models.functions import Now

from attachments import objects, storage
from attachments.errors import StorageUnavailable
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from notifications.models import FetchState
from pipeline import metrics, texts
from pipeline.models import Job, OutboxMessage
from pipeline.states import State

SWEEP_LIMIT = 200
SWEEP_SECONDS = 60.0
VARIANTS_EVERY_SECONDS = 3600.0
ATTACHMENTS_AT_ONCE = 2000
#: One may be locked or not ours to delete; two mean that the storage is away, and a third would only wait for it too.
REFUSED_IN_A_ROW = 2
#: As many as S3 gives with one answer.
KEYS_AT_ONCE = 1000

logger = logging.getLogger(__name__)


def sweep() -> int:
    """Apply every rule, each for a bounded while; returns how many objects, unfinished uploads and rows went."""
    return _sweeper.run()


class Sweeper:
    """The sweeps of one process, and how far it came with what is too long for one of them."""

    def __init__(self) -> None:
        self._variants = Round()
        self._texts = Round()
        self._keys = Round()
        self._refused: set[int] = set()

    def run(self) -> int:
        _trash_forgotten_staging()
        _trash_failed_originals()
        self._variants.go_on(_trash_outdated_variants, every_seconds=VARIANTS_EVERY_SECONDS)
        self._texts.go_on(texts.forget_old, every_seconds=VARIANTS_EVERY_SECONDS)
        removed = _delete_sent_messages()
        try:
            removed += self._erase_trash()
            removed += self._keys.go_on(_remove_unknown_objects, every_seconds=settings.LISTING_EVERY_SECONDS)
        except StorageUnavailable as error:
            # Each further try would only wait for it again.
            logger.warning("sweep_stopped", extra={"cause": str(error)})
        return removed

    def _erase_trash(self) -> int:
        """Bytes, then rows. StorageUnavailable when two in a row are refused.

        Those are asked again once everything else is gone: what cannot be deleted keeps nothing else waiting.
        """
        erased, in_a_row, until = 0, 0, time.monotonic() + SWEEP_SECONDS
        while batch := _some_trash(without=self._refused):
            for object_id in batch:
                try:
                    if objects.erase(object_id):
                        metrics.SWEPT.labels(kind="object").inc()
                        erased += 1
                    in_a_row = 0
                except StorageUnavailable as error:
                    self._refused.add(object_id)
                    in_a_row += 1
                    if in_a_row == REFUSED_IN_A_ROW:
                        raise
                    logger.warning("object_not_deleted", extra={"object_id": object_id, "cause": str(error)})
            if time.monotonic() > until:
                return erased
        self._refused.clear()
        return erased


class Round:
    """A walk over everything, in short steps: gone on with from sweep to sweep, and begun again after a while.

    Between its steps it keeps its place and no transaction. An error ends the walk; the next sweep begins it anew.
    """

    def __init__(self) -> None:
        self._place: Iterator[int] | None = None
        self._due = 0.0

    def go_on(self, walk: Callable[[], Iterator[int]], *, every_seconds: float, seconds: float = SWEEP_SECONDS) -> int:
        """Walk for so many seconds if a walk is due (every 0: never); returns the sum of what its steps did."""
        began = time.monotonic()
        place, self._place = self._place, None
        if place is None:
            if not every_seconds or began < self._due:
                return 0
            place = walk()
        done = 0
        for step in place:
            done += step
            if time.monotonic() - began >= seconds:
                self._place = place
                return done
        self._due = began + every_seconds
        return done


_sweeper = Sweeper()


def _trash_forgotten_staging() -> None:
    """Objects whose upload or attempt died before anything pointed at them."""
    age = timedelta(seconds=settings.STAGING_RETENTION_SECONDS)
    unused = Q(bucket_role=BucketRole.STAGING, attachment__isnull=True, variant__isnull=True)
    with transaction.atomic():
        forgotten = list(
            StoredObject.objects.select_for_update(skip_locked=True, of=("self",))
            .filter(unused, created_at__lt=Now() - age)
            .values_list("id", flat=True)[:SWEEP_LIMIT]
        )
        # Asked again under the lock: an intake may have pointed at one since.
        trashed = StoredObject.objects.filter(unused, id__in=forgotten).update(bucket_role=BucketRole.TRASH)
    metrics.SWEPT.labels(kind="staging").inc(trashed)


def _trash_failed_originals() -> None:
    """What failed long ago and was never served: the attachment stays, and says `original_gone`."""
    if not settings.FAILED_RETENTION_DAYS:
        return
    with transaction.atomic():
        locked = _lock_attachments(_long_failed().values("id")[:SWEEP_LIMIT])
        _lock_objects(StoredObject.objects.filter(attachment__in=locked))
        # Asked again under the locks: a job may have been begun anew since.
        failed = dict(_long_failed().filter(id__in=locked).values_list("id", "original"))
        Attachment.objects.filter(id__in=failed).update(original=None)
        _trash(failed.values())
    metrics.SWEPT.labels(kind="original").inc(len(failed))


def _long_failed() -> QuerySet[Attachment]:
    """Found by the index of staging, which an original leaves when its attachment is served."""
    age = timedelta(days=settings.FAILED_RETENTION_DAYS)
    jobs = Job.objects.filter(attachment=OuterRef("pk"))
    return Attachment.objects.filter(
        Exists(jobs),
        ~Exists(jobs.exclude(state=State.FAILED, finished_at__lt=Now() - age)),
        served_version__isnull=True,
        original__bucket_role=BucketRole.STAGING,
        original__created_at__lt=Now() - age,
    )


def _trash_outdated_variants() -> Iterator[int]:
    """Attachment by attachment: which variants are outdated takes three tables to tell, so no index can."""
    last = uuid.UUID(int=0)
    while True:
        some = Attachment.objects.filter(id__gt=last).order_by("id").values_list("id", "served_version")
        served = dict(some[:ATTACHMENTS_AT_ONCE])
        if not served:
            return
        suspects = _not_served(served, first_after=last)
        outdated = list(_outdated_variants().filter(id__in=suspects).values_list("id", flat=True))
        for start in range(0, len(outdated), SWEEP_LIMIT):
            yield _trash_outdated(outdated[start : start + SWEEP_LIMIT])
        yield 0
        last = max(served)


def _not_served(served: dict[uuid.UUID, int | None], *, first_after: uuid.UUID) -> list[int]:
    """Few among very many; compared here, since PostgreSQL would read all attachments to join some thousand."""
    recorded = Variant.objects.filter(attachment__gt=first_after, attachment__lte=max(served))
    return [
        variant_id
        for variant_id, attachment_id, version, is_internal in recorded.values_list(
            "id", "attachment", "pipeline_version", "is_internal"
        )
        if is_internal or version != served.get(attachment_id)
    ]


def _trash_outdated(chosen: list[int]) -> int:
    with transaction.atomic():
        locked = _lock_attachments(Variant.objects.filter(id__in=chosen).values("attachment"))
        _lock_objects(StoredObject.objects.filter(variant__in=chosen, variant__attachment__in=locked))
        # Asked again under the locks: the version may be worked on again since.
        outdated = list(_outdated_variants().filter(id__in=chosen, attachment__in=locked))
        Variant.objects.filter(id__in=[variant.id for variant in outdated]).delete()
        texts.unindex(outdated)
        _trash([variant.stored_object_id for variant in outdated])
    for variant in outdated:
        metrics.SWEPT.labels(kind=variant.why).inc()
    return len(outdated)


def _outdated_variants() -> QuerySet[Any]:
    """Variants that neither serving nor an unfinished job needs any more, and `why`."""
    age = Now() - timedelta(seconds=settings.SUPERSEDED_RETENTION_SECONDS)
    failed_age = Now() - timedelta(days=settings.FAILED_RETENTION_DAYS)
    jobs = Job.objects.filter(attachment=OuterRef("attachment"))
    own = jobs.filter(pipeline_version=OuterRef("pipeline_version"))
    served = jobs.filter(pipeline_version=OuterRef("attachment__served_version"), state=State.READY)
    is_older = Q(pipeline_version__lt=F("attachment__served_version"))
    is_unserved = ~Q(pipeline_version=F("attachment__served_version")) | Q(attachment__served_version__isnull=True)
    rules = {
        "superseded": is_older & Exists(served.filter(finished_at__lt=age)) & ~Exists(own.filter(finished_at=None)),
        "internal": Q(is_internal=True) & Exists(own) & ~Exists(own.exclude(finished_at__lt=age)),
        "unserved": is_unserved & Exists(own) & ~Exists(own.exclude(state=State.FAILED, finished_at__lt=failed_age)),
    }
    if not settings.FAILED_RETENTION_DAYS:
        del rules["unserved"]
    why = Case(*(When(rule, then=Value(name)) for name, rule in rules.items()))
    return Variant.objects.annotate(why=why).filter(why__isnull=False)


def _lock_attachments(ids: QuerySet[Any, Any]) -> list[uuid.UUID]:
    """Without waiting: what is in other hands is left to a later sweep."""
    found = Attachment.objects.select_for_update(skip_locked=True).filter(id__in=ids).order_by("id")
    return list(found.values_list("id", flat=True))


def _lock_objects(chosen: QuerySet[StoredObject]) -> None:
    objects.lock(list(chosen.values_list("id", flat=True)))


def _trash(object_ids: Collection[int]) -> None:
    StoredObject.objects.filter(id__in=object_ids).update(bucket_role=BucketRole.TRASH)


def _some_trash(*, without: Collection[int]) -> list[int]:
    trash = StoredObject.objects.filter(bucket_role=BucketRole.TRASH, attachment__isnull=True, variant__isnull=True)
    return list(trash.exclude(id__in=without).order_by("created_at").values_list("id", flat=True)[:SWEEP_LIMIT])


def _remove_unknown_objects() -> Iterator[int]:
    """Old objects of ours that no row names, and old uploads that never ended, by the storage's own list.

    A row is committed before the first byte is written and deleted after the last one was, so such an object is what
    a request made that arrived after its writer had given up.
    """
    bucket, before = settings.STORAGE_BUCKET, _now() - timedelta(seconds=settings.STAGING_RETENTION_SECONDS)
    listed = storage.listing(bucket, folder=objects.FOLDER)
    while page := list(islice(listed, KEYS_AT_ONCE)):
        unknown = objects.unknown(bucket, [found.key for found in page])
        if len(unknown) * 2 > len(page):
            # Far too many: this is the bucket of another database, or the database that of another bucket.
            logger.error("bucket_not_ours", extra={"bucket": bucket, "listed": len(page), "unknown": len(unknown)})
            return
        yield _remove(bucket, [found.key for found in page if found.key in unknown and found.modified_at < before])
    yield _abort_uploads(bucket, begun_before=before)


def _abort_uploads(bucket: str, *, begun_before: datetime) -> int:
    try:
        aborted = storage.abort_stale_uploads(bucket, folder=objects.FOLDER, begun_before=begun_before)
    except StorageUnavailable as error:
        # Not every server can list them, and not every key may: no reason to list all objects again.
        logger.warning("uploads_not_aborted", extra={"cause": str(error)})
        return 0
    metrics.SWEPT.labels(kind="upload").inc(aborted)
    return aborted


def _remove(bucket: str, keys: list[str]) -> int:
    for key in keys:
        storage.delete(bucket, key)
        logger.warning("unknown_object_removed", extra={"bucket": bucket, "key": key})
        metrics.SWEPT.labels(kind="unknown").inc()
    return len(keys)


def _now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now


def _delete_sent_messages() -> int:
    """Sent rows past their retention, unless their job, or file to be fetched, still waits for that very message."""
    sent = OutboxMessage.objects.filter(sent_at__lt=Now() - timedelta(seconds=settings.OUTBOX_RETENTION_SECONDS))
    old = sent.exclude(job__state=State.QUEUED, job__attempt=F("attempt")).exclude(
        telegram_update__state=FetchState.WAITING, telegram_update__attempt=F("attempt")
    )
    ids = list(old.values_list("id", flat=True)[: SWEEP_LIMIT * 10])
    deleted, _ = OutboxMessage.objects.filter(id__in=ids).delete()
    metrics.SWEPT.labels(kind="outbox").inc(deleted)
    return deleted
