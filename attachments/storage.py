"""Where bytes are kept: one small interface over local files and S3, chosen by `settings.STORAGE_BACKEND`.

An object is named by (bucket, key); on local storage a bucket is a folder under `settings.STORAGE_ROOT`.
A bucket must exist before it is used (`make_bucket`), so that a volume which is not mounted reads as an
outage and never as thousands of lost files. Keys are made by the server, each is written once, and an
object appears whole or not at all.

Whatever goes wrong with the storage is raised as `StorageUnavailable`, `ObjectMissing` or `ObjectCorrupt`,
with the cause chained; a name that no server made is `SuspiciousFileOperation`. Bytes pass through in
pieces, so memory stays flat whatever the size.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, NamedTuple, Protocol, Self
from urllib.parse import quote

from django.conf import settings
from django.core.exceptions import SuspiciousFileOperation

from attachments.errors import ObjectCorrupt, StorageUnavailable
from attachments.names import printable

CHUNK_BYTES = 256 * 1024
MAX_KEY_BYTES = 1024  # S3's own limit
MAX_FILENAME_BYTES = 200  # up to five times that in a signed URL, which encodes it twice

Disposition = Literal["inline", "attachment"]


class Written(NamedTuple):
    """What became durable: `size` in bytes and `sha256` in lower-case hex."""

    size: int
    sha256: str


class Listed(NamedTuple):
    """One object of a listing: `size` in bytes, and when it was written by the storage's own clock."""

    key: str
    size: int
    modified_at: datetime


def writer(bucket: str, key: str, *, content_type: str) -> Writer:
    """Start writing a new object; use it in a with-block. KeyTaken when the key is in use."""
    return Writer(_store(bucket, key).sink(bucket, key, content_type=content_type))


def put_file(bucket: str, key: str, path: Path, *, content_type: str) -> Written:
    """Store the file at `path` as a new object."""
    with path.open("rb") as file, writer(bucket, key, content_type=content_type) as target:
        while chunk := file.read(CHUNK_BYTES):
            target.write(chunk)
        return target.finish()


def open_object(bucket: str, key: str, *, start: int = 0, length: int | None = None) -> Stream:
    """The object's bytes from `start`, at most `length` of them; past its end there are none.

    ObjectMissing is raised here, before the first byte. Close the stream, or use it in a with-block.
    """
    if start < 0 or (length is not None and length < 0):
        raise ValueError("A range has no negative numbers.")
    return Stream(*_store(bucket, key).source(bucket, key, start=start, length=length))


def fetch(bucket: str, key: str, path: Path, *, size: int, sha256: str) -> None:
    """Copy an object to `path`, which exists afterwards only if size and digest are the given ones."""
    try:
        with open_object(bucket, key) as stream, path.open("wb") as file:
            if stream.remaining != size or _copy(stream, file) != sha256:
                raise ObjectCorrupt(f"{bucket}/{key} has other bytes than were stored.")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise StorageUnavailable(f"No place for a copy of {bucket}/{key}: {error.strerror}.") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def size_of(bucket: str, key: str) -> int | None:
    """The object's size in bytes, or None when the bucket has no such object."""
    return _store(bucket, key).size_of(bucket, key)


def delete(bucket: str, key: str) -> None:
    """Remove an object, and what a killed writer left of it; nothing happens when there is none."""
    _store(bucket, key).delete(bucket, key)


def listing(bucket: str, *, folder: str | None = None) -> Iterator[Listed]:
    """Every object of the bucket, or below one folder of its keys, in no promised order.

    It may be long: memory stays flat, and whoever takes from it may pause between any two. What comes or goes meanwhile
    may be missing. Keys that no server made are left out. StorageUnavailable may be raised on the way.
    """
    found = _store(bucket, folder).listing(bucket, folder=folder)
    return (listed for listed in found if KEY.fullmatch(listed.key))


def abort_stale_uploads(bucket: str, *, begun_before: datetime, folder: str | None = None) -> int:
    """Remove what was written of objects, below a folder, whose writer began before that moment and never finished.

    Returns how many. A writer that is still at it after all gets StorageUnavailable, and no object.
    """
    return _store(bucket, folder).abort_stale_uploads(bucket, begun_before=begun_before, folder=folder)


def signed_url(bucket: str, key: str, *, filename: str, content_type: str, disposition: Disposition) -> str | None:
    """A URL that serves the object for `settings.SIGNED_URL_SECONDS`; None where bytes are served by us (local)."""
    header = content_disposition(filename, disposition)
    return _store(bucket, key).signed_url(bucket, key, content_type=content_type, disposition=header)


def make_bucket(bucket: str) -> None:
    """Create a bucket if it is not there yet."""
    _store(bucket).make_bucket(bucket)


def check() -> None:
    """Prove that the bucket of attachments can be read and written; StorageUnavailable says why not."""
    _store(settings.STORAGE_BUCKET).check(settings.STORAGE_BUCKET)


def content_disposition(filename: str, disposition: Disposition) -> str:
    """The header value that names a download (RFC 6266, RFC 8187): ASCII, on one line, whatever `filename` holds."""
    name = _harmless(filename)
    plain = re.sub(r"[^A-Za-z0-9 ._-]", "_", name)
    # Readers disagree on escapes within quotes, so the quoted name has none and the encoded one says the rest.
    encoded = "" if plain == name else f"; filename*=UTF-8''{quote(name, safe='')}"
    return f'{disposition}; filename="{plain}"{encoded}'


class Writer:
    """Takes an object's bytes; they are durable, and visible, only once `finish` has returned.

    Leaving the with-block without that, or any error, leaves no object and no part of one. The digest is
    computed here and nowhere else, over exactly what the storage was given.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._digest = hashlib.sha256()
        self._size = 0
        self._is_open = True

    def write(self, chunk: bytes) -> None:
        self._require_open()
        try:
            self._digest.update(chunk)
            self._size += len(chunk)
            self._sink.append(chunk)
        except BaseException:
            self.abort()
            raise

    def finish(self) -> Written:
        """Make the object durable. After an error there is no object, or one that nobody was told of."""
        self._require_open()
        written = Written(self._size, self._digest.hexdigest())
        try:
            self._sink.commit()
        except BaseException:
            self.abort()
            raise
        self._is_open = False
        return written

    def abort(self) -> None:
        """Leave nothing behind; never raises a storage error, and does nothing once finished or aborted."""
        if self._is_open:
            self._is_open = False
            self._sink.discard()

    def _require_open(self) -> None:
        if not self._is_open:
            raise ValueError("This writer is finished or aborted.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abort()


class Stream(Iterator[bytes]):
    """An object's bytes, in order and in pieces; `remaining` counts those still to come."""

    def __init__(self, source: Source, remaining: int) -> None:
        self._source = source
        self.remaining = remaining

    def __next__(self) -> bytes:
        if self.remaining == 0:
            self.close()
            raise StopIteration
        try:
            chunk = self._source.read(min(CHUNK_BYTES, self.remaining))
            if not chunk:
                raise ObjectCorrupt(f"An object ended {self.remaining} bytes early.")
        except BaseException:
            self.close()
            raise
        self.remaining -= len(chunk)
        return chunk

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Sink(Protocol):
    """One object being written by a backend. `discard` may follow anything but a `commit` that returned."""

    def append(self, chunk: bytes) -> None: ...
    def commit(self) -> None: ...
    def discard(self) -> None: ...


class Source(Protocol):
    """One object being read from a backend."""

    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


class Store(Protocol):
    """What a backend can do; the functions above say what each means."""

    def sink(self, bucket: str, key: str, *, content_type: str) -> Sink: ...
    def source(self, bucket: str, key: str, *, start: int, length: int | None) -> tuple[Source, int]: ...
    def size_of(self, bucket: str, key: str) -> int | None: ...
    def delete(self, bucket: str, key: str) -> None: ...
    def listing(self, bucket: str, *, folder: str | None) -> Iterator[Listed]: ...
    def abort_stale_uploads(self, bucket: str, *, begun_before: datetime, folder: str | None) -> int: ...
    def signed_url(self, bucket: str, key: str, *, content_type: str, disposition: str) -> str | None: ...
    def make_bucket(self, bucket: str) -> None: ...
    def check(self, bucket: str) -> None: ...


def _store(bucket: str, key: str | None = None) -> Store:
    _refuse_foreign_names(bucket, key)
    # Imported when chosen: boto3 costs a process a third of a second and 30 MB.
    if settings.STORAGE_BACKEND == "s3":
        from attachments import storage_s3

        return storage_s3.current()
    from attachments import storage_local

    return storage_local.current()


BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
# No segment starts with a dot: that rules out `.` and `..`, and leaves dotted names for the storage's own use.
_OUTSIDE = r"/\\\x00-\x1f\x7f\ud800-\udfff"
_SEGMENT = f"[^.{_OUTSIDE}][^{_OUTSIDE}]*"
KEY = re.compile(f"{_SEGMENT}(/{_SEGMENT})*")


def _refuse_foreign_names(bucket: str, key: str | None) -> None:
    if not BUCKET.fullmatch(bucket):
        raise SuspiciousFileOperation(f"Not a bucket's name: {bucket!r}.")
    if key is not None and not (KEY.fullmatch(key) and len(key.encode()) <= MAX_KEY_BYTES):
        raise SuspiciousFileOperation(f"Not an object's key: {key[:100]!r}.")


def _copy(stream: Stream, file: BinaryIO) -> str:
    """Write the stream to the file and return its SHA-256 in hex."""
    digest = hashlib.sha256()
    for chunk in stream:
        digest.update(chunk)
        file.write(chunk)
    return digest.hexdigest()


def _harmless(filename: str) -> str:
    """A name for a person's disk: no folders, line breaks or hidden reordering, and never empty or endless."""
    name = unicodedata.normalize("NFC", printable(filename)).replace("/", "_").replace("\\", "_")
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix) > 16:  # no extension, or a name that starts with its only dot
        stem, dot, suffix = name, "", ""
    room = MAX_FILENAME_BYTES - len((dot + suffix).encode())
    return (stem.encode()[:room].decode(errors="ignore") + dot + suffix) or "file"
