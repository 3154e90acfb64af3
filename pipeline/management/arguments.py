"""The options by which commands choose attachments, and what they read of a command line."""

from __future__ import annotations

import datetime
import uuid
from argparse import ArgumentTypeError
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from attachments.models import Attachment
from pipeline.selection import Selection

SLOWEST, FASTEST = 0.01, 1000.0


def add_selection(parser: CommandParser) -> None:
    chosen = parser.add_argument_group("which attachments (all of them unless given; every option narrows)")
    chosen.add_argument(
        "--attachment", action="append", type=uuid.UUID, default=[], metavar="ID", help="may be repeated"
    )
    chosen.add_argument("--owner", default="", metavar="USERNAME")
    chosen.add_argument("--content-type", default="", metavar="TYPE", help="such as image/png or image/*")
    chosen.add_argument("--accepted-after", type=moment, metavar="TIME", help="such as 2026-01-31T12:00")
    chosen.add_argument("--accepted-before", type=moment, metavar="TIME")


def selection(options: dict[str, Any]) -> Selection:
    """What the options choose; CommandError names an attachment or a user that does not exist."""
    ids, owner = options["attachment"], options["owner"]
    known = set(Attachment.objects.filter(id__in=ids).values_list("id", flat=True))
    if unknown := [str(one) for one in ids if one not in known]:
        raise CommandError(f"No such attachment: {', '.join(unknown)}.")
    if owner and not User.objects.filter(username=owner).exists():
        raise CommandError(f"No such user: {owner}.")
    return Selection(
        ids=tuple(ids),
        owner=owner,
        content_type=options["content_type"],
        accepted_after=options["accepted_after"],
        accepted_before=options["accepted_before"],
    )


def moment(text: str) -> datetime.datetime:
    """A date, or a date and time, in UTC unless it names another zone."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no time like 2026-01-31 or 2026-01-31T12:00") from error
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def rate(text: str) -> float:
    """So many a second; one in 100 s is slow enough, and any less would be a slip that holds work up for years."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not SLOWEST <= number <= FASTEST:
        raise ArgumentTypeError(f"{text!r} is no number from {SLOWEST} to {FASTEST:g}")
    return number
