"""Which attachments a command's filters choose, and that a walk over them misses none."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now

from attachments.models import Attachment
from pipeline.models import Job
from pipeline.selection import Selection, newest_first
from tests.pictures import jpeg, png

pytestmark = pytest.mark.django_db


def test_a_walk_meets_each_attachment_once_though_many_were_accepted_in_the_same_moment(
    queued: Callable[..., Job],
) -> None:
    for _ in range(5):
        queued()
    together = list(Attachment.objects.values_list("id", flat=True)[:3])
    Attachment.objects.filter(id__in=together).update(created_at=Now())
    pages = list(newest_first(Attachment.objects.all(), size=2))
    assert [len(page) for page in pages] == [2, 2, 1]
    met = [one for page in pages for one in page]
    assert {one.id for one in met} == set(Attachment.objects.values_list("id", flat=True))
    assert [one.created_at for one in met] == sorted((one.created_at for one in met), reverse=True)


def test_each_filter_narrows(queued: Callable[..., Job]) -> None:
    photo, drawing = queued(jpeg()).attachment, queued(png()).attachment
    other = queued(png()).attachment
    Attachment.objects.filter(id=other.id).update(owner=User.objects.create_user("bob"))
    year = datetime.datetime(2020, 6, 1, tzinfo=datetime.UTC)
    Attachment.objects.filter(id=drawing.id).update(created_at=year)
    a_day = datetime.timedelta(days=1)
    chosen_by: list[tuple[dict[str, Any], set[Attachment]]] = [
        ({}, {photo, drawing, other}),
        ({"ids": (photo.id, other.id)}, {photo, other}),
        ({"owner": "bob"}, {other}),
        ({"content_type": "image/png"}, {drawing, other}),
        ({"content_type": "image/*"}, {photo, drawing, other}),
        ({"content_type": "video/*"}, set()),
        ({"accepted_after": year + a_day}, {photo, other}),
        ({"accepted_before": year + a_day}, {drawing}),
        ({"accepted_after": year, "accepted_before": year}, set()),
        ({"owner": "ann", "content_type": "image/jpeg"}, {photo}),
    ]
    for filters, chosen in chosen_by:
        assert set(Selection(**filters).attachments()) == chosen, filters
