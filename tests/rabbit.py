"""Looking at RabbitMQ as a stranger would: raw messages, as they are on the wire."""

from __future__ import annotations

from typing import Any

import kombu

from pipeline import broker
from tests.waiting import until


def drain_queue(connection: kombu.Connection, queue: str) -> list[Any]:
    """Take every message that waits in the queue; raw, undecoded."""
    taken: list[Any] = []
    with connection.channel() as channel:
        waiting = channel.queue_declare(queue, passive=True).message_count
        if waiting:
            channel.basic_consume(queue, no_ack=True, callback=taken.append)
        while len(taken) < waiting:
            connection.drain_events(timeout=30)
    return taken


def count(connection: kombu.Connection, queue: str) -> int:
    """How many messages are ready; 0 when there is no such queue."""
    return broker.ready_messages(connection, queue) or 0


def until_count(connection: kombu.Connection, queue: str, wanted: int) -> None:
    until(lambda: count(connection, queue) == wanted, say=lambda: f"{queue} holds {count(connection, queue)}")


def publish_raw(connection: kombu.Connection, queue: str, body: bytes | str, **properties: Any) -> None:
    """Put exactly these bytes and properties into a queue."""
    with connection.channel() as channel:
        headers = properties.pop("headers", None)
        content_type = properties.pop("content_type", "application/json")
        encoding = properties.pop("content_encoding", "utf-8")
        message = channel.prepare_message(
            body,
            content_type=content_type,
            content_encoding=encoding,
            headers=headers,
            properties={"delivery_mode": 2, **properties},
        )
        channel.basic_publish(message, broker.EXCHANGE.name, queue)
