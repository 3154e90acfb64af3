"""Our messages as AMQP 0-9-1 bytes.

py-amqp encodes every shape of message there may be, value by value, and writes each one with system calls of its own:
most of a relay's work. Ours have one shape (docs/contract.md), so a run of them is encoded here and written at once. A
test holds this encoder to py-amqp's, byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

METHOD, HEADER, BODY, END = b"\x01", b"\x02", b"\x03", b"\xce"
PUBLISH = struct.pack(">HHH", 60, 40, 0)  # class basic, method publish, a reserved number
MANDATORY = b"\x01"
BASIC = struct.pack(">HH", 60, 0)  # class basic, weight
#: Which properties follow, by their bit: content type and encoding, headers, delivery mode, correlation id, message id,
#: timestamp, type.
FLAGS = struct.pack(">H", sum(1 << bit for bit in (15, 14, 13, 12, 10, 7, 6, 5)))
PERSISTENT = b"\x02"
FRAME = struct.Struct(">HI")
LONG = struct.Struct(">I")
#: Stands among the headers of a message that must not be looked into, and says why.
UNREADABLE = "holdfast-unreadable"
Decode = Callable[[bytes, int], tuple[dict[str, Any], int]]
LONG_LONG = struct.Struct(">Q")


class Message(NamedTuple):
    """What goes on the wire; `queue` is the routing key, `headers` and `body` (JSON) are text."""

    queue: str
    task: str
    message_id: str
    headers: dict[str, str]
    body: str

    @property
    def correlation_id(self) -> str:
        """What the message is about, without the attempt."""
        return self.message_id.partition(":")[0]


def published(messages: Iterable[Message], *, exchange: str, channel_id: int, frame_max: int, sent_at: int) -> bytes:
    """The frames that publish these messages, persistent and mandatory; `sent_at` in whole seconds since the epoch.

    ValueError when a name, a queue or an id is longer than AMQP's 255 bytes.
    """
    frames: list[bytes] = []
    for message in messages:
        body = message.body.encode()
        frames.append(_frame(METHOD, channel_id, PUBLISH + _short(exchange) + _short(message.queue) + MANDATORY))
        frames.append(_frame(HEADER, channel_id, BASIC + LONG_LONG.pack(len(body)) + properties(message, sent_at)))
        room = frame_max - 8
        frames.extend(_frame(BODY, channel_id, body[at : at + room]) for at in range(0, len(body), room))
    return b"".join(frames)


def properties(message: Message, sent_at: int) -> bytes:
    """The properties of docs/contract.md, in AMQP's order."""
    return b"".join(
        (
            FLAGS,
            CONTENT_TYPE,
            _table(message.headers),
            PERSISTENT,
            _short(message.correlation_id),
            _short(message.message_id),
            LONG_LONG.pack(sent_at),
            _short(message.task),
        )
    )


def forgiving(decode: Decode) -> Decode:
    """A decoder of a received message's properties that never raises, so that the message can be rejected.

    A stranger's byte that is no UTF-8 would end the worker, and a date far away its connection. A compressed body might
    be a bomb, and kombu unpacks it before anybody is asked.
    """

    def forgive(data: bytes, offset: int) -> tuple[dict[str, Any], int]:
        try:
            found, end = decode(data, offset)
        except Exception as error:  # noqa: BLE001  (whatever a stranger sends)
            return {"application_headers": {UNREADABLE: type(error).__name__}}, len(data)
        if "compression" in found.get("application_headers", ()):
            found["application_headers"] = {UNREADABLE: "compressed"}
        if found.get("content_type") != "application/json":
            # It is rejected whatever it says; kombu would first unpack what it takes for a trusted kind.
            found["content_encoding"] = "binary"
        return found, end

    return forgive


def _frame(kind: bytes, channel_id: int, payload: bytes) -> bytes:
    return kind + FRAME.pack(channel_id, len(payload)) + payload + END


def _short(text: str) -> bytes:
    """A short string: its length in one byte."""
    data = text.encode()
    return bytes((len(data),)) + data


def _table(headers: dict[str, str]) -> bytes:
    entries = bytearray()
    for name, value in headers.items():
        data = value.encode()
        entries += _short(name) + b"S" + LONG.pack(len(data)) + data
    return LONG.pack(len(entries)) + entries


CONTENT_TYPE = _short("application/json") + _short("utf-8")
