"""Short runs against real processes: the whole command on a stack of its own, and a deployment that others keep."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token
from rich.console import Console

from bench.chaos import invariants
from bench.chaos.door import Door
from bench.chaos.files import Mix
from bench.chaos.invariants import Evidence
from bench.chaos.load import Load
from bench.chaos.schedule import Fault
from bench.chaos.screen import Screen
from bench.chaos.soak import replay_lost, soak
from bench.chaos.target import Target, TargetArena, read_target
from bench.chaos.verdicts import by_the_api
from config.env import BASE_DIR
from config.local.places import LOCAL, free_port, remove_outside_folder
from config.local.runs import claimed
from pipeline import lifecycle
from pipeline.models import Job
from tests.chaos.evidence import lease_of, send
from tests.conftest import expire_lease
from tests.processes import Stack
from tests.waiting import until

SECONDS = 10
#: Faults after which nothing has to be waited for long.
KINDS = "kill web worker,kill dispatcher,kill image child,cut database connections,restart database"
HARM = """
url = "http://127.0.0.1:{port}"
token = "{token}"
uploads_per_second = 2
[faults."kill image child"]
command = "pkill -KILL -P {worker}"
[faults."freeze dispatcher"]
command = "kill -STOP {dispatcher}"
undo = "kill -CONT {dispatcher}"
seconds = [1, 2]
"""


@pytest.fixture
def target_of(running: Stack, user: User, tmp_path: Path) -> Callable[[], Target]:
    """Starts the processes of a deployment and describes it, as docs/chaos.md tells."""

    def describe() -> Target:
        port = free_port()
        running.web(port)
        worker, dispatcher = running.worker("images"), running.dispatcher()
        path = tmp_path / "chaos.toml"
        token = Token.objects.create(user=user).key
        path.write_text(HARM.format(port=port, token=token, worker=worker.pid, dispatcher=dispatcher.pid))
        target = read_target(path)
        until(Door(target.url, token).is_ready, seconds=60, say=running.logs)
        worker.until_says("ready")
        return target

    return describe


def load_on(target: Target, *, seed: int = 1) -> Load:
    door = Door(target.url, target.token)
    return Load(door, order=Mix(seed, lambda _: None).order, per_second=target.pace["uploads_per_second"])


def screen_of(load: Load) -> Screen:
    return Screen(Console(file=io.StringIO()), seconds=8.0, counts=lambda: load.states)


def test_a_deployment_of_ones_own_is_harmed_by_its_commands_and_holds(target_of: Callable[[], Target]) -> None:
    target = target_of()
    load = load_on(target)
    arena = TargetArena(target, load.door)
    kinds = ["freeze dispatcher", "kill image child", "kill image child"]
    faults = [
        Fault(number, at=2.0 * number, kind=kind, otherwise=(), draw=0.0, seconds=3.0)
        for number, kind in enumerate(kinds)
    ]
    soaked = soak(arena, load, faults, seconds=8.0, screen=screen_of(load))
    verdicts = [*by_the_api(soaked, load.door), *invariants.by_the_rows(Evidence(load.run, load.uploads))]
    assert {verdict.name: verdict.broken for verdict in verdicts if not verdict.holds} == {}
    assert soaked.injections.done == Counter(kinds)
    assert len(load.accepted) > 3


@pytest.mark.django_db(transaction=True)
def test_what_failed_because_its_workers_died_is_replayed_and_becomes_ready(
    user: User, target_of: Callable[[], Target]
) -> None:
    User.objects.update(is_superuser=True)
    lost = send(user)
    Job.objects.update(failures=settings.MAX_FAILURES - 1)
    expire_lease(lease_of(lost).job_id)
    assert lifecycle.recover() == 1
    load = load_on(target_of())
    load.uploads.append(lost)
    load.ask([lost], until=time.monotonic() + 30)
    assert (lost.state, lost.error_code) == ("failed", "worker_lost")
    assert replay_lost(load, None, screen=screen_of(load)) == []
    assert (lost.state, lost.was_replayed, lost.complaints) == ("ready", True, [])


@pytest.mark.timeout(300)
def test_the_whole_command_harms_a_stack_of_its_own_and_finds_that_everything_holds(tmp_path: Path) -> None:
    for kept in ("samples", "rabbitmq"):
        if (LOCAL / kept).exists():
            (tmp_path / kept).symlink_to(LOCAL / kept)
    report = tmp_path / "report.json"
    done = chaos("--seconds", str(SECONDS), "--seed", "5", "--only", KINDS, "--report", str(report), local=tmp_path)
    assert done.returncode == 0, done.stdout
    told = json.loads(report.read_text())
    assert told["all_hold"]
    assert set(told["faults"]) <= set(KINDS.split(","))
    assert sum(told["faults"].values()) >= 5
    assert told["accepted"] == told["ready"] + sum(told["failed"].values()) + told["deleted"] > 5
    assert "no unlawful move in the event log" in done.stdout
    assert not (tmp_path / "chaos").exists()


def test_a_fault_that_is_not_known_is_said_before_anything_is_harmed(tmp_path: Path) -> None:
    path = tmp_path / "chaos.toml"
    path.write_text(HARM.format(port=1, token="t", worker=1, dispatcher=1))
    done = chaos("--only", "kill image child,kill time", "--target", str(path), local=tmp_path)
    assert done.returncode == 1
    assert "No fault is called kill time. Known: kill image child, freeze dispatcher." in done.stdout


def test_a_run_that_cannot_start_tells_its_seed_too(tmp_path: Path) -> None:
    path = tmp_path / "chaos.toml"
    path.write_text(HARM.format(port=1, token="t", worker=1, dispatcher=1))
    done = chaos("--seed", "5", "--only", "kill time", "--target", str(path), local=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("SEED=5\n")


def chaos(*arguments: str, local: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-m", "bench.chaos", *arguments],
            cwd=BASE_DIR,
            env={**os.environ, "HOLDFAST_LOCAL": str(local)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    finally:
        with claimed(local / "stack"):
            for record in ("chaos/outside", "postgres-binaries"):
                remove_outside_folder(local / record)
