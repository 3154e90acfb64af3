"""Front processes of the local stack, started by tests in folders of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from config.local.places import CHECKOUT
from config.local.runs import MARK
from tests.waiting import until


@contextmanager
def front(*arguments: str, local: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m config.local …` with its things in `local`; killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "config.local", *arguments],
        cwd=CHECKOUT,
        env={**os.environ, **environment, "HOLDFAST_LOCAL": str(local)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def mark_of(pid: int) -> str:
    """The mark of the run that a process belongs to: the innermost, where runs are nested."""
    return psutil.Process(pid).environ()[MARK].split(":")[-1]


def marked(mark: str) -> list[str]:
    """The command lines of all processes that carry a mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ().get(MARK, "").split(":"):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def until_gone(mark: str) -> None:
    until(lambda: not marked(mark), seconds=60, say=lambda: marked(mark))
