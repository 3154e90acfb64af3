"""What the storage holds and no row names: looked for page by page, and removed only where it is surely nobody's."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from attachments import objects, storage
from attachments.models import BucketRole, StoredObject
from attachments.storage import Listed
from pipeline import retention
from pipeline.models import Job
from pipeline.retention import Round, Sweeper

pytestmark = pytest.mark.django_db


@pytest.fixture
def strangers(queued: Callable[..., Job], settings: Any) -> Callable[[int], set[str]]:
    """Makes objects that no row names, beside three times as many that one does."""
    settings.STAGING_RETENTION_SECONDS = 0.0

    def put(count: int) -> set[str]:
        keys = {objects.original_key(uuid.uuid4()) for _ in range(count)}
        for key in keys:
            put_bytes(settings.STORAGE_BUCKET, key)
        for _ in range(3 * count):
            queued()
        return keys

    return put


def put_bytes(bucket: str, key: str) -> None:
    with storage.writer(bucket, key, content_type="image/png") as writer:
        writer.write(b"x")
        writer.finish()


def listed(settings: Any) -> set[str]:
    return {found.key for found in storage.listing(settings.STORAGE_BUCKET)}


def test_objects_that_no_row_names_are_removed_page_by_page(
    strangers: Callable[[int], set[str]], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEYS_AT_ONCE", 6)
    unknown = strangers(3)
    known = listed(settings) - unknown
    sweeper = Sweeper()
    sweeper.run()
    assert listed(settings) == known
    late = strangers(1)
    sweeper.run()
    assert late <= listed(settings)


def test_the_bucket_is_not_looked_through_where_that_is_off(
    strangers: Callable[[int], set[str]], settings: Any
) -> None:
    settings.LISTING_EVERY_SECONDS = 0.0
    unknown = strangers(1)
    Sweeper().run()
    assert unknown <= listed(settings)


def test_a_round_goes_on_where_it_stopped_and_begins_again_when_it_is_due() -> None:
    steps: list[int] = []

    def walk() -> Iterator[int]:
        for number in range(3):
            steps.append(number)
            yield 1

    slow, often = Round(), Round()
    assert [slow.go_on(walk, every_seconds=3600, seconds=0) for _ in range(5)] == [1, 1, 1, 0, 0]
    assert steps == [0, 1, 2]
    assert [often.go_on(walk, every_seconds=1e-9) for _ in range(2)] == [3, 3]


@pytest.mark.django_db(transaction=True)
def test_nothing_is_held_in_the_database_while_the_storage_lists_or_deletes(
    strangers: Callable[[int], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    listing: list[bool] = []
    deleting: list[bool] = []
    real_listing, real_delete = storage.listing, storage.delete

    def watched_listing(bucket: str, *, folder: str) -> Iterator[Listed]:
        for found in real_listing(bucket, folder=folder):
            listing.append(connection.in_atomic_block)
            yield found

    def watched_delete(bucket: str, key: str) -> None:
        deleting.append(connection.in_atomic_block)
        real_delete(bucket, key)

    monkeypatch.setattr(storage, "listing", watched_listing)
    monkeypatch.setattr(storage, "delete", watched_delete)
    strangers(1)
    trash = objects.register("attachments/x/original", content_type="image/png", created_by="test")
    StoredObject.objects.filter(id=trash.id).update(bucket_role=BucketRole.TRASH)
    Sweeper().run()
    assert (listing, deleting) == ([False] * 4, [False] * 2)


def test_the_bucket_of_another_database_is_left_alone(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A database that was lost, or one for trials, beside the bucket of the real one: nearly all is unknown."""
    settings.STAGING_RETENTION_SECONDS = 0.0
    keys = {objects.original_key(uuid.uuid4()) for _ in range(3)}
    for key in keys:
        put_bytes(settings.STORAGE_BUCKET, key)
    Sweeper().run()
    assert listed(settings) == keys
    assert "bucket_not_ours" in caplog.text


def test_a_bucket_may_be_shared(strangers: Callable[[int], set[str]], settings: Any) -> None:
    unknown = strangers(1)
    put_bytes(settings.STORAGE_BUCKET, "backups/2026.tar")
    Sweeper().run()
    assert not unknown & listed(settings)
    assert "backups/2026.tar" in listed(settings)


def test_a_storage_that_fails_while_it_is_listed_is_looked_through_again(
    strangers: Callable[[int], set[str]], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown, sweeper = strangers(1), Sweeper()
    root = Path(settings.STORAGE_ROOT)
    (root / settings.STORAGE_BUCKET).rename(root / "not-mounted")
    sweeper.run()
    (root / "not-mounted").rename(root / settings.STORAGE_BUCKET)
    assert unknown <= listed(settings)
    sweeper.run()
    assert not unknown & listed(settings)
