"""The project's own processes against the test database: started, killed and restarted by tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from django.conf import settings
from django.db import connection

from config.env import BASE_DIR
from tests.waiting import until

#: Every timing of the crash suite is a tenth of the default.
FAST = {
    "LEASE_SECONDS": "1.5",
    "RENEW_SECONDS": "0.5",
    "RETRY_PAUSE_SECONDS": "0.5",
    "RETRY_PAUSE_CAP_SECONDS": "60",
    "RECOVER_EVERY_SECONDS": "0.5",
    "REDISPATCH_EVERY_SECONDS": "1.5",
    "REDISPATCH_AFTER_SECONDS": "6",
    "SWEEP_EVERY_SECONDS": "30",
    "OUTBOX_POLL_SECONDS": "0.5",
    "DISPATCHER_POLL_SECONDS": "0.1",
}


def environment(**changes: str) -> dict[str, str]:
    """The environment of a process that works on this test's database and storage."""
    database = connection.settings_dict
    url = "postgres://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**database)
    return {
        **os.environ,
        "DATABASE_URL": url,
        "DATABASE_LISTEN_URL": "",
        "STORAGE_BACKEND": settings.STORAGE_BACKEND,
        "STORAGE_ROOT": settings.STORAGE_ROOT,
        "LOG_FORMAT": "json",
        "PYTHONUNBUFFERED": "1",
        **FAST,
        **changes,
    }


class Process:
    """One process of the project, in a session of its own; `log` holds what it printed."""

    def __init__(self, command: list[str], log: Path, **changes: str) -> None:
        self._command = command
        self._changes = changes
        self.log = log
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self, **changes: str) -> Process:
        with self.log.open("ab") as output:
            self._popen = subprocess.Popen(
                [sys.executable, *self._command],
                cwd=BASE_DIR,
                env=environment(**{**self._changes, **changes}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def children(self) -> list[psutil.Process]:
        """Its direct children: a worker's pool."""
        return psutil.Process(self.pid).children() if self.is_running else []

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the whole group at once, as a machine that loses power would."""
        if self.is_running:
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def restart(self) -> None:
        """What a supervisor does after a kill."""
        self.kill()
        self.start()

    def terminate(self) -> None:
        if self.is_running:
            self.send(signal.SIGTERM)
        self.wait()

    def wait(self, seconds: float = 30) -> int | None:
        if self._popen is None:
            return None
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()
            raise AssertionError(f"did not end:\n{self.tail()}") from None

    def says(self, words: str) -> bool:
        return self.log.exists() and words in self.log.read_text(errors="replace")

    def until_says(self, words: str) -> Process:
        until(lambda: self.says(words) or not self.is_running, seconds=60, say=self.tail)
        assert self.says(words), f"ended instead of saying {words!r}:\n{self.tail()}"
        return self

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:]) if self.log.exists() else ""


class Stack:
    """Starts processes and ends every one of them, whatever happens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Process] = []

    def worker(self, queue: str = "images", *, name: str = "a", concurrency: int = 2, **changes: str) -> Process:
        command = ["-m", "celery", "-A", "config", "worker", "-Q", queue, "-n", f"{name}@test", "-c", str(concurrency)]
        return self._start(f"worker-{queue}-{name}", command, **changes)

    def dispatcher(self, *, name: str = "a", **changes: str) -> Process:
        return self._start(f"dispatcher-{name}", ["manage.py", "dispatcher"], **changes)

    def beat(self, **changes: str) -> Process:
        schedule = str(self._folder / "beat-schedule")
        return self._start("beat", ["-m", "celery", "-A", "config", "beat", "-s", schedule], **changes)

    def web(self, port: int, **changes: str) -> Process:
        command = ["-m", "gunicorn", "config.wsgi", "-c", "config/gunicorn.py"]
        return self._start("web", command, WEB_BIND=f"127.0.0.1:{port}", **changes)

    def end(self) -> None:
        for process in reversed(self._started):
            process.kill()

    def logs(self) -> str:
        return "\n".join(f"--- {process.log.name}\n{process.tail()}" for process in self._started)

    def _start(self, name: str, command: list[str], **changes: str) -> Process:
        process = Process(command, self._folder / f"{name}.log", TMPDIR=str(self._folder), **changes).start()
        self._started.append(process)
        return process


@contextmanager
def stack(folder: Path) -> Iterator[Stack]:
    running = Stack(folder)
    try:
        yield running
    finally:
        running.end()
