"""The command line of `make chaos`; see docs/chaos.md."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import django
from rich.console import Console
from rich.markup import escape

from bench.chaos.arena import Arena
from bench.chaos.door import Door
from bench.chaos.files import Mix
from bench.chaos.load import Load
from bench.chaos.report import Report, print_report, write_report
from bench.chaos.schedule import Rule, schedule
from bench.chaos.screen import Screen
from bench.chaos.soak import soak
from bench.chaos.target import InvalidTarget, Target, TargetArena, read_target
from bench.chaos.verdicts import by_the_api
from config.local.front import run_front
from config.local.places import LOCAL
from config.local.stack import LOGS, Stack, running_stack
from config.local.supervision import NotStarted

NAME = "chaos"
FAULTS_PER_MINUTE = 38.0
UPLOADS_PER_SECOND = 1.5
WIDTH = 120


def main() -> int:
    arguments = _parser().parse_args()
    seed = random.SystemRandom().randrange(2**31) if arguments.seed is None else arguments.seed
    if arguments.report and not arguments.report.absolute().parent.is_dir():
        sys.exit(f"There is no folder {arguments.report.parent} to write {arguments.report.name} in.")
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    only = {kind.strip() for kind in arguments.only.split(",") if kind.strip()}
    # Before anything is started: a run that fails at its start can be repeated too.
    console.print(f"SEED={seed}")
    run = Run(seed=seed, seconds=arguments.seconds, only=only, report=arguments.report, console=console)
    if arguments.target is None:
        return run_front(run.on_a_stack_of_its_own)
    try:
        target = read_target(arguments.target)
    except InvalidTarget as error:
        sys.exit(str(error))
    return run_front(lambda: run.on_a_target(target))


class Run:
    """One run, as it was asked for on the command line."""

    def __init__(
        self, *, seed: int, seconds: float, only: Collection[str], report: Path | None, console: Console
    ) -> None:
        self._seed = seed
        self._seconds = seconds
        self._only = only
        self._report = report
        self._console = console
        self._began = time.monotonic()

    def on_a_stack_of_its_own(self) -> int:
        """0 if all invariants hold; where one does not, or anything goes wrong, the data and the logs are kept."""
        with running_stack(NAME, keep_data=False, say=self._say) as stack:
            _use_settings(stack.environment)
            # Not above: Django's settings must be those of the stack first.
            from bench.chaos.faults import LocalArena

            try:
                door = Door(stack.web_url, stack.token)
                holds = self._all_holds(LocalArena(stack), door, pace={}, rows={})
            except Exception:
                # Whatever went wrong is raised again; the data must not be swept away with the stack first.
                self._keep(stack)
                raise
            if not holds:
                self._keep(stack)
        return 0 if holds else 1

    def on_a_target(self, target: Target) -> int:
        """0 if all invariants hold that can be asked."""
        door = Door(target.url, target.token)
        if target.database_url:
            _use_settings(target.settings_environment())
        arena = TargetArena(target, door)
        within = {"has_storage": target.has_storage, "has_broker": bool(target.broker_url)}
        rows = within if target.database_url else None
        return 0 if self._all_holds(arena, door, pace=target.pace, rows=rows) else 1

    def _all_holds(
        self, arena: Arena, door: Door, *, pace: Mapping[str, float], rows: Mapping[str, bool] | None
    ) -> bool:
        """`rows` says what can be reached besides the API; None when nothing can."""
        per_minute = pace.get("faults_per_minute", FAULTS_PER_MINUTE)
        per_second = pace.get("uploads_per_second", UPLOADS_PER_SECOND)
        faults = schedule(self._seed, seconds=self._seconds, rules=self._rules(arena), per_minute=per_minute)
        load = Load(door, order=Mix(self._seed, self._say).order, per_second=per_second)
        self._say(f"SEED={self._seed}: {len(faults)} faults in {self._seconds:.0f} s, files to {door.url}")
        evidence, may_stand = None, None
        if rows is not None:
            # Not above: Django's settings must be those of the stack or target first.
            from bench.chaos import invariants

            evidence, may_stand = invariants.Evidence(load.run, load.uploads, **rows), invariants.may_stand
        with Screen(self._console, seconds=self._seconds, counts=lambda: load.states) as screen:
            soaked = soak(arena, load, faults, seconds=self._seconds, screen=screen, may_stand=may_stand)
            screen.begin("Looking at every row, object and byte")
            report = Report(self._seed, self._seconds, soaked, by_the_api(soaked, door))
            if evidence is not None:
                report.verdicts += invariants.by_the_rows(evidence)
                report.figures = invariants.figures(evidence)
        timeline: Callable[[str], list[str]] = invariants.timeline if evidence is not None else lambda _: []
        print_report(report, console=self._console, timeline=timeline)
        if self._report:
            write_report(self._report, report)
            self._say(f"Wrote {self._report}")
        return report.all_hold

    def _rules(self, arena: Arena) -> Mapping[str, Rule]:
        if unknown := {*self._only} - {*arena.rules}:
            raise NotStarted(f"No fault is called {', '.join(sorted(unknown))}. Known: {', '.join(arena.rules)}.")
        return {name: rule for name, rule in arena.rules.items() if name in self._only} or arena.rules

    def _keep(self, stack: Stack) -> None:
        """The next stack begins with empty logs, so ours go to where the data is."""
        stack.is_evidence.set()
        folder = LOCAL / NAME
        shutil.copytree(LOGS, folder / "log", dirs_exist_ok=True)
        self._say(f"Kept the data and the logs in {folder}")
        if (outside := folder / "outside").exists():
            self._say(f"PostgreSQL's data is in {outside.read_text()}")

    def _say(self, line: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._began:5.1f} s[/]  {escape(line)}", highlight=False)


def _use_settings(environment: Mapping[str, str]) -> None:
    """Read rows and objects in this process under the settings of the stack, and keep its log lines off the screen."""
    os.environ.update({**environment, "LOG_LEVEL": "CRITICAL"})
    django.setup()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="for so long faults come (300)")
    parser.add_argument("--seed", type=int, help="repeats a run's faults and files")
    parser.add_argument("--only", default="", metavar="KINDS", help="only faults of these kinds, with commas between")
    parser.add_argument("--target", type=Path, help="a TOML file that describes a deployment to use instead")
    parser.add_argument("--report", type=Path, help="write the outcome to this JSON file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
