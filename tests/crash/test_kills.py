"""Every process is killed while uploads run; nothing that was answered with 202 is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from config.local.places import free_port
from pipeline.models import Job
from pipeline.states import State
from tests.crash.conftest import Client, assert_nothing_lost, until_all_ready
from tests.processes import Process, Stack
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
UPLOADS = 200


def kill_one_child(worker: Process) -> None:
    pool = [child for child in worker.children() if "celery" in " ".join(child.cmdline())]
    assert pool, "the worker has no pool"
    pool[0].kill()


@pytest.mark.timeout(300)
def test_killing_each_process_in_turn_during_200_uploads_loses_nothing(
    running: Stack, client_of: Callable[[int], Client]
) -> None:
    """[attachments] окна отказа: сохранность успешно принятой работы и повторная доставка."""
    port = free_port()
    web, dispatcher, beat = running.web(port), running.dispatcher(), running.beat()
    images, control = running.worker("images"), running.worker("control", concurrency=1)
    client = client_of(port)
    client.until_up(running)
    images.until_says("ready")

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
    until_all_ready(client.accepted, running)
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


#: The process that dies in each window; Gunicorn and Celery replace their own children.
FAILPOINTS = {
    "after_staging": "web",
    "after_commit": "web",
    "after_publish": "dispatcher",
    "after_confirm": "dispatcher",
    "after_store": "worker",
    "after_result_commit": "worker",
}


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_kill_in_each_failure_window_loses_nothing(
    failpoint: str, running: Stack, client_of: Callable[[int], Client], tmp_path: Path
) -> None:
    """[attachments] окна отказа: after staging, COMMIT, publish, confirm, S3 write, COMMIT of the result."""
    once = tmp_path / "once"
    once.touch()
    armed = {"FAILPOINTS": f"{failpoint}=kill@{once}", "WEB_WORKERS": "1"}
    port = free_port()

    def armed_if(kind: str) -> dict[str, str]:
        return armed if FAILPOINTS[failpoint] == kind else {}

    running.web(port, **armed_if("web"))
    dispatcher = running.dispatcher(**armed_if("dispatcher"))
    worker = running.worker("images", name="a", concurrency=2, **armed_if("worker"))
    client = client_of(port)
    client.until_up(running)
    worker.until_says("ready")
    for number in range(4):
        client.upload(number)
    until(lambda: not once.exists(), say=running.logs)
    if FAILPOINTS[failpoint] == "dispatcher":
        dispatcher.restart()
    until_all_ready(client.accepted, running)
    assert_nothing_lost(client.accepted)
