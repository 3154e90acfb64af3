"""The intention to publish, written in the transaction that needs it; the relay does the rest.

After the commit, and outside it, PostgreSQL's NOTIFY wakes the dispatcher: inside the transaction it would
serialise every commit of the database, and losing it costs one poll.
"""

from __future__ import annotations

import datetime
import json
import logging
from datetime import timedelta
from typing import Any

from django.db import Error, connection, transaction
from django.db.models.functions import Now

import schemas
from pipeline.models import Job, OutboxMessage

CHANNEL = "holdfast_outbox"
PROCESS = "pipeline.process"
SCHEMA_VERSION = "1.0"

logger = logging.getLogger(__name__)


def enqueue(job: Job, *, pause: timedelta = timedelta(0)) -> OutboxMessage:
    """Write the message of the job's current attempt, due after `pause`; InvalidShape when it breaks its schema."""
    envelope = envelope_of(job)
    schemas.validate("jobs", envelope)
    message_id = f"{job.job_id}:{job.attempt}"
    message = OutboxMessage.objects.create(
        job=job,
        attempt=job.attempt,
        queue=job.queue,
        task=PROCESS,
        message_id=message_id,
        headers=_headers(PROCESS, message_id, job.carrier),
        body=json.dumps([[envelope], {}, {}], separators=(",", ":")),
        due_at=Now() + pause,
    )
    if not pause:
        transaction.on_commit(nudge)
    return message


def envelope_of(job: Job) -> dict[str, Any]:
    """The task's one argument: ids and versions, valid against `schemas/jobs.schema.json`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "job_id": str(job.job_id),
        "attachment_id": str(job.attachment_id),
        "pipeline": job.pipeline,
        "pipeline_version": job.pipeline_version,
        "attempt": job.attempt,
        "enqueued_at": datetime.datetime.now(datetime.UTC).isoformat(),
        "carrier": job.carrier,
    }


def nudge() -> None:
    """Wake the dispatcher; failing to is no error, since it polls."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"NOTIFY {CHANNEL}")
    except Error as error:
        # Whatever it is: the commit is done, and must not look as if it were not.
        logger.info("nudge_failed", extra={"cause": type(error).__name__})


def _headers(task: str, message_id: str, carrier: dict[str, str]) -> dict[str, Any]:
    """What Celery's protocol 2 needs and Flower shows, plus the trace context under its W3C names."""
    return {"task": task, "id": message_id, "argsrepr": message_id, **carrier}
