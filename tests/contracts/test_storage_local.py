"""How the local backend makes a file durable, and what is left when it cannot."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from attachments import storage
from attachments.errors import ObjectMissing, StorageUnavailable
from tests.backends import BUCKET, LocalBackend
from tests.contracts.bodies import KEY, content, load, measured, store


@pytest.fixture
def done(local: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was flushed and linked, in this order."""
    done: list[str] = []
    fsync, link = os.fsync, os.link

    def watched_fsync(fd: int) -> None:
        fsync(fd)
        done.append(f"fsync {Path(f'/proc/self/fd/{fd}').readlink().relative_to(local.root)}")

    def watched_link(source: Path, target: Path) -> None:
        link(source, target)
        done.append(f"link {target.relative_to(local.root)}")

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    return done


def test_a_file_is_flushed_then_linked_then_every_folder_is_flushed(done: list[str]) -> None:
    store(KEY, b"x")
    assert done == [
        f"fsync {BUCKET}/attachments/7d0c/.original.part",
        f"link {BUCKET}/{KEY}",
        f"fsync {BUCKET}/attachments/7d0c",
        f"fsync {BUCKET}/attachments",
        f"fsync {BUCKET}",
    ]


def test_what_no_writer_made_is_no_object(local: LocalBackend) -> None:
    """A link would lead out of the bucket, and a pipe would be waited for, for ever."""
    path = local.root / BUCKET / KEY
    path.parent.mkdir(parents=True)
    path.symlink_to("/etc/passwd")
    with pytest.raises(StorageUnavailable):
        storage.size_of(BUCKET, KEY)
    path.unlink()
    os.mkfifo(path)
    assert storage.size_of(BUCKET, KEY) is None
    with pytest.raises(ObjectMissing), storage.open_object(BUCKET, KEY):
        pass


def test_a_bucket_is_flushed_into_its_root(done: list[str]) -> None:
    """No file of it outlasts a loss of power if the bucket's own folder does not."""
    storage.make_bucket("second")
    assert done == ["fsync ."]


def test_a_deletion_is_flushed_where_it_ended(local: LocalBackend, done: list[str]) -> None:
    """Its row goes next: bytes that came back after a loss of power would be nobody's."""
    store("attachments/other", b"y")
    store(KEY, b"x")
    done.clear()
    storage.delete(BUCKET, KEY)
    assert done == [f"fsync {BUCKET}/attachments"]
    assert local.everything() == ["attachments", "attachments/other"]


def test_a_flush_that_fails_is_an_outage_and_leaves_nothing(
    local: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    for is_failing in (os.path.isfile, os.path.isdir):

        def failing(fd: int, is_failing: object = is_failing) -> None:
            if is_failing(f"/proc/self/fd/{fd}"):  # type: ignore[operator]
                raise OSError(5, "Input/output error")
            fsync(fd)

        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(StorageUnavailable, match="Input/output error"):
            store(KEY, b"x")
        assert local.everything() == []


def test_a_file_that_may_not_grow_is_an_outage_and_leaves_nothing(local: LocalBackend) -> None:
    with _file_size_limit(100_000), pytest.raises(StorageUnavailable, match="File too large"):
        store(KEY, content(200_000))
    assert local.everything() == []
    assert store(KEY, content(200_000)) == measured(content(200_000))


@contextmanager
def _file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_came_out_short_is_an_outage_and_leaves_nothing(local: LocalBackend) -> None:
    """Some network file systems accept a write and keep less."""
    writer = storage.writer(BUCKET, KEY, content_type="text/plain")
    writer.write(content(1000))
    os.truncate(local.root / BUCKET / "attachments/7d0c/.original.part", 500)
    with pytest.raises(StorageUnavailable, match="not as long"):
        writer.finish()
    assert local.everything() == []


@pytest.fixture
def small_disk(local: LocalBackend, settings: Settings, tmp_path: Path) -> Iterator[LocalBackend]:
    """A storage root of one megabyte."""
    root = tmp_path / "disk"
    root.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", root], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("Mounting a small file system needs root.")
    try:
        settings.STORAGE_ROOT = str(root)
        storage.make_bucket(BUCKET)
        yield LocalBackend(root)
    finally:
        subprocess.run(["umount", root], check=True)


def test_a_full_disk_is_an_outage_and_leaves_nothing(small_disk: LocalBackend) -> None:
    with pytest.raises(StorageUnavailable, match="No space left"):
        store(KEY, content(2_000_000))
    assert small_disk.everything() == []
    store("attachments/filler", content(900_000))
    store("attachments/rest", content(4096))
    with pytest.raises(StorageUnavailable):
        store(KEY, content(200_000))
    assert storage.size_of(BUCKET, "attachments/filler") == 900_000


def test_a_check_of_a_full_disk_fails(small_disk: LocalBackend) -> None:
    with pytest.raises(OSError, match="No space left"):
        (small_disk.root / "filler").write_bytes(bytes(2_000_000))
    with pytest.raises(StorageUnavailable, match="No space left"):
        storage.check()
    assert small_disk.everything() == []


KILLED = """
import os, signal, sys, django
django.setup()
from django.conf import settings
from attachments import storage
settings.STORAGE_BACKEND, settings.STORAGE_ROOT = "local", sys.argv[1]
writer = storage.writer(sys.argv[2], sys.argv[3], content_type="text/plain")
writer.write(b"half of it")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_never_an_object_and_goes_with_its_key(local: LocalBackend) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, local.root, BUCKET, KEY], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert storage.size_of(BUCKET, KEY) is None
    assert "attachments/7d0c/.original.part" in local.everything()
    storage.delete(BUCKET, KEY)
    assert local.everything() == []


def test_links_and_hidden_folders_are_none_of_ours(local: LocalBackend, tmp_path: Path) -> None:
    """A folder of snapshots holds a copy of everything, unfinished files too; a link leads out of the bucket."""
    bucket = local.root / BUCKET
    for folder in (bucket / "attachments/.snapshot/hourly", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
        (folder / "original").write_bytes(b"x")
        (folder / ".original.part").write_bytes(b"x")
    (bucket / "attachments/link").symlink_to(tmp_path / "elsewhere")
    (bucket / "attachments/file").symlink_to(tmp_path / "elsewhere/original")
    later = datetime.now(UTC) + timedelta(minutes=5)
    assert list(storage.listing(BUCKET)) == []
    assert storage.abort_stale_uploads(BUCKET, begun_before=later) == 0
    assert (tmp_path / "elsewhere/.original.part").exists()


def test_writing_and_deleting_in_one_folder_do_not_disturb_each_other(local: LocalBackend) -> None:
    def come_and_go(name: str) -> None:
        for _ in range(150):
            store(f"attachments/shared/{name}", b"x")
            assert load(f"attachments/shared/{name}") == b"x"
            storage.delete(BUCKET, f"attachments/shared/{name}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(come_and_go, "abcd"))
    assert local.everything() == []


def test_a_folder_that_vanishes_before_its_file_is_made_again(
    local: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open
    pruned: list[Path] = []

    def open_after_a_delete(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL and not pruned:
            pruned.append(path.parent)
            path.parent.rmdir()
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", open_after_a_delete)
    assert store(KEY, b"x") == measured(b"x")
    assert pruned == [(local.root / BUCKET / KEY).parent]


def test_an_object_is_not_for_everybody_on_the_machine(local: LocalBackend) -> None:
    store(KEY, b"x")
    assert (local.root / BUCKET / KEY).stat().st_mode & 0o007 == 0


def test_local_bytes_have_no_signed_url(local: LocalBackend) -> None:
    store(KEY, b"x")
    assert storage.signed_url(BUCKET, KEY, filename="a", content_type="text/plain", disposition="inline") is None


def test_a_storage_root_that_is_not_mounted_fails_the_check(local: LocalBackend, settings: Settings) -> None:
    settings.STORAGE_ROOT = str(local.root / "not-mounted")
    with pytest.raises(StorageUnavailable, match="not mounted"):
        storage.check()
    assert not (local.root / "not-mounted").exists()


def test_local_storage_without_a_root_is_refused(settings: Settings) -> None:
    settings.STORAGE_BACKEND = "local"
    settings.STORAGE_ROOT = ""
    with pytest.raises(ImproperlyConfigured, match="STORAGE_ROOT"):
        storage.check()
