"""Where the texts of speech are, and how they are forgotten: all of an attachment's at once, in one transaction.

They are kept for TRANSCRIPT_RETENTION_DAYS after its last job ended. Nothing makes them again: `lifecycle` begins no
work on what it served once its texts have expired. See docs/retention.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from attachments import objects
from attachments.models import Attachment, BucketRole, StoredObject, Transcript, Variant
from pipeline import metrics
from pipeline.models import Job
from pipeline.steps.speech import WINDOW_PREFIX
from pipeline.steps.transcripts import WriteStep

PIPELINE = "speech"
#: The record that all other texts are written from, and that the search reads.
TRANSCRIPT = WriteStep.reads
#: What any version ever made, besides windows: a name that is missing here is kept for ever.
VARIANTS = frozenset({TRANSCRIPT, *WriteStep.makes})
ATTACHMENTS_AT_ONCE = 2000
FORGOTTEN_AT_ONCE = 50


def forget_old() -> Iterator[int]:
    """Walk over all attachments, and forget the texts of those that are old enough; yields how many, step by step."""
    last = uuid.UUID(int=0)
    while settings.TRANSCRIPT_RETENTION_DAYS > 0:
        some = Attachment.objects.filter(id__gt=last).order_by("id").values_list("id", flat=True)
        page = list(some[:ATTACHMENTS_AT_ONCE])
        if not page:
            return
        with_texts = _texts().filter(attachment__gt=last, attachment__lte=page[-1]).values_list("attachment", flat=True)
        old = list(_old().filter(id__in=set(with_texts)).values_list("id", flat=True))
        for start in range(0, len(old), FORGOTTEN_AT_ONCE):
            yield _forget(old[start : start + FORGOTTEN_AT_ONCE])
        yield 0
        last = page[-1]


def unindex(gone: Iterable[Variant]) -> None:
    """What is no longer kept is not searched either; in the transaction that takes these variants away."""
    for variant in gone:
        if variant.variant == TRANSCRIPT:
            Transcript.objects.filter(
                attachment=variant.attachment_id, pipeline_version=variant.pipeline_version
            ).delete()


def _forget(chosen: Collection[uuid.UUID]) -> int:
    with transaction.atomic():
        # Without waiting: what is in other hands is left to a later walk.
        free = Attachment.objects.select_for_update(skip_locked=True).filter(id__in=chosen).order_by("id")
        locked = list(free.values_list("id", flat=True))
        objects.lock(list(_texts().filter(attachment__in=locked).values_list("stored_object", flat=True)))
        # Asked again under the locks: its work may have begun anew since.
        old = list(_old().filter(id__in=locked).values_list("id", flat=True))
        texts = list(_texts().filter(attachment__in=old))
        Transcript.objects.filter(attachment__in=old).delete()
        Variant.objects.filter(id__in=[text.id for text in texts]).delete()
        StoredObject.objects.filter(id__in=[text.stored_object_id for text in texts]).update(
            bucket_role=BucketRole.TRASH
        )
        # What was never served may still be replayed; then it is told of for the first time.
        Attachment.objects.filter(id__in=old, served_version__isnull=False).update(texts_expired_at=Now())
    metrics.SWEPT.labels(kind="text").inc(len(texts))
    return len(texts)


def _texts() -> QuerySet[Variant]:
    return Variant.objects.filter(Q(variant__in=VARIANTS) | Q(variant__startswith=WINDOW_PREFIX))


def _old() -> QuerySet[Attachment]:
    """Recordings whose jobs have all ended, the last of them long ago."""
    jobs = Job.objects.filter(attachment=OuterRef("pk"))
    limit = Now() - timedelta(days=settings.TRANSCRIPT_RETENTION_DAYS)
    return Attachment.objects.filter(
        Exists(jobs.filter(pipeline=PIPELINE)), ~Exists(jobs.exclude(finished_at__lt=limit))
    )
