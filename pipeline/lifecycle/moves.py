"""The moves of a job from accepted to done: by the worker that holds its lease, and by `recover` when that is gone."""

from __future__ import annotations

import datetime
import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Expression, F
from django.db.models.functions import Coalesce, Now

from attachments import search
from attachments.errors import StorageUnavailable
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from attachments.storage import Written
from pipeline import registry
from pipeline.failures import WORKER_LOST, Failure
from pipeline.lifecycle.rows import Lease, LeaseLost, begin, end, held, lock_held, log, put_back
from pipeline.models import Job, JobEvent
from pipeline.origins import Origin
from pipeline.registry import Pipeline
from pipeline.states import Runner, Source, State
from pipeline.steps import Spoken
from schemas import InvalidShape

DISPATCHER = "dispatcher"

logger = logging.getLogger(__name__)


class Cancelled(Exception):
    """The job was cancelled or its attachment deleted while it was held."""


class Incomplete(Exception):
    """A promised variant is missing, so the job cannot be ready."""


def accept(
    attachment: Attachment, *, pipeline: Pipeline, origin: Origin, actor: str, carrier: Mapping[str, str]
) -> Job:
    """Nothing to queued, in the transaction that creates the attachment ([attachments]: нет → queued)."""
    job = Job(attachment=attachment, carrier=dict(carrier), **origin.columns())
    return begin(job, pipeline, reason="accepted", actor=actor)


def claim(job_id: uuid.UUID, *, attempt: int, worker: str, token: uuid.UUID | None = None) -> Lease | None:
    """Queued to processing; None when this message does not entitle to the work (`claims` says why).

    Asked again with the same token, because the first COMMIT got no answer, it finds what it already took. Raises
    UnknownPipeline, and takes nothing, for a version that only a newer release can work on.
    """
    job = Job.objects.filter(job_id=job_id).select_related("attachment").first()
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
            log(job_id, State.QUEUED, State.PROCESSING, attempt=attempt, reason="claimed", actor=worker)
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
        language=job.attachment.language,
        source=Source(job.source),
    )


def renew(lease: Lease, *, progress: float | None = None) -> None:
    """Push the lease's end away from now; Cancelled when the owner or an operator asked to stop.

    `progress`, from 0 to 1, is shown to the owner; None leaves it as it was.
    """
    told = {} if progress is None else {"progress": progress}
    if not held(lease).update(lease_until=_lease_end(), **told):
        raise LeaseLost
    if held(lease).filter(cancel_requested_at__isnull=False).exists():
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
    spoken: Spoken | None = None,
) -> None:
    """Publish one finished variant inside the job; it shows in the API once the job is ready, and is found by `spoken`.

    Idempotent by (attachment, pipeline_version, variant): an earlier object under the key becomes trash. Raises
    LeaseLost, Cancelled, or StorageUnavailable where the sweep took the object for forgotten.
    """
    version = lease.pipeline.version
    key: dict[str, Any] = {"attachment_id": lease.attachment_id, "pipeline_version": version, "variant": variant}
    with transaction.atomic():
        Attachment.objects.select_for_update().get(id=lease.attachment_id)
        existing = Variant.objects.filter(**key).first()
        superseded = {existing.stored_object_id} - {object_id} if existing else set()
        if lock_held(lease, object_ids={object_id} | superseded).cancel_requested_at is not None:
            raise Cancelled
        published = StoredObject.objects.filter(
            id=object_id, bucket_role__in=[BucketRole.STAGING, BucketRole.VARIANTS]
        ).update(bucket_role=BucketRole.VARIANTS, size=written.size, sha256=written.sha256)
        if not published:
            raise StorageUnavailable("the object was swept away before it was recorded")
        Variant.objects.update_or_create(
            **key, defaults={"stored_object_id": object_id, "facts": dict(facts), "is_internal": is_internal}
        )
        StoredObject.objects.filter(id__in=superseded).update(bucket_role=BucketRole.TRASH)
        if original_facts:
            held(lease).update(media=dict(original_facts))
        if spoken:
            search.index(lease.attachment_id, version, spoken.language, spoken.segments)


def discard(lease: Lease, *, variant: str) -> None:
    """Take back a variant whose object is not what was stored, so that it is made again. LeaseLost when not ours."""
    lost = Variant.objects.filter(
        attachment=lease.attachment_id, pipeline_version=lease.pipeline.version, variant=variant
    )
    with transaction.atomic():
        Attachment.objects.select_for_update().get(id=lease.attachment_id)
        trash = list(lost.values_list("stored_object", flat=True))
        lock_held(lease, object_ids=trash)
        lost.delete()
        StoredObject.objects.filter(id__in=trash).update(bucket_role=BucketRole.TRASH)


def retry_later(lease: Lease, failure: Failure, *, pause: timedelta) -> None:
    """Processing to queued: a failure of the job's own, with chances left."""
    _requeue(lease, pause=pause, reason=failure.code, detail=failure.cause, failures=F("failures") + 1)


def release(lease: Lease, *, reason: str, pause: timedelta, is_outage: bool = False) -> None:
    """Processing to queued through no fault of the job: shutdown, an outage, the end of a slice.

    `outage_since` remembers when an unbroken outage began, so that it can be given up on at last.
    """
    outage = Coalesce(F("outage_since"), Now()) if is_outage else None
    _requeue(lease, pause=pause, reason=reason, failures=F("failures"), outage=outage)


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
        end(lock_held(lease), State.FAILED, actor=lease.worker, failure=failure)


def recover(
    *, looked_at: datetime.datetime | None = None, outage_ended: datetime.datetime | None = None, limit: int = 100
) -> int:
    """Processing to queued or failed(`worker_lost`) where the lease had run out by `looked_at`; returns how many moved.

    `looked_at`, and not now, since the statement may be delayed together with the renewals of living workers. A lease
    that was not renewed since `outage_ended` costs no failure, but not twice in a row.
    """
    with transaction.atomic():
        expired = list(
            Job.objects.select_for_update(skip_locked=True)
            .filter(state=State.PROCESSING, runner=Runner.WORKER, lease_until__lt=looked_at or Now())
            .order_by("lease_until")[:limit]
        )
        return sum(_take_back(job, outage_ended) for job in expired)


def request_cancel(attachment: Attachment) -> int:
    """Ask every unfinished job of an attachment to stop; the next claim or renewal ends it."""
    return Job.objects.filter(
        attachment=attachment, state__in=[State.QUEUED, State.PROCESSING], cancel_requested_at__isnull=True
    ).update(cancel_requested_at=Now())


def outage_seconds(lease: Lease) -> float:
    """For how long an unbroken outage has kept this job waiting; 0 when there is none."""
    lasting = held(lease).values_list(Now() - F("outage_since"), flat=True).first()
    return float(lasting.total_seconds()) if lasting else 0.0


def recorded(lease: Lease) -> dict[str, StoredObject]:
    """The variants of the lease's version that are already there, internal ones too."""
    variants = Variant.objects.filter(attachment=lease.attachment_id, pipeline_version=lease.pipeline.version)
    return {variant.variant: variant.stored_object for variant in variants.select_related("stored_object")}


def _complete(lease: Lease) -> None:
    version = lease.pipeline.version
    attachment = Attachment.objects.select_for_update().get(id=lease.attachment_id)
    job = lock_held(lease, object_ids={lease.original.id} if lease.original else set())
    if job.cancel_requested_at is not None:
        raise Cancelled
    missing = lease.pipeline.promised.difference(recorded(lease))
    if missing:
        raise Incomplete(f"missing: {', '.join(sorted(missing))}")
    end(job, State.READY, actor=lease.worker)
    if attachment.served_version is None or attachment.served_version <= version:
        media = job.media or attachment.media
        Attachment.objects.filter(id=lease.attachment_id).update(served_version=version, media=media)
    StoredObject.objects.filter(attachment=lease.attachment_id, bucket_role=BucketRole.STAGING).update(
        bucket_role=BucketRole.ORIGINALS
    )


def _completed(lease: Lease) -> bool:
    return JobEvent.objects.filter(
        job=lease.job_id, to_state=State.READY, attempt=lease.attempt, actor=lease.worker
    ).exists()


def _lease_end() -> Expression:
    return Now() + timedelta(seconds=settings.LEASE_SECONDS)


def _requeue(
    lease: Lease,
    *,
    pause: timedelta,
    reason: str,
    detail: str = "",
    failures: Expression | F,
    outage: Expression | None = None,
) -> None:
    with transaction.atomic():
        put_back(
            lock_held(lease),
            reason=reason,
            actor=lease.worker,
            detail=detail,
            failures=failures,
            outage=outage,
            pause=pause,
        )


def _take_back(job: Job, outage_ended: datetime.datetime | None) -> bool:
    """One job that cannot be put back is logged as an ERROR and left, so that the others do not wait; False then."""
    try:
        with transaction.atomic():
            if outage_ended and _was_lost_in_outage(job, ended=outage_ended):
                _hand_back(job)
            else:
                _recover_one(job)
    except InvalidShape:
        logger.exception("job_not_recovered", extra={"job_id": str(job.job_id)})
        return False
    return True


def _was_lost_in_outage(job: Job, *, ended: datetime.datetime) -> bool:
    assert job.lease_until is not None
    return job.outage_since is None and job.lease_until < ended + timedelta(seconds=settings.LEASE_SECONDS)


def _hand_back(job: Job) -> None:
    """What its worker could not write."""
    lost = f"the lease of {job.leased_by} ran out while the database was away"
    put_back(job, reason="outage", actor=DISPATCHER, detail=lost, failures=F("failures"), outage=Now())


def _recover_one(job: Job) -> None:
    lost = f"the lease of {job.leased_by} ran out"
    if job.failures + 1 >= settings.MAX_FAILURES:
        end(job, State.FAILED, actor=DISPATCHER, failure=replace(WORKER_LOST, cause=lost))
    else:
        put_back(job, reason="lease_expired", actor=DISPATCHER, detail=lost, failures=F("failures") + 1)
