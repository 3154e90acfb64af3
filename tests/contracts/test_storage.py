"""What both storage backends promise."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier

import pytest
from django.conf import settings as django_settings
from django.core.exceptions import SuspiciousFileOperation
from hypothesis import HealthCheck, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from attachments import storage
from attachments.errors import KeyTaken, ObjectCorrupt, ObjectMissing, StorageUnavailable
from attachments.storage_s3 import PART_BYTES
from tests.backends import BUCKET, LocalBackend, S3Backend
from tests.contracts.bodies import KEY, content, load, measured, store
from tests.waiting import until

Backend = LocalBackend | S3Backend


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_was_written_is_read_back_and_measured(backend: Backend) -> None:
    body = content(200_000)
    assert store(KEY, body) == measured(body)
    assert load(KEY) == body
    assert storage.size_of(BUCKET, KEY) == len(body)
    assert KEY in backend.everything()


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 3 * PART_BYTES + 7])
def test_sizes_around_the_borders_of_parts_are_stored_whole(backend: Backend, size: int) -> None:
    body = content(size)
    assert store(KEY, body, chunk_bytes=1_000_003) == measured(body)
    assert load(KEY) == body
    assert backend.everything()[-1] == KEY


def test_one_chunk_of_many_parts_is_stored_whole(backend: Backend) -> None:
    body = content(3 * PART_BYTES + 1)
    assert store(KEY, body, chunk_bytes=len(body)) == measured(body)
    assert load(KEY) == body


@given(chunks=st.lists(st.binary(max_size=300), max_size=12))
@example_settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_way_of_cutting_a_file_gives_the_same_object(backend: Backend, chunks: list[bytes]) -> None:
    storage.delete(BUCKET, KEY)
    with storage.writer(BUCKET, KEY, content_type="text/plain") as writer:
        for chunk in chunks:
            writer.write(chunk)
        written = writer.finish()
    assert written == measured(b"".join(chunks))
    assert load(KEY) == b"".join(chunks)


@pytest.mark.parametrize(
    ("start", "length"),
    [(0, None), (0, 1), (3, None), (3, 4), (9, 1), (9, 5), (10, None), (10, 3), (99, None), (99, 1), (0, 0), (4, 0)],
)
def test_a_range_gives_exactly_its_bytes(backend: Backend, start: int, length: int | None) -> None:
    store(KEY, b"0123456789")
    with storage.open_object(BUCKET, KEY, start=start, length=length) as stream:
        wanted = b"0123456789"[start:] if length is None else b"0123456789"[start : start + length]
        assert stream.remaining == len(wanted)
        assert b"".join(stream) == wanted


def test_a_negative_range_is_refused(backend: Backend) -> None:
    for limits in ({"start": -1}, {"length": -1}):
        with pytest.raises(ValueError, match="negative"):
            storage.open_object(BUCKET, KEY, **limits)


def test_what_is_not_there_is_missing(backend: Backend, tmp_path: Path) -> None:
    store("attachments/other", b"x")
    for key in (KEY, "attachments", "attachments/other/below", "a" * 300):
        assert storage.size_of(BUCKET, key) is None
        for limits in ({}, {"start": 5}, {"length": 0}):
            with pytest.raises(ObjectMissing):
                storage.open_object(BUCKET, key, **limits)
        with pytest.raises(ObjectMissing):
            storage.fetch(BUCKET, key, tmp_path / "copy", size=1, sha256="0" * 64)
        storage.delete(BUCKET, key)
    assert not (tmp_path / "copy").exists()
    assert load("attachments/other") == b"x"


def test_a_bucket_that_is_not_there_is_an_outage_and_loses_nothing(backend: Backend) -> None:
    for act in (
        lambda: storage.size_of("elsewhere", KEY),
        lambda: storage.open_object("elsewhere", KEY),
        lambda: storage.delete("elsewhere", KEY),
        lambda: list(storage.listing("elsewhere")),
        lambda: storage.abort_stale_uploads("elsewhere", begun_before=datetime.now(UTC)),
        lambda: _put("elsewhere"),
    ):
        with pytest.raises(StorageUnavailable):
            act()


def _put(bucket: str) -> None:
    with storage.writer(bucket, KEY, content_type="text/plain") as writer:
        writer.write(b"x")
        writer.finish()


def test_a_bucket_can_be_made_twice_and_then_used(backend: Backend) -> None:
    storage.make_bucket("second")
    storage.make_bucket("second")
    _put("second")
    assert storage.size_of("second", KEY) == 1
    assert storage.size_of(BUCKET, KEY) is None
    storage.delete("second", KEY)


def test_a_file_is_put_and_fetched_with_its_digest_checked(backend: Backend, tmp_path: Path) -> None:
    body = content(700_000)
    (tmp_path / "in").write_bytes(body)
    written = storage.put_file(BUCKET, KEY, tmp_path / "in", content_type="image/png")
    assert written == measured(body)
    storage.fetch(BUCKET, KEY, tmp_path / "out", size=written.size, sha256=written.sha256)
    assert (tmp_path / "out").read_bytes() == body


@pytest.mark.parametrize("wrong", ["size", "digest"])
def test_a_fetch_of_other_bytes_than_the_database_names_leaves_no_copy(
    backend: Backend, tmp_path: Path, wrong: str
) -> None:
    size, sha256 = store(KEY, b"the real bytes")
    with pytest.raises(ObjectCorrupt):
        storage.fetch(
            BUCKET,
            KEY,
            tmp_path / "copy",
            size=size + (wrong == "size"),
            sha256="0" * 64 if wrong == "digest" else sha256,
        )
    assert not (tmp_path / "copy").exists()


def test_a_fetch_to_where_nothing_can_be_written_is_an_outage(backend: Backend, tmp_path: Path) -> None:
    size, sha256 = store(KEY, b"x")
    with pytest.raises(StorageUnavailable):
        storage.fetch(BUCKET, KEY, tmp_path / "absent" / "copy", size=size, sha256=sha256)


@pytest.mark.parametrize("size", [10, 3 * PART_BYTES])
def test_an_object_is_not_visible_before_it_is_finished(backend: Backend, size: int) -> None:
    with storage.writer(BUCKET, KEY, content_type="text/plain") as writer:
        writer.write(content(size))
        assert storage.size_of(BUCKET, KEY) is None
        writer.finish()
        assert storage.size_of(BUCKET, KEY) == size


@pytest.mark.parametrize("size", [0, 10, 3 * PART_BYTES])
def test_leaving_without_finish_leaves_nothing(backend: Backend, size: int) -> None:
    with storage.writer(BUCKET, KEY, content_type="text/plain") as writer:
        writer.write(content(size))
    assert backend.everything() == []


def test_an_error_in_the_middle_leaves_nothing(backend: Backend) -> None:
    def stop_halfway() -> None:
        with storage.writer(BUCKET, KEY, content_type="text/plain") as writer:
            writer.write(content(2 * PART_BYTES))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_halfway()
    assert backend.everything() == []


def test_a_finished_or_aborted_writer_takes_no_more(backend: Backend) -> None:
    finished = storage.writer(BUCKET, KEY, content_type="text/plain")
    finished.write(b"x")
    finished.finish()
    finished.abort()
    aborted = storage.writer(BUCKET, "attachments/second", content_type="text/plain")
    aborted.abort()
    aborted.abort()
    for writer in (finished, aborted):
        with pytest.raises(ValueError, match="finished or aborted"):
            writer.write(b"y")
        with pytest.raises(ValueError, match="finished or aborted"):
            writer.finish()
    assert load(KEY) == b"x"
    assert storage.size_of(BUCKET, "attachments/second") is None


@pytest.mark.parametrize("size", [10, PART_BYTES + 1])
def test_a_key_is_never_overwritten(backend: Backend, size: int) -> None:
    store(KEY, b"first")
    before = backend.everything()
    with pytest.raises(KeyTaken):
        store(KEY, content(size))
    assert load(KEY) == b"first"
    assert backend.everything() == before


def test_of_two_writers_of_one_key_exactly_one_wins(backend: Backend) -> None:
    together = Barrier(2)

    def compete(body: bytes) -> bytes | None:
        together.wait(10)
        try:
            store(KEY, body)
        except KeyTaken:
            return None
        return body

    with ThreadPoolExecutor(2) as threads:
        winners = [body for body in threads.map(compete, [b"a" * 1000, b"b" * 1000]) if body]
    assert len(winners) == 1
    assert load(KEY) == winners[0]


def test_deleting_removes_the_object_and_can_be_repeated(backend: Backend) -> None:
    store(KEY, b"x")
    store("attachments/7d0c/v1/1/preview", b"y")
    storage.delete(BUCKET, KEY)
    storage.delete(BUCKET, KEY)
    assert storage.size_of(BUCKET, KEY) is None
    assert load("attachments/7d0c/v1/1/preview") == b"y"
    storage.delete(BUCKET, "attachments/7d0c/v1/1/preview")
    assert backend.everything() == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "../a",
        "a/../b",
        "a/./b",
        "a/.hidden",
        "a\\..\\b",
        "a\0b",
        "a\nb",
        "\ud800",
        "é" * 513,
    ],
)
def test_a_key_that_no_server_made_is_refused_everywhere(backend: Backend, tmp_path: Path, key: str) -> None:
    for act in (
        lambda: storage.writer(BUCKET, key, content_type="text/plain"),
        lambda: storage.open_object(BUCKET, key),
        lambda: storage.fetch(BUCKET, key, tmp_path / "copy", size=1, sha256="0" * 64),
        lambda: storage.size_of(BUCKET, key),
        lambda: storage.delete(BUCKET, key),
        lambda: storage.listing(BUCKET, folder=key),
        lambda: storage.abort_stale_uploads(BUCKET, begun_before=datetime.now(UTC), folder=key),
        lambda: storage.signed_url(BUCKET, key, filename="a", content_type="text/plain", disposition="inline"),
    ):
        with pytest.raises(SuspiciousFileOperation):
            act()


@pytest.mark.parametrize("bucket", ["", ".", "..", "a/b", "../holdfast", "a\0", "-a", ".hidden"])
def test_a_bucket_that_no_server_made_is_refused(backend: Backend, bucket: str) -> None:
    with pytest.raises(SuspiciousFileOperation):
        storage.size_of(bucket, KEY)


def test_a_healthy_storage_passes_its_check_and_keeps_nothing_of_it(backend: Backend) -> None:
    storage.check()
    storage.check()
    assert backend.everything() == []


def test_streams_that_are_closed_early_hold_nothing(backend: Backend) -> None:
    store(KEY, content(2_000_000))
    load(KEY)
    before = open_files()
    streams = [storage.open_object(BUCKET, KEY) for _ in range(40)]
    for stream in streams:
        next(stream)
        stream.close()
    # The far ends of its connections are in this process too, and notice a little later.
    until(lambda: open_files() <= before + 1)
    assert load(KEY, start=1_999_990) == content(2_000_000)[-10:]


def test_a_forked_process_reads_next_to_its_parent(backend: Backend) -> None:
    body = content(300_000)
    store(KEY, body)
    child = os.fork()
    if child == 0:
        try:
            is_right = all(load(KEY) == body for _ in range(20))
        except BaseException:  # noqa: BLE001  (the child must not run the rest of the test session)
            is_right = False
        os._exit(0 if is_right else 1)
    assert all(load(KEY) == body for _ in range(20))
    assert os.waitpid(child, 0)[1] == 0


STREAM_MANY = """
import sys, django
django.setup()
from django.conf import settings
from attachments import storage
for pair in sys.argv[1:]:
    name, _, value = pair.partition("=")
    setattr(settings, name, value)

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

def stream(key, chunks):
    with storage.writer(settings.STORAGE_BUCKET, key, content_type="application/octet-stream") as writer:
        for number in range(chunks):
            writer.write(number.to_bytes(4, "big") * 16_384)
        writer.finish()
    with storage.open_object(settings.STORAGE_BUCKET, key) as received:
        for _ in received:
            pass

stream("warm", 1)
before = peak()
stream("large", 1536)
print((peak() - before) // 1024)
"""


def test_a_file_of_96_mib_streams_through_flat_memory(backend: Backend) -> None:
    names = ["STORAGE_BACKEND", "STORAGE_ROOT", "STORAGE_BUCKET", "AWS_S3_ENDPOINT_URL", "AWS_S3_REGION_NAME"]
    names += ["AWS_S3_ADDRESSING_STYLE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    chosen = [f"{name}={getattr(django_settings, name)}" for name in names]
    run = subprocess.run([sys.executable, "-c", STREAM_MANY, *chosen], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) <= 40
