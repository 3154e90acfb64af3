"""Programs and the supervisor that keeps them running.

supervisord starts each program when told to, and again whenever it ends, after a pause that grows with
every start that failed at once; `Supervisor.revive` goes on where supervisord itself would give up.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

from supervisor.xmlrpc import Faults, SupervisorTransport

from config.local.places import PYTHON
from config.local.runs import Run, die_with_parent

STARTS_BEFORE_LONG_PAUSE = 8
LONG_PAUSE_SECONDS = 15.0
ANSWER_SECONDS = 20.0


class NotStarted(Exception):
    """A program does not come up; the message holds the end of its log."""


@dataclass(frozen=True)
class Program:
    """What to run and how to end it. Lower `order` starts earlier and ends later; equal ones end together."""

    name: str
    argv: tuple[str, ...]
    directory: Path
    order: int
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stop_signal: str = "TERM"
    stop_seconds: int = 10


class Supervisor:
    """A connection to a running supervisord, by the path of its socket."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._given_up: dict[str, float] = {}

    def start(self, name: str) -> None:
        """Starts a program without waiting for it; one that ends at once is started again like any other."""
        try:
            self._calls.startProcess(self._id(name), False)
        except Fault as fault:
            # It had ended before supervisord answered, which is not for the one who asked to deal with.
            if fault.faultCode != Faults.SPAWN_ERROR:
                raise

    def stop(self, name: str) -> None:
        """Ends a program gently and keeps it ended; returns when it is gone."""
        self._calls.stopProcess(self._id(name), True)

    def signal(self, name: str, signal: str) -> None:
        """Sends a signal (`KILL`) to a program's main process; supervisord starts it again if it ends."""
        self._calls.signalProcess(self._id(name), signal)

    def processes(self) -> dict[str, int]:
        """{name: pid} of the programs that run."""
        return {one["name"]: one["pid"] for one in self._calls.getAllProcessInfo() if one["pid"]}

    def states(self) -> dict[str, str]:
        """{name: state} in supervisord's words: STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED, FATAL."""
        return {one["name"]: one["statename"] for one in self._calls.getAllProcessInfo()}

    def revive(self) -> None:
        """Starts again, at long intervals, what supervisord has given up."""
        for name, state in self.states().items():
            if state != "FATAL":
                self._given_up.pop(name, None)
            elif time.monotonic() - self._given_up.setdefault(name, time.monotonic()) > LONG_PAUSE_SECONDS:
                del self._given_up[name]
                self.start(name)

    @property
    def _calls(self) -> Any:
        # A fresh connection each time: after a failed call, supervisor's transport cannot be used again.
        transport = SupervisorTransport(None, None, f"unix://{self.socket}")
        return ServerProxy("http://127.0.0.1", transport=transport).supervisor

    def _id(self, name: str) -> str:
        return next(f"{one['group']}:{name}" for one in self._calls.getAllProcessInfo() if one["name"] == name)


@contextlib.contextmanager
def supervised(
    run: Run, programs: list[Program], *, environment: Mapping[str, str], logs: Path
) -> Iterator[Supervisor]:
    """A supervisord that knows `programs` and has started none; at the end all are stopped, in order."""
    logs.mkdir(parents=True, exist_ok=True)
    # supervisord expands the paths of logs twice, so they are named by one that needs no escaping.
    plain_logs = run.scratch / "log"
    plain_logs.symlink_to(logs)
    configuration = run.folder / "supervisord.conf"
    configuration.write_text(_configuration(run, programs, logs=plain_logs))
    with (logs / "supervisord.log").open("ab") as log:
        process = subprocess.Popen(
            [
                PYTHON,
                "-m",
                "supervisor.supervisord",
                "--nodaemon",
                "--configuration",
                str(configuration),
            ],
            env={**environment, **run.environment()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Its own session: Ctrl-C must reach it only through us, who stop things in order.
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  (there are no threads yet)
        )
    supervisor = Supervisor(run.scratch / "supervisor.sock")
    try:
        _wait_for_answer(supervisor, process, logs=logs)
        yield supervisor
    finally:
        _end(
            supervisor,
            process,
            seconds=10 + sum({program.order: program.stop_seconds for program in programs}.values()),
        )


def log_tail(log: Path, *, lines: int = 20) -> str:
    """The last lines of a log, or a word that it holds nothing."""
    text = log.read_text(errors="replace").rstrip() if log.exists() else ""
    return "\n".join(text.splitlines()[-lines:]) or "(empty)"


def _wait_for_answer(supervisor: Supervisor, process: subprocess.Popen[bytes], *, logs: Path) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, HTTPException):
            supervisor.states()
            return
        time.sleep(0.05)
    raise NotStarted(f"supervisord did not start:\n{log_tail(logs / 'supervisord.log')}")


def _end(supervisor: Supervisor, process: subprocess.Popen[bytes], *, seconds: float) -> None:
    process.terminate()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        # Each question wakes supervisord, which otherwise looks only once a second whether a group has ended.
        with contextlib.suppress(OSError, HTTPException, Fault):
            supervisor.states()
        time.sleep(0.05)
    process.kill()
    process.wait()


def _configuration(run: Run, programs: list[Program], *, logs: Path) -> str:
    sections = [
        f"[unix_http_server]\nfile={run.scratch}/supervisor.sock\nchmod=0700\n",
        f"[supervisord]\nlogfile=/dev/null\nlogfile_maxbytes=0\npidfile={run.scratch}/supervisord.pid\n"
        f"childlogdir={_escaped(run.scratch)}\n" + ("user=root\n" if os.getuid() == 0 else ""),
        "[rpcinterface:supervisor]\nsupervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n",
        *(_program_section(program, log=logs / f"{program.name}.log") for program in programs),
    ]
    by_order: dict[int, list[str]] = {}
    for program in programs:
        by_order.setdefault(program.order, []).append(program.name)
    # Groups end one after another, the programs of one group together.
    groups = [
        f"[group:order-{order}]\nprograms={','.join(names)}\npriority={order}\n" for order, names in by_order.items()
    ]
    return "\n".join(sections + groups)


def _program_section(program: Program, *, log: Path) -> str:
    environment = ",".join(f'{name}="{_escaped(value)}"' for name, value in program.environment.items())
    settings = {
        "command": _escaped(shlex.join(program.argv)),
        "directory": _escaped(program.directory),
        "environment": environment,
        "autostart": "false",
        "autorestart": "true",
        "startsecs": 1,
        "startretries": STARTS_BEFORE_LONG_PAUSE,
        "stopsignal": program.stop_signal,
        "stopwaitsecs": program.stop_seconds,
        "killasgroup": "true",
        "redirect_stderr": "true",
        "stdout_logfile": _escaped(log),
        "stdout_logfile_maxbytes": "20MB",
        "stdout_logfile_backups": 1,
    }
    if program.user:
        settings["user"] = program.user
    return f"[program:{program.name}]\n" + "".join(f"{key}={value}\n" for key, value in settings.items())


def _escaped(value: object) -> str:
    return str(value).replace("%", "%%")
