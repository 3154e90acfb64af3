"""The dispatcher as a process: any number of them, stopped at any moment, and outages that end by themselves."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import kombu
import pytest
from django.db import connection
from django.db.models.functions import Now

from pipeline.models import Job, OutboxMessage
from tests.messages import backlog
from tests.processes import Stack
from tests.rabbit import drain_queue
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


def unsent() -> int:
    return OutboxMessage.objects.filter(sent_at=None).count()


def test_several_dispatchers_stopped_in_the_middle_neither_lose_nor_double_mark_a_row(
    queued: Callable[..., Job], running: Stack, rabbit: kombu.Connection, tmp_path: Path
) -> None:
    """One of them is stopped while it holds rows that the broker has and nobody has marked."""
    once = tmp_path / "once"
    once.touch()
    job = queued()
    OutboxMessage.objects.update(due_at=Now() + timedelta(hours=1))
    armed = {"FAILPOINTS": f"after_confirm=sleep:1@{once}"}
    dispatchers = [running.dispatcher(name=name, **armed).until_says("dispatcher_started") for name in "ab"]
    backlog(job, 2000)
    until(lambda: not once.exists(), say=running.logs)
    for dispatcher in dispatchers:
        dispatcher.send(signal.SIGTERM)
    for dispatcher in dispatchers:
        assert dispatcher.wait() == 0
    OutboxMessage.objects.filter(attempt=1).update(due_at=Now())
    running.dispatcher(name="c")
    until(lambda: unsent() == 0, say=running.logs)
    ids = [message.properties["message_id"] for message in drain_queue(rabbit, "images")]
    assert len(ids) == len(set(ids)) == 2000


def test_a_dispatcher_whose_connections_are_cut_goes_on(
    queued: Callable[..., Job], running: Stack, rabbit: kombu.Connection
) -> None:
    running.dispatcher().until_says("dispatcher_started")
    queued()
    until(lambda: unsent() == 0, say=running.logs)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    queued()
    until(lambda: unsent() == 0, say=running.logs)
    assert len(drain_queue(rabbit, "images")) == 2


def test_a_row_whose_notification_was_lost_is_sent_all_the_same(
    queued: Callable[..., Job], running: Stack, rabbit: kombu.Connection
) -> None:
    """More often than its start and the one notification wake it."""
    running.dispatcher()
    queued()
    until(lambda: unsent() == 0, say=running.logs)
    for _ in range(4):
        OutboxMessage.objects.update(sent_at=None)
        until(lambda: unsent() == 0, say=running.logs)


def test_a_deleted_queue_is_declared_again_and_its_work_sent_again(
    queued: Callable[..., Job], running: Stack, rabbit: kombu.Connection
) -> None:
    running.dispatcher(REDISPATCH_AFTER_SECONDS="1", REDISPATCH_EVERY_SECONDS="0.5").until_says("dispatcher_started")
    queued()
    until(lambda: unsent() == 0, say=running.logs)
    with rabbit.channel() as channel:
        channel.queue_delete("images")
    until(lambda: OutboxMessage.objects.filter(redispatches__gte=1, sent_at__isnull=False).exists(), say=running.logs)
    assert len(drain_queue(rabbit, "images")) >= 1
