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
    """What the worker needs of `schemas/jobs.schema.json`; the rest it reads from the row."""

    job_id: uuid.UUID
    attempt: int
    carrier: Mapping[str, str]


def read(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Envelope:
    """The envelope in a task's arguments; InvalidEnvelope when they are anything else."""
    document = checked("jobs", args, kwargs)
    try:
        job_id = uuid.UUID(document["job_id"])
    except ValueError as error:
        # The schema's `$` lets a trailing line feed pass.
        raise InvalidEnvelope("jobs: job_id is no UUID") from error
    return Envelope(
        job_id=job_id,
        attempt=int(document["attempt"]),
        carrier=document["carrier"],
    )


def checked(schema: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """A task's one argument, if it fits the schema; else InvalidEnvelope."""
    if len(args) != 1 or kwargs:
        raise InvalidEnvelope("a task takes one argument")
    try:
        schemas.validate(schema, args[0])
    except schemas.InvalidShape as error:
        raise InvalidEnvelope(str(error)) from error
    document: Mapping[str, Any] = args[0]
    return document
