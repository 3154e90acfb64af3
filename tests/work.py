"""Work done in this process: by the real executor, with real decoding or with a step that is quick."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pipeline import executor, registry
from pipeline.envelopes import Envelope
from pipeline.models import Job
from pipeline.registry import Pipeline
from pipeline.steps import ORIGINAL, Given, Produced, StepResult


def work(job: Job, *, worker: str = "worker-a") -> str:
    """What a worker does with the message of the job's current attempt."""
    job.refresh_from_db()
    envelope = Envelope(job_id=job.job_id, attempt=job.attempt, carrier=job.carrier)
    return executor.execute(envelope, worker=worker)


@dataclasses.dataclass(frozen=True)
class QuickStep:
    """Makes variants of a few bytes: the work around the step is what is tested."""

    name: str = "quick"
    reads: str = ORIGINAL
    is_internal: bool = False
    makes: tuple[str, ...] = ("crop", "optimized", "thumbnail")

    def run(self, given: Given) -> StepResult:
        return StepResult(
            produced=tuple(self._make(variant, given.path, given.scratch) for variant in sorted(given.wanted)),
            original_facts={"width": given.path.stat().st_size},
        )

    def self_test(self, scratch: Path) -> None: ...

    def _make(self, variant: str, original: Path, scratch: Path) -> Produced:
        path = scratch / variant
        path.write_bytes(f"{variant} of {original.stat().st_size} bytes".encode())
        return Produced(variant=variant, path=path, content_type="image/webp", facts={"width": 1})


def make_quick(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Let the image pipeline decode nothing."""
    quick = dataclasses.replace(registry.newest("image"), steps=(QuickStep(),))
    monkeypatch.setattr(registry, "PIPELINES", (quick,))
    return quick
