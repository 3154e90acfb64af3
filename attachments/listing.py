"""What an owner has, and the state of each: ready when a version is served, else the state of its newest job."""

from __future__ import annotations

import base64
import datetime
import struct
import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Case, CharField, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.fields.tuple_lookups import TupleLessThan

from attachments import search
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from attachments.search import Match
from pipeline import registry
from pipeline.models import Job
from pipeline.registry import UnknownPipeline
from pipeline.states import State

PAGE_SIZE = 50
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# Microseconds since the epoch, then the id.
CURSOR = struct.Struct(">q16s")


class InvalidCursor(ValueError):
    """Not a cursor that a page of ours ended with."""


@dataclass(frozen=True)
class Status:
    """An attachment as its owner sees it, with the one job that tells about it: the served one, else the newest.

    `match` is the moment that was searched for.
    """

    attachment: Attachment
    state: State
    job: Job
    recorded: Mapping[str, Variant]
    match: Match | None = None

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """What may be shown: nothing before the whole version is ready, and never what only we need."""
        if self.state != State.READY:
            return {}
        return {name: variant for name, variant in sorted(self.recorded.items()) if not variant.is_internal}

    @property
    def original(self) -> StoredObject | None:
        """None when it is no longer kept."""
        return find_kept(self.attachment)

    @property
    def progress(self) -> float:
        """From 0 to 1: what the worker told of its work, else the part of the promised variants that is recorded."""
        if self.state == State.READY:
            return 1.0
        if self.job.progress is not None:
            return round(self.job.progress, 3)
        try:
            promised = registry.get(self.job.pipeline, self.job.pipeline_version).promised
        except UnknownPipeline:
            return 0.0
        return round(len(promised & self.recorded.keys()) / len(promised), 2) if promised else 0.0

    @property
    def retry_at(self) -> datetime.datetime | None:
        """When the next try of a job that had to be put off begins."""
        is_put_off = self.state == State.QUEUED and self.job.attempt > 1
        return self.job.due_at if is_put_off else None


def living(owner: User) -> QuerySet[Any]:
    """The owner's attachments that are not deleted, as `statuses` wants them."""
    attachments = with_state(Attachment.objects.filter(owner=owner, deleted_at__isnull=True))
    # A row that was inserted by hand may have no job, and then there is nothing to tell of it.
    return attachments.filter(told_by__isnull=False).select_related("original")


def with_state(attachments: QuerySet[Attachment]) -> QuerySet[Any]:
    """Annotate `state`, and `told_by`: the id of the job that tells about it."""
    jobs = Job.objects.filter(attachment=OuterRef("pk")).order_by("-created_at", "-pipeline_version")
    served = jobs.filter(pipeline_version=OuterRef("served_version"))
    is_served = Q(served_version__isnull=False)
    told_by = Case(
        When(is_served, then=Subquery(served.values("job_id")[:1])), default=Subquery(jobs.values("job_id")[:1])
    )
    state = Case(
        When(is_served, then=Value(State.READY)),
        default=Subquery(jobs.values("state")[:1]),
        output_field=CharField(),
    )
    return attachments.annotate(told_by=told_by, state=state)


def find_kept(attachment: Attachment) -> StoredObject | None:
    """The attachment's original, unless its bytes are gone or about to go."""
    original = attachment.original
    return None if original is None or original.bucket_role == BucketRole.TRASH else original


def find_status(owner: User, attachment_id: uuid.UUID) -> Status | None:
    found = statuses(living(owner).filter(id=attachment_id))
    return found[0] if found else None


def statuses(attachments: QuerySet[Any]) -> list[Status]:
    """The statuses of `living` attachments, in their order; three queries whatever their number."""
    found = list(attachments)
    jobs = Job.objects.in_bulk([attachment.told_by for attachment in found])
    recorded: dict[tuple[uuid.UUID, int], dict[str, Variant]] = defaultdict(dict)
    for variant in Variant.objects.filter(attachment__in=found).select_related("stored_object"):
        recorded[variant.attachment_id, variant.pipeline_version][variant.variant] = variant
    return [
        Status(attachment, State(attachment.state), job, recorded[attachment.id, job.pipeline_version])
        for attachment in found
        for job in [jobs[attachment.told_by]]
    ]


def matching(
    attachments: QuerySet[Any],
    *,
    state: str | None = None,
    pipeline: str | None = None,
    name: str | None = None,
    q: str | None = None,
    dead: bool | None = None,
) -> QuerySet[Any]:
    """Those of the `living` in that state, of that pipeline, with that in their name, that are (or are not) dead.

    With `q` those in whose served version it is said.
    """
    teller = Job.objects.filter(job_id=OuterRef("told_by"))
    if state is not None:
        attachments = attachments.filter(state=state)
    if pipeline is not None:
        attachments = attachments.filter(Exists(teller.filter(pipeline=pipeline)))
    if name:
        attachments = attachments.filter(name__icontains=name)
    if q:
        served = search.said(q).filter(attachment=OuterRef("pk"), pipeline_version=OuterRef("served_version"))
        attachments = attachments.filter(Exists(served))
    if dead is not None:
        is_dead = Exists(teller.filter(state=State.FAILED, failures__gte=settings.MAX_FAILURES))
        attachments = attachments.filter(is_dead if dead else ~is_dead)
    return attachments


def with_moments(found: list[Status], q: str) -> list[Status]:
    """The statuses that `q` found, each with the moment where it is said."""
    moments = search.moments(q, [status.attachment.id for status in found])
    return [replace(status, match=moments.get(status.attachment.id)) for status in found]


def page(attachments: QuerySet[Any], *, after: str | None = None) -> tuple[list[Status], str | None]:
    """One page, newest first, and the cursor of the next one. Raises InvalidCursor."""
    if after:
        attachments = attachments.filter(TupleLessThan((F("created_at"), F("id")), _read_cursor(after)))
    found = statuses(attachments.order_by("-created_at", "-id")[: PAGE_SIZE + 1])
    if len(found) <= PAGE_SIZE:
        return found, None
    return found[:PAGE_SIZE], _cursor(found[PAGE_SIZE - 1].attachment)


def _cursor(attachment: Attachment) -> str:
    microseconds = (attachment.created_at - EPOCH) // datetime.timedelta(microseconds=1)
    return base64.urlsafe_b64encode(CURSOR.pack(microseconds, attachment.id.bytes)).decode()


def _read_cursor(cursor: str) -> tuple[datetime.datetime, uuid.UUID]:
    try:
        microseconds, id_bytes = CURSOR.unpack(base64.b64decode(cursor, altchars=b"-_", validate=True))
        return EPOCH + datetime.timedelta(microseconds=microseconds), uuid.UUID(bytes=id_bytes)
    except (ValueError, OverflowError, struct.error) as error:
        raise InvalidCursor(cursor) from error
