"""Pictures that say in their last line what they do to whoever works on them; see `tests.crash.poison_app`."""

from __future__ import annotations

import collections
import ctypes
import itertools
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline import confined
from pipeline.steps import Given, StepResult
from pipeline.steps.image import ImageStep
from tests.pictures import jpeg

MARK = b"\nPOISON "


def poisoned(act: str, argument: object = "") -> bytes:
    """A good picture that does `act` (a key of ACTS) to its worker."""
    return jpeg() + MARK + f"{act} {argument}".encode()


class PoisonableStep(ImageStep):
    def run(self, given: Given) -> StepResult:
        _, mark, line = given.path.read_bytes().rpartition(MARK)
        if mark:
            act, _, argument = line.decode().partition(" ")
            ACTS[act](argument, given.scratch, given.stop)
        return super().run(given)


def _kill(*_: Any) -> None:
    """As the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault(*_: Any) -> None:
    ctypes.string_at(0)


def _exhaust_memory(*_: Any) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1024**3, before[1]))
    try:
        bytearray(2 * 1024**3)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _loop(*_: Any) -> None:
    """In native code that never lets another thread of the process run."""
    collections.deque(itertools.repeat(None), maxlen=0)


def _spin(*_: Any) -> None:
    """In code that lets other threads run, but asks nobody whether to stop."""
    while True:
        pass


def _wait(path: str, _scratch: Path, stop: Callable[[], bool]) -> None:
    """Until the file `path` exists; the files `path`.PID tell who waits."""
    Path(f"{path}.{os.getpid()}").touch()
    while not Path(path).exists():
        if stop():
            raise confined.Interrupted
        time.sleep(0.02)


def _meet(path: str, scratch: Path, stop: Callable[[], bool]) -> None:
    """Until two processes are here at once."""
    Path(f"{path}.{os.getpid()}").touch()
    while len(list(Path(path).parent.glob(f"{Path(path).name}.*"))) < 2:
        if stop():
            raise confined.Interrupted
        time.sleep(0.02)


def _in_child(target: str, scratch: Path, stop: Callable[[], bool]) -> None:
    """Do it where strangers' files are read: `target` is a function of `tests.pipeline.confined_targets`."""
    confined.run(
        f"tests.pipeline.confined_targets:{target}",
        {},
        scratch=scratch,
        seconds=1 if target == "loop" else 60,
        memory_bytes=512 * 1024**2,
        stop=stop,
    )


ACTS: dict[str, Callable[[str, Path, Callable[[], bool]], None]] = {
    "kill": _kill,
    "segfault": _segfault,
    "memory": _exhaust_memory,
    "loop": _loop,
    "spin": _spin,
    "wait": _wait,
    "meet": _meet,
    "child": _in_child,
}
