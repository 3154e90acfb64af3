"""The only writer of a job's state: one function a move, each guarded by the expected state and the lease token.

The row count is the answer. A worker that lost its lease changes nothing: it gets LeaseLost. The table of
moves is docs/states.md; every time is the database's.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Expression, F, Q, QuerySet
from django.db.models.functions import Coalesce, Now

from attachments.models import Attachment, BucketRole, StoredObject, Variant
from attachments.storage import Written
from pipeline import outbox, registry
from pipeline.failures import WORKER_LOST, Failure
from pipeline.models import Job, JobEvent
from pipeline.registry import Pipeline
from pipeline.states import Runner, Source, State

DISPATCHER = "dispatcher"
DETAIL_LIMIT = 8000


class LeaseLost(Exception):
    """The job is no longer held under this token; whatever was made must not be published."""


class Cancelled(Exception):
    """The job was cancelled or its attachment deleted while it was held."""


class Incomplete(Exception):
    """A promised variant is missing, so the job cannot be ready."""


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


def accept(
    attachment: Attachment, *, pipeline: Pipeline, source: Source, actor: str, carrier: Mapping[str, str]
) -> Job:
    """Nothing to queued, in the transaction that creates the attachment ([attachments]: нет → queued)."""
    job = Job.objects.create(
        attachment=attachment,
        pipeline=pipeline.name,
        pipeline_version=pipeline.version,
        runner=pipeline.runner,
        queue=pipeline.queue,
        source=source,
        carrier=dict(carrier),
    )
    _log(job.job_id, None, State.QUEUED, attempt=1, reason="accepted", actor=actor)
    outbox.enqueue(job)
    return job


def claim(job_id: uuid.UUID, *, attempt: int, worker: str, token: uuid.UUID | None = None) -> Lease | None:
    """Queued to processing; None when this message does not entitle to the work (`claims` says why).

    Asked again with the same token, because the first COMMIT got no answer, it finds what it already took. Raises
    UnknownPipeline, and takes nothing, for a version that only a newer release can work on.
    """
    job = Job.objects.filter(job_id=job_id).first()
    if job is None:
        return None
    pipeline = registry.get(job.pipeline, job.pipeline_version)
    token = token or uuid.uuid4()
    with transaction.atomic():
        original = StoredObject.objects.select_for_update(of=("self",)).filter(attachment__jobs=job_id).first()
        claimed = Job.objects.filter(
            job_id=job_id, state=State.QUEUED, attempt=attempt, due_at__lte=Now(), runner=Runner.WORKER
        ).update(state=State.PROCESSING, lease_token=token, lease_until=_lease_end(), leased_by=worker)
        if claimed:
            _log(job_id, State.QUEUED, State.PROCESSING, attempt=attempt, reason="claimed", actor=worker)
        elif not Job.objects.filter(job_id=job_id, state=State.PROCESSING, lease_token=token).exists():
            return None
        is_cancelled = Job.objects.filter(job_id=job_id, cancel_requested_at__isnull=False).exists()
    return Lease(
        job_id=job_id,
        attachment_id=job.attachment_id,
        pipeline=pipeline,
        attempt=attempt,
        failures=job.failures,
        token=token,
        worker=worker,
        original=None if original is None or original.bucket_role == BucketRole.TRASH else original,
        cancel_requested=is_cancelled,
    )


def renew(lease: Lease) -> None:
    """Push the lease's end away from now; Cancelled when the owner or an operator asked to stop."""
    if not _held(lease).update(lease_until=_lease_end()):
        raise LeaseLost
    if _held(lease).filter(cancel_requested_at__isnull=False).exists():
        raise Cancelled


def record(
    lease: Lease,
    *,
    variant: str,
    object_id: int,
    written: Written,
    facts: Mapping[str, Any],
    original_facts: Mapping[str, Any],
    is_internal: bool = False,
) -> None:
    """Publish one finished variant inside the job; it shows in the API once the job is ready.

    Idempotent by (attachment, pipeline_version, variant): an earlier object under the key becomes trash.
    """
    version = lease.pipeline.version
    key: dict[str, Any] = {"attachment_id": lease.attachment_id, "pipeline_version": version, "variant": variant}
    with transaction.atomic():
        attachment = Attachment.objects.select_for_update().get(id=lease.attachment_id)
        existing = Variant.objects.filter(**key).first()
        superseded = {existing.stored_object_id} - {object_id} if existing else set()
        if _lock_held(lease, objects={object_id} | superseded).cancel_requested_at is not None:
            raise Cancelled
        published = StoredObject.objects.filter(
            id=object_id, bucket_role__in=[BucketRole.STAGING, BucketRole.VARIANTS]
        ).update(bucket_role=BucketRole.VARIANTS, size=written.size, sha256=written.sha256)
        if not published:
            raise LeaseLost
        Variant.objects.update_or_create(
            **key, defaults={"stored_object_id": object_id, "facts": dict(facts), "is_internal": is_internal}
        )
        StoredObject.objects.filter(id__in=superseded).update(bucket_role=BucketRole.TRASH)
        if original_facts and version >= (attachment.served_version or 0):
            Attachment.objects.filter(id=attachment.id).update(media=dict(original_facts))


def retry_later(lease: Lease, failure: Failure, *, pause: timedelta) -> None:
    """Processing to queued: a failure of the job's own, with chances left."""
    _requeue(lease, pause=pause, reason=failure.code, detail=failure.cause, failures=F("failures") + 1, outage=None)


def release(lease: Lease, *, reason: str, pause: timedelta, is_outage: bool = False) -> None:
    """Processing to queued through no fault of the job: shutdown, an outage, the end of a slice.

    `outage_since` remembers when an unbroken outage began, so that it can be given up on at last.
    """
    outage = Coalesce(F("outage_since"), Now()) if is_outage else None
    _requeue(lease, pause=pause, reason=reason, detail="", failures=F("failures"), outage=outage)


def complete(lease: Lease) -> None:
    """Processing to ready: every promised variant is there; the newest version is what is served.

    Asked again after a COMMIT that got no answer, it finds its own completion and is content.
    """
    try:
        with transaction.atomic():
            _complete(lease)
    except LeaseLost:
        if not _completed(lease):
            raise


def fail(lease: Lease, failure: Failure) -> None:
    """Processing to failed: a permanent error, or no chances left."""
    with transaction.atomic():
        _lock_held(lease)
        _end(_held(lease), State.FAILED, failure)
        _log(
            lease.job_id, State.PROCESSING, State.FAILED, attempt=lease.attempt, reason=failure.code,
            actor=lease.worker, detail=failure.cause,
        )  # fmt: skip


def recover(*, limit: int = 100) -> int:
    """Processing to queued or failed(`worker_lost`) where the lease ran out; returns how many jobs moved."""
    with transaction.atomic():
        expired = list(
            Job.objects.select_for_update(skip_locked=True)
            .filter(state=State.PROCESSING, runner=Runner.WORKER, lease_until__lt=Now())
            .order_by("lease_until")[:limit]
        )
        for job in expired:
            _recover_one(job)
    return len(expired)


def request_cancel(attachment: Attachment) -> int:
    """Ask every unfinished job of an attachment to stop; the next claim or renewal ends it."""
    return Job.objects.filter(
        attachment=attachment, state__in=[State.QUEUED, State.PROCESSING], cancel_requested_at__isnull=True
    ).update(cancel_requested_at=Now())


def outage_seconds(lease: Lease) -> float:
    """For how long an unbroken outage has kept this job waiting; 0 when there is none."""
    lasting = _held(lease).values_list(Now() - F("outage_since"), flat=True).first()
    return float(lasting.total_seconds()) if lasting else 0.0


def present(lease: Lease) -> frozenset[str]:
    """The variants of the lease's version that are already recorded."""
    return frozenset(
        Variant.objects.filter(attachment=lease.attachment_id, pipeline_version=lease.pipeline.version).values_list(
            "variant", flat=True
        )
    )


def _complete(lease: Lease) -> None:
    version = lease.pipeline.version
    Attachment.objects.select_for_update().get(id=lease.attachment_id)
    job = _lock_held(lease, objects={lease.original.id} if lease.original else set())
    if job.cancel_requested_at is not None:
        raise Cancelled
    missing = lease.pipeline.promised - present(lease)
    if missing:
        raise Incomplete(f"missing: {', '.join(sorted(missing))}")
    _end(_held(lease), State.READY)
    _log(
        lease.job_id, State.PROCESSING, State.READY, attempt=lease.attempt, reason="completed", actor=lease.worker
    )  # fmt: skip
    Attachment.objects.filter(
        Q(served_version__isnull=True) | Q(served_version__lt=version), id=lease.attachment_id
    ).update(served_version=version)
    StoredObject.objects.filter(attachment=lease.attachment_id, bucket_role=BucketRole.STAGING).update(
        bucket_role=BucketRole.ORIGINALS
    )


def _completed(lease: Lease) -> bool:
    return JobEvent.objects.filter(
        job=lease.job_id, to_state=State.READY, attempt=lease.attempt, actor=lease.worker
    ).exists()


def _held(lease: Lease) -> QuerySet[Job]:
    return Job.objects.filter(job_id=lease.job_id, state=State.PROCESSING, lease_token=lease.token)


def _lock_held(lease: Lease, *, objects: Collection[int] = ()) -> Job:
    """Lock objects, then the job, in the order that everything else uses; LeaseLost when it is not ours."""
    if objects:
        list(StoredObject.objects.select_for_update().filter(id__in=objects).order_by("id").values_list("id"))
    job: Job | None = _held(lease).select_for_update().first()
    if job is None:
        raise LeaseLost
    return job


def _lease_end() -> Expression:
    return Now() + timedelta(seconds=settings.LEASE_SECONDS)


def _requeue(
    lease: Lease, *, pause: timedelta, reason: str, detail: str, failures: Expression | F, outage: Expression | None
) -> None:
    with transaction.atomic():
        job = _lock_held(lease)
        _put_back(_held(lease), pause=pause, failures=failures, outage=outage)
        job.attempt += 1
        _log(
            job.job_id, State.PROCESSING, State.QUEUED, attempt=job.attempt, reason=reason, actor=lease.worker,
            detail=detail,
        )  # fmt: skip
        outbox.enqueue(job, pause=pause)


def _recover_one(job: Job) -> None:
    holder = Job.objects.filter(job_id=job.job_id, state=State.PROCESSING, lease_token=job.lease_token)
    is_dead, lost = job.failures + 1 >= settings.MAX_FAILURES, f"the lease of {job.leased_by} ran out"
    if is_dead:
        _end(holder, State.FAILED, WORKER_LOST)
    else:
        _put_back(holder, pause=timedelta(0), failures=F("failures") + 1, outage=None)
        job.attempt += 1
    _log(
        job.job_id,
        State.PROCESSING,
        State.FAILED if is_dead else State.QUEUED,
        attempt=job.attempt,
        reason=WORKER_LOST.code if is_dead else "lease_expired",
        actor=DISPATCHER,
        detail=lost,
    )
    if not is_dead:
        outbox.enqueue(job)


def _put_back(held: QuerySet[Job], *, pause: timedelta, failures: Expression | F, outage: Expression | None) -> None:
    _change(
        held,
        state=State.QUEUED,
        attempt=F("attempt") + 1,
        failures=failures,
        due_at=Now() + pause,
        outage_since=outage,
        error_code="",
        error="",
    )


def _end(held: QuerySet[Job], state: State, failure: Failure | None = None) -> None:
    _change(
        held,
        state=state,
        finished_at=Now(),
        outage_since=None,
        failures=F("failures") + (1 if failure and failure.counts else 0),
        error_code=failure.code if failure else "",
        error=failure.sentence if failure else "",
    )


def _change(held: QuerySet[Job], **columns: Any) -> None:
    """Take the lease away and write the columns; the row count is the answer."""
    if not held.update(lease_token=None, lease_until=None, leased_by="", **columns):
        raise LeaseLost


def _log(
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
