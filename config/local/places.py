"""Where the local stack keeps its things."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
#: Two checkouts, or a test beside a running stack, keep out of each other's way by having different ones.
LOCAL = Path(os.environ.get("HOLDFAST_LOCAL") or CHECKOUT / ".local")
PYTHON = sys.executable

# Below the range that outgoing connections take their ports from: while a service restarts, none of them
# can sit down on its port.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A TCP port of the loopback address that nobody holds at this moment."""
    while True:
        port = random.choice(PORTS)  # noqa: S311  (a guess to be tried, not a secret)
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Holds the file `lock`; whoever else wants it waits."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def outside_folder(record: Path) -> Path:
    """A folder of ours under /var/tmp that any user may enter; the file `record` remembers it between runs."""
    if (remembered := find_outside_folder(record)) is not None:
        return remembered
    folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir="/var/tmp"))
    folder.chmod(0o711)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(str(folder))
    return folder


def remove_outside_folder(record: Path) -> None:
    """Removes what `outside_folder` made, if it is there."""
    if (folder := find_outside_folder(record)) is not None:
        shutil.rmtree(folder, ignore_errors=True)
    record.unlink(missing_ok=True)


def find_outside_folder(record: Path) -> Path | None:
    """The remembered folder, if it is still there and nobody else has put theirs in its place."""
    if not record.exists():
        return None
    folder = Path(record.read_text())
    is_ours = folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    return folder if is_ours else None


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that a reader sees the old text or the new one, never a part; only we may read it."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(draft).replace(path)
