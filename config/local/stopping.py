"""Signals that end the front process become an exception, so that everything is stopped on the way out."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked us to end; `code` is the exit code a shell would give."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """The first signal raises Stopped in the main thread; more of them do not disturb the way out."""
    is_stopping = False

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal is_stopping
        if not is_stopping:
            is_stopping = True
            raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        is_stopping = True
        for number, handler in before.items():
            signal.signal(number, handler)
