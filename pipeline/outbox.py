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
from notifications.models import TelegramUpdate
from pipeline.models import Job, OutboxMessage

CHANNEL = "holdfast_outbox"
PROCESS = "pipeline.process"
FETCH = "notifications.fetch"
FETCH_QUEUE = "telegram"
SCHEMA_VERSION = "1.0"

logger = logging.getLogger(__name__)


def enqueue(job: Job, *, pause: timedelta = timedelta(0)) -> OutboxMessage:
    """Write the message of the job's current attempt, due after `pause`; InvalidShape when it breaks its schema."""
    return _write(
        envelope_of(job), schema="jobs", task=PROCESS, queue=job.queue, about=str(job.job_id), pause=pause, job=job
    )


def enqueue_fetch(update: TelegramUpdate, *, pause: timedelta = timedelta(0)) -> OutboxMessage:
    """The same for the current attempt at fetching a Telegram message's file."""
    envelope = {
        "schema_version": SCHEMA_VERSION,
        "telegram_update_id": update.pk,
        "attempt": update.attempt,
        "enqueued_at": _now(),
        "carrier": update.carrier,
    }
    about = f"telegram-{update.pk}"
    return _write(
        envelope, schema="telegram", task=FETCH, queue=FETCH_QUEUE, about=about, pause=pause, telegram_update=update
    )


def envelope_of(job: Job) -> dict[str, Any]:
    """The task's one argument: ids and versions, valid against `schemas/jobs.schema.json`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "job_id": str(job.job_id),
        "attachment_id": str(job.attachment_id),
        "pipeline": job.pipeline,
        "pipeline_version": job.pipeline_version,
        "attempt": job.attempt,
        "enqueued_at": _now(),
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


def _write(
    envelope: dict[str, Any], *, schema: str, task: str, queue: str, about: str, pause: timedelta, **subject: Any
) -> OutboxMessage:
    schemas.validate(schema, envelope)
    message_id = f"{about}:{envelope['attempt']}"
    message = OutboxMessage.objects.create(
        **subject,
        attempt=envelope["attempt"],
        queue=queue,
        task=task,
        message_id=message_id,
        headers=_headers(task, message_id, envelope["carrier"]),
        body=json.dumps([[envelope], {}, {}], separators=(",", ":")),
        due_at=Now() + pause,
    )
    if not pause:
        transaction.on_commit(nudge)
    return message


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


def _headers(task: str, message_id: str, carrier: dict[str, str]) -> dict[str, Any]:
    """What Celery's protocol 2 needs and Flower shows, plus the trace context under its W3C names."""
    return {"task": task, "id": message_id, "argsrepr": message_id, **carrier}
