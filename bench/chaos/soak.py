"""One run: faults while files are sent, then quiet until the work has ended, and the replay of what was lost."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from bench.chaos.arena import Arena, NotNow
from bench.chaos.load import Load, Upload
from bench.chaos.schedule import Fault
from bench.chaos.screen import Screen
from pipeline.failures import WORKER_LOST

#: A fault waits so long for something to be done to: its victim may be starting again.
VICTIM_SECONDS = 3.0
#: All processes must be back so soon after the last fault; supervisors pause longer before each further start.
WHOLE_SECONDS = 90.0
#: A lease, 60 s, and the look of `redispatch` that notices: nothing may stand still for longer after the last fault.
STILL_SECONDS = 15.0 + 60.0 + 15.0
LOOK_SECONDS = 1.0
MayStand = Callable[[list[Upload]], float]
REASON = "make chaos: its workers were killed"


@dataclass
class Injections:
    """What was done, by kind; what could not be, for want of a victim; and what lasts, until when (monotonic)."""

    done: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    lasting: list[tuple[float, Callable[[], object]]] = field(default_factory=list)


@dataclass(frozen=True)
class Soaked:
    """What a run leaves to be judged: `missing` names what did not come back, `stuck` is what stands still.

    `quiet_seconds` is how long the work went on after the last fault.
    """

    uploads: list[Upload]
    answers: Counter[str]
    injections: Injections
    missing: list[str]
    stuck: list[Upload]
    quiet_seconds: float = 0.0


def soak(
    arena: Arena,
    load: Load,
    faults: Sequence[Fault],
    *,
    seconds: float,
    screen: Screen,
    may_stand: MayStand | None = None,
) -> Soaked:
    """Runs `faults` under `load` for `seconds`, lets the work end, and has what was lost with its workers replayed.

    `may_stand` tells for how many seconds the given uploads may stand still when all else is quiet: STILL_SECONDS,
    where the rows cannot be asked.
    """
    injections = Injections()
    load.start()
    try:
        _inject_all(arena, faults, injections, seconds=seconds, screen=screen)
    finally:
        _undo(injections, until=float("inf"))
    screen.begin("The faults are over; waiting for the work to end")
    began = time.monotonic()
    load.stop()
    missing = _until_whole(arena)
    stuck = _until_ended(load, may_stand, screen=screen)
    quiet_seconds = round(time.monotonic() - began, 1)
    if not stuck:
        stuck = replay_lost(load, may_stand, screen=screen)
    return Soaked(load.uploads, load.door.answers, injections, missing, stuck, quiet_seconds)


def replay_lost(load: Load, may_stand: MayStand | None, *, screen: Screen) -> list[Upload]:
    """Have everything replayed that failed because its workers died; what then stands still is the answer."""
    lost = [upload for upload in load.accepted if upload.error_code == WORKER_LOST.code and not upload.is_deleted]
    if not lost:
        return []
    screen.begin(f"Replaying {len(lost)} that failed because their workers were killed")
    replay = partial(load.door.replay, reason=REASON, until=time.monotonic() + STILL_SECONDS)
    for upload in lost:
        assert upload.id is not None
        answer = replay(upload.id)
        # nothing_failed when the first 202 got lost.
        upload.was_replayed = answer is not None and (answer.status == 202 or answer.code == "nothing_failed")
        if not upload.was_replayed:
            told = f"{answer.status} {answer.code}" if answer else "no answer"
            upload.complaints.append(f"its replay was answered {told}")
            continue
        upload.state, upload.error_code, upload.changed = "queued", None, time.monotonic()
    return _until_ended(load, may_stand, screen=screen)


def _inject_all(
    arena: Arena, faults: Sequence[Fault], injections: Injections, *, seconds: float, screen: Screen
) -> None:
    """Do each fault at its time, undo what lasts, and return when the time is over and everything is undone."""
    began = time.monotonic()
    waiting = list(faults)
    while (now := time.monotonic() - began) < seconds or injections.lasting or waiting:
        _undo(injections, until=time.monotonic())
        if waiting and waiting[0].at <= now:
            _inject(arena, waiting.pop(0), injections, screen=screen)
        screen.tick(injections.done)
        time.sleep(0.05)


def _inject(arena: Arena, fault: Fault, injections: Injections, *, screen: Screen) -> None:
    """Do a fault, or one that takes its place where there is nothing to do it to."""
    until = time.monotonic() + VICTIM_SECONDS
    kinds = itertools.cycle([fault, *(replace(fault, kind=kind, seconds=0.0) for kind in fault.otherwise)])
    for tried in kinds:
        try:
            injected = arena.inject(tried)
            break
        except NotNow as reason:
            if time.monotonic() > until:
                injections.missed[fault.kind] += 1
                screen.fault(fault, f"not done: {reason}")
                return
        time.sleep(0.1)
    injections.done[tried.kind] += 1
    if injected.undo is not None:
        injections.lasting.append((time.monotonic() + tried.seconds, injected.undo))
    screen.fault(tried, injected.what)


def _undo(injections: Injections, *, until: float) -> None:
    """Undo what lasts until then; what has died meanwhile needs no undoing."""
    for ending in [one for one in injections.lasting if one[0] <= until]:
        injections.lasting.remove(ending)
        with contextlib.suppress(NotNow):
            ending[1]()


def _until_whole(arena: Arena) -> list[str]:
    until = time.monotonic() + WHOLE_SECONDS
    while missing := arena.missing():
        if time.monotonic() > until:
            return missing
        time.sleep(LOOK_SECONDS)
    return []


def _until_ended(load: Load, may_stand: MayStand | None, *, screen: Screen) -> list[Upload]:
    """Wait until every upload has ended; those that have not when nothing moves any more are the answer."""
    quiet_since = time.monotonic()
    while waiting := [upload for upload in load.accepted if upload.is_open]:
        load.ask(waiting, until=time.monotonic() + LOOK_SECONDS)
        screen.tick(Counter())
        moved = max(quiet_since, *(upload.changed for upload in load.accepted))
        still = time.monotonic() - moved - max(_pause_left(upload) for upload in waiting)
        if still > STILL_SECONDS and (may_stand is None or still > may_stand(waiting)):
            return [upload for upload in waiting if upload.is_open]
        time.sleep(LOOK_SECONDS)
    return []


def _pause_left(upload: Upload) -> float:
    """For how long it is put off, after a failure."""
    if upload.retry_at is None:
        return 0.0
    return max(0.0, (datetime.fromisoformat(upload.retry_at) - datetime.now(UTC)).total_seconds())
