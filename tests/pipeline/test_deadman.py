"""The switch ends the process that it guards when nothing puts it off any more, and never before."""

from __future__ import annotations

import signal
import subprocess
import sys

#: Lasts twice as long as the switch bears silence, in code that lets other threads run.
PROGRAM = """
import sys, time
from pipeline import deadman

(work,), until = sys.argv[1:], time.monotonic() + 2.0
deadman.SILENCE_SECONDS, deadman.PUT_OFF_EVERY_SECONDS = 1.0, 0.05
deadman.enable()
with deadman.guarding(lambda: work == "told to stop"):
    while work != "done" and time.monotonic() < until:
        time.sleep(0.05)
while time.monotonic() < until:
    time.sleep(0.05)
"""


def test_only_work_that_was_told_to_stop_and_goes_on_ends_its_process() -> None:
    """Neither work that takes long, nor a process that idles after it, may be taken for it."""
    working = {
        work: subprocess.Popen([sys.executable, "-c", PROGRAM, work]) for work in ("going on", "told to stop", "done")
    }
    assert {work: process.wait(timeout=60) for work, process in working.items()} == {
        "going on": 0,
        "told to stop": -signal.SIGALRM,
        "done": 0,
    }
