"""A run of the local stack never outlives its front process, and never touches what is not its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from config.local.places import CHECKOUT
from config.local.runs import AlreadyRunning, claimed, claimed_new
from tests.waiting import until

# Claims a folder, starts a process of the run, tells its id, and waits to be killed.
ABANDONING = """
import os, subprocess, sys, time
from pathlib import Path
from config.local.runs import claimed, claimed_new

with {claim}(Path(sys.argv[1])) as run:
    environment = {{**os.environ, **run.environment()}}
    started = subprocess.Popen(["sleep", "600"], env=environment, stdout=subprocess.DEVNULL)
    print(started.pid, run.scratch, run.folder, flush=True)
    time.sleep(600)
"""


def abandoned(folder: Path, *, claim: str = "claimed") -> tuple[int, Path, Path]:
    """A run whose front was killed: (the process it left, its scratch folder, its own folder)."""
    front = subprocess.Popen(
        [sys.executable, "-c", ABANDONING.format(claim=claim), str(folder)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert front.stdout is not None
    pid, scratch, own = front.stdout.readline().split()
    front.kill()
    front.communicate()
    return int(pid), Path(scratch), Path(own)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_next_run_ends_what_a_killed_one_left(tmp_path: Path) -> None:
    pid, scratch, _ = abandoned(tmp_path)
    assert is_alive(pid)
    with claimed(tmp_path):
        assert not is_alive(pid)
        assert not scratch.exists()


def test_a_process_of_nobody_or_of_another_run_is_spared(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    other, _, _ = abandoned(tmp_path / "other")
    try:
        abandoned(tmp_path / "ours")
        with claimed(tmp_path / "ours"):
            assert is_alive(stranger.pid)
            assert is_alive(other)
    finally:
        stranger.kill()
        stranger.wait()
        with claimed(tmp_path / "other"):
            pass


def test_a_run_ends_the_processes_of_the_runs_within_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with claimed(tmp_path / "outer") as outer:
        for name, value in outer.environment().items():
            monkeypatch.setenv(name, value)
        pid, _, _ = abandoned(tmp_path / "inner")
        assert is_alive(pid)
    assert not is_alive(pid)
    with claimed(tmp_path / "inner"):
        pass


def test_a_folder_has_one_run_at_a_time_and_says_who_holds_it(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(AlreadyRunning, match=f"process {os.getpid()};"), claimed(tmp_path):
        pass
    with claimed(tmp_path):
        pass


def test_a_process_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("config.local.runs.END_SECONDS", 0.2)
    with claimed(tmp_path) as run:
        deaf = subprocess.Popen(
            ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"],
            env={**os.environ, **run.environment()},
            stdout=subprocess.PIPE,
        )
        assert deaf.stdout is not None
        deaf.stdout.readline()
    assert not is_alive(deaf.pid)
    deaf.stdout.close()
    deaf.wait()


def test_a_new_run_removes_the_folders_of_killed_ones_and_leaves_live_ones(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    pid, _, folder = abandoned(runs, claim="claimed_new")
    assert folder.exists()
    with claimed_new(runs) as first, claimed_new(runs) as second:
        assert not folder.exists()
        until(lambda: not is_alive(pid))
        assert first.folder.exists() and second.folder.exists()
    assert [entry.name for entry in runs.iterdir()] == ["gate"]


def test_a_run_is_over_even_when_it_fails(tmp_path: Path) -> None:
    with contextlib.suppress(RuntimeError), claimed_new(tmp_path) as run:
        raise RuntimeError
    assert not run.folder.exists()
    assert not run.scratch.exists()
