"""The project's own processes against the test database, as nodes of pytest-celery: started, killed and restarted.

pytest-celery wraps Docker containers; here each node wraps a local process (or, in `tests.nodes`, a supervised one).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import Self, TypeVar

import psutil
from django.conf import settings
from django.db import connection
from pytest_celery import CeleryTestNode, CeleryTestWorker, CeleryWorkerCluster  # type: ignore[import-untyped]

from pipeline.models import Job
from pipeline.states import State
from tests.forkserver import Forked, fork
from tests.nodes import Broker
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


class Container:
    """What a node asks of its container, answered by a process in a session of its own; `log` holds what it printed."""

    def __init__(self, command: list[str], log: Path, *, ready_prompt: str, changes: dict[str, str]) -> None:
        self.name = log.stem
        self.log = log
        self.ready_prompt = ready_prompt
        self.celeryconfig = {"broker_url": settings.CELERY_BROKER_URL}
        self._command = command
        self._changes = changes
        self._forked: Forked | None = None
        self._printed_before = 0

    def start(self, **changes: str) -> None:
        with self.log.open("ab") as output:
            self._printed_before = output.tell()
            self._forked = fork(
                self._command, environment=environment(**{**self._changes, **changes}), output=output.fileno()
            )

    @property
    def pid(self) -> int:
        assert self._forked is not None
        return self._forked.pid

    @property
    def id(self) -> str:
        return str(self.pid)

    @property
    def status(self) -> str:
        return "running" if self._lives() else "exited"

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """SIGKILL takes the whole group at once, as a machine that loses power would; others reach the process."""
        number = Signals[signal] if isinstance(signal, str) else Signals(signal)
        if number != SIGKILL:
            os.kill(self.pid, number)
        elif self._forked is not None and self._forked.returncode is None:
            self.signal_group(SIGKILL)
            self._forked.wait()

    def signal_group(self, number: Signals) -> None:
        # Its leader is not reaped yet, so the number cannot belong to anyone else.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def restart(self, timeout: float = 0) -> None:  # noqa: ARG002  (the nodes give one)
        """What a supervisor does after a kill, without asking first: the worst that can happen to it."""
        self.kill()
        self.start()

    def reload(self) -> None:
        """Nothing is remembered that would have to be read again."""

    def teardown(self) -> None:
        self.kill()

    def wait(self, seconds: float) -> int | None:
        return None if self._forked is None else self._forked.wait(seconds)

    def ready(self) -> bool:
        """Wait until it says that it is ready, since its last start."""
        until(lambda: self.ready_prompt in self.logs(since_start=True) or not self._lives(), seconds=60, say=self.logs)
        return self._lives()

    def logs(self, *, since_start: bool = False) -> str:
        if not self.log.exists():
            return ""
        return self.log.read_bytes()[self._printed_before if since_start else 0 :].decode(errors="replace")

    def _lives(self) -> bool:
        return self._forked is not None and self._forked.lives


class Process(CeleryTestNode):  # type: ignore[misc]
    """A node that is one process of the project."""

    container: Container

    def __init__(self, command: list[str], log: Path, *, ready_prompt: str = "", **changes: str) -> None:
        super().__init__(Container(command, log, ready_prompt=ready_prompt, changes=changes), None)

    def start(self, **changes: str) -> Self:
        self.container.start(**changes)
        return self

    @property
    def log(self) -> Path:
        return self.container.log

    @property
    def pid(self) -> int:
        return self.container.pid

    @property
    def is_running(self) -> bool:
        return self.container.status == "running"

    def children(self) -> list[psutil.Process]:
        """Its direct children: a worker's pool."""
        return psutil.Process(self.pid).children() if self.is_running else []

    def send(self, number: Signals) -> None:
        self.container.kill(number)

    def freeze(self) -> None:
        """Stop it and its children in the middle of whatever they do."""
        self.container.signal_group(SIGSTOP)

    def thaw(self) -> None:
        self.container.signal_group(SIGCONT)

    def terminate(self) -> None:
        if self.is_running:
            self.send(SIGTERM)
        self.wait()

    def wait(self, seconds: float = 30) -> int | None:
        try:
            return self.container.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not end:\n{self.tail()}") from None

    def says(self, words: str) -> bool:
        return words in self.logs()

    def until_says(self, words: str) -> Self:
        until(lambda: self.says(words) or not self.is_running, seconds=60, say=self.tail)
        assert self.says(words), f"ended instead of saying {words!r}:\n{self.tail()}"
        return self

    def until_ready(self) -> Self:
        assert self.ready(), f"ended before it was ready:\n{self.tail()}"
        return self

    def tail(self) -> str:
        return "\n".join(self.logs().splitlines()[-25:])


class Worker(Process, CeleryTestWorker):  # type: ignore[misc]
    """A Celery worker of one queue; `app` is the module of its Celery application."""

    def __init__(self, log: Path, *, queue: str, name: str, concurrency: int, app: str, **changes: str) -> None:
        self._hostname, self._queue = f"{name}@test", queue
        command = ["-m", "celery", "-A", app, "worker", "-Q", queue, "-n", self._hostname, "-c", str(concurrency)]
        super().__init__(command, log, ready_prompt="ready.", **changes)

    @property
    def worker_queue(self) -> str:
        return self._queue

    @property
    def worker_name(self) -> str:
        return self._hostname.partition("@")[0]

    def hostname(self) -> str:
        return self._hostname


Node = TypeVar("Node", bound=Process)


class Stack:
    """Starts processes and ends every one of them, whatever happens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Process] = []
        self._broker: Broker | None = None

    @property
    def broker(self) -> Broker:
        """The private RabbitMQ of this run; it runs again when the test ends."""
        self._broker = self._broker or Broker()
        return self._broker

    @property
    def workers(self) -> CeleryWorkerCluster:
        """All workers that were started."""
        return CeleryWorkerCluster(*(process for process in self._started if isinstance(process, Worker)))

    def worker(
        self, queue: str = "images", *, name: str = "a", concurrency: int = 2, app: str = "config", **changes: str
    ) -> Worker:
        log = self._folder / f"worker-{queue}-{name}.log"
        return self._start(Worker(log, queue=queue, name=name, concurrency=concurrency, app=app, **self._tidy(changes)))

    def dispatcher(self, *, name: str = "a", **changes: str) -> Process:
        return self._process(f"dispatcher-{name}", ["manage.py", "dispatcher"], "dispatcher_started", changes)

    def beat(self, **changes: str) -> Process:
        schedule = str(self._folder / "beat-schedule")
        command = ["-m", "celery", "-A", "config", "beat", "-s", schedule]
        return self._process("beat", command, "Starting", changes)

    def poller(self, **changes: str) -> Process:
        """What takes Telegram's updates."""
        return self._process("poller", ["manage.py", "telegram"], "poller_started", changes)

    def web(self, port: int, **changes: str) -> Process:
        command = ["-m", "gunicorn", "config.wsgi", "-c", "config/gunicorn.py"]
        return self._process(
            "web", command, "Booting worker", {"WEB_BIND": f"127.0.0.1:{port}", "WEB_WORKERS": "1", **changes}
        )

    def end(self) -> None:
        for process in reversed(self._started):
            process.teardown()
        if self._broker is not None:
            self._broker.teardown()

    def logs(self) -> str:
        return "\n".join(f"--- {process.log.name}\n{process.tail()}" for process in self._started)

    def _process(self, name: str, command: list[str], ready_prompt: str, changes: dict[str, str]) -> Process:
        log = self._folder / f"{name}.log"
        return self._start(Process(command, log, ready_prompt=ready_prompt, **self._tidy(changes)))

    def _tidy(self, changes: dict[str, str]) -> dict[str, str]:
        return {"TMPDIR": str(self._folder), **changes}

    def _start(self, node: Node) -> Node:
        self._started.append(node)
        return node.start()


@contextmanager
def stack(folder: Path) -> Iterator[Stack]:
    running = Stack(folder)
    try:
        yield running
    finally:
        running.end()


def until_state(state: State, jobs: list[Job], running: Stack, *, seconds: float = 60) -> None:
    """Until all of these jobs are in the state; they are read again."""
    ids = [job.job_id for job in jobs]
    until(
        lambda: Job.objects.filter(job_id__in=ids, state=state).count() == len(jobs),
        seconds=seconds,
        say=lambda: f"{list(Job.objects.filter(job_id__in=ids).exclude(state=state).values())}\n{running.logs()}",
    )
    for job in jobs:
        job.refresh_from_db()
