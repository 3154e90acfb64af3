"""What can be wrong, and what the rows alone tell of it."""

from __future__ import annotations

import datetime
import enum
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Exists, OuterRef

from attachments.models import Attachment, BucketRole, StoredObject, Variant
from pipeline import registry
from pipeline.models import Job, OutboxMessage
from pipeline.registry import UnknownPipeline
from pipeline.states import Runner, State


class Kind(enum.StrEnum):
    """What is wrong. An object's flaw is told apart by who needs it: `original_missing`, `variant_missing`."""

    ORIGINAL_MISSING = "original_missing"
    ORIGINAL_DAMAGED = "original_damaged"
    ORIGINAL_UNREADABLE = "original_unreadable"
    VARIANT_MISSING = "variant_missing"
    VARIANT_DAMAGED = "variant_damaged"
    VARIANT_UNREADABLE = "variant_unreadable"
    VARIANT_UNRECORDED = "variant_unrecorded"
    TRASH_IN_USE = "trash_in_use"
    SERVED_NOT_READY = "served_not_ready"
    MESSAGE_MISSING = "message_missing"
    UNKNOWN_OBJECT = "unknown_object"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong. `about` names the object, or says what of the job; `outcome` is what repairing came to.

    `variant` is the one that would have to be made again.
    """

    kind: Kind
    about: str
    attachment_id: uuid.UUID | None = None
    job_id: uuid.UUID | None = None
    variant: str = ""
    outcome: str = ""
    is_repaired: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """A part of a walk: how many attachments or listed keys it took, the objects it asked for, what it found.

    `young` counts objects without a row that retention still gives time; `reached` is an acceptance time.
    """

    taken: int
    findings: tuple[Finding, ...]
    objects: int = 0
    young: int = 0
    reached: datetime.datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """An object that an attachment needs, and the variant that it is; None for the original."""

    stored: StoredObject
    variant: Variant | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One attachment and what hangs on it, as the rows have it. Each job knows whether it `has_message`."""

    attachment: Attachment
    jobs: list[Any]
    variants: list[Variant]

    def pointers(self) -> Iterator[Pointer]:
        """The objects whose bytes matter: not what an older version made, and not what only ended work needed."""
        if self.attachment.original is not None:
            yield Pointer(stored=self.attachment.original)
        for variant in self.variants:
            if variant.pipeline_version >= (self.attachment.served_version or 0) and not self._is_left_over(variant):
                yield Pointer(stored=variant.stored_object, variant=variant)

    def _is_left_over(self, variant: Variant) -> bool:
        job = self.find_job(variant.pipeline_version)
        return variant.is_internal and job is not None and job.finished_at is not None

    def find_job(self, version: int) -> Job | None:
        return next((job for job in self.jobs if job.pipeline_version == version), None)


def load(page: Iterable[Attachment]) -> list[Snapshot]:
    """The snapshots of attachments that were selected with their originals."""
    message = OutboxMessage.objects.filter(job=OuterRef("pk"), attempt=OuterRef("attempt"))
    jobs: dict[uuid.UUID, list[Job]] = defaultdict(list)
    # One statement: a job that moves on while its message is swept is never seen half.
    for job in Job.objects.filter(attachment__in=page).annotate(has_message=Exists(message)):
        jobs[job.attachment_id].append(job)
    variants: dict[uuid.UUID, list[Variant]] = defaultdict(list)
    for variant in Variant.objects.filter(attachment__in=page).select_related("stored_object").order_by("variant"):
        variants[variant.attachment_id].append(variant)
    return [Snapshot(attachment=one, jobs=jobs[one.id], variants=variants[one.id]) for one in page]


def contradictions(snapshot: Snapshot) -> list[Finding]:
    """What is wrong by the rows alone, whatever the storage holds."""
    unsendable = [
        job for job in snapshot.jobs
        if job.state == State.QUEUED and job.runner == Runner.WORKER and not job.has_message
    ]  # fmt: skip
    trash = [pointer for pointer in snapshot.pointers() if pointer.stored.bucket_role == BucketRole.TRASH]
    return [
        *(_of_job(Kind.MESSAGE_MISSING, job, about=f"attempt {job.attempt} is queued") for job in unsendable),
        *(of_object(Kind.TRASH_IN_USE, pointer, snapshot) for pointer in trash),
        *_served_contradictions(snapshot),
    ]


def of_object(kind: Kind, pointer: Pointer, snapshot: Snapshot) -> Finding:
    variant = pointer.variant
    job = snapshot.find_job(variant.pipeline_version) if variant else None
    return Finding(
        kind=kind,
        about=str(pointer.stored),
        attachment_id=snapshot.attachment.id,
        job_id=job.job_id if job else None,
        variant=variant.variant if variant else "",
    )


def _served_contradictions(snapshot: Snapshot) -> list[Finding]:
    """The served version has a job, which is ready or becomes it again, and all of its variants are recorded."""
    version = snapshot.attachment.served_version
    if version is None or snapshot.attachment.deleted_at is not None:
        return []
    job = snapshot.find_job(version)
    if job is None:
        about = f"version {version} has no job"
        return [Finding(kind=Kind.SERVED_NOT_READY, about=about, attachment_id=snapshot.attachment.id)]
    if job.state == State.FAILED:
        return [_of_job(Kind.SERVED_NOT_READY, job, about=f"version {version} failed: {job.error_code}")]
    if job.state != State.READY or snapshot.attachment.texts_expired_at is not None:
        return []
    recorded = {variant.variant for variant in snapshot.variants if variant.pipeline_version == version}
    return [
        _of_job(Kind.VARIANT_UNRECORDED, job, about=f"{variant} of version {version}", variant=variant)
        for variant in sorted(_promised(job) - recorded)
    ]


def _of_job(kind: Kind, job: Job, *, about: str, variant: str = "") -> Finding:
    return Finding(kind=kind, about=about, attachment_id=job.attachment_id, job_id=job.job_id, variant=variant)


def _promised(job: Job) -> frozenset[str]:
    try:
        return registry.get(job.pipeline, job.pipeline_version).promised
    except UnknownPipeline:  # only the release that made it knows
        return frozenset()
