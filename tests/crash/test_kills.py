"""Every process is killed while uploads run; nothing that was answered with 202 is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

from attachments.models import BucketRole, StoredObject
from config.local.places import free_port
from pipeline.models import Job, OutboxMessage
from pipeline.states import State
from tests.crash.conftest import (
    VARIANTS,
    Client,
    assert_nothing_lost,
    assert_nothing_unknown_is_stored,
    assert_originals_are_kept,
    until_all_ready,
)
from tests.processes import Process, Stack
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
UPLOADS = 200


def kill_one_child(worker: Process) -> None:
    until(lambda: busy_children(worker))[0].kill()


def busy_children(worker: Process) -> list[psutil.Process]:
    """Those that work on a job."""
    holders = Job.objects.filter(state=State.PROCESSING).values_list("leased_by", flat=True)
    pids = {int(holder.rpartition(":")[2]) for holder in holders}
    return [child for child in worker.children() if child.pid in pids]


@pytest.mark.timeout(300)
def test_killing_each_process_in_turn_during_200_uploads_loses_nothing(
    running: Stack, client_of: Callable[[int], Client]
) -> None:
    """[attachments] окна отказа: сохранность успешно принятой работы и повторная доставка."""
    port = free_port()
    web, dispatcher, beat = running.web(port, WEB_WORKERS="2"), running.dispatcher(), running.beat()
    images, control = running.worker("images"), running.worker("control", concurrency=1)
    client = client_of(port)
    client.until_up(running)
    assert running.workers.ready()

    uploading = threading.Thread(target=client.upload_many, args=(UPLOADS,))
    uploading.start()
    turns: list[Callable[[], object]] = [
        web.restart,
        dispatcher.restart,
        beat.restart,
        lambda: kill_one_child(images),
        images.restart,
        control.restart,
    ]
    for number, turn in enumerate(turns, start=1):
        client.until_accepted(number * UPLOADS // (len(turns) + 1), running)
        turn()
    uploading.join()
    assert len(client.accepted) == UPLOADS
    until_all_ready(client.accepted, running, seconds=180)
    assert_nothing_lost(client.accepted)


def test_with_beat_stopped_uploads_still_finish(running: Stack, client_of: Callable[[int], Client]) -> None:
    port = free_port()
    running.web(port), running.dispatcher(), running.worker("images")
    client = client_of(port)
    client.until_up(running)
    client.upload_many(5)
    assert len(client.accepted) == 5
    until_all_ready(client.accepted, running)


def test_with_the_dispatcher_stopped_uploads_still_finish(running: Stack, client_of: Callable[[int], Client]) -> None:
    """Beat's `drain_outbox` alone is enough."""
    port = free_port()
    running.web(port), running.beat(), running.worker("images"), running.worker("control", concurrency=1)
    client = client_of(port)
    client.until_up(running)
    client.upload_many(5)
    assert len(client.accepted) == 5
    until_all_ready(client.accepted, running)


def test_with_the_dispatcher_stopped_the_job_of_a_dead_worker_is_recovered(
    running: Stack, client_of: Callable[[int], Client], tmp_path: Path
) -> None:
    """Beat's `recover` trusts only a connection older than a lease, so its tasks must not open a new one each time."""
    once = tmp_path / "once"
    once.touch()
    port = free_port()
    running.web(port), running.beat(), running.worker("control", concurrency=1)
    running.worker("images", name="a", concurrency=1, FAILPOINTS=f"after_store=kill@{once}")
    client = client_of(port)
    client.until_up(running)
    client.upload(1)
    until_all_ready(client.accepted, running)
    assert Job.objects.get().failures == 1
    assert_nothing_lost(client.accepted)


def test_with_no_publisher_at_all_uploads_are_accepted_and_wait(
    running: Stack, client_of: Callable[[int], Client]
) -> None:
    port = free_port()
    running.web(port)
    client = client_of(port)
    client.until_up(running)
    client.upload_many(3)
    assert Job.objects.filter(state=State.QUEUED, messages__sent_at=None).count() == 3
    running.dispatcher(), running.worker("images")
    until_all_ready(client.accepted, running)


@dataclass(frozen=True)
class Window:
    """Who dies in it (Gunicorn and Celery replace their own children), and how it leaves the upload."""

    dies: str
    answered: bool = True
    left: State | None = State.QUEUED
    strays: int = 0


WINDOWS = {
    "after_staging": Window("web", answered=False, left=None, strays=1),
    "after_commit": Window("web", answered=False),
    "after_publish": Window("dispatcher"),
    "after_confirm": Window("dispatcher"),
    "after_store": Window("worker", left=State.PROCESSING, strays=1),
    "after_result_commit": Window("worker", left=State.READY),
}


@pytest.mark.parametrize("failpoint", WINDOWS)
def test_a_kill_in_each_failure_window_loses_nothing(
    failpoint: str, running: Stack, client_of: Callable[[int], Client], tmp_path: Path
) -> None:
    """[attachments] окна отказа: after staging, COMMIT, publish, confirm, S3 write, COMMIT of the result."""
    window, once, port = WINDOWS[failpoint], tmp_path / "once", free_port()
    client = client_of(port)
    start: dict[str, Callable[..., Process]] = {
        "web": partial(running.web, port),
        # Nobody recovers anything before the look.
        "dispatcher": partial(running.dispatcher, RECOVER_EVERY_SECONDS="3600"),
        "worker": partial(running.worker, concurrency=1),
    }
    # What comes later in the chain starts later, so that the look sees what the kill left.
    place = list(start).index(window.dies)
    before, after = list(start)[:place], list(start)[place + 1 :]
    processes = {kind: start[kind]() for kind in before}
    processes[window.dies] = start[window.dies](FAILPOINTS=f"{failpoint}=kill@{once}").until_ready()
    client.until_up(running)

    once.touch()
    assert client.send(0) == window.answered
    until(lambda: not once.exists(), say=running.logs)
    client.until_up(running)
    assert_left(window, client)

    processes |= {kind: start[kind]() for kind in after}
    processes["dispatcher"].kill()
    processes["dispatcher"].start(RECOVER_EVERY_SECONDS="0.5")
    for number in range(3):
        client.upload(number)
    until_all_ready(client.accepted, running)
    assert_nothing_lost(client.accepted)
    assert_nothing_unknown_is_stored()


def assert_left(window: Window, client: Client) -> None:
    """Nothing half-made is shown, and the original is where the next try will look for it."""
    lasting = [] if window.left is None else [window.left]
    assert list(Job.objects.values_list("state", flat=True)) == lasting
    assert client.shown() == [(state, VARIANTS if state == State.READY else frozenset()) for state in lasting]
    assert OutboxMessage.objects.filter(sent_at=None).count() == (window.left == State.QUEUED)
    assert StoredObject.objects.filter(bucket_role=BucketRole.STAGING, attachment__isnull=True).count() == window.strays
    assert_originals_are_kept()
