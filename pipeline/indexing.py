"""Bring the search in line with SEARCH_TRANSCRIPTS: index what was transcribed while it was off, or drop all words.

What is indexed already is left alone, so whoever is interrupted just starts over.
"""

from __future__ import annotations

import enum
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet

from attachments import search, storage
from attachments.errors import ObjectCorrupt, ObjectMissing, StorageUnavailable
from attachments.models import Attachment, StoredObject, Transcript, Variant
from pipeline.selection import Selection, newest_first, unhurried
from pipeline.speech.transcript import NotATranscript
from pipeline.speech.transcript import Transcript as TranscriptRecord
from pipeline.texts import TRANSCRIPT

ATTACHMENTS_AT_ONCE = 200
DROPPED_AT_ONCE = 200

logger = logging.getLogger(__name__)


class Outcome(enum.Enum):
    """What one attachment came to. `GONE`: its transcript was replaced or deleted meanwhile."""

    INDEXED = "indexed"
    UNREADABLE = "unreadable"
    GONE = "gone"


class Unreadable(Exception):
    """The object is missing, damaged, or kept back by the storage."""


@dataclass(frozen=True, kw_only=True)
class Indexing:
    """The served transcripts among the selected attachments that the search does not know."""

    selection: Selection

    def count(self) -> int:
        with unhurried():
            return self._unknown().count()

    def run(self) -> Iterator[Outcome]:
        """One attachment a step, the newest first. StorageUnavailable when the storage is away for all objects."""
        for page in newest_first(self._unknown(), size=ATTACHMENTS_AT_ONCE):
            for attachment in page:
                yield _index(attachment)

    def _unknown(self) -> QuerySet[Attachment]:
        served = {"attachment": OuterRef("pk"), "pipeline_version": OuterRef("served_version")}
        return self.selection.attachments().filter(
            Exists(Variant.objects.filter(variant=TRANSCRIPT, **served)),
            ~Exists(Transcript.objects.filter(**served)),
            deleted_at__isnull=True,
            texts_expired_at__isnull=True,
        )


def indexed(selection: Selection) -> QuerySet[Transcript]:
    """What the search knows of these attachments, in whatever version."""
    return Transcript.objects.filter(attachment__in=selection.attachments())


def drop(selection: Selection) -> Iterator[int]:
    """Take the words of these attachments out of the database; yields how many transcripts, step by step."""
    while ids := list(indexed(selection).values_list("id", flat=True)[:DROPPED_AT_ONCE]):
        dropped, _ = Transcript.objects.filter(id__in=ids).delete()
        yield dropped


def _index(attachment: Attachment) -> Outcome:
    """Read outside of any transaction; under the attachment's lock, see that it is still what is served."""
    served = Variant.objects.filter(
        attachment=attachment, variant=TRANSCRIPT, pipeline_version=F("attachment__served_version")
    )
    variant = served.select_related("stored_object").first()
    if variant is None:
        return Outcome.GONE
    try:
        transcript = TranscriptRecord.from_json(_read(variant.stored_object))
    except (Unreadable, NotATranscript) as error:
        logger.warning("transcript_unreadable", extra={"attachment_id": str(attachment.id), "cause": str(error)})
        return Outcome.UNREADABLE
    with transaction.atomic():
        Attachment.objects.select_for_update().get(id=attachment.id)
        if not served.filter(id=variant.id, stored_object=variant.stored_object).exists():
            return Outcome.GONE
        is_indexed = search.index(attachment.id, variant.pipeline_version, transcript.language, transcript.said())
    return Outcome.INDEXED if is_indexed else Outcome.GONE


def _read(stored: StoredObject) -> bytes:
    try:
        with storage.open_object(stored.bucket, stored.key) as stream:
            data = b"".join(stream)
    except (ObjectMissing, ObjectCorrupt) as error:
        raise Unreadable(error.code) from error
    except StorageUnavailable as error:
        storage.check()
        raise Unreadable(error.code) from error
    if hashlib.sha256(data).hexdigest() != stored.sha256:
        raise Unreadable(ObjectCorrupt.code)
    return data
