"""Processes of the project, forked from one that has imported their libraries and nothing of ours.

Importing took half of the suite's time. A forked process reads its environment, settings and modules as a started one
does, has a session of its own, and dies of what it is sent; only the libraries were there before.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from config.env import BASE_DIR

#: No library that reads the environment when it is imported, and none that begins threads.
LIBRARIES = (
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.bin.beat",
    "celery.bin.worker",
    "celery.concurrency.prefork",
    "celery.fixups.django",
    "click_repl",
    "django.core.cache",
    "django.core.handlers.wsgi",
    "django.core.management",
    "django.db.backends.postgresql.base",
    "django.db.migrations.executor",
    "django.db.models",
    "django.forms",
    "django.http",
    "django.template",
    "gunicorn.app.wsgiapp",
    "gunicorn.workers.gthread",
    "jsonschema",
    "kombu.transport.pyamqp",
    "psycopg",
    "tornado.web",
)
MESSAGE_BYTES = 256 * 1024


class Forked:
    """A process of the project: what `subprocess.Popen` would be for a started one."""

    def __init__(self, server: _Server, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._ended = os.pidfd_open(pid)

    @property
    def lives(self) -> bool:
        """Its number is its own, dead or alive, until `wait` has returned."""
        return self.returncode is None and not self._has_ended(0)

    def wait(self, seconds: float | None = None) -> int:
        if self.returncode is None:
            if not self._has_ended(seconds):
                raise subprocess.TimeoutExpired(str(self.pid), seconds or 0)
            self.returncode = self._server.ask({"reap": self.pid})
            os.close(self._ended)
        return self.returncode

    def _has_ended(self, seconds: float | None) -> bool:
        return bool(select.select([self._ended], [], [], seconds)[0])


def fork(command: list[str], *, environment: dict[str, str], output: int) -> Forked:
    """Run `python COMMAND` in the project's folder; `command` is a file, or `-m` and a module, with arguments."""
    server = _server()
    return Forked(server, server.ask({"run": command, "environment": environment}, output))


def run(command: list[str], *, environment: dict[str, str], seconds: float = 90) -> tuple[int, str]:
    """The exit code of a command, and all that it said; it is killed when it takes longer."""
    with tempfile.TemporaryFile() as output:
        process = fork(command, environment=environment, output=output.fileno())
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            raise
        output.seek(0)
        return code, output.read().decode(errors="replace")


class _Server:
    """The process that forks; it ends with the one that started it."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "tests.forkserver", str(theirs.fileno())],
                cwd=BASE_DIR,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def ask(self, question: dict[str, Any], *files: int) -> int:
        socket.send_fds(self._ours, [json.dumps(question).encode()], list(files))
        return int(self._ours.recv(MESSAGE_BYTES))


@cache
def _server() -> _Server:
    return _Server()


def _serve(asking: socket.socket) -> tuple[list[str], dict[str, str], int]:
    """Fork and reap until nobody asks any more; in a forked process, return what it has to run."""
    while True:
        message, files, _, _ = socket.recv_fds(asking, MESSAGE_BYTES, 1)
        if not message:
            raise SystemExit
        question = json.loads(message)
        if "reap" in question:
            _, status = os.waitpid(question["reap"], 0)
            asking.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if not pid:
            asking.close()
            return question["run"], question["environment"], files[0]
        os.close(files[0])
        asking.send(str(pid).encode())


def _become(command: list[str], environment: dict[str, str], output: int) -> None:
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    # As `python` would in an environment with PYTHONUNBUFFERED.
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(str(Path(BASE_DIR, command[0])), run_name="__main__")


if __name__ == "__main__":
    for library in LIBRARIES:
        importlib.import_module(library)
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
