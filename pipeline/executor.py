"""One attempt of one job, as a list of stages in the order they run.

1. take: claim the attempt that the message names (a short transaction), or stop: the message is done.
2. make and store: run each step for the variants that are missing, outside of any transaction, on the trusted original
   or on what an earlier step made of it, loaded by the database's metadata with size and digest checked; put each
   object under a fresh key and record it, one by one.
3. complete: a short guarded transaction publishes the result.
4. reply: whoever sent the file by Telegram is told, once the lease is given back.
Whatever goes wrong is settled in `outcomes`. Running it twice does nothing the second time. An attempt of a long job
ends after a slice; the next one finds what was recorded and goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from django.conf import settings

from attachments import objects, storage
from attachments.errors import ObjectCorrupt, ObjectMissing
from attachments.models import StoredObject
from pipeline import claims, deadman, failpoints, lifecycle, metrics, outcomes, replying, scratch
from pipeline.claims import Heartbeat, ShuttingDown, Unclaimable
from pipeline.confined import Interrupted
from pipeline.envelopes import Envelope
from pipeline.lifecycle import Cancelled, Lease, LeaseLost
from pipeline.outcomes import SliceOver
from pipeline.registry import Pipeline
from pipeline.states import Source
from pipeline.steps import ORIGINAL, Given, Produced, Step, StepResult

#: What entitles to no work, because the job is over: its sender may not have been told yet.
HAVE_ENDED = (Unclaimable.FINISHED, Unclaimable.ORIGINAL_GONE)

Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What the stages share. `files` has what is at hand of the original and the variants, by their names."""

    lease: Lease
    original: StoredObject
    heartbeat: Heartbeat
    scratch: Path
    files: dict[str, Path] = field(default_factory=dict)

    def ask(self, act: Callable[[], Answer]) -> Answer:
        """Ask the database patiently, but not past the end of the attempt."""
        return claims.patiently(act, stop=self.heartbeat.should_stop)

    def recorded(self) -> Mapping[str, StoredObject]:
        return self.ask(lambda: lifecycle.recorded(self.lease))


def execute(envelope: Envelope, *, worker: str) -> str:
    """Do what one message entitles to; returns a word for the log. Raises only ShuttingDown and SystemExit."""
    logger.debug("attempt_begins", extra={"job_id": str(envelope.job_id), "attempt": envelope.attempt})
    taken = claims.take(envelope.job_id, attempt=envelope.attempt, worker=worker)
    if not isinstance(taken, Lease):
        if taken in HAVE_ENDED:
            replying.reply(envelope.job_id, actor=worker)
        return taken.value
    began = time.monotonic()
    with claims.renewing(taken) as heartbeat:
        outcome = _run(taken, heartbeat)
    metrics.ATTEMPT_SECONDS.labels(pipeline=taken.pipeline.name).observe(time.monotonic() - began)
    if taken.source == Source.TELEGRAM:
        replying.reply(taken.job_id, actor=worker)
    return outcome


def _run(lease: Lease, heartbeat: Heartbeat) -> str:
    step = ""
    try:
        with scratch.folder() as folder:
            assert lease.original is not None
            attempt = Attempt(lease=lease, original=lease.original, heartbeat=heartbeat, scratch=folder)
            with deadman.guarding(heartbeat.should_stop):
                for step, stage in _stages(lease.pipeline):  # noqa: B007  (tells where an error came from)
                    stage(attempt)
    except ShuttingDown:
        raise
    except SystemExit:
        outcomes.hand_back(lease)
        raise
    except Exception as error:  # noqa: BLE001  (the worker's slot must survive; outcomes decides what it means)
        return outcomes.settle(lease, error, heartbeat, step=step)
    metrics.OUTCOMES.labels(pipeline=lease.pipeline.name, outcome="ready").inc()
    logger.info("attempt_ended", extra={"job_id": str(lease.job_id), "attempt": lease.attempt, "outcome": "ready"})
    return "ready"


def make_and_store(attempt: Attempt, *, step: Step) -> None:
    """Compute what is missing of one step, and record each object as soon as it is durable."""
    recorded = attempt.recorded()
    wanted = attempt.lease.pipeline.missing(recorded) & frozenset(step.makes)
    if not wanted:
        return
    _stop_if_told(attempt)
    source = attempt.original if step.reads == ORIGINAL else recorded[step.reads]
    given = Given(
        path=_file(attempt, step.reads, source),
        content_type=source.content_type,
        wanted=wanted,
        scratch=attempt.scratch,
        language=attempt.lease.language,
        stop=attempt.heartbeat.should_stop,
        kept=lambda variant: _kept(attempt, variant, recorded),
        tell=attempt.heartbeat.tell,
    )
    result = step.run(given)
    for produced in result.produced:
        _stop_if_told(attempt)
        _store(attempt, produced, result)
        if produced.is_internal:
            _end_slice_if_over(attempt)


def complete(attempt: Attempt) -> None:
    """Publish: the job is ready and its version is served."""
    attempt.ask(lambda: lifecycle.complete(attempt.lease))
    failpoints.hit("after_result_commit")


def _stages(pipeline: Pipeline) -> Iterator[tuple[str, Callable[[Attempt], None]]]:
    """The stages in their order, by the names that a failure is filed under."""
    for step in pipeline.steps:
        yield step.name, partial(make_and_store, step=step)
    yield "complete", complete


def _store(attempt: Attempt, produced: Produced, result: StepResult) -> None:
    lease = attempt.lease
    key = objects.variant_key(
        lease.attachment_id, version=lease.pipeline.version, attempt=lease.attempt, variant=produced.variant
    )
    stored = attempt.ask(lambda: objects.register(key, content_type=produced.content_type, created_by=lease.worker))
    written = storage.put_file(stored.bucket, stored.key, produced.path, content_type=produced.content_type)
    failpoints.hit("after_store")
    try:
        attempt.ask(
            lambda: lifecycle.record(
                lease,
                variant=produced.variant,
                object_id=stored.id,
                written=written,
                facts=produced.facts,
                original_facts=result.original_facts,
                is_internal=produced.is_internal,
                spoken=produced.spoken,
            )
        )
    except (Cancelled, LeaseLost):
        # Nobody will point at it, and what was deleted should not wait a day for the sweep.
        objects.throw_away(stored.id)
        raise
    attempt.files[produced.variant] = produced.path


def _kept(attempt: Attempt, variant: str, recorded: Mapping[str, StoredObject]) -> Path | None:
    """What an earlier attempt recorded, if it still is what was stored; else the step makes it again at once."""
    try:
        return _file(attempt, variant, recorded[variant]) if variant in recorded else None
    except (ObjectMissing, ObjectCorrupt) as error:
        logger.warning("kept_no_more", extra={"job_id": str(attempt.lease.job_id), "cause": error.code})
        return None


def _file(attempt: Attempt, name: str, source: StoredObject) -> Path:
    """The original, or a recorded variant, as a file in the scratch folder."""
    if name not in attempt.files:
        assert source.size is not None and source.sha256 is not None
        path = attempt.scratch / name
        try:
            storage.fetch(source.bucket, source.key, path, size=source.size, sha256=source.sha256)
        except (ObjectMissing, ObjectCorrupt):
            if name != ORIGINAL:
                # The next attempt makes it again.
                attempt.ask(lambda: lifecycle.discard(attempt.lease, variant=name))
            raise
        attempt.files[name] = path
    return attempt.files[name]


def _end_slice_if_over(attempt: Attempt) -> None:
    """Only where something durable was won: else a slice could end again and again at the same place."""
    if attempt.heartbeat.worked_seconds() > settings.SLICE_SECONDS:
        raise SliceOver


def _stop_if_told(attempt: Attempt) -> None:
    if attempt.heartbeat.should_stop():
        raise Interrupted
