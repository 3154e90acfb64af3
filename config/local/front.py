"""What every command in front of a stack does first and last: its limits, its parent, its signals, its exit code."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable

from config.local.postgres import OtherVersion
from config.local.rabbitmq import RabbitMQUnavailable
from config.local.runs import AlreadyRunning, die_with_parent
from config.local.stopping import Stopped, stopped_by_signals
from config.local.supervision import NotStarted


def run_front(act: Callable[[], int]) -> int:
    """Runs `act` and returns its exit code; that of a shell after a signal, 1 after a problem, which is told."""
    _raise_open_files()
    if "MAKELEVEL" in os.environ:
        # A make that is killed must not leave us behind.
        die_with_parent()
    try:
        with stopped_by_signals():
            return act()
    except Stopped as stopped:
        return stopped.code
    except (AlreadyRunning, NotStarted, OtherVersion, RabbitMQUnavailable) as problem:
        say(str(problem))
        return 1


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    if soft == resource.RLIM_INFINITY or soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
