"""What both storage backends promise about what they hold, and about what was never finished."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from attachments import storage
from attachments.errors import StorageUnavailable
from attachments.storage_s3 import PART_BYTES
from tests.backends import BUCKET, LocalBackend, S3Backend
from tests.contracts.bodies import KEY, content, store

Backend = LocalBackend | S3Backend


def test_a_listing_tells_of_every_object_below_its_folder_and_of_nothing_else(backend: Backend) -> None:
    keys = [f"attachments/{number:04}/original" for number in range(5)] + [KEY, "attachments/7d0c/v1/1/crop"]
    for size, key in enumerate(keys, 1):
        store(key, content(size))
    store("attachments-of-another/x", b"x")
    backend.put_beside("attachments/7d0c/.hidden", b"x")
    found = list(storage.listing(BUCKET, folder="attachments"))
    assert {(listed.key, listed.size) for listed in found} == {(key, size) for size, key in enumerate(keys, 1)}
    assert len(found) == len(keys)
    now = datetime.now(UTC)
    assert {now - listed.modified_at < timedelta(minutes=5) for listed in found} == {True}
    everything = {listed.key for listed in storage.listing(BUCKET)}
    assert everything == {*keys, "attachments-of-another/x"}
    assert list(storage.listing(BUCKET, folder="results")) == []


def test_what_is_listed_may_be_deleted_on_the_way(backend: Backend) -> None:
    for number in range(20):
        store(f"attachments/{number:04}/original", b"x")
    for listed in storage.listing(BUCKET, folder="attachments"):
        storage.delete(BUCKET, listed.key)
    assert list(storage.listing(BUCKET)) == []


def test_an_upload_that_never_ended_goes_once_it_is_old(backend: Backend) -> None:
    """Whatever its writer does after that, there is no object, and nobody is told that there was one."""
    writer = storage.writer(BUCKET, KEY, content_type="text/plain")
    writer.write(content(2 * PART_BYTES))
    now = datetime.now(UTC)
    assert storage.abort_stale_uploads(BUCKET, begun_before=now - timedelta(minutes=5), folder="attachments") == 0
    assert backend.everything() != []
    assert storage.abort_stale_uploads(BUCKET, begun_before=now + timedelta(minutes=5), folder="elsewhere") == 0
    assert storage.abort_stale_uploads(BUCKET, begun_before=now + timedelta(minutes=5), folder="attachments") == 1
    assert backend.everything() == []
    with pytest.raises(StorageUnavailable):
        writer.finish()
    assert backend.everything() == []
