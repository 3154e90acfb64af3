"""Begin the jobs of a newer version for what an older one made, slowly enough that new uploads are not starved.

What is served stays until the new version is complete. A job that was begun is never begun again, so whoever is
interrupted just starts over. Reprocessed jobs share their queue with new uploads; there is no order of priority, so a
rate and a limit on how many jobs may wait are what keeps the way free.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Count, Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from attachments.models import Attachment, original_kept
from pipeline import lifecycle, registry
from pipeline.lifecycle import AlreadyThere, Gone
from pipeline.models import Job
from pipeline.registry import Pipeline
from pipeline.selection import Selection, newest_first, unhurried
from pipeline.states import Runner, State

ACTOR = "reprocess"
ATTACHMENTS_AT_ONCE = 200
LOOK_AGAIN_SECONDS = 1.0


class NothingNewer(LookupError):
    """No version of the pipeline is older than the one asked for, so nothing can be made anew by it."""


class Outcome(enum.Enum):
    """What one step came to; `HELD_BACK` is a second of waiting because the queue is long."""

    BEGUN = "begun"
    ALREADY_THERE = "already there"
    GONE = "gone"
    HELD_BACK = "held back"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What reprocessing would do: how many attachments by the version that serves them, and how many it leaves alone.

    `begun` counts those that have a job of the new version already, by its state; `gone` those without an original.
    """

    matching: dict[int, int]
    begun: dict[State, int]
    gone: int

    @property
    def total(self) -> int:
        return sum(self.matching.values())


@dataclass(frozen=True, kw_only=True)
class Reprocessing:
    """One pipeline's attachments, served by an older version, on their way to `pipeline`."""

    pipeline: Pipeline
    selection: Selection
    from_version: int | None = None

    def plan(self) -> Plan:
        jobs = Job.objects.filter(
            attachment__in=self._older(), pipeline=self.pipeline.name, pipeline_version=self.pipeline.version
        )
        with unhurried():
            matching = self._candidates().values_list("served_version").annotate(Count("id")).order_by("served_version")
            begun = jobs.values_list("state").annotate(Count("job_id")).order_by("state")
            return Plan(
                matching=dict(matching),
                begun={State(state): count for state, count in begun},
                gone=self._older().exclude(original_kept()).exclude(self._is_begun()).count(),
            )

    def run(self, *, per_second: float, max_waiting: int) -> Iterator[Outcome]:
        """Begin one job a step, not more than `per_second`, and none while over `max_waiting` wait in the queue."""
        pace = Pace(per_second)
        for page in newest_first(self._candidates(), size=ATTACHMENTS_AT_ONCE):
            for attachment in page:
                while _is_long(self.pipeline.queue, max_waiting):
                    yield Outcome.HELD_BACK
                    time.sleep(LOOK_AGAIN_SECONDS)
                pace.wait()
                yield self._begin(attachment)

    def _begin(self, attachment: Attachment) -> Outcome:
        try:
            lifecycle.reprocess(attachment.id, pipeline=self.pipeline, actor=ACTOR)
        except AlreadyThere:
            return Outcome.ALREADY_THERE
        except Gone:
            return Outcome.GONE
        return Outcome.BEGUN

    def _candidates(self) -> QuerySet[Attachment]:
        return self._older().filter(original_kept()).exclude(self._is_begun())

    def _older(self) -> QuerySet[Attachment]:
        """Living attachments that an older version of this pipeline serves."""
        served = Job.objects.filter(
            attachment=OuterRef("pk"), pipeline=self.pipeline.name, pipeline_version=OuterRef("served_version")
        )
        older = self.selection.attachments().filter(
            Exists(served), deleted_at__isnull=True, served_version__lt=self.pipeline.version
        )
        return older if self.from_version is None else older.filter(served_version=self.from_version)

    def _is_begun(self) -> Exists:
        return Exists(
            Job.objects.filter(
                attachment=OuterRef("pk"), pipeline=self.pipeline.name, pipeline_version=self.pipeline.version
            )
        )


def target(name: str, version: int | None) -> Pipeline:
    """The version to make anew by, the newest unless given; raises UnknownPipeline or NothingNewer."""
    pipeline = registry.newest(name) if version is None else registry.get(name, version)
    known = {one.version for one in registry.PIPELINES if one.name == name}
    older_jobs = Job.objects.filter(pipeline=name, pipeline_version__lt=pipeline.version)
    if pipeline.version == min(known) and not older_jobs.exists():
        raise NothingNewer(f"{name} v{pipeline.version}")
    return pipeline


class Pace:
    """At most so many a second, evenly; what was not used is not made up for."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1 / per_second
        self._next = time.monotonic()

    def wait(self) -> None:
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = max(self._next, time.monotonic()) + self._interval


def _is_long(queue: str, limit: int) -> bool:
    """Whether more than `limit` jobs wait for a worker of this queue now."""
    waiting = Job.objects.filter(state=State.QUEUED, runner=Runner.WORKER, queue=queue, due_at__lte=Now())
    return waiting[: limit + 1].count() > limit
