"""Whatever happens to RabbitMQ costs time and no work: the rows have the truth, and messages are made from it again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import kombu
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from attachments.models import Variant
from config.local.places import free_port
from pipeline import broker, dead_letters
from pipeline.broker import Publisher
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.relay import relay_batch
from pipeline.states import State
from tests.crash.conftest import Client, assert_nothing_lost, until_all_ready
from tests.pictures import jpeg
from tests.processes import Stack, until_state
from tests.rabbit import drain_queue, rabbitmqctl, until_count
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

#: Those that a test waits for; the others are those of the suite.
QUICK = {"REDISPATCH_AFTER_SECONDS": "2", "REDISPATCH_EVERY_SECONDS": "0.5"}


@pytest.mark.timeout(300)
def test_a_broker_killed_under_load_costs_no_upload_and_no_work(
    running: Stack, client_of: Callable[[int], Client], rabbit: kombu.Connection
) -> None:
    """[attachments] 202 only after durable handoff: to PostgreSQL and the storage. The web process asks no broker."""
    port, node = free_port(), running.broker
    with tripwire() as nobodys_url:
        running.web(port, CELERY_BROKER_URL=nobodys_url)
        running.dispatcher(), running.worker().until_says("ready")
        client = client_of(port)
        client.until_up(running)

        uploading = threading.Thread(target=client.upload_many, args=(40,))
        uploading.start()
        client.until_accepted(10, running)
        node.kill()
        rabbit.collect()
        uploading.join()
        assert all(client.send(number) for number in range(40, 50))
        assert OutboxMessage.objects.filter(sent_at=None).count() >= 10
        node.start()
        until_all_ready(client.accepted, running, seconds=120)
    assert len(client.accepted) == 50
    assert_nothing_lost(client.accepted)


@contextmanager
def tripwire() -> Iterator[str]:
    """The address of a broker that must never be called."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield f"amqp://127.0.0.1:{listener.getsockname()[1]}//"
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_under_a_memory_alarm_work_waits_visibly_and_goes_on_by_itself(
    queued: Callable[..., Job], running: Stack, publisher: Publisher
) -> None:
    """RabbitMQ takes no message, and still gives out those it has, to workers that start meanwhile as well."""
    has_before = queued(jpeg())
    relay_batch(publisher)
    publisher.close()
    with memory_alarm():
        port = free_port()
        running.dispatcher(METRICS_PORT=str(port), CONFIRM_SECONDS="1").until_says("dispatcher_started")
        comes_meanwhile = [queued(jpeg()) for _ in range(3)]
        until(lambda: told(port, "holdfast_broker_blocked") == 1, say=running.logs)
        running.worker()
        until_state(State.READY, [has_before], running)
        assert not OutboxMessage.objects.filter(job__in=comes_meanwhile, sent_at__isnull=False).exists()
    until_state(State.READY, comes_meanwhile, running)
    assert told(port, "holdfast_broker_blocked") == 0


@contextmanager
def memory_alarm() -> Iterator[None]:
    rabbitmqctl("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        yield
    finally:
        rabbitmqctl("set_vm_memory_high_watermark", "absolute", "1GB")


def told(port: int, name: str) -> float | None:
    scraped = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
    samples = [sample for family in text_string_to_metric_families(scraped) for sample in family.samples]
    return next((sample.value for sample in samples if sample.name == name), None)


def test_whatever_happens_to_messages_every_job_is_done_once(
    queued: Callable[..., Job], running: Stack, publisher: Publisher, rabbit: kombu.Connection
) -> None:
    """[attachments] at-least-once и идемпотентный эффект: wiped, swallowed, delivered too often, in three copies."""

    def sent() -> list[Job]:
        jobs = [queued(jpeg()) for _ in range(2)]
        assert relay_batch(publisher).confirmed == len(jobs)
        until_count(rabbit, "images", len(jobs))
        return jobs

    with closing(Stranger()) as stranger:
        harmed = {"wiped": sent()}
        with rabbit.channel() as channel:
            channel.queue_purge("images")
        harmed["swallowed"] = sent()
        stranger.swallow(len(harmed["swallowed"]))
        harmed["delivered too often"] = sent()
        wear_out(rabbit)
        assert {letter.reason for letter in dead_letters.read()[0]} == {"delivery_limit ×1"}
        harmed["in three copies"] = sent()
        for message in drain_queue(rabbit, "images"):
            publish_thrice(rabbit, message)

        port, worker = free_port(), running.worker(LOG_LEVEL="DEBUG")
        running.dispatcher(METRICS_PORT=str(port), **QUICK)
        for jobs in harmed.values():
            until_state(State.READY, jobs, running)
    until(lambda: told(port, "holdfast_dead_letters") == len(harmed["delivered too often"]), say=running.logs)
    # What the stranger had comes back, and is one copy too many.
    until(lambda: worker.logs().count('"not_claimed"') == 2 + 4, say=running.logs)
    until_count(rabbit, "images", 0)
    every = [job for jobs in harmed.values() for job in jobs]
    assert Variant.objects.count() == 3 * len(every)
    assert JobEvent.objects.filter(to_state=State.PROCESSING).count() == len(every)


class Stranger:
    """Takes messages, acknowledges none, and stays."""

    def __init__(self) -> None:
        self._connection = broker.connect()
        self._swallowed: list[Any] = []

    def swallow(self, many: int) -> None:
        channel = self._connection.channel()
        channel.basic_qos(0, many, a_global=False)
        channel.basic_consume("images", callback=self._swallowed.append)
        while len(self._swallowed) < many:
            self._connection.drain_events(timeout=30)

    def close(self) -> None:
        self._connection.release()


def wear_out(rabbit: kombu.Connection) -> None:
    """Give every message back until the broker has enough of it."""
    with rabbit.channel() as channel:
        while (message := channel.basic_get("images")) is not None:
            channel.basic_reject(message.delivery_tag, requeue=True)
    until_count(rabbit, broker.DEAD_QUEUE, 2)


def publish_thrice(rabbit: kombu.Connection, message: Any) -> None:
    with rabbit.channel() as channel:
        for _ in range(3):
            channel.basic_publish(message, broker.EXCHANGE.name, "images")


def test_a_queue_deleted_under_a_working_worker_is_declared_and_consumed_again(
    queued: Callable[..., Job], running: Stack, rabbit: kombu.Connection
) -> None:
    running.dispatcher(**QUICK), running.worker().until_says("ready")
    until_state(State.READY, [queued(jpeg())], running)
    with rabbit.channel() as channel:
        channel.queue_delete("images")
    until_state(State.READY, [queued(jpeg()) for _ in range(3)], running)
