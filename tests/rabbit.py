"""Looking at RabbitMQ as a stranger would, with raw messages as they are on the wire; and as its operator."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import kombu
import psutil
import pytest
from amqp.exceptions import NotFound

from config.local.supervision import Supervisor
from pipeline import broker, wire
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
    try:
        with connection.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)
    except NotFound:
        return 0


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


def publish_properties(connection: kombu.Connection, queue: str, properties: bytes, body: bytes) -> None:
    """Put a message into a queue whose properties are exactly these bytes, which no client would send."""
    with connection.channel() as channel:
        head = wire.PUBLISH + wire._short(broker.EXCHANGE.name) + wire._short(queue) + b"\0"
        channel.connection.transport.write(
            wire._frame(wire.METHOD, channel.channel_id, head)
            + wire._frame(wire.HEADER, channel.channel_id, wire.BASIC + wire.LONG_LONG.pack(len(body)) + properties)
            + wire._frame(wire.BODY, channel.channel_id, body)
        )


def rabbitmqctl(*command: str) -> None:
    """What an operator does to a node; skips the test where the node is somebody else's."""
    services = json.loads(os.environ.get("HOLDFAST_PRIVATE_SERVICES", "{}"))
    if "rabbitmq" not in services.get("processes", {}):
        # An alarm would stop whoever else uses it; `make test` brings its own.
        pytest.skip("the broker of CELERY_BROKER_URL is not ours to harm")
    node = psutil.Process(Supervisor(Path(services["supervisor"])).processes()["rabbitmq"])
    tool = Path(node.environ()["ERL_LIBS"]).parent / "sbin" / "rabbitmqctl"
    done = subprocess.run([tool, *command], env=node.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
