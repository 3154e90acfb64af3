"""What the API alone can tell: each question finds what it is there for."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token

from attachments.models import StoredObject
from bench.chaos import verdicts
from bench.chaos.door import Door
from bench.chaos.invariants import Evidence
from bench.chaos.load import Upload
from bench.chaos.soak import Injections, Soaked
from tests.chaos.evidence import DELETED, FAILED, READY, RETRIED, held


@pytest.fixture
def door(live_server: Any, user: User) -> Door:
    return Door(live_server.url, Token.objects.create(user=user).key)


@pytest.fixture
def evidence(live_server: Any, user: User) -> Evidence:
    return held(user)


def soaked(uploads: list[Upload], *, missing: list[str] | None = None, stuck: list[Upload] | None = None) -> Soaked:
    return Soaked(uploads, Counter(), Injections(), missing or [], stuck or [])


def broken(uploads: list[Upload], door: Door, **more: Any) -> dict[str, set[str]]:
    return {one.name: set(one.broken) for one in verdicts.by_the_api(soaked(uploads, **more), door) if not one.holds}


def test_of_a_run_in_which_nothing_went_wrong_everything_holds(evidence: Evidence, door: Door) -> None:
    assert broken(evidence.uploads, door) == {}


def test_every_question_finds_what_it_is_there_for(evidence: Evidence, door: Door) -> None:
    ready, retried, failed, deleted = (evidence.uploads[at] for at in (READY, RETRIED, FAILED, DELETED))
    ready.state = "processing"
    retried.complaints.append("was never answered")
    failed.error_code = "internal_error"
    deleted.id = ready.id
    told = broken(evidence.uploads, door, missing=["web"], stuck=[ready])
    assert told == {
        "every upload was answered lawfully": {retried.id},
        "accepted = ready + failed": {ready.id},
        "failures have a lawful reason": {failed.id},
        "nothing stands still after the last fault": {ready.id},
        "every process is back": {"web"},
        "what was deleted is gone": {deleted.id},
    }


def test_a_bad_file_that_is_ready_has_no_lawful_end(evidence: Evidence, door: Door) -> None:
    evidence.uploads[FAILED].state = "ready"
    assert "failures have a lawful reason" in broken(evidence.uploads, door)


@pytest.mark.parametrize("role", ["original", "variant"])
def test_bytes_that_the_api_serves_wrong_are_found(evidence: Evidence, door: Door, role: str) -> None:
    at = uuid.UUID(evidence.uploads[READY].id)
    stored = StoredObject.objects.filter(**{"attachment": at} if role == "original" else {"variant__attachment": at})
    path = Path(settings.STORAGE_ROOT, stored[0].bucket, stored[0].key)
    path.write_bytes(path.read_bytes()[::-1])
    assert broken(evidence.uploads, door) == {"the API serves the right bytes": {evidence.uploads[READY].id}}


def test_an_original_that_is_not_what_was_sent_is_found(evidence: Evidence, door: Door) -> None:
    evidence.uploads[RETRIED].sha256 = "0" * 64
    assert broken(evidence.uploads, door) == {"the API serves the right bytes": {evidence.uploads[RETRIED].id}}
