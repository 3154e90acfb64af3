"""`manage.py verify`: compare rows and objects both ways; see docs/verify.md."""

from __future__ import annotations

import argparse
import datetime
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from attachments.errors import StorageUnavailable
from attachments.models import StoredObject
from attachments.outages import is_database_away
from pipeline import verification
from pipeline.management import arguments
from pipeline.management.progress import Progress
from pipeline.selection import Selection, unhurried
from pipeline.verification import Finding, Kind, Step

SOMETHING_IS_WRONG, NOT_FINISHED, INTERRUPTED = 1, 3, 130
RESTORE = "restore the object under its key, from a copy of the storage"
ASK_THE_STORAGE = "the storage answers, but not for this one: its own log says why"
AGAIN = "--repair makes it again from the original"
REMEDIES: dict[Kind, str] = {
    Kind.ORIGINAL_MISSING: RESTORE,
    Kind.ORIGINAL_DAMAGED: RESTORE,
    Kind.ORIGINAL_UNREADABLE: ASK_THE_STORAGE,
    Kind.VARIANT_MISSING: AGAIN,
    Kind.VARIANT_DAMAGED: AGAIN,
    Kind.VARIANT_UNREADABLE: f"{AGAIN}; {ASK_THE_STORAGE}",
    Kind.VARIANT_UNRECORDED: AGAIN,
    Kind.TRASH_IN_USE: f"{AGAIN}, if it is a variant; its bytes are kept",
    Kind.SERVED_NOT_READY: "replay the failed job",
    Kind.MESSAGE_MISSING: "--repair writes it again",
    Kind.UNKNOWN_OBJECT: "the sweep removes it; if it comes again, find out who writes to the bucket",
}


@dataclass(kw_only=True)
class Tally:
    """What was seen so far."""

    taken: Counter[str] = field(default_factory=Counter)
    found: Counter[Kind] = field(default_factory=Counter)
    repaired: Counter[Kind] = field(default_factory=Counter)
    reached: datetime.datetime | None = None

    def add(self, step: Step, *, unit: str) -> None:
        self.taken += Counter({unit: step.taken, "objects": step.objects, "young": step.young})
        self.reached = step.reached or self.reached
        self.found.update(finding.kind for finding in step.findings)
        self.repaired.update(finding.kind for finding in step.findings if finding.is_repaired)

    @property
    def left(self) -> int:
        return self.found.total() - self.repaired.total()


class LimitReached(Exception):
    """As many findings as were asked for."""


class Command(BaseCommand):
    help = (
        "Compares the rows with the objects of the storage, both ways, while everything runs."
        " Exit code: 0 nothing is wrong, or all was repaired; 1 something is wrong;"
        " 3 it could not be finished, because the storage or the database is away."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--digests",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="read every byte and compare its SHA-256; --no-digests looks at presence and size alone",
        )
        parser.add_argument(
            "--repair", action="store_true", help="make damaged variants again, and write lost messages again"
        )
        parser.add_argument("--limit", type=arguments.at_least_one, metavar="N", help="stop after N findings")
        arguments.add_selection(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        tally = Tally()
        try:
            self._walk(arguments.selection(options), tally, options)
        except LimitReached:
            self._report(tally)
            raise CommandError("Stopped at the limit; there may be more.", returncode=SOMETHING_IS_WRONG) from None
        except StorageUnavailable as error:
            self._stop(tally, f"The storage is away: {error}", NOT_FINISHED, error)
        except Error as error:
            if not is_database_away(error):
                raise
            self._stop(tally, f"The database is away: {type(error).__name__}.", NOT_FINISHED, error)
        except KeyboardInterrupt as error:
            self._stop(tally, "Interrupted.", INTERRUPTED, error)
        self._report(tally)
        if tally.left:
            raise CommandError(f"Wrong, and not repaired: {tally.left:,}.", returncode=SOMETHING_IS_WRONG)

    def _walk(self, selection: Selection, tally: Tally, options: dict[str, Any]) -> None:
        with unhurried():
            total = selection.attachments().count()
            rows = StoredObject.objects.count()
        walk = verification.attachments(selection, digests=options["digests"], repair=options["repair"])
        self._follow(walk, tally, unit="attachments", total=total, limit=options["limit"])
        if selection == Selection(ids=selection.ids):
            # What has no row has no owner, type or time of acceptance either.
            listed = verification.unknown_objects(selection.ids)
            self._follow(
                listed, tally, unit="listed", total=None if selection.ids else rows, limit=options["limit"]
            )  # fmt: skip

    def _follow(self, walk: Iterable[Step], tally: Tally, *, unit: str, total: int | None, limit: int | None) -> None:
        with Progress(unit, total=total) as progress:
            for step in walk:
                tally.add(step, unit=unit)
                progress.advance(step.taken)
                if step.findings:
                    with progress.aside():
                        self.stdout.write("\n".join(_line(finding) for finding in step.findings))
                if limit and tally.found.total() >= limit:
                    raise LimitReached

    def _stop(self, tally: Tally, why: str, returncode: int, error: BaseException) -> None:
        self._report(tally)
        go_on = f" Go on with --accepted-before {tally.reached.isoformat()}" if tally.reached else ""
        raise CommandError(f"{why}{go_on}", returncode=returncode) from error

    def _report(self, tally: Tally) -> None:
        seen = tally.taken
        self.stdout.write(
            f"Looked at {seen['objects']:,} objects of {seen['attachments']:,} attachments,"
            f" and for the rows of {seen['listed']:,} objects in the storage."
        )
        if seen["young"]:
            self.stdout.write(f"Without a row, but too young to be suspicious: {seen['young']:,}.")
        if tally.found:
            self.stdout.write(f"\n{'kind':<20} {'found':>8} {'repaired':>8}  what helps")
        for kind, count in sorted(tally.found.items()):
            self.stdout.write(f"{kind:<20} {count:>8,} {tally.repaired[kind]:>8,}  {REMEDIES[kind]}")


def _line(finding: Finding) -> str:
    words = [f"{finding.kind:<20} {finding.about}"]
    if finding.attachment_id:
        words.append(f"attachment {finding.attachment_id}")
    if finding.job_id:
        words.append(f"job {finding.job_id}")
    if finding.outcome:
        words.append(finding.outcome)
    return ", ".join(words)
