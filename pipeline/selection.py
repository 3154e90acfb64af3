"""Which attachments an operator means: the filters that commands share, and the walk over what they choose.

A walk goes from the newest to the oldest by keyset, so it holds a page in memory and no transaction between pages;
what is accepted after it began is left out. One that was interrupted goes on with `accepted_before` where it was.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction
from django.db.models import F, QuerySet
from django.db.models.fields.tuple_lookups import TupleLessThan

from attachments.models import Attachment


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Every filter that is given narrows it; without any it is everything, deleted attachments included.

    `owner` is a user name; `content_type` is a whole type or, ending in `/*`, a family.
    """

    ids: tuple[uuid.UUID, ...] = ()
    owner: str = ""
    content_type: str = ""
    accepted_after: datetime.datetime | None = None
    accepted_before: datetime.datetime | None = None

    def attachments(self) -> QuerySet[Attachment]:
        given: dict[str, Any] = {
            "owner__username": self.owner,
            "created_at__gte": self.accepted_after,
            "created_at__lt": self.accepted_before,
        }
        if self.ids:
            given["id__in"] = self.ids
        if self.content_type.endswith("/*"):
            given["content_type__startswith"] = self.content_type.removesuffix("*")
        else:
            given["content_type"] = self.content_type
        return Attachment.objects.filter(**{lookup: value for lookup, value in given.items() if value})


def newest_first(attachments: QuerySet[Attachment], *, size: int) -> Iterator[list[Attachment]]:
    """The attachments in pages of at most `size`; read afresh for each page."""
    ordered = attachments.order_by("-created_at", "-id")
    rest = ordered
    while True:
        with unhurried():
            page = list(rest[:size])
        if page:
            yield page
        if len(page) < size:
            return
        rest = ordered.filter(TupleLessThan((F("created_at"), F("id")), (page[-1].created_at, page[-1].id)))


@contextmanager
def unhurried() -> Iterator[None]:
    """The server's limit on a statement is meant for requests; counting millions of rows may take longer."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = 0")
        yield
