"""What is on the wire, read raw: the mapping of docs/contract.md, field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import amqp
import kombu
import pytest
from amqp import spec
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from hypothesis import given
from hypothesis import strategies as st

import schemas
from config.env import BASE_DIR
from config.logging import bound_carrier
from pipeline.broker import Publisher
from pipeline.models import Job
from pipeline.relay import relay_batch
from pipeline.wire import Message, forgiving, published
from tests.rabbit import drain_queue

pytestmark = pytest.mark.django_db

TRACE = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=1"}


def test_the_message_on_the_wire_is_the_contract(queued: Callable[..., Job], rabbit: kombu.Connection) -> None:
    """[attachments] сообщение broker соответствует jobs.schema.json; native headers несут trace context."""
    with bound_carrier(TRACE):
        job = queued()
    publisher = Publisher()
    relay_batch(publisher)
    publisher.close()
    (message,) = drain_queue(rabbit, "images")
    properties, headers = message.properties, message.headers

    [envelope], kwargs, embed = json.loads(message.body)
    schemas.validate("jobs", envelope)
    assert (kwargs, embed) == ({}, {})
    assert envelope["job_id"] == properties["correlation_id"] == str(job.job_id)
    assert properties["message_id"] == headers["id"] == f"{job.job_id}:1"
    assert properties["type"] == headers["task"] == "pipeline.process"
    assert (properties["content_type"], properties["content_encoding"]) == ("application/json", "utf-8")
    assert properties["delivery_mode"] == 2
    assert properties["timestamp"]
    assert envelope["carrier"] == TRACE == {name: headers[name] for name in TRACE}
    assert set(headers) == documented_headers()
    assert message.delivery_info["routing_key"] == "images"


def documented_headers() -> set[str]:
    contract = (BASE_DIR / "docs" / "contract.md").read_text()
    table = contract.split("| envelope field | AMQP property | header |")[1].split("\n\n")[0]
    cells = [line.split("|")[3] for line in table.splitlines() if line.startswith("|")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_message_holds_no_url_no_path_and_no_name(queued: Callable[..., Job], rabbit: kombu.Connection) -> None:
    """[attachments] только ID/служебные данные, не произвольный URL и не путь из клиентского filename."""
    queued()
    publisher = Publisher()
    relay_batch(publisher)
    publisher.close()
    (message,) = drain_queue(rabbit, "images")
    raw = message.body if isinstance(message.body, str) else message.body.decode()
    wire = raw + json.dumps(message.headers)
    assert not re.search(r"photo\.png|https?:|/original|attachments/", wire)


class Recorder:
    """The little that py-amqp's frame writer needs of a connection and its transport."""

    frame_max = 4096
    bytes_sent = 0

    def __init__(self) -> None:
        self.written = b""

    def write(self, frames: bytes) -> None:
        self.written += bytes(frames)


@given(
    headers=st.dictionaries(st.text(min_size=1, max_size=60), st.text(max_size=300), max_size=6),
    text=st.text(max_size=60),
    body=st.text(min_size=1, max_size=9000),
    sent_at=st.integers(0, 2**40),
)
def test_our_encoder_agrees_with_py_amqps_byte_for_byte(
    headers: dict[str, str], text: str, body: str, sent_at: int
) -> None:
    message = Message(queue=text, task=text, message_id=f"{text}:1", headers=headers, body=body)
    theirs, recorder = (
        amqp.Message(
            body,
            content_type="application/json",
            content_encoding="utf-8",
            application_headers=headers,
            delivery_mode=2,
            correlation_id=message.correlation_id,
            message_id=message.message_id,
            timestamp=sent_at,
            type=text,
        ),
        Recorder(),
    )
    write = frame_writer(recorder, recorder)
    write(1, 7, spec.Basic.Publish, dumps("Bssbb", (0, "holdfast", text, True, False)), theirs)
    ours = published([message], exchange="holdfast", channel_id=7, frame_max=recorder.frame_max, sent_at=sent_at)
    assert ours == recorder.written


def test_what_is_not_json_is_never_unpacked() -> None:
    """A few hundred bytes would become as many megabytes in the worker's main process before anybody could refuse."""
    bomb = {"content_type": "application/data", "content_encoding": "bz2"}
    found, _ = forgiving(lambda _data, _offset: (dict(bomb), 0))(b"", 0)
    assert kombu.serialization.loads(b"BZh9", found["content_type"], found["content_encoding"]) == b"BZh9"
