"""Named places where the crash tests make a process die, fail or wait; they do nothing unless settings name them.

`FAILPOINTS="after_store=kill"` (also `raise` and `sleep:SECONDS`; `name=kill@PATH` acts once, while the file PATH
exists, and removes it first, so that the restarted process goes on). A check refuses them outside the local stack.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from django.conf import settings

NAMES = ("after_staging", "after_commit", "after_publish", "after_confirm", "after_store", "after_result_commit")


class FailpointRaised(Exception):
    """Raised where a failpoint's action is `raise`."""


def hit(name: str) -> None:
    """Do what FAILPOINTS says about this place, if it says anything."""
    if not settings.FAILPOINTS or not settings.LOCAL_STACK:
        return
    for entry in settings.FAILPOINTS.split(","):
        place, _, action = entry.partition("=")
        action, _, once = action.partition("@")
        if place == name and _armed(once):
            _act(name, action)


def _armed(once: str) -> bool:
    if not once:
        return True
    try:
        Path(once).unlink()
    except FileNotFoundError:
        return False
    return True


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "raise":
        raise FailpointRaised(name)
    elif action.startswith("sleep:"):
        time.sleep(float(action.removeprefix("sleep:")))
    else:
        raise ValueError(f"Unknown failpoint action {action!r}; use kill, raise or sleep:SECONDS.")
