"""`manage.py search_index`: let the search know what was transcribed, or nothing; see docs/operations.md."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from attachments.errors import StorageUnavailable
from attachments.outages import is_database_away
from pipeline import indexing
from pipeline.indexing import Indexing, Outcome
from pipeline.management import arguments
from pipeline.management.progress import Progress
from pipeline.selection import Selection

SOMETHING_IS_WRONG, NOT_FINISHED, INTERRUPTED = 1, 3, 130


class Command(BaseCommand):
    help = (
        "With SEARCH_TRANSCRIPTS on, indexes every served transcript that the search does not know yet, from the"
        " storage; with it off, drops all words of transcripts from the database. Run it again to go on where it"
        " stopped. Exit code: 0 all is done; 1 some transcripts could not be read; 3 the storage or the database is"
        " away."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        arguments.add_selection(parser)
        parser.add_argument("--dry-run", action="store_true", help="count, and change nothing")
        parser.add_argument("--yes", action="store_true", help="do not ask before dropping")

    def handle(self, *_args: Any, **options: Any) -> None:
        act = self._index if settings.SEARCH_TRANSCRIPTS else self._drop
        act(arguments.selection(options), options)

    def _index(self, selection: Selection, options: dict[str, Any]) -> None:
        work = Indexing(selection=selection)
        total = work.count()
        self.stdout.write(f"Transcripts that the search does not know yet: {total:,}.")
        if options["dry_run"] or not total:
            return
        counts: Counter[Outcome] = Counter()

        def follow() -> None:
            with Progress("transcripts read", total=total) as progress:
                for outcome in work.run():
                    counts[outcome] += 1
                    progress.advance()

        self._carefully(follow, lambda: self.stdout.write(_summary(counts)))
        if unreadable := counts[Outcome.UNREADABLE]:
            raise CommandError(
                f"Could not be read: {unreadable:,}. `manage.py verify` says which, and mends what can be mended.",
                returncode=SOMETHING_IS_WRONG,
            )

    def _drop(self, selection: Selection, options: dict[str, Any]) -> None:
        total = indexing.indexed(selection).count()
        self.stdout.write(f"SEARCH_TRANSCRIPTS is off. Transcripts with words in the database: {total:,}.")
        if options["dry_run"] or not total:
            return
        if not options["yes"]:
            _ask(total)
        dropped = 0

        def follow() -> None:
            nonlocal dropped
            with Progress("transcripts dropped", total=total) as progress:
                for count in indexing.drop(selection):
                    dropped += count
                    progress.advance(count)

        self._carefully(follow, lambda: self.stdout.write(f"Dropped: {dropped:,}."))

    def _carefully(self, follow: Callable[[], None], summarise: Callable[[], None]) -> None:
        """Whatever ends it, say how far it came."""
        try:
            follow()
        except KeyboardInterrupt as error:
            summarise()
            raise _stopped("Interrupted.", INTERRUPTED) from error
        except StorageUnavailable as error:
            summarise()
            raise _stopped(f"The storage is away: {error}", NOT_FINISHED) from error
        except Error as error:
            if not is_database_away(error):
                raise
            summarise()
            raise _stopped(f"The database is away: {type(error).__name__}.", NOT_FINISHED) from error
        summarise()


def _summary(counts: Counter[Outcome]) -> str:
    gone = counts[Outcome.GONE]
    also = f" {gone:,} were replaced or deleted meanwhile." if gone else ""
    return f"Indexed: {counts[Outcome.INDEXED]:,}.{also}"


def _stopped(why: str, returncode: int) -> CommandError:
    return CommandError(f"{why} Run the same command again to go on.", returncode=returncode)


def _ask(total: int) -> None:
    if not sys.stdin.isatty():
        raise CommandError("Nobody is there to ask: say --yes, or --dry-run to count only.")
    if input(f"Drop the words of {total:,} transcripts? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise CommandError("Nothing was dropped.")
