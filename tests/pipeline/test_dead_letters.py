"""`manage.py dead_letters`: evidence is shown safely and stays; dropping it loses no work."""

from __future__ import annotations

import io
import struct
import uuid
from collections.abc import Callable
from typing import Any

import kombu
import pytest
from django.core.management import CommandError, call_command

from pipeline import broker, dead_letters
from pipeline.models import Job, OutboxMessage
from tests.rabbit import count, publish_properties, publish_raw, until_count
from tests.waiting import until

pytestmark = pytest.mark.django_db

#: Content type, a table of headers, message id: by the bits of AMQP's property flags.
PROPERTIES = struct.pack(">H", sum(1 << bit for bit in (15, 13, 7)))


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("dead_letters", *arguments, stdout=out)
    return out.getvalue()


def rejected(rabbit: kombu.Connection, body: bytes | str, **properties: Any) -> None:
    """Let a message die as a worker lets one die that it does not understand."""
    publish_raw(rabbit, "images", body, **properties)
    die(rabbit)


def die(rabbit: kombu.Connection) -> None:
    before = count(rabbit, broker.DEAD_QUEUE)
    with rabbit.channel() as channel:
        message = until(lambda: channel.basic_get("images"))
        channel.basic_reject(message.delivery_tag, requeue=False)
    until_count(rabbit, broker.DEAD_QUEUE, before + 1)


def ids() -> list[str]:
    letters, _ = dead_letters.read()
    return [letter.id for letter in letters]


def test_a_letter_of_ours_is_shown_with_where_its_job_is_now(
    queued: Callable[..., Job], rabbit: kombu.Connection
) -> None:
    job = queued()
    message = OutboxMessage.objects.get(job=job)
    rejected(rabbit, message.body, headers=message.headers, message_id=message.message_id)
    Job.objects.filter(job_id=job.job_id).update(attempt=3)
    heading, row, total, hint = run("show").splitlines()
    assert heading.split("  ")[0] == "LETTER"
    assert row.split() == [
        f"{job.job_id}:1", str(job.job_id), "queued,", "attempt", "3", "images", "rejected", "×1", row.split()[-1],
    ]  # fmt: skip
    assert row.split()[-1].startswith("0:00:")
    assert total == "1 dead letter."
    assert "drop LETTER" in hint


def test_a_strangers_letter_is_shown_without_what_could_steer_a_terminal(rabbit: kombu.Connection) -> None:
    rejected(rabbit, "\x1b[2J\r\nпривет \u202egnp\x00" + "x" * 200, message_id=f"{uuid.uuid4()}:1\x1b[0m")
    rejected(rabbit, b"\xff\xfe")
    shown = run("show")
    assert r"\x1b[2J\r\nпривет \u202egnp\x00" in shown
    assert r"\xff\xfe" in shown
    assert r":1\x1b[0m" in shown
    assert "x" * 60 not in shown
    assert shown.replace("\n", "").isprintable()
    assert "not there" in shown


def test_looking_leaves_the_letters_in_their_order_however_often(rabbit: kombu.Connection) -> None:
    """Each look counts as a delivery, and RabbitMQ 4 drops after twenty of them unless told otherwise."""
    names = [f"letter-{number}" for number in range(12)]
    for name in names:
        rejected(rabbit, "{}", message_id=name)
    for _ in range(25):
        assert ids() == names
    assert "There are 10 more behind them." in run("show", "--limit", "2")
    until_count(rabbit, broker.DEAD_QUEUE, len(names))


def test_letters_are_dropped_by_name_and_the_others_stay(rabbit: kombu.Connection) -> None:
    for name in ("first", "second", "second", "third"):
        rejected(rabbit, "{}", message_id=name)
    rejected(rabbit, "anonymous")
    (anonymous,) = set(ids()) - {"first", "second", "third"}
    assert anonymous.startswith("sha256:")
    with pytest.raises(CommandError, match="Not there: nothing"):
        run("drop", "second", "nothing", anonymous, "--yes")
    assert ids() == ["first", "third"]
    assert run("drop", "--all", "--yes") == "Dropped 2 dead letters.\n"
    assert ids() == []
    assert run("show") == "0 dead letters.\n"


def test_nothing_is_dropped_without_a_yes(rabbit: kombu.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    rejected(rabbit, "{}", message_id="letter")
    for answer in ("", "n", "no idea"):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        with pytest.raises(CommandError, match=r"Nothing was dropped\."):
            run("drop", "--all")
    monkeypatch.undo()
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(CommandError, match="Nobody is there to ask"):
        run("drop", "letter")
    with pytest.raises(CommandError, match="say --all"):
        run("drop", "--yes")
    assert ids() == ["letter"]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    run("drop", "letter")
    assert ids() == []


def test_a_letter_whose_properties_nobody_can_read_is_shown_and_can_be_dropped(rabbit: kombu.Connection) -> None:
    content_type, no_headers, no_utf8 = b"\x0atext/plain", struct.pack(">I", 0), b"\x02\xff\xfe"
    publish_properties(rabbit, "images", PROPERTIES + content_type + no_headers + no_utf8, b"ten green bottles")
    die(rabbit)
    rejected(rabbit, "{}", message_id="after it")
    row = run("show").splitlines()[1]
    assert "unreadable: UnicodeDecodeError" in row
    assert "ten green bottles" in row
    run("drop", row.split()[0], "--yes")
    assert ids() == ["after it"]


@pytest.mark.parametrize("deaths", ["soon", [], ["soon"], [{"time": "soon", "queue": 7, "reason": {}}], {"a": 1}])
def test_what_a_stranger_says_of_its_deaths_harms_nobody(rabbit: kombu.Connection, deaths: Any) -> None:
    with rabbit.channel() as channel:
        letter = channel.prepare_message(b"{}", headers={"x-death": deaths}, properties={"message_id": "letter"})
        channel.basic_publish(letter, broker.DEAD_EXCHANGE.name, broker.DEAD_QUEUE)
    until_count(rabbit, broker.DEAD_QUEUE, 1)
    assert "letter" in run("show")


def test_without_a_broker_the_operator_is_told(settings: Any) -> None:
    settings.CELERY_BROKER_URL = "amqp://guest:guest@127.0.0.1:1//"
    with pytest.raises(CommandError, match="The broker is away") as caught:
        run("show")
    assert caught.value.returncode == 3
