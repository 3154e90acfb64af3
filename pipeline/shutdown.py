"""Tells the processes of a worker that it is stopping.

The worker's main process gets the signal, its pool children do the work: they share one number, made before the
fork. Work in hand may take GRACE_SECONDS to finish; after that it is handed back (`release`). Where the database is
away, that is tried until LAST_CALL_SECONDS.
"""

from __future__ import annotations

import mmap
import struct
import time

GRACE_SECONDS = 5.0
#: Connecting may take five more; supervisors kill a worker 30 s after they told it to stop, or later.
LAST_CALL_SECONDS = 20.0
POLL_SECONDS = 0.2

_MOMENT = struct.Struct("d")
#: When the stop was requested, by the monotonic clock that all processes share; 0 while it was not.
_shared = mmap.mmap(-1, _MOMENT.size)


def request() -> None:
    """Note that the worker was told to stop; safe in a signal handler (it only stores a number)."""
    if not is_requested():
        _MOMENT.pack_into(_shared, 0, time.monotonic())


def withdraw() -> None:
    """Forget the request; for tests."""
    _MOMENT.pack_into(_shared, 0, 0.0)


def is_requested() -> bool:
    return bool(_requested_at())


def is_overdue() -> bool:
    """Whether the grace for work in hand is over."""
    return is_requested() and time.monotonic() - _requested_at() > GRACE_SECONDS


def is_last_call() -> bool:
    """Whether nothing more can be waited for."""
    return is_requested() and time.monotonic() - _requested_at() > LAST_CALL_SECONDS


def wait(seconds: float) -> bool:
    """Sleep, but no longer than until a stop is requested; True when it is."""
    until = time.monotonic() + seconds
    while not is_requested() and time.monotonic() < until:
        time.sleep(min(POLL_SECONDS, seconds))
    return is_requested()


def _requested_at() -> float:
    (moment,) = _MOMENT.unpack_from(_shared, 0)
    return float(moment)
