"""`manage.py replay`: put failed jobs back to work, by id or by filter, with a reason that is kept."""

from __future__ import annotations

import argparse
import datetime
import getpass
import os
import uuid
from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter
from django.db import Error
from django.db.models import QuerySet

from attachments.names import printable
from attachments.outages import is_database_away
from pipeline import replays
from pipeline.management import arguments
from pipeline.management.progress import Progress
from pipeline.models import Job
from pipeline.replays import Act, Fate, Look, UnusableReason
from pipeline.selection import unhurried

#: Exit codes of its own; `--help` explains them.
NOT_FINISHED, SOME_LEFT, INTERRUPTED = 3, 4, 130
AGAIN = "Run the same command again to go on."

EXIT_CODES = """exit codes:
  0    whatever was chosen and can be worked on is queued again
  1    refused: no usable reason, nothing chosen, or not confirmed (2: no such option or value)
  3    more match than --limit, or the database went away: run the same command again
  4    some of the jobs named were not replayed: they have not failed, or have no original any more
  130  interrupted: what the summary counts is done; run the same command again
"""


class Command(BaseCommand):
    help = "Puts failed jobs back to work: a new attempt with all its chances, the same job id, a line in the audit."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        kept_lines = type("Help", (DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter), {})
        return super().create_parser(prog_name, subcommand, epilog=EXIT_CODES, formatter_class=kept_lines, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job_ids", nargs="*", type=uuid.UUID, metavar="JOB_ID")
        chosen = parser.add_argument_group("or all failed jobs that match (each option narrows)")
        chosen.add_argument("--error-code", metavar="CODE")
        chosen.add_argument("--error-step", metavar="STEP", help="such as image; '' for a failure outside of the steps")
        chosen.add_argument("--pipeline", metavar="NAME")
        chosen.add_argument("--pipeline-version", type=arguments.at_least_one, metavar="V")
        chosen.add_argument("--failed-after", type=arguments.moment, metavar="TIME", help="such as 2026-01-31T12:00")
        chosen.add_argument("--failed-before", type=arguments.moment, metavar="TIME")
        chosen.add_argument("--owner", metavar="USERNAME")
        parser.add_argument("--reason", default="", help="why, for those who read the history later (required)")
        parser.add_argument("--by", default="", metavar="NAME", help="who asks, where your login name does not tell")
        parser.add_argument("--dry-run", action="store_true", help="count by error code and step, and replay nothing")
        parser.add_argument("--yes", action="store_true", help="do not ask before replaying")
        parser.add_argument(
            "--limit", type=arguments.at_least_one, default=replays.LIMIT, metavar="N", help="N jobs at most (1000)"
        )
        parser.add_argument(
            "--rate",
            type=arguments.rate,
            default=replays.PER_SECOND,
            metavar="N",
            help="how many fall due in a second (10), so that new uploads find their turn between them",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        jobs, chosen_by = _choose(options)
        reason = "" if options["dry_run"] else _reason(options["reason"])
        with unhurried():
            found = replays.look(jobs, limit=options["limit"])
        named = len(set(options["job_ids"]))
        self._show(found, named=named)
        if options["dry_run"]:
            return
        if found.seen and not options["yes"]:
            self._confirm(found)
        by = printable(options["by"]) or _login()
        act = Act(
            actor=f"command:{by}"[: replays.ACTOR_LIMIT],
            via="command",
            reason=reason,
            chosen_by=chosen_by,
            matching=found.matching,
        )
        fates = self._carry_out(act, found, rate=options["rate"])
        if fates[Fate.REPLAYED] < named:
            raise CommandError(
                "Not all of the jobs named were replayed. The lines above say why; their pages in the admin tell more.",
                returncode=SOME_LEFT,
            )
        if found.left:
            raise CommandError(f"More match: {found.left:,}. {AGAIN}", returncode=NOT_FINISHED)

    def _show(self, found: Look, *, named: int) -> None:
        for group in found.groups:
            gone = f", {group.jobs - group.kept} without an original" if group.kept < group.jobs else ""
            span = f"{group.oldest:%F %T} to {group.newest:%F %T}"
            self.stdout.write(f"{group.jobs:>8}  {group.error_code:<20} {group.error_step or '-':<16} {span}{gone}")
        self.stdout.write(f"{found.matching:>8}  failed jobs in all; {len(found.seen)} of them would be replayed")
        if found.matching < named:
            self.stdout.write(f"{named - found.matching:>8}  of the jobs named are unknown, or have not failed")

    def _confirm(self, found: Look) -> None:
        try:
            answer = input(f"Replay {len(found.seen):,} jobs? [y/N] ")
        except EOFError:
            raise CommandError("Nobody is there to ask: say --yes, or --dry-run to count only.") from None
        if answer.strip().lower() not in {"y", "yes"}:
            raise CommandError("Nothing was replayed.")

    def _carry_out(self, act: Act, found: Look, *, rate: float) -> Counter[Fate]:
        """Replay them; whatever ends it early, say first what was done."""
        fates: Counter[Fate] = Counter()
        try:
            with Progress("jobs", total=len(found.seen)) as progress:
                for fate in act.replay_all(found.seen, per_second=rate):
                    fates[fate] += 1
                    progress.advance()
        except KeyboardInterrupt as error:
            raise CommandError(f"Interrupted. {AGAIN}", returncode=INTERRUPTED) from error
        except Error as error:
            if not is_database_away(error):
                raise
            why = f"The database is away: {type(error).__name__}."
            raise CommandError(f"{why} {AGAIN}", returncode=NOT_FINISHED) from error
        finally:
            self._summarise(act, found, fates)
        return fates

    def _summarise(self, act: Act, found: Look, fates: Counter[Fate]) -> None:
        counts = [f"{fates[Fate.REPLAYED]} replayed"]
        counts += [f"{fates[fate]} {fate}" for fate in (Fate.NOT_FAILED, Fate.GONE) if fates[fate]]
        counts += [f"{found.gone} without an original"] if found.gone else []
        audit = f" (audit: replay {act.row.pk})" if act.row else ""
        self.stdout.write(", ".join(counts) + audit)


def _choose(options: dict[str, Any]) -> tuple[QuerySet[Job], dict[str, Any]]:
    """The jobs that the arguments mean, and how the audit tells of it: either ids, or at least one filter."""
    wanted = {name: options[name] for name in replays.FILTERS if options[name] is not None}
    if bool(options["job_ids"]) == bool(wanted):
        raise CommandError("Name either jobs, or what they have in common, such as --error-code.")
    if wanted:
        told = {
            name: value.isoformat() if isinstance(value, datetime.datetime) else value for name, value in wanted.items()
        }
        return replays.failures(**wanted), told
    named = list(dict.fromkeys(options["job_ids"]))
    return Job.objects.filter(job_id__in=named), {"jobs": [str(job_id) for job_id in named]}


def _reason(text: str) -> str:
    try:
        return replays.checked_reason(text)
    except UnusableReason as error:
        raise CommandError(f"--reason: {error}") from error


def _login() -> str:
    """Who runs this; a user of a container may have a number only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
