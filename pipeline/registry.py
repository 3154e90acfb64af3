"""Every pipeline and version, in one visible table. How to add one: docs/adding-a-pipeline.md."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings

from attachments.errors import PipelineUnavailable, UnsupportedType
from pipeline import scratch
from pipeline.states import Runner
from pipeline.steps import ORIGINAL, Step
from pipeline.steps.audio import ConvertStep
from pipeline.steps.image import ImageStep
from pipeline.steps.speech import TranscribeStep
from pipeline.steps.transcripts import WriteStep


class UnknownPipeline(LookupError):
    """No pipeline of this name and version is registered in this release."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A named list of variants for a kind of file. `attempt_limit` bounds one attempt, storage included."""

    name: str
    version: int
    queue: str
    steps: tuple[Step, ...]
    runner: Runner = Runner.WORKER
    attempt_limit: timedelta = timedelta(minutes=10)

    @property
    def promised(self) -> frozenset[str]:
        """The variants without which a job cannot be ready."""
        return frozenset(variant for step in self.steps if not step.is_internal for variant in step.makes)

    def missing(self, recorded: Collection[str]) -> frozenset[str]:
        """What is still to be made: what is promised and not recorded, and what the making of that reads."""
        missing = set(self.promised.difference(recorded))
        for step in reversed(self.steps):
            if missing.intersection(step.makes) and step.reads != ORIGINAL and step.reads not in recorded:
                missing.add(step.reads)
        return frozenset(missing)


PIPELINES: tuple[Pipeline, ...] = (
    Pipeline(name="image", version=1, queue="images", steps=(ImageStep(),)),
    Pipeline(
        name="speech",
        version=1,
        queue="speech",
        steps=(ConvertStep(), TranscribeStep(), WriteStep()),
        # Well within RabbitMQ's consumer timeout; a long recording takes many slices.
        attempt_limit=timedelta(minutes=25),
    ),
    # Keeps the original only; taken for kinds without a pipeline where ACCEPT_ANY_FILE is on.
    Pipeline(name="store", version=1, queue="images", steps=()),
)

#: The family of a detected type names its pipeline.
_BY_FAMILY = {"image": "image", "audio": "speech", "video": "speech"}


def get(name: str, version: int) -> Pipeline:
    """The pipeline of that name and version; UnknownPipeline when this release does not have it."""
    for pipeline in PIPELINES:
        if (pipeline.name, pipeline.version) == (name, version):
            return pipeline
    raise UnknownPipeline(f"{name} v{version}")


def newest(name: str) -> Pipeline:
    """The version that new attachments get; UnknownPipeline when there is none."""
    versions = [pipeline for pipeline in PIPELINES if pipeline.name == name]
    if not versions:
        raise UnknownPipeline(name)
    return max(versions, key=lambda pipeline: pipeline.version)


def choose(family: str | None) -> Pipeline:
    """The pipeline for a detected family of types (None: unknown).

    Raises UnsupportedType when none takes it, PipelineUnavailable when this installation does not run it.
    """
    name = _BY_FAMILY.get(family or "")
    if name is not None and _is_run_here(name):
        return newest(name)
    if settings.ACCEPT_ANY_FILE:
        return newest("store")
    if name is not None:
        raise PipelineUnavailable(f"the pipeline {name!r} is not set up here")
    raise UnsupportedType


def check_requested(requested: str, chosen: Pipeline) -> None:
    """Refuse a pipeline that the client named but the file's real type does not lead to."""
    if requested and requested != chosen.name:
        raise PipelineUnavailable(f"the file's type leads to {chosen.name!r}, not to the pipeline asked for")


def self_test(*, queues: set[str]) -> None:
    """Try every step of the pipelines on these queues; raises what the step raises when it cannot keep its promise."""
    steps = {step for pipeline in PIPELINES if pipeline.queue in queues for step in pipeline.steps}
    for step in steps:
        with scratch.folder() as folder:
            step.self_test(folder)


def _is_run_here(name: str) -> bool:
    return name != "speech" or bool(settings.TRANSCRIPTION_MODEL)
