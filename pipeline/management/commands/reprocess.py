"""`manage.py reprocess`: make anew, by a newer version, what an older one made; see docs/adding-a-pipeline.md."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from attachments.outages import is_database_away
from pipeline import registry, reprocessing
from pipeline.management import arguments
from pipeline.management.progress import Progress
from pipeline.registry import Pipeline, UnknownPipeline
from pipeline.reprocessing import NothingNewer, Outcome, Plan, Reprocessing
from pipeline.states import State

NOT_FINISHED, INTERRUPTED = 3, 130


class Command(BaseCommand):
    help = (
        "Begins a job of a newer pipeline version for every matching attachment that an older version serves."
        " What is served stays until the new version is complete. Run it again to go on where it stopped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--pipeline", required=True, metavar="NAME")
        parser.add_argument(
            "--to-version", type=arguments.at_least_one, metavar="V", help="the newest unless given"
        )  # fmt: skip
        parser.add_argument(
            "--from-version", type=arguments.at_least_one, metavar="V", help="only what this version serves"
        )
        arguments.add_selection(parser)
        parser.add_argument("--dry-run", action="store_true", help="count, and begin nothing")
        parser.add_argument("--yes", action="store_true", help="do not ask before beginning")
        parser.add_argument("--limit", type=arguments.at_least_one, metavar="N", help="begin at most N jobs")
        parser.add_argument(
            "--rate", type=arguments.rate, default=5.0, metavar="N", help="jobs begun a second (5)"
        )  # fmt: skip
        parser.add_argument(
            "--max-waiting",
            type=arguments.at_least_one,
            default=20,
            metavar="N",
            help="hold back while more jobs than this wait in the queue, new uploads included (20)",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        work = Reprocessing(
            pipeline=_target(options["pipeline"], options["to_version"]),
            selection=arguments.selection(options),
            from_version=options["from_version"],
        )
        plan = work.plan()
        total = min(plan.total, options["limit"] or plan.total)
        self._show(work.pipeline, plan, total=total, rate=options["rate"])
        if options["dry_run"] or not total:
            return
        if not options["yes"]:
            _ask(total)
        self._run(
            work.run(per_second=options["rate"], max_waiting=options["max_waiting"]), total
        )  # fmt: skip

    def _show(self, pipeline: Pipeline, plan: Plan, *, total: int, rate: float) -> None:
        name, left_alone = f"{pipeline.name} v{pipeline.version}", sum(plan.begun.values())
        for version, count in plan.matching.items():
            self.stdout.write(f"{count:>10,}  served by v{version}, to be made anew by {name}")
        for state, count in plan.begun.items():
            hint = " (replay these)" if state == State.FAILED else ""
            self.stdout.write(f"{count:>10,}  left alone: have a {state} job of v{pipeline.version}{hint}")
        if plan.gone:
            self.stdout.write(f"{plan.gone:>10,}  left alone: their original is no longer kept")
        if not total:
            self.stdout.write(f"Nothing to do: {'all is begun' if left_alone else 'nothing matches'}.")
        else:
            least = timedelta(seconds=round(total / rate))
            self.stdout.write(f"To begin: {total:,}, in {least} at the soonest ({rate:g} a second).")

    def _run(self, steps: Iterable[Outcome], total: int) -> None:
        counts: Counter[Outcome] = Counter()
        try:
            self._follow(steps, counts, total)
        except KeyboardInterrupt as error:
            self._stop(counts, "Interrupted.", INTERRUPTED, error)
        except Error as error:
            if not is_database_away(error):
                raise
            self._stop(counts, f"The database is away: {type(error).__name__}.", NOT_FINISHED, error)
        self._summarise(counts)

    def _follow(self, steps: Iterable[Outcome], counts: Counter[Outcome], total: int) -> None:
        with Progress("jobs begun", total=total) as progress:
            for outcome in steps:
                counts[outcome] += 1
                if outcome is Outcome.HELD_BACK:
                    progress.advance(0, note="the queue is long")
                    continue
                progress.advance()
                if counts[Outcome.BEGUN] >= total:
                    return

    def _stop(self, counts: Counter[Outcome], why: str, returncode: int, error: BaseException) -> None:
        self._summarise(counts)
        raise CommandError(f"{why} Run the same command again to go on.", returncode=returncode) from error

    def _summarise(self, counts: Counter[Outcome]) -> None:
        skipped = counts[Outcome.ALREADY_THERE] + counts[Outcome.GONE]
        also = f" {skipped:,} were begun by others, or deleted, meanwhile." if skipped else ""
        self.stdout.write(f"Jobs begun: {counts[Outcome.BEGUN]:,}.{also}")


def _target(name: str, version: int | None) -> Pipeline:
    try:
        return reprocessing.target(name, version)
    except UnknownPipeline as error:
        known = ", ".join(f"{one.name} v{one.version}" for one in registry.PIPELINES)
        raise CommandError(f"This release has no {error}; it has {known}.") from error
    except NothingNewer as error:
        raise CommandError(f"{error} is the oldest version: nothing can be made anew by it.") from error


def _ask(total: int) -> None:
    if not sys.stdin.isatty():
        raise CommandError("Nobody is there to ask: say --yes, or --dry-run to count only.")
    if input(f"Begin {total:,} jobs? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise CommandError("Nothing was begun.")
