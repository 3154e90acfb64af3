"""`manage.py dead_letters`: what lies in the dead-letter queue; see docs/operations.md."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from pipeline import dead_letters
from pipeline.broker import BrokerUnavailable
from pipeline.dead_letters import Letter
from pipeline.management import arguments

HEADINGS = ("LETTER", "JOB", "THE JOB IS", "CAME FROM", "WHY", "AGE", "START OF A BODY THAT IS NOT OURS")
NOBODY = "–"


class Command(BaseCommand):
    help = (
        "Shows or drops dead letters: messages that no release writes, or that were delivered too often."
        " They hold no work; the job of one that is ours is sent again by itself."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="show | drop")
        show = actions.add_parser("show", help="list them, oldest first; they stay where they are")
        show.add_argument(
            "--limit", type=arguments.at_least_one, default=100, metavar="N", help="look at N letters at most (100)"
        )
        drop = actions.add_parser("drop", help="delete them")
        drop.add_argument("ids", nargs="*", metavar="LETTER", help="as `show` names it")
        drop.add_argument("--all", action="store_true", help="every letter that is there")
        drop.add_argument("--yes", action="store_true", help="do not ask before dropping")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            if options["action"] == "show":
                self._show(options["limit"])
            else:
                self._drop(set(options["ids"]), is_all=options["all"], is_sure=options["yes"])
        except BrokerUnavailable as error:
            raise CommandError(f"The broker is away: {error}.", returncode=3) from error

    def _show(self, limit: int) -> None:
        letters, behind = dead_letters.read(limit=limit)
        states = dead_letters.states_of(letters)
        if letters:
            self.stdout.write(_table([HEADINGS, *(_row(letter, states) for letter in letters)]))
        more = f" There are {behind:,} more behind them." if behind else ""
        self.stdout.write(f"{_count(len(letters))}.{more}")
        if letters:
            self.stdout.write("`drop LETTER` deletes one and `drop --all` all of them, which loses no work.")

    def _drop(self, ids: set[str], *, is_all: bool, is_sure: bool) -> None:
        if bool(ids) == is_all:
            raise CommandError("Name the letters, or say --all.")
        if not is_sure and not _confirmed(_count(len(ids)) if ids else "every dead letter"):
            raise CommandError("Nothing was dropped.")
        dropped = dead_letters.drop(None if is_all else ids)
        self.stdout.write(f"Dropped {_count(len(dropped))}.")
        if absent := sorted(ids - set(dropped)):
            raise CommandError(f"Not there: {', '.join(absent)}.")


def _row(letter: Letter, states: Mapping[uuid.UUID, str]) -> tuple[str, ...]:
    return (
        letter.id,
        str(letter.job_id or NOBODY),
        states.get(letter.job_id, "not there") if letter.job_id else NOBODY,
        letter.queue,
        letter.reason,
        _age(letter.died_at),
        letter.preview,
    )


def _age(since: datetime.datetime | None) -> str:
    if since is None:
        return NOBODY
    age = datetime.datetime.now(datetime.UTC) - since
    return str(datetime.timedelta(seconds=max(0, round(age.total_seconds()))))


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _count(letters: int) -> str:
    return f"{letters:,} dead letter{'' if letters == 1 else 's'}"


def _confirmed(what: str) -> bool:
    try:
        return input(f"Drop {what}? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        raise CommandError("Nobody is there to ask; say --yes.") from None
