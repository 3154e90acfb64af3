"""RabbitMQ: what exists there, and the only code that publishes to it.

Publishing keeps all confirms of a batch in flight on one channel and matches them by delivery tag. kombu's own
`confirm_publish` waits after each message and takes any acknowledgement for the one it waits for.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import kombu
from amqp.exceptions import AMQPError, NotFound, PreconditionFailed
from amqp.serialization import PROPERTY_CLASSES
from django.conf import settings

from pipeline import failpoints, metrics, wire
from pipeline.wire import Message

EXCHANGE = kombu.Exchange("holdfast", type="direct", durable=True)
DEAD_EXCHANGE = kombu.Exchange("holdfast.dead", type="direct", durable=True)
DEAD_QUEUE = "holdfast.dead"
#: Deliveries of one message before the broker itself gives it up; restarts of ours count too, so it is generous.
DELIVERY_LIMIT = 20
QUEUE_NAMES = ("images", "speech", "telegram", "control")

CONNECT_SECONDS = 5
WRITE_SECONDS = 5
#: Looking at a queue whose leader does not answer must not hold up whoever looks.
LOOK_SECONDS = 2
#: Messages encoded together and written in one call.
RUN = 50

# Every process that receives has imported this module.
PROPERTY_CLASSES.update({kind: wire.forgiving(decode) for kind, decode in PROPERTY_CLASSES.items()})

logger = logging.getLogger(__name__)


class BrokerUnavailable(Exception):
    """The broker could not be reached or did not answer in time; nothing is known to be lost."""


class WrongTopology(Exception):
    """A queue or exchange exists with other arguments than ours; the text names it and says what to do."""


def work_queue(name: str) -> kombu.Queue:
    return kombu.Queue(
        name,
        exchange=EXCHANGE,
        routing_key=name,
        durable=True,
        queue_arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": DELIVERY_LIMIT,
            "x-dead-letter-exchange": DEAD_EXCHANGE.name,
            "x-dead-letter-routing-key": DEAD_QUEUE,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    )


QUEUES = tuple(work_queue(name) for name in QUEUE_NAMES)
DEAD = kombu.Queue(
    DEAD_QUEUE,
    exchange=DEAD_EXCHANGE,
    routing_key=DEAD_QUEUE,
    durable=True,
    # Whoever looks at a letter takes it and puts it back, and RabbitMQ 4 drops what came back twenty times.
    queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 1_000_000_000},
)


def connect() -> kombu.Connection:
    """An established connection with deadlines on connecting and writing; BrokerUnavailable otherwise."""
    connection = kombu.Connection(
        settings.CELERY_BROKER_URL,
        connect_timeout=CONNECT_SECONDS,
        transport_options={"write_timeout": WRITE_SECONDS, "read_timeout": settings.CONFIRM_SECONDS},
    )
    try:
        connection.connect()
    except (OSError, AMQPError) as error:
        metrics.BROKER_UP.labels(role="publisher").set(0)
        raise BrokerUnavailable(f"cannot connect: {type(error).__name__}") from error
    return connection


def declare(connection: kombu.Connection) -> None:
    """Create what is missing; WrongTopology names what exists differently."""
    for queue in (DEAD, *QUEUES):
        try:
            with connection.channel() as channel:
                queue.bind(channel).declare()
        except PreconditionFailed as error:
            raise WrongTopology(
                f"Queue {queue.name!r} exists with other arguments ({error.reply_text}). "
                f"Let it run empty, delete it, and start again; waiting work is sent again from the database."
            ) from error


def each_dead_letter(keep: Callable[[Any], bool], *, limit: int | None = None) -> int:
    """Hand the raw dead letters, oldest first, to `keep`: what it answers with False is gone for good.

    The others are put back in their order. Returns how many lie behind the `limit`. Raises BrokerUnavailable.
    """
    connection, kept, behind = connect(), list[int](), 0
    try:
        channel = connection.channel()
        channel.auto_decode = False
        while (limit is None or len(kept) < limit) and (letter := channel.basic_get(DEAD_QUEUE)) is not None:
            behind = letter.delivery_info["message_count"]
            if keep(letter):
                kept.append(letter.delivery_tag)
            else:
                channel.basic_ack(letter.delivery_tag)
        for tag in kept:
            channel.basic_reject(tag, requeue=True)
        channel.close()
    except NotFound:
        return 0
    except (OSError, AMQPError) as error:
        raise BrokerUnavailable(f"cannot look at {DEAD_QUEUE}: {type(error).__name__}") from error
    finally:
        connection.collect(socket_timeout=1)
    return behind


class Receipt(enum.Enum):
    """What the broker said about one message. Only CONFIRMED means that it has it."""

    CONFIRMED = "confirmed"
    RETURNED = "returned"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass
class _Batch:
    """Receipts of one batch, matched by delivery tag; a returned message is acknowledged too, after its return."""

    first_tag: int
    ids: list[str]
    receipts: list[Receipt] = field(init=False)
    returned: set[str] = field(default_factory=set)
    pending: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.receipts = [Receipt.UNKNOWN] * len(self.ids)
        self.pending = set(range(len(self.ids)))

    def on_return(self, _error: Exception, _exchange: str, _key: str, message: Any) -> None:
        self.returned.add(message.properties.get("message_id", ""))

    def on_ack(self, tag: int, multiple: bool) -> None:
        for place in self._covered(tag, multiple):
            was_returned = self.ids[place] in self.returned
            self.receipts[place] = Receipt.RETURNED if was_returned else Receipt.CONFIRMED

    def on_nack(self, tag: int, multiple: bool) -> None:
        for place in self._covered(tag, multiple):
            self.receipts[place] = Receipt.REFUSED

    def _covered(self, tag: int, multiple: bool) -> Iterator[int]:
        place = tag - self.first_tag
        covered = {p for p in self.pending if p <= place} if multiple else self.pending & {place}
        self.pending -= covered
        yield from covered


class Publisher:
    """One connection and one confirm channel, opened when needed and thrown away after any trouble."""

    def __init__(self) -> None:
        self._connection: kombu.Connection | None = None
        self._channel: Any = None
        self._next_tag = 1
        self._is_blocked = False

    def publish(self, messages: Sequence[Message]) -> list[Receipt]:
        """Send persistent, mandatory messages and await their confirms, CONFIRM_SECONDS in all.

        Returns a receipt for each. Raises BrokerUnavailable only when nothing was sent.
        """
        channel = self.open()
        batch = _Batch(self._next_tag, [message.message_id for message in messages])
        channel.events["basic_ack"] = {batch.on_ack}
        channel.events["basic_nack"] = {batch.on_nack}
        channel.events["basic_return"] = {batch.on_return}
        deadline = time.monotonic() + settings.CONFIRM_SECONDS
        try:
            self._send(channel, messages, deadline)
            failpoints.hit("after_publish")
            self._await(batch, deadline)
        except (OSError, AMQPError) as error:
            # TimeoutError included. A late confirm on this channel could be taken for the next batch's.
            logger.warning(
                "publish_interrupted",
                extra={"cause": type(error).__name__, "blocked": self._is_blocked, "unconfirmed": len(batch.pending)},
            )
            metrics.BROKER_UP.labels(role="publisher").set(0)
            self.close()
        if Receipt.RETURNED in batch.receipts:
            # A queue is missing; it is declared again with the next connection.
            self.close()
        return batch.receipts

    def ready(self, queue: str) -> int | None:
        """How many messages wait in a queue, those on their way to a worker left out; None when that is not known.

        0 is certain. Raises BrokerUnavailable.
        """
        self.open()
        assert self._connection is not None
        try:
            return _certainly_ready(self._connection, queue)
        except NotFound:
            # The next `open` declares it.
            self.close()
            return None
        except (OSError, AMQPError) as error:
            self.close()
            raise BrokerUnavailable(f"cannot look at {queue}: {type(error).__name__}") from error

    def count_dead_letters(self) -> None:
        """Tell the gauge; it keeps its value while nobody knows."""
        letters = self.ready(DEAD_QUEUE)
        if letters is not None:
            metrics.DEAD_LETTERS.labels(queue=DEAD_QUEUE).set(letters)

    def close(self) -> None:
        """Drop the connection without waiting for the broker's farewell."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.collect(socket_timeout=1)

    @property
    def is_open(self) -> bool:
        return self._channel is not None

    def open(self) -> Any:
        """Connect and declare the topology unless that is done; BrokerUnavailable, or WrongTopology, when it fails."""
        if self._channel is not None:
            return self._channel
        connection = connect()
        try:
            declare(connection)
            transport = connection.connection
            transport.on_blocked = lambda _reason: self._set_blocked(is_blocked=True)
            transport.on_unblocked = lambda: self._set_blocked(is_blocked=False)
            channel = connection.channel()
            channel.confirm_select()
        except (OSError, AMQPError) as error:
            connection.collect(socket_timeout=1)
            raise BrokerUnavailable(f"cannot open a channel: {type(error).__name__}") from error
        except WrongTopology:
            connection.collect(socket_timeout=1)
            raise
        self._connection, self._channel, self._next_tag = connection, channel, 1
        metrics.BROKER_UP.labels(role="publisher").set(1)
        return channel

    def _send(self, channel: Any, messages: Sequence[Message], deadline: float) -> None:
        """Encode and write a run of messages at a time: the broker works on one while the next is encoded.

        What it has to say meanwhile is heard when its confirms are awaited.
        """
        assert self._connection is not None
        wired, sent_at = self._connection.connection, int(time.time())
        for start in range(0, len(messages), RUN):
            if time.monotonic() > deadline:
                raise TimeoutError
            run = messages[start : start + RUN]
            wired.transport.write(
                wire.published(
                    run,
                    exchange=EXCHANGE.name,
                    channel_id=channel.channel_id,
                    frame_max=wired.frame_max,
                    sent_at=sent_at,
                )
            )
            self._next_tag += len(run)

    def _await(self, batch: _Batch, deadline: float) -> None:
        assert self._connection is not None
        while batch.pending:
            self._connection.drain_events(timeout=max(0.01, deadline - time.monotonic()))
            if batch.pending and time.monotonic() > deadline:
                raise TimeoutError
        # Confirms that arrive are the proof; a new connection alone would only hide the alarm until it is told again.
        self._set_blocked(is_blocked=False)

    def _set_blocked(self, *, is_blocked: bool) -> None:
        if is_blocked != self._is_blocked:
            logger.warning("broker_blocked" if is_blocked else "broker_unblocked")
        self._is_blocked = is_blocked
        metrics.BROKER_BLOCKED.labels(role="publisher").set(int(is_blocked))


def _certainly_ready(connection: kombu.Connection, queue: str) -> int | None:
    """RabbitMQ answers 0 messages, 0 consumers for a queue whose leader is away or slow, too; a get asks the leader."""
    with connection.connection.transport.having_timeout(LOOK_SECONDS), connection.channel() as channel:
        found = channel.queue_declare(queue, passive=True)
        if found.message_count or found.consumer_count:
            return int(found.message_count)
        message = channel.basic_get(queue)
        if message is None:
            return 0
        channel.basic_reject(message.delivery_tag, requeue=True)
        return None
