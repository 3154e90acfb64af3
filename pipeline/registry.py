"""Every pipeline and version, in one visible table. How to add one: docs/adding-a-pipeline.md."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings

from attachments.errors import PipelineUnavailable, UnsupportedType
from pipeline import scratch
from pipeline.states import Runner
from pipeline.steps import Step
from pipeline.steps.image import ImageStep


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
        return frozenset(variant for step in self.steps for variant in step.makes)


PIPELINES: tuple[Pipeline, ...] = (
    Pipeline(name="image", version=1, queue="images", steps=(ImageStep(),)),
    # Keeps the original only; taken for kinds without a pipeline where ACCEPT_ANY_FILE is on.
    Pipeline(name="store", version=1, queue="images", steps=()),
)

#: The family of a detected type names its pipeline.
_BY_FAMILY = {"image": "image"}


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
    """The pipeline for a detected family of types (None: unknown); UnsupportedType when none takes it."""
    if family in _BY_FAMILY:
        return newest(_BY_FAMILY[family])
    if settings.ACCEPT_ANY_FILE:
        return newest("store")
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
