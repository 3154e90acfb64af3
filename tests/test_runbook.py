"""Every command of the runbook is tried as it is written there."""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import kombu
import pytest
import requests
from amqp.exceptions import NotFound

from config.env import BASE_DIR
from config.local.places import free_port
from pipeline import lifecycle
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job
from pipeline.states import State
from tests import forkserver
from tests.leases import finish
from tests.processes import Stack, environment
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

RUNBOOK = (BASE_DIR / "docs" / "operations.md").read_text()
SYMPTOMS = RUNBOOK.split("## Symptoms")[1]
COMMANDS = [
    line.strip()
    for block in re.findall(r"```sh\n(.*?)```", SYMPTOMS, re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]
MANAGE = [command for command in COMMANDS if command.startswith("python manage.py")]
REPROCESS = [command for command in MANAGE if " reprocess " in command]


def run(command: str, *, release: tuple[str, ...] = (), **words: str) -> tuple[int, str]:
    """The exit code and what was said; `release` is what stands in for `manage.py`."""
    for word, value in words.items():
        command = re.sub(rf"\b{word}\b", value, command)
    program, *arguments = shlex.split(command)
    if release:
        arguments = [*release, *arguments[1:]]
    argv = arguments if program == "python" else ["-m", program, *arguments]
    return forkserver.run(argv, environment=environment(DJANGO_SETTINGS_MODULE="config.settings"))


def test_the_runbook_has_commands_and_each_is_of_a_kind_that_is_tested() -> None:
    assert len(COMMANDS) > 12
    assert {shlex.split(command)[0] for command in COMMANDS} == {"python", "celery", "curl"}


@pytest.mark.parametrize("command", [command for command in MANAGE if command not in REPROCESS])
def test_a_command_of_the_runbook_works(
    command: str, leased: Callable[..., Lease], rabbit: kombu.Connection, tmp_path: Path
) -> None:
    lease = leased()
    lifecycle.fail(lease, Failure(code="crashed", sentence="It died.", step="image"))
    code, said = run(command, JOB_ID=str(lease.job_id), ATTACHMENT_ID=str(lease.attachment_id))
    assert code == 0, said
    is_replay = " replay " in command and "--dry-run" not in command
    assert Job.objects.get().state == (State.QUEUED if is_replay else State.FAILED)


@pytest.mark.parametrize("command", REPROCESS)
def test_the_command_that_makes_variants_anew_begins_jobs_of_a_newer_release(
    command: str, leased: Callable[..., Lease]
) -> None:
    finish(leased())
    code, said = run(command, release=("-m", "tests.release_v2"))
    assert code == 0, said
    assert Job.objects.filter(pipeline_version=2).count() == (0 if "--dry-run" in command else 1)


def test_the_commands_about_workers_show_the_workers(running: Stack) -> None:
    running.worker("images").until_says("ready")
    inspections = [command for command in COMMANDS if "inspect" in command]
    assert inspections
    for command in inspections:
        # A worker that has just begun to consume may not hear the first question.
        until(functools.partial(_names_the_worker, command), say=running.logs)


def _names_the_worker(command: str) -> bool:
    code, said = run(command)
    return code == 0 and "a@test" in said


def test_the_command_that_deletes_a_queue_deletes_it(rabbit: kombu.Connection) -> None:
    (command,) = [command for command in COMMANDS if "queue.delete" in command]
    with rabbit.channel() as channel:
        channel.queue_declare("runbook", durable=True, auto_delete=False)
    code, said = run(command, QUEUE="runbook")
    assert code == 0, said
    with rabbit.channel() as channel, pytest.raises(NotFound):
        channel.queue_declare("runbook", passive=True)


def test_the_probe_of_the_runbook_names_the_parts(running: Stack) -> None:
    """Asked without curl, which is not on every machine."""
    (command,) = [command for command in COMMANDS if command.startswith("curl")]
    port = free_port()
    web = running.web(port)
    url = shlex.split(command)[-1].replace("HOST", f"http://127.0.0.1:{port}")

    def answer() -> dict[str, object]:
        with contextlib.suppress(requests.ConnectionError):
            return dict(requests.get(url, timeout=10).json())
        return {}

    assert until(answer, say=web.tail).items() >= {"database": "ok", "storage": "ok"}.items()
