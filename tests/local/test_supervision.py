"""Programs are kept running, never given up for good, and ended in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from config.local.runs import claimed
from config.local.supervision import Program, Supervisor, supervised
from tests.waiting import until


@contextmanager
def running(folder: Path, *programs: Program) -> Iterator[Supervisor]:
    with (
        claimed(folder / "run") as run,
        supervised(run, list(programs), environment=dict(os.environ), logs=folder / "log") as supervisor,
    ):
        for program in programs:
            supervisor.start(program.name)
        yield supervisor


def shell(name: str, script: str, *, directory: Path, order: int = 1) -> Program:
    return Program(name, ("sh", "-c", script), directory, order, {})


def test_a_killed_program_comes_back(tmp_path: Path) -> None:
    with running(tmp_path, shell("sleeper", "exec sleep 600", directory=tmp_path)) as supervisor:
        pid = until(lambda: supervisor.processes().get("sleeper"))
        supervisor.signal("sleeper", "KILL")
        until(lambda: supervisor.processes().get("sleeper", pid) != pid)
        until(lambda: supervisor.states()["sleeper"] == "RUNNING")


def test_a_stopped_program_stays_stopped_until_it_is_started(tmp_path: Path) -> None:
    with running(tmp_path, shell("sleeper", "exec sleep 600", directory=tmp_path)) as supervisor:
        until(lambda: supervisor.states()["sleeper"] == "RUNNING")
        supervisor.stop("sleeper")
        assert supervisor.states() == {"sleeper": "STOPPED"}
        supervisor.start("sleeper")
        until(lambda: supervisor.states()["sleeper"] == "RUNNING")


def test_a_program_that_was_given_up_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("config.local.supervision.STARTS_BEFORE_LONG_PAUSE", 0)
    monkeypatch.setattr("config.local.supervision.LONG_PAUSE_SECONDS", 0.0)
    script = "test -e cured && exec sleep 600"
    with running(tmp_path, shell("patient", script, directory=tmp_path)) as supervisor:
        until(lambda: supervisor.states()["patient"] == "FATAL")
        (tmp_path / "cured").touch()

        def is_running() -> bool:
            supervisor.revive()
            return supervisor.states()["patient"] == "RUNNING"

        until(is_running)


def test_what_was_started_later_ends_earlier(tmp_path: Path) -> None:
    def writer(name: str, order: int) -> Program:
        script = f"trap 'echo {name} >>ended; exit' TERM; echo {name} >>began; while :; do sleep 0.05; done"
        return shell(name, script, directory=tmp_path, order=order)

    with running(tmp_path, writer("below", 1), writer("above", 2)):
        until(lambda: (tmp_path / "began").exists() and len((tmp_path / "began").read_text().split()) == 2)
    assert (tmp_path / "ended").read_text().split() == ["above", "below"]


def test_a_programs_environment_and_path_may_hold_what_a_configuration_file_would_read(tmp_path: Path) -> None:
    folder = tmp_path / "50% of, 'it'"
    folder.mkdir()
    program = Program(
        "teller", ("sh", "-c", 'echo "$WORDS" >told; exec sleep 600'), folder, 1, {"WORDS": "a,b={1} 100%"}
    )
    with running(tmp_path, program):
        told = until(lambda: (folder / "told").exists() and (folder / "told").read_text())
    assert told == "a,b={1} 100%\n"
