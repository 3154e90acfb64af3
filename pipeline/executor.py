"""One attempt of one job, as a list of stages in the order they run.

1. take: claim the attempt that the message names (a short transaction), or stop: the message is done.
2. fetch: load the trusted original by the database's metadata, checking size and digest.
3. make and store: run each step for the variants that are missing, outside of any transaction; put each object under
   a fresh key and record it, one by one.
4. complete: a short guarded transaction publishes the result.
Whatever goes wrong is settled in `outcomes`. Running it twice does nothing the second time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from attachments import objects, storage
from attachments.models import StoredObject
from pipeline import claims, deadman, failpoints, lifecycle, metrics, outcomes, scratch
from pipeline.claims import Heartbeat, ShuttingDown
from pipeline.confined import Interrupted
from pipeline.envelopes import Envelope
from pipeline.lifecycle import Cancelled, Lease, LeaseLost
from pipeline.registry import Pipeline
from pipeline.steps import Produced, Step, StepResult

Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What the stages share. `path` is where the original's copy is, once it was fetched."""

    lease: Lease
    original: StoredObject
    heartbeat: Heartbeat
    scratch: Path

    @property
    def path(self) -> Path:
        return self.scratch / "original"

    def ask(self, act: Callable[[], Answer]) -> Answer:
        """Ask the database patiently, but not past the end of the attempt."""
        return claims.patiently(act, stop=self.heartbeat.should_stop)


def execute(envelope: Envelope, *, worker: str) -> str:
    """Do what one message entitles to; returns a word for the log. Raises only ShuttingDown and SystemExit."""
    logger.debug("attempt_begins", extra={"job_id": str(envelope.job_id), "attempt": envelope.attempt})
    taken = claims.take(envelope.job_id, attempt=envelope.attempt, worker=worker)
    if not isinstance(taken, Lease):
        return taken.value
    began = time.monotonic()
    with claims.renewing(taken) as heartbeat:
        outcome = _run(taken, heartbeat)
    metrics.ATTEMPT_SECONDS.labels(pipeline=taken.pipeline.name).observe(time.monotonic() - began)
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


def fetch(attempt: Attempt) -> None:
    """Load the original unless nothing is missing."""
    original = attempt.original
    if not _missing(attempt):
        return
    assert original.size is not None and original.sha256 is not None
    storage.fetch(original.bucket, original.key, attempt.path, size=original.size, sha256=original.sha256)


def make_and_store(attempt: Attempt, *, step: Step) -> None:
    """Compute what is missing of one step, and record each object as soon as it is durable."""
    wanted = _missing(attempt) & frozenset(step.makes)
    if not wanted:
        return
    _stop_if_told(attempt)
    result = step.run(
        attempt.path,
        content_type=attempt.original.content_type,
        wanted=wanted,
        scratch=attempt.scratch,
        stop=attempt.heartbeat.should_stop,
    )
    for produced in result.produced:
        _stop_if_told(attempt)
        _store(attempt, produced, result)


def complete(attempt: Attempt) -> None:
    """Publish: the job is ready and its version is served."""
    attempt.ask(lambda: lifecycle.complete(attempt.lease))
    failpoints.hit("after_result_commit")


def _stages(pipeline: Pipeline) -> Iterator[tuple[str, Callable[[Attempt], None]]]:
    """The stages in their order, by the names that a failure is filed under."""
    yield "fetch", fetch
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
            )
        )
    except (Cancelled, LeaseLost):
        # Nobody will point at it, and what was deleted should not wait a day for the sweep.
        objects.throw_away(stored.id)
        raise


def _missing(attempt: Attempt) -> frozenset[str]:
    return attempt.lease.pipeline.promised - attempt.ask(lambda: lifecycle.present(attempt.lease))


def _stop_if_told(attempt: Attempt) -> None:
    if attempt.heartbeat.should_stop():
        raise Interrupted
