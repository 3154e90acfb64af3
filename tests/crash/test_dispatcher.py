"""Dispatcher and beat frozen, killed, doubled, and one without the other: each row sent once, nothing done twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import kombu
import pytest
from django.db.models.functions import Now

from config.local.places import free_port
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.states import State
from tests.crash.conftest import Client, assert_nothing_lost, until_all_ready
from tests.processes import Stack, stack
from tests.rabbit import count
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

UPLOADS = 20


def unsent() -> int:
    return OutboxMessage.objects.filter(sent_at=None).count()


def assert_done_once() -> None:
    """Every job was claimed once and became ready once, and no failure was counted."""
    assert list(Job.objects.exclude(state=State.READY, attempt=1, failures=0).values_list("job_id", flat=True)) == []
    for state in (State.PROCESSING, State.READY):
        assert JobEvent.objects.filter(to_state=state).count() == Job.objects.count()


def test_two_dispatchers_and_two_beats_send_each_row_once_whichever_of_them_are_there(
    running: Stack, client_of: Callable[[int], Client], rabbit: kombu.Connection, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    port = free_port()
    with stack(second) as others:
        running.web(port), running.worker("control", concurrency=1)
        first, another = running.dispatcher(name="a"), running.dispatcher(name="b")
        beat, other_beat = running.beat(), others.beat()
        client = client_of(port)
        client.until_up(running)
        client.upload_many(UPLOADS)
        until(lambda: unsent() == 0, say=running.logs)
        assert count(rabbit, "images") == UPLOADS

        running.worker("images").until_says("ready")
        for process in (first, beat):
            process.freeze()
        other_beat.kill()
        client.upload(UPLOADS)
        until_all_ready(client.accepted, running)
        another.kill()
        for process in (first, beat):
            process.thaw()
        client.upload(UPLOADS + 1)
        until_all_ready(client.accepted, running)
    assert_nothing_lost(client.accepted)
    assert_done_once()


def test_a_relay_frozen_with_a_batch_in_hand_frees_it_and_does_no_harm_once_it_thaws(
    running: Stack, client_of: Callable[[int], Client], tmp_path: Path
) -> None:
    """The server ends the frozen transaction; beat's relay sends the rows; the late one finds nothing to mark."""
    once = tmp_path / "once"
    once.touch()
    port = free_port()
    running.web(port), running.worker("images")
    control = running.worker("control", concurrency=1)
    frozen = running.dispatcher(FAILPOINTS=f"after_confirm=sleep:3@{once}", CONFIRM_SECONDS="1")
    client = client_of(port)
    client.until_up(running)
    control.until_ready()
    client.upload(0)
    until(lambda: not once.exists(), say=running.logs)
    frozen.freeze()

    beat = running.beat()
    # Any other transaction of ours may idle for half a minute.
    until(lambda: unsent() == 0, seconds=27, say=running.logs)
    sent = list(OutboxMessage.objects.values_list("id", "sent_at"))
    frozen.thaw()
    frozen.until_says("database_unavailable")
    beat.kill(), control.kill()
    client.upload(1)
    until_all_ready(client.accepted, running)
    assert list(OutboxMessage.objects.filter(job__attachment=client.accepted[0]).values_list("id", "sent_at")) == sent
    assert_nothing_lost(client.accepted)
    assert_done_once()


def test_a_machine_suspended_for_longer_than_a_lease_costs_no_chance(
    running: Stack, client_of: Callable[[int], Client], tmp_path: Path
) -> None:
    """The dispatcher wakes to leases that ran out, and must give the living workers a moment to renew."""
    once = tmp_path / "once"
    once.touch()
    steady = {"LEASE_SECONDS": "3", "RENEW_SECONDS": "0.6"}
    port = free_port()
    running.web(port)
    machine = [
        running.dispatcher(**steady),
        running.worker("images", concurrency=2, FAILPOINTS=f"after_store=sleep:1@{once}", **steady),
    ]
    client = client_of(port)
    client.until_up(running)
    client.upload(0)
    until(lambda: not once.exists(), say=running.logs)
    for process in machine:
        process.freeze()
    until(lambda: Job.objects.filter(lease_until__lt=Now()).exists(), say=running.logs)
    for process in machine:
        process.thaw()
    until_all_ready(client.accepted, running)
    assert_done_once()
