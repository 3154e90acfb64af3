"""A dead man's switch for work in the worker's own process.

Native code that never lets go of the interpreter silences every thread beside it, the heartbeat too, so nothing in the
process can end it. The kernel can: by a timer that a thread keeps putting off, for as long as it gets to run and the
work may go on. The slot then comes back with a new process, and `recover` counts the failure.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Four leases by default: `recover` has given the job away long before.
SILENCE_SECONDS = 60.0
PUT_OFF_EVERY_SECONDS = 1.0

#: Processes that may end this way: those of a worker's pool, which are replaced.
_enabled: set[int] = set()


def enable() -> None:
    """Let this process, and no fork of it, be ended so."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _enabled.add(os.getpid())


@contextmanager
def guarding(should_stop: Callable[[], bool]) -> Iterator[None]:
    """The process dies SILENCE_SECONDS after the block began to hold up everything else, or was told to stop."""
    if os.getpid() not in _enabled:
        yield
        return
    ended = threading.Event()
    switch = threading.Thread(target=_put_off, args=(ended, should_stop), name="deadman", daemon=True)
    _set_timer(SILENCE_SECONDS)
    switch.start()
    try:
        yield
    finally:
        ended.set()
        switch.join()
        _set_timer(0)


def _put_off(ended: threading.Event, should_stop: Callable[[], bool]) -> None:
    while not ended.wait(PUT_OFF_EVERY_SECONDS):
        if not should_stop():
            _set_timer(SILENCE_SECONDS)


def _set_timer(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)
