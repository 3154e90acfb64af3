"""Objects as local files. One is durable after its own fsync, an exclusive link, and the fsync of its folders."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import FileSystemStorage

from attachments.errors import KeyTaken, ObjectMissing, StorageUnavailable
from attachments.storage import Listed

logger = logging.getLogger(__name__)

FILE_MODE = 0o640
CREATE_TRIES = 100
#: The name of a file that is being written, and stays when its writer is killed.
PART = re.compile(r"\..+\.part", re.DOTALL)
ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EISDIR}
#: What no writer of ours made is not followed, and not waited for.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def current() -> LocalStore:
    if not settings.STORAGE_ROOT:
        raise ImproperlyConfigured("Set STORAGE_ROOT; see docs/deployment.md.")
    return LocalStore(Path(settings.STORAGE_ROOT))


class LocalStore:
    """Buckets as folders under `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def sink(self, bucket: str, key: str, *, content_type: str) -> LocalSink:  # noqa: ARG002  (files have no type)
        with _storage_errors(f"Writing {bucket}/{key}"):
            return LocalSink(self._folder(bucket), self._path(bucket, key))

    def source(self, bucket: str, key: str, *, start: int, length: int | None) -> tuple[LocalSource, int]:
        file = self._open(bucket, key)
        if file is None:
            raise ObjectMissing(f"{bucket} has no {key}.")
        remaining = max(os.fstat(file.fileno()).st_size - start, 0)
        file.seek(start)
        return LocalSource(file), remaining if length is None else min(remaining, length)

    def size_of(self, bucket: str, key: str) -> int | None:
        file = self._open(bucket, key)
        if file is None:
            return None
        with file:
            return os.fstat(file.fileno()).st_size

    def delete(self, bucket: str, key: str) -> None:
        folder, path = self._folder(bucket), self._path(bucket, key)
        with _storage_errors(f"Deleting {bucket}/{key}"):
            for name in (path, _part(path)):
                try:
                    name.unlink()
                except OSError as error:
                    if error.errno not in ABSENT:
                        raise
            with suppress(FileNotFoundError):  # pruned meanwhile by another delete, which syncs its parent
                _fsync_folder(_prune(path.parent, folder))

    def listing(self, bucket: str, *, folder: str | None) -> Iterator[Listed]:
        with _storage_errors(f"Listing {bucket}"):
            root = self._folder(bucket)
            for entry in _files(root / (folder or "")):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    found = entry.stat(follow_symlinks=False)
                    modified_at = datetime.fromtimestamp(found.st_mtime, UTC)
                    yield Listed(str(Path(entry.path).relative_to(root)), found.st_size, modified_at)

    def abort_stale_uploads(self, bucket: str, *, begun_before: datetime, folder: str | None) -> int:
        aborted = 0
        with _storage_errors(f"Looking for unfinished files in {bucket}"):
            root = self._folder(bucket)
            for entry in _files(root / (folder or "")):
                if not PART.fullmatch(entry.name):
                    continue
                with suppress(FileNotFoundError):  # finished, or deleted, meanwhile
                    if entry.stat(follow_symlinks=False).st_mtime < begun_before.timestamp():
                        Path(entry.path).unlink()
                        _prune(Path(entry.path).parent, root)
                        aborted += 1
        return aborted

    def signed_url(self, *_: str, **__: str) -> None:
        return None

    def make_bucket(self, bucket: str) -> None:
        with _storage_errors(f"Making the bucket {bucket}"):
            (self._root / bucket).mkdir(parents=True, exist_ok=True)
            _fsync_folder(self._root)

    def check(self, bucket: str) -> None:
        """Take a file through everything that a real object goes through."""
        with _storage_errors(f"Writing to the bucket {bucket}"):
            folder = self._folder(bucket)
            sink = LocalSink(folder, folder / f".probe-{uuid.uuid4()}")
            try:
                sink.append(b"1")
                sink.commit()
            finally:
                sink.discard()

    def _open(self, bucket: str, key: str) -> BinaryIO | None:
        with _storage_errors(f"Reading {bucket}/{key}"):
            self._folder(bucket)
            try:
                return _open_file(self._path(bucket, key))
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                return None

    def _folder(self, bucket: str) -> Path:
        folder = self._root / bucket
        if not folder.is_dir():
            raise StorageUnavailable(f"The folder of the bucket {bucket} is not there: not mounted, or never made.")
        return folder

    def _path(self, bucket: str, key: str) -> Path:
        return Path(FileSystemStorage(location=self._root / bucket).path(key))


class LocalSource:
    """An open object."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.close = file.close

    def read(self, size: int, /) -> bytes:
        with _storage_errors("Reading an object"):
            return self._file.read(size)


class LocalSink:
    """An object being written next to its final place, under a name that only this key has.

    The name is derived from the key so that deleting the key also removes what a killed writer left, and is
    opened exclusively so that two writers of one key cannot mix.
    """

    def __init__(self, bucket_folder: Path, path: Path) -> None:
        self._bucket_folder = bucket_folder
        self._path = path
        self._is_linked = False
        self._file = self._create()

    def append(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        with _storage_errors(f"Writing {self._path.name}"):
            while rest:
                rest = rest[self._file.write(rest) :]

    def commit(self) -> None:
        with _storage_errors(f"Storing {self._path.name}"):
            os.fsync(self._file.fileno())
            if os.fstat(self._file.fileno()).st_size != self._file.tell():
                raise StorageUnavailable(f"Storing {self._path.name}: the file is not as long as what was written.")
            self._file.close()
            try:
                os.link(_part(self._path), self._path)
            except FileExistsError as error:
                raise KeyTaken(f"{self._path.name} is already stored.") from error
            self._is_linked = True
            _part(self._path).unlink()
            self._fsync_folders()

    def discard(self) -> None:
        try:
            self._file.close()
            _part(self._path).unlink(missing_ok=True)
            if self._is_linked:
                self._path.unlink(missing_ok=True)
            _prune(self._path.parent, self._bucket_folder)
        except OSError as error:
            logger.warning("object_not_discarded", extra={"errno": error.errno})

    def _create(self) -> FileIO:
        for _ in range(CREATE_TRIES):
            # A delete may prune the folder between any two of these calls, also between those within `mkdir`.
            with suppress(FileNotFoundError, FileExistsError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                fd = os.open(_part(self._path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
            except FileNotFoundError:
                continue
            except FileExistsError as error:
                raise KeyTaken(f"{self._path.name} is already being written.") from error
            return FileIO(fd, "wb")
        raise StorageUnavailable(f"The folder of {self._path.name} keeps vanishing.")

    def _fsync_folders(self) -> None:
        # All of them, also those that were there: another writer may have made one and not synced it yet.
        folder = self._path.parent
        while folder != self._bucket_folder.parent:
            _fsync_folder(folder)
            folder = folder.parent


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Every file below a folder, unfinished ones too, outside of hidden folders, which are none of ours."""
    try:
        entries = os.scandir(folder)
    except OSError as error:
        if error.errno not in ABSENT:
            raise
        return
    with entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                yield entry
            elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _files(Path(entry.path))


def _prune(folder: Path, bucket_folder: Path) -> Path:
    """Remove empty folders up to the bucket's; returns the deepest one that is left."""
    while folder != bucket_folder:
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in ABSENT:
                return folder  # not empty
        folder = folder.parent
    return folder


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_file(path: Path) -> BinaryIO:
    """IsADirectoryError for a folder, a pipe or a device in a file's place; a link there is ELOOP."""
    file = open(path, "rb", opener=lambda name, _: os.open(name, READ))  # noqa: SIM115  (has the flags)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise IsADirectoryError(errno.EISDIR, "not a regular file")
    return file


@contextmanager
def _storage_errors(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(f"{action}: {error.strerror}.") from error
