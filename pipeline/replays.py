"""What operators replay: the failed jobs that a filter means, and the acts that put them back, with their audit.

Every job moves in a transaction of its own, together with the line of the audit that says so. However an act ends, its
audit is what happened, and doing it again goes on with what is left. An act is spread over time, so that new uploads
find their turn between the old ones.
"""

from __future__ import annotations

import datetime
import enum
import logging
import uuid
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Max, Min, QuerySet

from attachments.models import original_kept
from attachments.names import printable
from pipeline import lifecycle
from pipeline.models import Job, Replay, ReplayedJob
from pipeline.states import State

#: How many jobs one act puts back at most.
LIMIT = 1000
#: How many of them fall due in a second.
PER_SECOND = 10.0
REASON_LIMIT = 500
ACTOR_LIMIT = 128

#: What failed jobs may be chosen by, and the column that answers.
FILTERS = {
    "error_code": "error_code",
    "error_step": "error_step",
    "pipeline": "pipeline",
    "pipeline_version": "pipeline_version",
    "failed_after": "finished_at__gte",
    "failed_before": "finished_at__lt",
    "owner": "attachment__owner__username",
}
_KEPT = original_kept("attachment__")

logger = logging.getLogger(__name__)


class UnusableReason(ValueError):
    """The reason says nothing, or too much; the message tells a person what to do."""


class Fate(enum.StrEnum):
    """What became of one job of an act."""

    REPLAYED = "replayed"
    #: Not failed in the attempt that the operator saw: somebody else replayed it, or the same operator did before.
    NOT_FAILED = "not failed any more"
    GONE = "original no longer kept"


class Seen(NamedTuple):
    """A failed job as the operator saw it; only that attempt's failure is replayed."""

    job_id: uuid.UUID
    attempt: int


class Group(NamedTuple):
    """Failures of one code in one step; `kept` of the `jobs` still have an original to work on."""

    error_code: str
    error_step: str
    jobs: int
    kept: int
    oldest: datetime.datetime
    newest: datetime.datetime


@dataclass(frozen=True, kw_only=True)
class Look:
    """What an operator sees before deciding: how many failed jobs match, and the ones that an act would put back.

    Those that failed first come first, so that an act cut off by its limit goes on where it ended.
    """

    groups: list[Group]
    seen: list[Seen]

    @property
    def matching(self) -> int:
        return sum(group.jobs for group in self.groups)

    @property
    def gone(self) -> int:
        """Those without an original, which nothing can be made of."""
        return self.matching - sum(group.kept for group in self.groups)

    @property
    def left(self) -> int:
        """Those that the limit leaves for another act."""
        return self.matching - self.gone - len(self.seen)


@dataclass(kw_only=True)
class Act:
    """Who replays what and why; `chosen_by` is the filter, `matching` how many failed jobs it matched.

    Its row is written with the first job that it puts back, so that an act without effect leaves none.
    """

    actor: str
    via: str
    reason: str
    chosen_by: Mapping[str, Any]
    matching: int
    row: Replay | None = None

    def replay(self, seen: Seen, *, pause: timedelta = timedelta(0)) -> None:
        """Put one job back, due after `pause`, and write that down; raises lifecycle.NotFailed or lifecycle.Gone."""
        with transaction.atomic():
            row = self.row or self._begin()
            reopened = lifecycle.replay(
                seen.job_id, attempt=seen.attempt, actor=self.actor, reason=self.reason, pause=pause
            )
            ReplayedJob.objects.create(replay=row, job_id=seen.job_id, before=reopened.before, after=reopened.after)
        self.row = row
        logger.info("replayed", extra={"job_id": str(seen.job_id), "actor": self.actor, "via": self.via})

    def replay_all(self, jobs: Iterable[Seen], *, per_second: float = PER_SECOND) -> Generator[Fate]:
        """Put them back one by one, due one after the other, and tell what became of each."""
        replayed = 0
        for seen in jobs:
            fate = self._try(seen, pause=timedelta(seconds=replayed / per_second))
            replayed += fate is Fate.REPLAYED
            yield fate

    def _begin(self) -> Replay:
        return Replay.objects.create(
            actor=self.actor,
            via=self.via,
            reason=self.reason,
            chosen_by=dict(self.chosen_by),
            matching=self.matching,
        )

    def _try(self, seen: Seen, *, pause: timedelta) -> Fate:
        try:
            self.replay(seen, pause=pause)
        except lifecycle.NotFailed:
            return Fate.NOT_FAILED
        except lifecycle.Gone:
            return Fate.GONE
        return Fate.REPLAYED


def failures(**wanted: Any) -> QuerySet[Job]:
    """The failed jobs that match every one of the FILTERS given."""
    return Job.objects.filter(state=State.FAILED, **{FILTERS[name]: value for name, value in wanted.items()})


def look(jobs: QuerySet[Job], *, limit: int = LIMIT) -> Look:
    """What there is to replay among these jobs, whatever state they are in."""
    kept = jobs.filter(_KEPT, state=State.FAILED).order_by("finished_at", "job_id")
    seen = [Seen(*found) for found in kept.values_list("job_id", "attempt")[:limit]]
    return Look(groups=groups(jobs), seen=seen)


def groups(jobs: QuerySet[Job]) -> list[Group]:
    """The failed ones of these jobs by code and step, the largest group first."""
    counted = (
        jobs.filter(state=State.FAILED)
        .order_by()
        .values_list("error_code", "error_step")
        .annotate(
            jobs=Count("pk"), kept=Count("pk", filter=_KEPT), oldest=Min("finished_at"), newest=Max("finished_at")
        )
    )
    return [Group(*group) for group in counted.order_by("-jobs", "error_code", "error_step")]


def get_newest_failure(attachment_id: uuid.UUID) -> Seen:
    """The failure that is the attachment's state, or what a newer version ended with; raises lifecycle.NotFailed.

    Only the newest job counts: what failed before it was superseded.
    """
    newest = Job.objects.filter(attachment=attachment_id).order_by("-created_at", "-pipeline_version").first()
    if newest is None or newest.state != State.FAILED:
        raise lifecycle.NotFailed("the newest job has not failed")
    return Seen(newest.job_id, newest.attempt)


def operator(user: User) -> str:
    """How the history names a person: by the number that stays, and the name that people know."""
    return f"operator:{user.pk}:{user.username}"[:ACTOR_LIMIT]


def checked_reason(text: str) -> str:
    """The reason on one line; raises UnusableReason where it says nothing or is too long to keep."""
    reason = printable(" ".join(text.split()))
    if not any(char.isalnum() for char in reason):
        raise UnusableReason("Say why, for those who read the history later.")
    if len(reason) > REASON_LIMIT:
        raise UnusableReason(f"Say it in at most {REASON_LIMIT} characters.")
    return reason
