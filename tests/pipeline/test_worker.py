"""A real Celery worker on a real queue: the way of one job, and messages that are none of ours."""

from __future__ import annotations

import bz2
import json
import os
import signal
import struct
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kombu
import pytest
import requests
from amqp.exceptions import NotFound
from django.db import connection
from prometheus_client.parser import text_string_to_metric_families

from attachments import storage
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from config.local.places import free_port
from pipeline import broker, outbox
from pipeline.broker import Publisher
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.relay import relay_batch
from pipeline.states import State
from tests.pictures import jpeg
from tests.processes import Process, Stack, until_state
from tests.rabbit import count, drain_queue, publish_properties, publish_raw, until_count
from tests.waiting import end_other_sessions, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker(running: Stack) -> Process:
    return running.worker().until_says("ready")


@pytest.fixture
def send(publisher: Publisher) -> Callable[[], int]:
    return lambda: relay_batch(publisher).confirmed


def test_a_photo_becomes_ready_with_every_variant(
    queued: Callable[..., Job], worker: Process, running: Stack, send: Callable[[], int], rabbit: kombu.Connection
) -> None:
    """[attachments] processing → ready: оригинал, thumbnail, crop, optimized, метаданные, checksums."""
    job = queued(jpeg())
    send()
    until_state(State.READY, [job], running)
    attachment = Attachment.objects.get(id=job.attachment_id)
    assert attachment.served_version == 1
    assert (attachment.media["width"], attachment.media["height"]) == (640, 480)
    variants = {variant.variant: variant for variant in Variant.objects.select_related("stored_object")}
    assert set(variants) == {"thumbnail", "crop", "optimized"}
    for variant in variants.values():
        found = variant.stored_object
        with storage.open_object(found.bucket, found.key) as stream:
            assert len(b"".join(stream)) == found.size
    assert StoredObject.objects.filter(bucket_role=BucketRole.STAGING).count() == 0
    until_count(rabbit, "images", 0)


def test_the_trace_of_the_request_is_in_the_workers_log(
    queued: Callable[..., Job], worker: Process, running: Stack, send: Callable[[], int]
) -> None:
    job = queued()
    send()
    until_state(State.READY, [job], running)
    trace_id = job.carrier["traceparent"].split("-")[1]
    worker.until_says(trace_id)


def test_three_copies_of_one_message_have_one_effect(
    queued: Callable[..., Job], running: Stack, send: Callable[[], int], rabbit: kombu.Connection
) -> None:
    """At-least-once + идемпотентный эффект."""
    job = queued()
    send()
    (message,) = drain_queue(rabbit, "images")
    for _ in range(3):
        with rabbit.channel() as channel:
            channel.basic_publish(message, broker.EXCHANGE.name, "images")
    running.worker().until_says("ready")
    until_state(State.READY, [job], running)
    until_count(rabbit, "images", 0)
    assert Variant.objects.count() == 3
    assert list(JobEvent.objects.filter(job=job).order_by("id").values_list("to_state", flat=True)) == [
        "queued",
        "processing",
        "ready",
    ]


def test_a_damaged_picture_fails_for_good_with_a_sentence(
    queued: Callable[..., Job], worker: Process, running: Stack, send: Callable[[], int]
) -> None:
    """[attachments] processing → failed: ошибка постоянная."""
    job = queued(jpeg()[:3000])
    send()
    until_state(State.FAILED, [job], running)
    assert (job.error_code, job.attempt) == ("bad_file", 1)
    assert "damaged" in job.error
    original = StoredObject.objects.get(attachment=job.attachment_id)
    assert storage.size_of(original.bucket, original.key) == original.size


def envelope(**changes: Any) -> dict[str, Any]:
    document = {
        "schema_version": "1.0",
        "job_id": str(uuid.uuid4()),
        "attachment_id": str(uuid.uuid4()),
        "pipeline": "image",
        "pipeline_version": 1,
        "attempt": 1,
        "enqueued_at": "2026-01-01T00:00:00Z",
        "carrier": {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"},
    }
    return {**document, **changes}


def body(*args: Any, kwargs: Any = None, embed: Any = None) -> str:
    return json.dumps([list(args), kwargs or {}, embed or {}])


def headers(**changes: Any) -> dict[str, Any]:
    return {"task": outbox.PROCESS, "id": "x:1", "lang": "py", **changes}


HOSTILE: dict[str, tuple[bytes | str, dict[str, Any]]] = {
    "wrong schema version": (body(envelope(schema_version="9.0")), {"headers": headers()}),
    "wrong types": (body(envelope(attempt="first")), {"headers": headers()}),
    "unknown field": (body(envelope(url="http://example.org/x")), {"headers": headers()}),
    "a path for an id": (body(envelope(job_id="../../etc/passwd")), {"headers": headers()}),
    "two arguments": (body(envelope(), 1), {"headers": headers()}),
    "keyword arguments": (body(envelope(), kwargs={"extra": 1}), {"headers": headers()}),
    "no argument": (body(), {"headers": headers()}),
    "body is a list of two": ("[1, 2]", {"headers": headers()}),
    "body is a number": ("7", {"headers": headers()}),
    "body is null": ("null", {"headers": headers()}),
    "arguments are a string": ('["abc", {}, {}]', {"headers": headers()}),
    "embedded callback": (body(envelope(), embed={"chain": [{"task": "x"}]}), {"headers": headers()}),
    "undecodable json": ("{not json", {"headers": headers()}),
    "not utf-8": (b"\xff\xfe\x00", {"headers": headers()}),
    "pickle": (b"\x80\x04N.", {"headers": headers(), "content_type": "application/x-python-serialize"}),
    "unknown content type": (b"abc", {"headers": headers(), "content_type": "application/x-strange"}),
    "a bomb of a kind that kombu trusts": (
        bz2.compress(b"\0" * 1_000_000),
        {"headers": headers(), "content_type": "application/data", "content_encoding": "bz2"},
    ),
    "no content type": (b"abc", {"headers": headers(), "content_type": ""}),
    "no headers": (body(envelope()), {}),
    "no id": (body(envelope()), {"headers": {"task": outbox.PROCESS}}),
    "id is a number": (body(envelope()), {"headers": headers(id=5)}),
    "unknown task": (body(envelope()), {"headers": headers(task="os.system")}),
    "task is a number": (body(envelope()), {"headers": headers(task=7)}),
    "time limits of the wrong shape": (body(envelope()), {"headers": headers(timelimit="soon")}),
    "an eta": (body(envelope()), {"headers": headers(eta="2030-01-01T00:00:00Z")}),
    "expires of the wrong type": (body(envelope()), {"headers": headers(expires={"a": 1})}),
    "expires of the wrong form": (body(envelope()), {"headers": headers(expires="never")}),
    "expires of nothing": (body(envelope()), {"headers": headers(expires="")}),
    "an id with a line feed": (body(envelope(job_id=f"{uuid.uuid4()}\n")), {"headers": headers()}),
    "ten megabytes": (body(envelope(), "x" * 10_000_000), {"headers": headers()}),
    "ten megabytes of noise": (b"\xff" * 10_000_000, {"headers": headers()}),
    "a header that is not utf-8": (body(envelope()), {"headers": headers(task=b"\xff")}),
    "a compressed body": (zlib.compress(body(envelope()).encode()), {"headers": headers(compression="gzip")}),
}


def properties(*bits: int) -> bytes:
    """Which of AMQP's properties follow: 15 content type, 14 encoding, 13 headers, 7 message id, 5 type."""
    return struct.pack(">H", sum(1 << bit for bit in bits)) + b"".join(GIVEN[bit] for bit in bits)


NOT_UTF_8 = b"\x02\xff\xfe"
FAR_AWAY = b"\x04died" + b"T" + struct.pack(">Q", 2**62)
GIVEN = {
    15: b"\x10application/json",
    14: b"\x05utf-8",
    13: struct.pack(">I", len(FAR_AWAY)) + FAR_AWAY,
    7: NOT_UTF_8,
    5: NOT_UTF_8,
}
#: What RabbitMQ passes on and no client's library can read.
UNREADABLE = {"a date far away": properties(15, 14, 13), "an id that is no text": properties(15, 14, 7)}


def test_messages_that_are_none_of_ours_are_dead_lettered_and_the_worker_lives(
    queued: Callable[..., Job], worker: Process, running: Stack, send: Callable[[], int], rabbit: kombu.Connection
) -> None:
    """Malformed, undecodable and wrong-version messages: rejected once, kept for the operator, nothing blocked."""
    pids = {child.pid for child in worker.children()}
    for hostile, told in HOSTILE.values():
        publish_raw(rabbit, "images", hostile, **told)
    for unreadable in UNREADABLE.values():
        publish_properties(rabbit, "images", unreadable, b"{}")
    many = len(HOSTILE) + len(UNREADABLE)
    job = queued()
    send()
    until_state(State.READY, [job], running)
    until(
        lambda: count(rabbit, broker.DEAD_QUEUE) == many,
        say=lambda: f"{count(rabbit, broker.DEAD_QUEUE)} of {many}\n{running.logs()}",
    )
    until_count(rabbit, "images", 0)
    assert worker.is_running
    assert pids <= {child.pid for child in worker.children()}


def test_a_message_for_an_unknown_job_is_acknowledged(
    worker: Process, rabbit: kombu.Connection, running: Stack, queued: Callable[..., Job], send: Callable[[], int]
) -> None:
    publish_raw(rabbit, "images", body(envelope()), headers=headers())
    job = queued()
    send()
    until_state(State.READY, [job], running)
    until_count(rabbit, "images", 0)
    assert count(rabbit, broker.DEAD_QUEUE) == 0


def test_chores_that_came_too_late_are_dropped_and_are_no_dead_letters(
    running: Stack, rabbit: kombu.Connection
) -> None:
    """Beat goes on while no worker takes them: the next one does what all of them would have done."""
    beat = running.beat()
    until(lambda: count(rabbit, "control") >= 4, say=running.logs)
    beat.terminate()
    late = count(rabbit, "control")
    worker = running.worker("control", concurrency=1)
    until(lambda: worker.logs().count("Discarding revoked task") >= late, say=running.logs)
    assert "succeeded" not in worker.logs()
    until_count(rabbit, "control", 0)
    assert count(rabbit, broker.DEAD_QUEUE) == 0


def test_a_worker_refused_by_a_queue_of_other_arguments_waits_until_it_is_put_right(
    queued: Callable[..., Job], running: Stack, send: Callable[[], int], rabbit: kombu.Connection
) -> None:
    """The broker closes the channel, not the connection; that must not end the worker either."""
    job = queued()
    with rabbit.channel() as channel:
        channel.queue_delete("images")
        channel.queue_declare("images", durable=True, auto_delete=False)
    try:
        worker = running.worker().until_says("PRECONDITION_FAILED")
    finally:
        with rabbit.channel() as channel:
            channel.queue_delete("images")
        broker.declare(rabbit)
    worker.until_says("ready.")
    send()
    until_state(State.READY, [job], running)


def test_a_worker_declares_no_queues_but_ours(worker: Process, rabbit: kombu.Connection) -> None:
    """Stock Celery adds 28 delayed-delivery queues and exchanges."""
    for level in (0, 27):
        with pytest.raises(NotFound), rabbit.channel() as channel:
            channel.queue_declare(f"celery_delayed_{level}", passive=True)


def test_a_workers_metrics_add_up_its_children(
    queued: Callable[..., Job], running: Stack, send: Callable[[], int]
) -> None:
    port = free_port()
    worker = running.worker(METRICS_PORT=str(port)).until_says("ready")
    for _ in range(3):
        queued()
    send()
    until(lambda: Job.objects.filter(state=State.READY).count() == 3, say=running.logs)
    until(lambda: ready_attempts(port) == 3, say=running.logs)
    os.kill(worker.children()[0].pid, signal.SIGKILL)
    until(lambda: len(worker.children()) == 2)
    assert ready_attempts(port) == 3


def ready_attempts(port: int) -> float:
    scraped = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
    samples = [sample for family in text_string_to_metric_families(scraped) for sample in family.samples]
    labels = {"pipeline": "image", "outcome": "ready"}
    return sum(
        sample.value for sample in samples if sample.name == "holdfast_attempts_total" and sample.labels == labels
    )


def test_a_database_that_takes_no_writes_for_a_while_costs_nothing(
    queued: Callable[..., Job], worker: Process, running: Stack, send: Callable[[], int], rabbit: kombu.Connection
) -> None:
    """After a failover the database may be read-only: the message is neither acknowledged nor a chance spent."""
    job = queued()
    with read_only_database():
        send_raw(job, rabbit)
        worker.until_says("database_unavailable")
    until_state(State.READY, [job], running)
    job.refresh_from_db()
    assert (job.attempt, job.failures) == (1, 0)


@contextmanager
def read_only_database() -> Iterator[None]:
    """New transactions of every other session refuse to write."""
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    end_other_sessions()
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        end_other_sessions()


def send_raw(job: Job, rabbit: kombu.Connection) -> None:
    message = OutboxMessage.objects.get(job=job)
    publish_raw(rabbit, "images", message.body, headers=message.headers)
