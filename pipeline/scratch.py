"""Folders for the work in hand: a copy of somebody's file must not outlive the process that made it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid
from pathlib import Path

PREFIX = "holdfast-scratch-"


@contextmanager
def folder() -> Iterator[Path]:
    """A fresh folder, gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{getpid()}-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def clear_abandoned() -> int:
    """Remove what killed processes left here; returns how many folders. A starting worker does this."""
    abandoned = [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if not _is_alive(_owner(path))]
    for path in abandoned:
        shutil.rmtree(path, ignore_errors=True)
    return len(abandoned)


def _owner(path: Path) -> str:
    return path.name.removeprefix(PREFIX).partition("-")[0]


def _is_alive(pid: str) -> bool:
    return Path("/proc", pid).exists()
