"""Many messages at once, for whoever looks at nothing else."""

from __future__ import annotations

from django.db import connection
from django.db.models.functions import Now

from pipeline.models import Job, OutboxMessage


def backlog(job: Job, count: int) -> None:
    """Rows for further attempts of a job that has one, until it has `count`; all of them unsent and due."""
    first = OutboxMessage.objects.get(job=job)
    rows = (_of_attempt(first, number) for number in range(2, count + 1))
    OutboxMessage.objects.bulk_create(rows, batch_size=2000)


def _of_attempt(first: OutboxMessage, number: int) -> OutboxMessage:
    message_id = f"{first.job_id}:{number}"
    return OutboxMessage(
        job_id=first.job_id,
        attempt=number,
        queue=first.queue,
        task=first.task,
        message_id=message_id,
        headers={**first.headers, "id": message_id, "argsrepr": message_id},
        body=first.body,
        due_at=Now(),
    )


def sent_ago(job: Job, seconds: float) -> None:
    """Let a job's messages have been sent a while ago."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pipeline_outbox SET sent_at = now() - make_interval(secs => %s) WHERE job_id = %s",
            [seconds, job.job_id],
        )
