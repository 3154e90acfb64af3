"""The one argument of a pipeline task, checked on arrival against the schema it was written by."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import schemas


class InvalidEnvelope(Exception):
    """A message that no version of ours would have written; it belongs in the dead-letter queue."""


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """Ids and versions; see `schemas/jobs.schema.json`."""

    job_id: uuid.UUID
    attachment_id: uuid.UUID
    pipeline: str
    pipeline_version: int
    attempt: int
    carrier: Mapping[str, str]


def read(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Envelope:
    """The envelope in a task's arguments; InvalidEnvelope when they are anything else."""
    if len(args) != 1 or kwargs:
        raise InvalidEnvelope("a pipeline task takes one argument")
    try:
        schemas.validate("jobs", args[0])
    except schemas.InvalidShape as error:
        raise InvalidEnvelope(str(error)) from error
    document = args[0]
    return Envelope(
        job_id=uuid.UUID(document["job_id"]),
        attachment_id=uuid.UUID(document["attachment_id"]),
        pipeline=document["pipeline"],
        pipeline_version=int(document["pipeline_version"]),
        attempt=int(document["attempt"]),
        carrier=document["carrier"],
    )
