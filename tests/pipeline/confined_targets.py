"""What the tests of the confined child have it do."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from attachments.errors import BadFile, TooManyPixels

Request = dict[str, Any]


def echo(request: Request) -> Request:
    return request


def where(request: Request) -> Request:
    return {"folder": str(Path.cwd()), "pid": os.getpid(), "server": os.getppid(), "group": os.getpgid(0)}


def bad_file(request: Request) -> NoReturn:
    raise BadFile("premature end")


def too_many_pixels(request: Request) -> NoReturn:
    raise TooManyPixels("5 × 5", width=5, height=5)


def fill_the_disk(request: Request) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def divide_by_zero(request: Request) -> float:
    return 1 / 0


def exhaust_memory(request: Request) -> Request:
    hoard = []
    while True:
        hoard.append(bytearray(16 * 1024 * 1024))


def abort_without_memory(request: Request) -> NoReturn:
    """As GLib does."""
    os.write(2, b"GLib-ERROR **: failed to allocate 1073741824 bytes\n")
    os.abort()


def touch_nothing(request: Request) -> Request:
    ctypes.string_at(0)
    return {}


def leave(request: Request) -> NoReturn:
    os._exit(request["code"])


def loop(request: Request) -> NoReturn:
    while True:
        pass


def wait_for_ever(request: Request) -> Request:
    Path("pid").write_text(f"{os.getpid()} {os.getppid()}")
    Path("pid").rename("started")
    time.sleep(3600)
    return {}


def answer_at_length(request: Request) -> Request:
    return {"text": "x" * request["length"]}


def answer_nonsense(request: Request) -> Any:
    return {"what": object()}


def answer_list(request: Request) -> Any:
    return ["not an object"]


def environment(request: Request) -> Request:
    return dict(os.environ)


def open_files(request: Request) -> Request:
    """Descriptor → kind of file, of everything that is open."""
    found = {}
    for descriptor in range(1024):
        with contextlib.suppress(OSError):
            mode = os.fstat(descriptor).st_mode
            kinds = {"socket": stat.S_ISSOCK, "file": stat.S_ISREG, "device": stat.S_ISCHR, "pipe": stat.S_ISFIFO}
            found[str(descriptor)] = next((kind for kind, is_kind in kinds.items() if is_kind(mode)), "other")
    return found


def limits(request: Request) -> Request:
    return {
        "memory": resource.getrlimit(resource.RLIMIT_AS),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "processor": resource.getrlimit(resource.RLIMIT_CPU),
    }


def attempt(request: Request) -> Request:
    """Try what `request` names; returns the error's name, or None where it succeeded."""
    attempts = {
        "fork": _fork,
        "execute": lambda: subprocess.run(["/bin/true"], check=True),
        "replace": lambda: os.execv("/bin/true", ["true"]),
        "connect": lambda: socket.create_connection(("127.0.0.1", request["port"]), timeout=5),
        "listen": lambda: socket.create_server(("127.0.0.1", 0)),
        "kill": lambda: os.kill(request["pid"], 0),
        "read": lambda: Path(request["path"]).read_bytes(),
        "write": lambda: Path(request["path"]).write_bytes(b"x"),
        "link": lambda: Path(request["path"]).hardlink_to(request["to"]),
        "thread": _run_a_thread,
    }
    try:
        attempts[request["what"]]()
    except OSError as error:
        return {"error": type(error).__name__}
    return {"error": None}


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _run_a_thread() -> None:
    done = threading.Event()
    threading.Thread(target=done.set).start()
    assert done.wait(10)
