"""Folders for the work in hand: a copy of somebody's file must not outlive the process that made it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid
from pathlib import Path

from attachments.errors import StorageUnavailable

PREFIX = "holdfast-scratch-"


@contextmanager
def folder() -> Iterator[Path]:
    """A fresh folder, gone when the block ends. StorageUnavailable where there is no place for one."""
    with _made() as path:
        yield Path(path)


def clear_abandoned() -> int:
    """Remove what killed processes left here; returns how many folders. A starting worker does this."""
    abandoned = [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if not _is_alive(path)]
    for path in abandoned:
        shutil.rmtree(path, ignore_errors=True)
    return len(abandoned)


def _made() -> tempfile.TemporaryDirectory[str]:
    prefix = f"{PREFIX}{getpid()}-{_started(getpid())}-"
    try:
        return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    except OSError as error:
        raise StorageUnavailable(f"No place to work on a copy: {error.strerror}.") from error


def _is_alive(path: Path) -> bool:
    """Whether the process that made the folder still runs; the start time tells it from one with the same number."""
    pid, started, *_ = path.name.removeprefix(PREFIX).split("-")
    return _started(int(pid)) == started


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty when there is none."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
