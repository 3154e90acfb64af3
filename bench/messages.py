"""How fast rows become confirmed messages, and how soon after its commit a job is in a worker's hands."""

from __future__ import annotations

import datetime
import json
import statistics
import time
from pathlib import Path

import kombu
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now

from attachments import storage
from bench.figures import Figure
from pipeline import broker, intake
from pipeline.broker import Publisher
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.origins import Origin
from pipeline.relay import Relay
from pipeline.states import Source, State
from pipeline.wire import Message
from tests.messages import backlog
from tests.pictures import png
from tests.processes import Process, stack
from tests.waiting import until

MESSAGES = 30_000
ONE_BY_ONE = 2_000
JOBS = 100


def relay(_folder: Path) -> list[Figure]:
    """One relay process over a backlog, beside a loop that waits for each confirm."""
    with broker.connect() as rabbit:
        broker.declare(rabbit)
        OutboxMessage.objects.filter(sent_at=None).update(sent_at=Now())
        job = _job()
        backlog(job, MESSAGES)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE pipeline_outbox")
        one = Relay()
        began = time.perf_counter()
        sent = 0
        while confirmed := one.run():
            sent += confirmed
        pipelined = sent / (time.perf_counter() - began)
        one.close()
        waiting = _one_by_one(job)
        _purge(rabbit)
    ratio = pipelined / waiting
    return [
        Figure(
            row="relay",
            what="outbox rows to confirmed messages, one process",
            shown=f"{pipelined:,.0f}/s",
            target="≥ 12,000/s",
            is_met=pipelined >= 12_000,
        ),
        Figure(row="relay", what="a loop that waits for each confirm", shown=f"{waiting:,.0f}/s"),
        Figure(row="relay", what="ratio", shown=f"{ratio:.1f} ×", target="≥ 6 ×", is_met=ratio >= 6),
    ]


def latency(folder: Path) -> list[Figure]:
    """From the commit to the first line of the task, and to the claim, on an idle stack."""
    storage.make_bucket("holdfast")
    with broker.connect() as rabbit, stack(folder) as running:
        broker.declare(rabbit)
        _purge(rabbit)
        running.dispatcher(LOG_LEVEL="INFO").until_says("dispatcher_started")
        worker = running.worker("images", LOG_LEVEL="DEBUG").until_says("ready")
        _one_job(worker)
        took = [_one_job(worker) for _ in range(JOBS)]
    begins, claimed = (statistics.median(values) for values in zip(*took, strict=True))
    return [
        Figure(
            row="latency",
            what="commit → task body starts, p50 idle",
            shown=f"{begins:.1f} ms",
            target="≤ 6 ms",
            is_met=begins <= 6,
        ),
        Figure(row="latency", what="commit → claimed, p50 idle", shown=f"{claimed:.1f} ms"),
    ]


def _one_job(worker: Process) -> tuple[float, float]:
    """Milliseconds from the commit of one job until its task begins, and until it is claimed."""
    job = _job()
    committed = datetime.datetime.now(datetime.UTC)
    until(lambda: Job.objects.filter(job_id=job.job_id, state=State.READY).exists())
    claimed = JobEvent.objects.get(job=job, reason="claimed").at
    return tuple((moment - committed).total_seconds() * 1000 for moment in (_began(worker, job), claimed))  # type: ignore[return-value]


def _began(worker: Process, job: Job) -> datetime.datetime:
    for line in reversed(worker.log.read_text().splitlines()):
        if "attempt_begins" in line and str(job.job_id) in line:
            return datetime.datetime.fromisoformat(json.loads(line)["at"])
    raise LookupError(job.job_id)


def _job() -> Job:
    storage.make_bucket("holdfast")
    owner, _ = User.objects.get_or_create(username="bench")
    received = intake.receive([png()], created_by="bench")
    return intake.accept(received, intake.Request(owner=owner, origin=Origin(Source.REST))).job


def _one_by_one(job: Job) -> float:
    row = OutboxMessage.objects.filter(job=job).first()
    assert row is not None
    message = Message(queue=row.queue, task=row.task, message_id=row.message_id, headers=row.headers, body=row.body)
    publisher = Publisher()
    publisher.publish([message])
    began = time.perf_counter()
    for _ in range(ONE_BY_ONE):
        publisher.publish([message])
    taken = time.perf_counter() - began
    publisher.close()
    return ONE_BY_ONE / taken


def _purge(rabbit: kombu.Connection) -> None:
    for name in broker.QUEUE_NAMES:
        with rabbit.channel() as channel:
            channel.queue_purge(name)
