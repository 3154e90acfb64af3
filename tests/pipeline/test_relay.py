"""Rows to confirmed messages: nothing is marked that the broker does not have, and any number of relays may run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import kombu
import pytest
from django.db import connection
from prometheus_client import REGISTRY

from pipeline import broker, relay
from pipeline.broker import BrokerUnavailable, Publisher, Receipt
from pipeline.dispatcher import Listener
from pipeline.models import Job, OutboxMessage
from tests.amqp_proxy import in_front_of
from tests.messages import backlog
from tests.rabbit import drain_queue, rabbitmqctl
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


def make_due() -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pipeline_outbox SET due_at = now() WHERE sent_at IS NULL")


def test_a_due_row_is_sent_once_and_marked_with_the_time_of_its_confirm(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    job = queued()
    assert relay.relay_batch(publisher).confirmed == 1
    assert relay.relay_batch(publisher).confirmed == 0
    assert OutboxMessage.objects.get(job=job).sent_at is not None
    assert [message.properties["message_id"] for message in drain_queue(rabbit, "images")] == [f"{job.job_id}:1"]


def test_a_row_that_is_not_due_stays(queued: Callable[..., Job], publisher: Publisher) -> None:
    job = queued()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pipeline_outbox SET due_at = now() + interval '1 hour'")
    assert relay.relay_batch(publisher).confirmed == 0
    assert OutboxMessage.objects.get(job=job).sent_at is None


def test_many_relays_at_once_send_every_row_exactly_once(queued: Callable[..., Job], rabbit: kombu.Connection) -> None:
    job = queued()
    backlog(job, 3000)
    sent: list[int] = []

    def run() -> None:
        own = relay.Relay()
        sent.append(own.run())
        own.close()
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert OutboxMessage.objects.filter(sent_at=None).count() == 0
    ids = [message.properties["message_id"] for message in drain_queue(rabbit, "images")]
    assert len(ids) == len(set(ids)) == sum(sent) == 3000


def test_an_unroutable_message_is_not_taken_for_sent(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    """A mandatory message is acknowledged after its return: the acknowledgement alone proves nothing."""
    publisher.publish([])
    job = queued()
    with rabbit.channel() as channel:
        channel.queue_delete("images")
    assert relay.relay_batch(publisher).confirmed == 0
    row = OutboxMessage.objects.get(job=job)
    assert (row.sent_at, row.last_error, row.tries) == (None, "returned", 1)
    make_due()
    assert relay.relay_batch(publisher).confirmed == 1


def test_a_message_that_a_full_queue_refuses_is_sent_once_there_is_room(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    """RabbitMQ takes some beyond the limit before it refuses any, and goes on for a moment once it is empty."""
    with at_most_one_message("images"):
        until(lambda: queued() and relay.relay_batch(publisher).confirmed == 0)
        row = OutboxMessage.objects.get(sent_at=None)
        assert (row.last_error, row.tries) == ("refused", 1)
        assert row.due_at > row.created_at
        drain_queue(rabbit, "images")
        until(lambda: relay_at_once(publisher) == 1)
    assert [message.properties["message_id"] for message in drain_queue(rabbit, "images")] == [f"{row.job_id}:1"]


@contextmanager
def at_most_one_message(queue: str) -> Iterator[None]:
    rabbitmqctl("set_policy", "short", f"^{queue}$", '{"max-length": 1}', "--apply-to", "queues")
    try:
        yield
    finally:
        rabbitmqctl("clear_policy", "short")


def relay_at_once(publisher: Publisher) -> int:
    make_due()
    return relay.relay_batch(publisher).confirmed


def test_without_a_broker_nothing_is_marked(queued: Callable[..., Job], settings: Any) -> None:
    job = queued()
    settings.CELERY_BROKER_URL = "amqp://guest:guest@127.0.0.1:1//"
    with pytest.raises(BrokerUnavailable):
        relay.relay_batch(Publisher())
    row = OutboxMessage.objects.get(job=job)
    assert (row.sent_at, row.tries) == (None, 0)


def test_a_connection_cut_between_batches_is_replaced(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    queued()
    assert relay.relay_batch(publisher).confirmed == 1
    assert publisher._connection is not None
    publisher._connection.connection.transport.sock.close()
    queued()
    sent = relay.relay_batch(publisher).confirmed
    make_due()
    assert sent + relay.relay_batch(publisher).confirmed == 1


def test_a_late_confirm_vouches_for_no_other_message() -> None:
    """Receipts are matched by delivery tag; an acknowledgement of another batch changes nothing."""
    batch = broker._Batch(first_tag=11, ids=["a", "b", "c"])
    batch.on_ack(10, multiple=False)
    assert batch.receipts == [Receipt.UNKNOWN] * 3
    batch.on_ack(12, multiple=False)
    assert batch.receipts == [Receipt.UNKNOWN, Receipt.CONFIRMED, Receipt.UNKNOWN]
    batch.on_nack(13, multiple=True)
    assert batch.receipts == [Receipt.REFUSED, Receipt.CONFIRMED, Receipt.REFUSED]
    assert not batch.pending


def test_a_relay_that_dies_in_the_middle_leaves_its_rows_to_the_next(
    queued: Callable[..., Job], publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[attachments] после publish до confirm: at worst sent twice, never lost."""
    job = queued()

    def die(_messages: object) -> list[Receipt]:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(publisher, "publish", die)
        with pytest.raises(SystemExit):
            relay.relay_batch(publisher)
    assert OutboxMessage.objects.get(job=job).sent_at is None
    assert relay.relay_batch(publisher).confirmed == 1


def test_a_commit_wakes_the_dispatcher_whose_connection_was_cut_before_too(queued: Callable[..., Job]) -> None:
    """Whoever listens no more polls, and everybody waits longer: nothing else would tell."""
    listener, stop = Listener(), threading.Event()
    with closing(listener):
        listener.wait(0, stop)
        queued()
        until_woken(listener, stop)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
        listener.wait(0, stop)
        listener.wait(0, stop)
        queued()
        until_woken(listener, stop)


def until_woken(listener: Listener, stop: threading.Event) -> None:
    waiting = threading.Thread(target=listener.wait, args=(3600, stop), daemon=True)
    waiting.start()
    until(lambda: not waiting.is_alive())


def test_a_queue_with_other_arguments_is_named(rabbit: kombu.Connection) -> None:
    with rabbit.channel() as channel:
        channel.queue_delete("control")
        channel.queue_declare("control", durable=True, auto_delete=False)
    try:
        with pytest.raises(broker.WrongTopology, match="'control' exists with other arguments"):
            broker.declare(rabbit)
    finally:
        with rabbit.channel() as channel:
            channel.queue_delete("control")
        broker.declare(rabbit)


def test_a_blocked_broker_is_a_visible_state_and_never_a_hang(
    queued: Callable[..., Job], rabbit: kombu.Connection, settings: Any
) -> None:
    """RabbitMQ under a memory or disk alarm says so and reads no more: nothing is marked, and it ends by itself."""
    with in_front_of(settings.CELERY_BROKER_URL) as proxy:
        settings.CELERY_BROKER_URL = proxy.url
        publisher = Publisher()
        queued()
        assert relay.relay_batch(publisher).confirmed == 1
        proxy.block()
        settings.CONFIRM_SECONDS = 0.5
        job = queued()
        assert relay.relay_batch(publisher).confirmed == 0
        assert REGISTRY.get_sample_value("holdfast_broker_blocked", {"role": "publisher"}) == 1
        assert OutboxMessage.objects.get(job=job).sent_at is None
        proxy.unblock()
        make_due()
        until(lambda: relay.relay_batch(publisher).confirmed == 1)
        assert REGISTRY.get_sample_value("holdfast_broker_blocked", {"role": "publisher"}) == 0
        publisher.close()
