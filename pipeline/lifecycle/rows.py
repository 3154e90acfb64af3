"""What all moves share: the guards, the columns that change together, and the line of history."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Expression, F, QuerySet
from django.db.models.functions import Now

from attachments import objects
from attachments.models import Attachment, StoredObject
from pipeline import outbox
from pipeline.failures import CANCELLED, Failure
from pipeline.models import Job, JobEvent
from pipeline.registry import Pipeline
from pipeline.states import Reply, Source, State

DETAIL_LIMIT = 8000


class LeaseLost(Exception):
    """The job is no longer held under this token; whatever was made must not be published."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to work on one attempt of one job, and what the database knows that the work needs."""

    job_id: uuid.UUID
    attachment_id: uuid.UUID
    pipeline: Pipeline
    attempt: int
    failures: int
    token: uuid.UUID
    worker: str
    original: StoredObject | None
    cancel_requested: bool
    language: str
    source: Source


def held(lease: Lease) -> QuerySet[Job]:
    return Job.objects.filter(job_id=lease.job_id, state=State.PROCESSING, lease_token=lease.token)


def lock_held(lease: Lease, *, object_ids: Collection[int] = ()) -> Job:
    """Lock objects, then the job, in the order that everything else uses; LeaseLost when it is not ours."""
    if object_ids:
        objects.lock(object_ids)
    job: Job | None = held(lease).select_for_update().first()
    if job is None:
        raise LeaseLost
    return job


def begin(job: Job, pipeline: Pipeline, *, reason: str, actor: str) -> Job:
    """Nothing to queued: write the job of a pipeline's version, its first line of history and its message."""
    job.pipeline, job.pipeline_version = pipeline.name, pipeline.version
    job.runner, job.queue = pipeline.runner, pipeline.queue
    job.save(force_insert=True)
    log(job.job_id, None, State.QUEUED, attempt=1, reason=reason, actor=actor)
    outbox.enqueue(job)
    return job


def put_back(
    job: Job,
    *,
    reason: str,
    actor: str,
    detail: str = "",
    failures: Expression | F,
    outage: Expression | None = None,
    pause: timedelta = timedelta(0),
    **columns: Any,
) -> None:
    """The locked job to queued: its next attempt, due after `pause`, with its line of history and its message."""
    was = State(job.state)
    _change(
        job,
        state=State.QUEUED,
        attempt=F("attempt") + 1,
        failures=failures,
        due_at=Now() + pause,
        outage_since=outage,
        error_code="",
        error_step="",
        error="",
        finished_at=None,
        **columns,
    )
    job.attempt += 1
    log(job.job_id, was, State.QUEUED, attempt=job.attempt, reason=reason, actor=actor, detail=detail)
    outbox.enqueue(job, pause=pause)


def end(job: Job, state: State, *, actor: str, failure: Failure | None = None) -> None:
    """The locked job to ready, or to failed for the reason given, with its line of history."""
    was = State(job.state)
    _change(
        job,
        state=state,
        finished_at=Now(),
        outage_since=None,
        failures=F("failures") + (1 if failure and failure.counts else 0),
        error_code=failure.code if failure else "",
        error_step=failure.step if failure else "",
        error=failure.sentence if failure else "",
        **_answer(job, failure),
    )
    log(
        job.job_id,
        was,
        state,
        attempt=job.attempt,
        reason=failure.code if failure else "completed",
        actor=actor,
        detail=failure.cause if failure else "",
    )


def _answer(job: Job, failure: Failure | None) -> dict[str, Any]:
    """Who sent the file by Telegram waits for an answer until something was served, unless it was deleted.

    So work that is repaired, or done anew by a newer version, ends without a word; a replay's end is told.
    """
    is_waited_for = job.source == Source.TELEGRAM and failure != CANCELLED
    if not is_waited_for or not Attachment.objects.filter(id=job.attachment_id, served_version=None).exists():
        return {}
    return {"reply": Reply.DUE, "reply_reason": "", "reply_at": Now()}


def _change(job: Job, **columns: Any) -> None:
    """Take the lease away and write the columns, if the row is as it was locked; the row count is the answer."""
    as_locked = Job.objects.filter(job_id=job.job_id, state=job.state, attempt=job.attempt, lease_token=job.lease_token)
    if not as_locked.update(lease_token=None, lease_until=None, leased_by="", **columns):
        raise LeaseLost


def log(
    job_id: uuid.UUID,
    before: State | None,
    after: State,
    *,
    attempt: int,
    reason: str,
    actor: str,
    detail: str = "",
) -> None:
    JobEvent.objects.create(
        job_id=job_id,
        from_state=before or "",
        to_state=after,
        attempt=attempt,
        reason=reason,
        actor=actor,
        detail=_storable(detail)[:DETAIL_LIMIT],
    )


def _storable(text: str) -> str:
    """Strangers' bytes get into error messages; PostgreSQL takes neither NUL nor half a surrogate pair."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
