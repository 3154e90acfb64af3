"""The one door into the pipeline: every upload, from wherever it came, is received and accepted here.

202 means safe: the complete, verified original is in staging, and the attachment, its job and its outbox row are
committed in one transaction, before the answer is sent. Once COMMIT was sent nothing is deleted here, since its
outcome may be unknown.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from django.conf import settings
from django.contrib.auth.models import User
from django.db import Error, IntegrityError, transaction

from attachments import inspection, objects, storage
from attachments.errors import (
    AttachmentError,
    Deleted,
    DigestMismatch,
    EmptyFile,
    FileTooLarge,
    KeyReused,
    OutcomeUnknown,
    StorageUnavailable,
)
from attachments.models import Attachment, BucketRole, StoredObject
from attachments.names import NAME_LIMIT, display_name, printable
from attachments.outages import is_conflict, is_refusal, sqlstate_of
from attachments.storage import Writer, Written
from config.logging import current_carrier
from pipeline import failpoints, lifecycle, metrics, registry
from pipeline.models import Job
from pipeline.origins import Origin
from pipeline.registry import Pipeline

UNKNOWN_TYPE = "application/octet-stream"
#: Whoever got in the way of an acceptance is soon done, and sending the file once more costs much more.
CONFLICT_TRIES = 4
CONFLICT_PAUSE_SECONDS = (0.02, 0.2)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Who sends what, and what they ask for. Names and types are claims, kept for display only."""

    owner: User
    origin: Origin
    name: str = ""
    claimed_type: str = ""
    pipeline: str = ""
    language: str = ""
    sha256: str = ""
    idempotency_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Received:
    """A complete original in staging, durable and measured, that nothing points at yet."""

    attachment_id: uuid.UUID
    stored: StoredObject
    written: Written
    pipeline: Pipeline

    def discard(self) -> None:
        objects.throw_away(self.stored.id)


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """What was committed; `is_repeat` when the idempotency key led to what was accepted before."""

    attachment: Attachment
    job: Job
    is_repeat: bool = False


class Receiver:
    """Takes one file's chunks into staging with flat memory; refuses as early as the bytes allow.

    Use as a context manager: leaving it without `finish` leaves nothing behind.
    """

    def __init__(self, *, created_by: str) -> None:
        self.attachment_id = uuid.uuid4()
        self._created_by = created_by
        self._head = bytearray()
        self._size = 0
        self._stored: StoredObject | None = None
        self._writer: Writer | None = None
        self._pipeline: Pipeline | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def write(self, chunk: bytes) -> None:
        """Take the next bytes; raises Refused as soon as they cannot be accepted, StorageUnavailable when not now."""
        self._size += len(chunk)
        if self._size > settings.MAX_UPLOAD_BYTES:
            raise FileTooLarge(f"more than {settings.MAX_UPLOAD_BYTES} bytes", limit=settings.MAX_UPLOAD_BYTES)
        if self._writer is not None:
            self._writer.write(chunk)
            return
        self._head += chunk
        if len(self._head) >= inspection.HEAD_BYTES:
            self._begin()

    def finish(self) -> Received:
        """Make the original durable and measured; after this only `accept` or `Received.discard` follow."""
        if self._writer is None:
            self._begin()
        assert self._writer is not None and self._stored is not None and self._pipeline is not None
        written = self._writer.finish()
        self._writer = None
        received = Received(
            attachment_id=self.attachment_id, stored=self._stored, written=written, pipeline=self._pipeline
        )
        self._stored = None
        failpoints.hit("after_staging")
        return received

    def abort(self) -> None:
        """Leave nothing behind; safe at any time, and after `finish` it does nothing."""
        writer, self._writer = self._writer, None
        stored, self._stored = self._stored, None
        if writer is not None:
            writer.abort()
        if stored is not None:
            objects.throw_away(stored.id)

    def _begin(self) -> None:
        """Decide by the first bytes, commit the object's row, then write its first byte."""
        head = bytes(self._head)
        kind = inspection.detect(head)
        if kind is None and not head:
            raise EmptyFile
        self._pipeline = registry.choose(kind.family if kind else None)
        if kind is not None:
            inspection.check_image_size(head, kind, max_pixels=settings.MAX_IMAGE_PIXELS)
        content_type = kind.content_type if kind else UNKNOWN_TYPE
        self._stored = objects.register(
            objects.original_key(self.attachment_id), content_type=content_type, created_by=self._created_by
        )
        self._writer = storage.writer(self._stored.bucket, self._stored.key, content_type=content_type)
        self._writer.write(head)
        self._head.clear()


def receive(chunks: Iterable[bytes], *, created_by: str) -> Received:
    """Take a whole stream into staging."""
    with Receiver(created_by=created_by) as receiver:
        for chunk in chunks:
            receiver.write(chunk)
        return receiver.finish()


def accept(received: Received, request: Request) -> Accepted:
    """Commit attachment, job and outbox row in one transaction.

    Raises Refused (the original is discarded), KeyReused, Deleted, or OutcomeUnknown (nothing is deleted: it may be
    in). An error of the database means that nothing was accepted; the original is left to the sweep.
    """
    try:
        _check(received, request)
    except AttachmentError:
        received.discard()
        raise
    try:
        accepted = _commit(received, request)
    except IntegrityError as error:
        received.discard()
        if not _is_taken_key(error):
            raise
        return _repeat(received, request)
    failpoints.hit("after_commit")
    metrics.ACCEPTED.labels(pipeline=accepted.job.pipeline, source=request.origin.source).inc()
    logger.info("accepted", extra={"job_id": str(accepted.job.job_id), "size": received.written.size})
    return accepted


def find_accepted(owner: User, idempotency_key: str) -> Accepted | None:
    """What this owner's key led to before, if anything."""
    attachment = Attachment.objects.filter(owner=owner, idempotency_key=idempotency_key).first()
    if attachment is None:
        return None
    job = attachment.jobs.earliest("created_at")
    return Accepted(attachment=attachment, job=job, is_repeat=True)


def _check(received: Received, request: Request) -> None:
    if request.sha256 and request.sha256.lower() != received.written.sha256:
        raise DigestMismatch("the bytes received have another SHA-256 than announced")
    registry.check_requested(request.pipeline, received.pipeline)


def _commit(received: Received, request: Request) -> Accepted:
    """Accept in one transaction, begun anew where others get in its way."""
    for _ in range(CONFLICT_TRIES - 1):
        try:
            return _try_to_commit(received, request)
        except Error as error:
            if not is_conflict(error):
                raise
            logger.info("database_conflict", extra={"sqlstate": sqlstate_of(error)})
        time.sleep(random.uniform(*CONFLICT_PAUSE_SECONDS))  # noqa: S311  (no secret)
    return _try_to_commit(received, request)


def _try_to_commit(received: Received, request: Request) -> Accepted:
    """OutcomeUnknown when COMMIT got no answer; any other error means that nothing was accepted."""
    is_at_commit = False
    try:
        with transaction.atomic():
            accepted = _insert(received, request)
            is_at_commit = True
    except Error as error:
        if is_at_commit and not is_refusal(error):
            raise OutcomeUnknown(type(error).__name__) from error
        raise
    return accepted


def _insert(received: Received, request: Request) -> Accepted:
    written = received.written
    attachment = Attachment.objects.create(
        id=received.attachment_id,
        owner=request.owner,
        name=display_name(request.name),
        claimed_type=printable(request.claimed_type)[:NAME_LIMIT],
        content_type=received.stored.content_type,
        size=written.size,
        sha256=written.sha256,
        original=received.stored,
        language=request.language,
        requested_pipeline=request.pipeline,
        idempotency_key=request.idempotency_key,
    )
    _measure(received)
    job = lifecycle.accept(
        attachment,
        pipeline=received.pipeline,
        origin=request.origin,
        actor=f"{request.origin.source}:{request.owner.pk}",
        carrier=current_carrier(),
    )
    return Accepted(attachment=attachment, job=job)


def _measure(received: Received) -> None:
    """Write down the original's size and digest. StorageUnavailable when the sweep took a slow upload for forgotten."""
    kept = StoredObject.objects.filter(id=received.stored.id, bucket_role=BucketRole.STAGING).update(
        size=received.written.size, sha256=received.written.sha256
    )
    if not kept:
        raise StorageUnavailable("the original was swept away before it was accepted")


def _repeat(received: Received, request: Request) -> Accepted:
    """The key is taken: the same bytes and parameters get the same answer, others are refused.

    So is a repeated request that was held up on its way until after the deletion: it must not bring the file back.
    """
    assert request.idempotency_key is not None
    earlier = find_accepted(request.owner, request.idempotency_key)
    if earlier is None:
        raise OutcomeUnknown("the row that stood in the way is gone")
    if earlier.attachment.deleted_at is not None:
        raise Deleted
    if not _is_same(earlier.attachment, received.written.sha256, request):
        raise KeyReused
    return earlier


def _is_taken_key(error: IntegrityError) -> bool:
    diagnosis = getattr(error.__cause__, "diag", None)
    return getattr(diagnosis, "constraint_name", None) == "stored_file_idempotency_key_unique"


def _is_same(attachment: Attachment, sha256: str, request: Request) -> bool:
    return (attachment.sha256, attachment.requested_pipeline, attachment.language) == (
        sha256,
        request.pipeline,
        request.language,
    )
