"""The moves that only an operator asks for: work that had ended begins anew, under the same guards and effect keys.

`replay` gives a failed job its chances back, `repair` lets a ready one make again what the storage has lost, and
`reprocess` begins the job of a newer version. Each takes the locks in the order that everything else uses.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import F, Value
from django.db.models.functions import Now

from attachments import objects
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from pipeline import origins, outbox, registry
from pipeline.lifecycle.rows import begin, log, put_back
from pipeline.models import Job, OutboxMessage
from pipeline.registry import Pipeline
from pipeline.states import State


class NotFailed(Exception):
    """The job is not failed in that attempt any more: somebody replayed it already, or it never failed."""


class NotReady(Exception):
    """The job is not ready, so there is nothing to repair; its own next attempt will make what is missing."""


class Gone(Exception):
    """The attachment was deleted, its original is no longer kept, or its texts have expired: no more work on it."""


class AlreadyThere(Exception):
    """The attachment has a job of that version, whatever its state."""


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """What a move found and what it left; the audit keeps both."""

    job_id: uuid.UUID
    before: dict[str, str | int]
    after: dict[str, str | int]


def replay(job_id: uuid.UUID, *, attempt: int, actor: str, reason: str, pause: timedelta = timedelta(0)) -> Reopened:
    """Failed to queued, for the same job: a new attempt with all its chances ([attachments]: failed → queued).

    `attempt` is the one whose failure the operator saw, so that asking twice does nothing twice. Runs in the caller's
    transaction, if there is one, so that the audit is durable with it. Raises NotFailed or Gone.
    """
    with transaction.atomic():
        job = _lock(job_id, need=State.FAILED, otherwise=NotFailed)
        if job.attempt != attempt:
            raise NotFailed(f"attempt {attempt} is not the newest")
        return _reopen(job, actor=actor, reason="replay", detail=reason, pause=pause)


def repair(job_id: uuid.UUID, *, variants: Collection[str], actor: str, detail: str) -> Reopened:
    """Ready to queued, for a job whose `variants` have no intact object, or no row, any more; the other ones stay.

    `served_version` stays. The damaged variants are not shown until the attempt has made them again. Raises NotReady,
    or Gone when the original is gone too and nothing can be made again.
    """
    with transaction.atomic():
        job = _lock(job_id, need=State.READY, otherwise=NotReady)
        if not registry.get(job.pipeline, job.pipeline_version).promised.intersection(variants):
            raise NotReady("none of these variants was promised")
        damaged = Variant.objects.filter(
            attachment=job.attachment_id, pipeline_version=job.pipeline_version, variant__in=variants
        )
        trash = list(damaged.values_list("stored_object", flat=True))
        damaged.delete()
        StoredObject.objects.filter(id__in=trash).update(bucket_role=BucketRole.TRASH)
        return _reopen(job, actor=actor, reason="repair", detail=detail)


def reprocess(attachment_id: uuid.UUID, *, pipeline: Pipeline, actor: str) -> Job:
    """Begin the job of another version of the attachment's pipeline; what is served stays until it is ready.

    Raises AlreadyThere or Gone.
    """
    with transaction.atomic():
        _lock_objects(attachment_id)
        jobs = Job.objects.filter(attachment=attachment_id, pipeline=pipeline.name)
        if jobs.filter(pipeline_version=pipeline.version).exists():
            raise AlreadyThere(f"{pipeline.name} v{pipeline.version}")
        earlier = jobs.order_by("-created_at").first()
        if earlier is None:
            raise Gone(f"nothing was ever made of it by {pipeline.name}")
        origin = {column: getattr(earlier, column) for column in origins.COLUMNS}
        job = Job(attachment_id=attachment_id, carrier=earlier.carrier, **origin)
        return begin(job, pipeline, reason="reprocess", actor=actor)


def restore_message(job_id: uuid.UUID, *, actor: str) -> bool:
    """Write the lost message of a queued job's attempt again, due when the job is; False when the job moved on.

    Changes no state, but leaves a line of history.
    """
    with transaction.atomic():
        queued = Job.objects.select_for_update().filter(job_id=job_id, state=State.QUEUED)
        job = queued.annotate(wait=F("due_at") - Now()).first()
        if job is None or OutboxMessage.objects.filter(job=job, attempt=job.attempt).exists():
            return False
        outbox.enqueue(job, pause=max(job.wait, timedelta(0)))
        log(job_id, State.QUEUED, State.QUEUED, attempt=job.attempt, reason="message_restored", actor=actor)
    return True


def _lock(job_id: uuid.UUID, *, need: State, otherwise: type[Exception]) -> Job:
    """Lock attachment, original and job; the job must be in the state that the move leaves."""
    found = Job.objects.filter(job_id=job_id).first()
    if found is None:
        raise otherwise("no such job")
    _lock_objects(found.attachment_id)
    job = Job.objects.select_for_update().get(job_id=job_id)
    if job.state != need:
        raise otherwise(f"the job is {job.state}")
    return job


def _lock_objects(attachment_id: uuid.UUID) -> None:
    """Under these locks the sweep can take neither the attachment's original nor a variant; Gone when there is none."""
    attachment = Attachment.objects.select_for_update().filter(id=attachment_id).first()
    if attachment is None:
        raise Gone("there is no such attachment")
    kept = {stored.id for stored in objects.lock_all_of(attachment_id) if stored.bucket_role != BucketRole.TRASH}
    if attachment.deleted_at is not None or attachment.original_id not in kept:
        raise Gone("the original is no longer kept")
    if attachment.texts_expired_at is not None:
        raise Gone("its texts have expired, and nothing makes them again")


def _reopen(job: Job, *, actor: str, reason: str, detail: str, pause: timedelta = timedelta(0)) -> Reopened:
    before: dict[str, str | int] = {
        "state": State(job.state),
        "attempt": job.attempt,
        "failures": job.failures,
        "error_code": job.error_code,
        "error_step": job.error_step,
    }
    put_back(
        job,
        reason=reason,
        actor=actor,
        detail=detail,
        failures=Value(0),
        pause=pause,
        # Whoever begins it anew withdraws the wish to stop it, which would end the attempt at its claim.
        cancel_requested_at=None,
    )
    return Reopened(
        job_id=job.job_id, before=before, after={"state": State.QUEUED, "attempt": job.attempt, "failures": 0}
    )
