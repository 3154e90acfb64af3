"""Runs code that reads strangers' files where a crash, a hang or a memory blow-up cannot reach the worker.

Each call of `run` is one disposable process: forked by a small server (`pipeline.confined_child`) that this worker
process starts when it first needs it, replaces when it dies, and that dies with the worker. What the child gives up
before it starts is in `pipeline.sandbox`. See docs/security.md.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from attachments.errors import AttachmentError, StorageUnavailable
from pipeline import confined_child

logger = logging.getLogger(__name__)

#: How often a running child is checked against `stop`, and how long its server may answer late before it is killed.
STOP_POLL_SECONDS = 0.1
SERVER_GRACE_SECONDS = 10.0

#: What the child sees of the environment: nothing of the worker's. One thread a job, for there is one worker a core;
#: two allocation arenas, for libraries' threads would open many; pictures in memory, never in temporary files.
ENVIRONMENT = {
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "VIPS_CONCURRENCY": "1",
    "VIPS_DISC_THRESHOLD": "1t",
}

#: Last words of native code that found no memory and had no other way to say so.
OUT_OF_MEMORY = ("failed to allocate", "std::bad_alloc", "MemoryError", "out of memory", "Cannot allocate memory")
#: How native code says that its folder is on a full disk, which is not the file's fault.
NO_SPACE = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


class ConfinedError(Exception):
    """The work ended without a result; `code` is stable, `detail` is for the operator."""

    code: ClassVar[str] = "internal_error"
    sentence: ClassVar[str] = "Something went wrong while processing this file. The operator has been told."

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.code)
        self.detail = detail


class TimeLimit(ConfinedError):
    """The work took longer than it was given, by the clock or in processor time, and was killed."""

    code = "time_limit"
    sentence = "Processing this file took too long. Send a smaller or simpler one."


class MemoryLimit(ConfinedError):
    """The work asked for more memory than it was given."""

    code = "memory_limit"
    sentence = "Processing this file needs more memory than allowed. Send a smaller one."


class Crashed(ConfinedError):
    """The process died of a signal (`signal`) or left without an answer (`exit_code`); None where not known."""

    code = "crashed"
    sentence = "This file stopped the program that reads it. Send another version of it."

    def __init__(self, detail: str = "", *, signal: int | None = None, exit_code: int | None = None) -> None:
        super().__init__(detail)
        self.signal = signal
        self.exit_code = exit_code


class NoProcess(ConfinedError):
    """This machine has no room for another process now; the work was not begun."""


class Interrupted(ConfinedError):
    """The caller's `stop` said so."""

    code = "interrupted"


class ChildFailed(ConfinedError):
    """The work raised an error that is not about the file, or its answer cannot be used; `detail` has the traceback."""


def run(
    target: str,
    request: dict[str, Any],
    *,
    scratch: Path,
    seconds: float,
    memory_bytes: int,
    readable: Iterable[Path] = (),
    stop: threading.Event | Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Call `target` ("package.module:function") on `request` in a child of its own and return what it returns.

    Request and result are JSON of at most 64 KiB. The child works in the folder `scratch`, the only place where it can
    write; besides it can read the files and folders in `readable`. `seconds` bounds the wall clock, `memory_bytes`
    the address space. `stop` is asked ten times a second. An AttachmentError raised in the child is raised here, of
    the same class; StorageUnavailable means that `scratch` is full, NoProcess that no child could be started; anything
    else that goes wrong is another ConfinedError. One call at a time; others wait.
    """
    work = {
        "target": target,
        "request": request,
        "scratch": str(scratch.resolve()),
        "readable": [str(path.resolve()) for path in readable],
        "seconds": seconds,
        "memory_bytes": memory_bytes,
    }
    with _lock:
        verdict, reply = _running_server().perform(work, seconds=seconds, should_stop=_question(stop))
    return _result(target, verdict, reply)


def shut_down() -> None:
    """End this process's server, if it has one; the next `run` starts another."""
    with _lock:
        if server := _servers.pop(os.getpid(), None):
            server.kill()


class _Server:
    """The server process of this worker process, and the socket to it."""

    def __init__(self) -> None:
        self.connection, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            self.process = _start(stdin=far_end.fileno())
        logger.info("confined_server_started", extra={"server_pid": self.process.pid})

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def perform(
        self, work: dict[str, Any], *, seconds: float, should_stop: Callable[[], bool]
    ) -> tuple[dict[str, Any], bytes]:
        """The verdict on one piece of work, and the child's raw reply."""
        packet = json.dumps(work).encode()
        if len(packet) > confined_child.MAX_PACKET_BYTES:
            raise ValueError(f"a request of {len(packet)} bytes is too large")
        try:
            self.connection.send(packet)
            verdict = json.loads(self._receive(seconds, should_stop))
            has_reply = 0 < verdict["reply_bytes"] <= confined_child.MAX_PACKET_BYTES
            return verdict, self._receive(seconds, should_stop) if has_reply else b""
        except (BrokenPipeError, ConnectionResetError) as error:
            self.kill()
            raise Crashed("the server of the child ended") from error
        except BaseException:
            # Whatever interrupted the conversation, half of it may be left: start anew.
            self.kill()
            raise

    def _receive(self, seconds: float, should_stop: Callable[[], bool]) -> bytes:
        deadline = time.monotonic() + seconds + SERVER_GRACE_SECONDS
        is_told = False
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        while not poll.poll(STOP_POLL_SECONDS * 1000):
            if time.monotonic() > deadline:
                raise TimeLimit("the server of the child did not answer in time either")
            if not is_told and should_stop():
                is_told = True
                self.connection.send(confined_child.STOP)
        packet = self.connection.recv(confined_child.MAX_PACKET_BYTES)
        if not packet:
            raise Crashed("the server of the child ended")
        return packet

    def kill(self) -> None:
        """The child dies with it, by the kernel's doing."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


def _start(*, stdin: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", confined_child.__file__, str(os.getpid())],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env=ENVIRONMENT,
            # Out of reach of signals to the worker's group: a warm shutdown lets the work in hand end.
            start_new_session=True,
        )
    except OSError as error:
        raise NoProcess(f"the server of the child did not start: {error.strerror}") from error


#: By worker process: one that is forked from this one must not join the conversation, it starts its own.
_servers: dict[int, _Server] = {}
_lock = threading.Lock()
# Another thread may hold the lock at the moment of a fork; in the new process nobody would ever let go of it.
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))


def _running_server() -> _Server:
    server = _servers.get(os.getpid())
    if server is None or not server.is_alive:
        server = _servers[os.getpid()] = _Server()
    return server


def _question(stop: threading.Event | Callable[[], bool] | None) -> Callable[[], bool]:
    if stop is None:
        return lambda: False
    return stop.is_set if isinstance(stop, threading.Event) else stop


def _result(target: str, verdict: dict[str, Any], reply: bytes) -> dict[str, Any]:
    _raise_if_killed(verdict)
    if verdict["reply_bytes"] > confined_child.MAX_PACKET_BYTES:
        raise ChildFailed(f"the reply of {target} is too large: {verdict['reply_bytes']} bytes")
    answer = _parsed(reply)
    if "raised" in answer:
        raise _attachment_error(answer["raised"])
    if "out_of_memory" in answer:
        raise MemoryLimit(verdict["stderr"])
    if not isinstance(answer.get("result"), dict):
        raise _failure(str(answer.get("failed", f"{target} gave no result")))
    _report_confinement(tuple(answer["holds"]))
    logger.debug(
        "confined_work_done",
        extra={"target": target, "seconds": answer["seconds"], "peak_bytes": verdict["peak_bytes"]},
    )
    return dict(answer["result"])


def _failure(detail: str) -> Exception:
    if any(words in detail for words in NO_SPACE):
        return StorageUnavailable(f"No place for what is made.\n{detail}")
    return ChildFailed(detail)


@functools.cache
def _report_confinement(holds: tuple[str, ...]) -> None:
    """Say once what this kernel lets the child give up; without one of the last two it could read or reach more."""
    is_complete = {"landlock", "seccomp"} <= set(holds)
    logger.log(logging.INFO if is_complete else logging.WARNING, "confinement", extra={"holds": holds})


def _raise_if_killed(verdict: dict[str, Any]) -> None:
    exit_code = os.waitstatus_to_exitcode(verdict["status"])
    last_words = verdict["stderr"]
    if verdict["ended"] == "not_begun":
        raise NoProcess(last_words)
    if verdict["ended"] == "stopped":
        raise Interrupted
    if verdict["ended"] == "timeout" or exit_code == -signal.SIGXCPU:
        raise TimeLimit(last_words)
    if exit_code and any(words in last_words for words in OUT_OF_MEMORY):
        raise MemoryLimit(last_words)
    if exit_code < 0:
        raise Crashed(f"{signal.Signals(-exit_code).name}\n{last_words}", signal=-exit_code)
    if exit_code > 0:
        raise Crashed(f"exit {exit_code}\n{last_words}", exit_code=exit_code)


def _parsed(reply: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(reply)
        if isinstance(answer, dict):
            return answer
    raise ChildFailed("the reply is not a JSON object")


def _attachment_error(raised: dict[str, Any]) -> AttachmentError:
    for kind in _descendants(AttachmentError):
        if kind.code == raised["code"]:
            return kind(raised["detail"], **raised["facts"])
    raise ChildFailed(f"unknown error code {raised['code']!r}: {raised['detail']}")


def _descendants(kind: type[AttachmentError]) -> list[type[AttachmentError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _descendants(child))]
