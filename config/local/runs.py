"""One run of the stack or of a command: who holds its folder, and how nothing that it started outlives it.

A run's folder holds `lock`, held as long as the front process lives, and `run.json`, which names the run.
Every process of a run carries that name in its environment, so that the next run can end what a killed
one left behind, and nothing else: a process id alone may by then belong to a stranger.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from config.local.places import one_at_a_time, remove_outside_folder, write_whole

MARK = "HOLDFAST_RUN"
END_SECONDS = 10.0
PR_SET_PDEATHSIG = 1


class AlreadyRunning(Exception):
    """Another live process holds the run's folder; `pid` is 0 where it cannot be told."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"The stack of this checkout is already running as process {pid}; see .local/stack.json.")
        self.pid = pid


@dataclass(frozen=True)
class Run:
    """A claimed folder. `id` marks our processes, `scratch` is a short private path for sockets."""

    folder: Path
    id: str
    scratch: Path
    lock: IO[str]

    def environment(self) -> dict[str, str]:
        """Marks a process as ours; a run inside another run carries both marks."""
        outer = os.environ.get(MARK)
        return {MARK: f"{outer}:{self.id}" if outer else self.id}


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[Run]:
    """Holds a folder for one run and ends every process of it afterwards. Raises AlreadyRunning."""
    folder.mkdir(parents=True, exist_ok=True)
    run = _claim(folder)
    try:
        yield run
    finally:
        _end_recorded(folder)
        run.lock.close()


@contextlib.contextmanager
def claimed_new(parent: Path) -> Iterator[Run]:
    """A fresh folder under `parent` for one run, removed at its end; what killed runs left there goes too."""
    # Until the new folder is locked, so that no other run takes it for an abandoned one.
    with one_at_a_time(parent / "gate"):
        _remove_abandoned(parent)
        run = _claim(Path(tempfile.mkdtemp(prefix="run-", dir=parent)))
    try:
        yield run
    finally:
        _remove(run)


def processes_of(run_id: str) -> list[psutil.Process]:
    """The live processes of a run with their descendants; never ourselves or who started us."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if run_id in process.environ().get(MARK, "").split(":"):
                found |= {one.pid: one for one in [process, *process.children(recursive=True)]}
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [process for pid, process in found.items() if pid not in spared]


def end_processes(processes: list[psutil.Process]) -> None:
    """Asks processes to end, and kills those that have not after ten seconds."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            # PostgreSQL would wait for its clients after SIGTERM.
            process.send_signal(signal.SIGINT if process.name() == "postgres" else signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=END_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=END_SECONDS)


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel sends SIGTERM to this process when the one that started it is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _claim(folder: Path) -> Run:
    lock = (folder / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip()
        lock.close()
        raise AlreadyRunning(int(holder or 0)) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    _end_recorded(folder)
    run = Run(folder, secrets.token_hex(8), Path(tempfile.mkdtemp(prefix="holdfast-")), lock)
    write_whole(folder / "run.json", json.dumps({"id": run.id, "scratch": str(run.scratch)}))
    return run


def _end_recorded(folder: Path) -> None:
    record = folder / "run.json"
    if not record.exists():
        return
    facts = json.loads(record.read_text())
    end_processes(processes_of(facts["id"]))
    shutil.rmtree(facts["scratch"], ignore_errors=True)
    record.unlink()


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob("run-*"):
        with contextlib.suppress(AlreadyRunning):
            _remove(_claim(folder))


def _remove(run: Run) -> None:
    _end_recorded(run.folder)
    remove_outside_folder(run.folder / "outside")
    shutil.rmtree(run.folder, ignore_errors=True)
    run.lock.close()
