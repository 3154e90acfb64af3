"""The far side of `pipeline.confined`: a small server that forks one disposable process for each piece of work.

Started as a program of its own, in isolated mode, with an empty environment and one socket (standard input), so it
inherits nothing of the worker: no threads, no locks, no connections, no secrets. It imports what the work needs
once and starts no threads, which makes forking safe and cheap. It reads no stranger's bytes itself.

One packet asks: {target, request, scratch, readable, seconds, memory_bytes}. Two answer: a verdict {ended, status,
stderr, reply_bytes, peak_bytes} and, if `reply_bytes` is within bounds and not zero, what the child replied. A STOP
packet in between ends the child; one that comes too late is dropped. It ends with its worker, the child with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":
    # Isolated mode leaves the project's folder out of the path.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attachments.errors import AttachmentError
from pipeline import sandbox

MAX_PACKET_BYTES = 64 * 1024
STDERR_TAIL_BYTES = 4 * 1024
STOP = b"stop"

Function = Callable[[dict[str, Any]], dict[str, Any]]


def main(worker: int) -> None:
    """Serve the process `worker` until it ends or hangs up."""
    # Whoever asks a whole service to stop means the worker, which tells this process when the work is to end.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection = socket.socket(fileno=os.dup(0))
    lifeline = os.pidfd_open(worker)
    if os.getppid() != worker:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while lifeline not in _ready(connection.fileno(), lifeline) and (packet := connection.recv(MAX_PACKET_BYTES)):
            if packet != STOP:
                _serve(json.loads(packet), connection, lifeline)


def _serve(work: dict[str, Any], connection: socket.socket, lifeline: int) -> None:
    reply, stderr = os.memfd_create("reply"), os.memfd_create("stderr")
    try:
        verdict = _perform(work, reply, stderr, connection.fileno(), lifeline)
        verdict["stderr"] = _tail(stderr)
        verdict["reply_bytes"] = os.fstat(reply).st_size
        connection.send(json.dumps(verdict).encode())
        if 0 < verdict["reply_bytes"] <= MAX_PACKET_BYTES:
            connection.send(os.pread(reply, MAX_PACKET_BYTES, 0))
    finally:
        os.close(reply)
        os.close(stderr)


def _perform(work: dict[str, Any], reply: int, stderr: int, connection: int, lifeline: int) -> dict[str, Any]:
    try:
        function = _find(work["target"])
    except Exception:  # noqa: BLE001  (whatever a broken module raises is the answer; the server must live)
        os.write(reply, _failed())
        return {"ended": "exited", "status": 0, "peak_bytes": 0}
    server = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        os.write(stderr, f"fork: {error.strerror}".encode())
        return {"ended": "not_begun", "status": 0, "peak_bytes": 0}
    if child == 0:
        _be_the_child(server, function, work, reply, stderr)
    ended = _watch(child, connection, lifeline, seconds=work["seconds"])
    # The group goes before its leader is reaped, while the number cannot belong to anyone else.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    return {"ended": ended, "status": status, "peak_bytes": usage.ru_maxrss * 1024}


def _watch(child: int, connection: int, lifeline: int, *, seconds: float) -> str:
    """Wait until the child ends ("exited"), its time is over ("timeout"), or nobody wants it any more ("stopped")."""
    descriptor = os.pidfd_open(child)
    try:
        ready = _ready(descriptor, connection, lifeline, seconds=seconds)
    finally:
        os.close(descriptor)
    if descriptor in ready:
        return "exited"
    if connection in ready:
        os.read(connection, MAX_PACKET_BYTES)
    os.kill(child, signal.SIGKILL)
    return "stopped" if ready else "timeout"


def _ready(*descriptors: int, seconds: float | None = None) -> set[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)}


def _find(target: str) -> Function:
    module, _, name = target.partition(":")
    function: Function = getattr(importlib.import_module(module), name)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError(f"importing {module} starts threads, which a forked process would lack")
    return function


def _be_the_child(server: int, function: Function, work: dict[str, Any], reply: int, stderr: int) -> NoReturn:
    try:
        _leave(server, reply, stderr)
        os.chdir(work["scratch"])
        os.environ["TMPDIR"] = work["scratch"]
        holds = sandbox.enter(
            writable=Path(work["scratch"]),
            readable=[*_libraries(), *(Path(path) for path in work["readable"])],
            seconds=work["seconds"],
            memory_bytes=work["memory_bytes"],
        )
        os.write(reply, _answer(function, work["request"], holds))
    except BaseException:  # noqa: BLE001  (the child must end here, never return into the server's loop)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _leave(server: int, reply: int, stderr: int) -> None:
    """Part from the server: a group of its own, nothing inherited but the places for its reply and its complaints."""
    os.setsid()
    sandbox.die_with(server)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (stderr, 1), (stderr, 2)):
        os.dup2(source, target)
    os.closerange(3, reply)
    os.closerange(reply + 1, os.sysconf("SC_OPEN_MAX"))
    os.umask(0o077)
    faulthandler.enable(2)
    # If memory runs short, the kernel should take this process and not the database beside it.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _libraries() -> list[Path]:
    """Where installed packages are: the standard library imports parts of itself late. Not the project's folder."""
    return [path for path in map(Path, sys.path[1:]) if path.is_dir()]


def _answer(function: Function, request: dict[str, Any], holds: list[str]) -> bytes:
    began = time.monotonic()
    try:
        result = function(request)
        return _packed(result=result, holds=holds, seconds=round(time.monotonic() - began, 4))
    except AttachmentError as error:
        return _packed(raised={"code": error.code, "detail": error.detail, "facts": error.facts})
    except MemoryError:
        return _packed(out_of_memory=True)
    except Exception:  # noqa: BLE001  (told to the worker, with its traceback)
        return _failed()


def _failed() -> bytes:
    return _packed(failed=traceback.format_exc()[-STDERR_TAIL_BYTES:])


def _packed(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def _tail(file: int) -> str:
    start = max(0, os.fstat(file).st_size - STDERR_TAIL_BYTES)
    return os.pread(file, STDERR_TAIL_BYTES, start).decode(errors="replace")


if __name__ == "__main__":
    main(worker=int(sys.argv[1]))
