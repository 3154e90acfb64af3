"""The body of an upload: multipart/form-data whose one file streams into the intake while it arrives.

No temporary file, no memory that grows with the file, and nothing left behind unless the whole form arrived: Django's
parser takes what a client that hung up had sent so far for all there is, so the end of the body is checked here.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest, QueryDict
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.http.request import UnreadablePostError

from attachments.errors import FileTooLarge
from attachments.problems import Problem
from pipeline.intake import Receiver

FILE_FIELD = "file"
LENGTH = re.compile(r"[0-9]{1,18}")
#: Read in pieces as large as the web server reads ahead: each smaller read would copy all that it holds once more.
CHUNK_BYTES = 1024 * 1024
#: What the form may hold besides the file: boundaries, headers and the short fields.
FORM_BYTES = 64 * 1024
#: A client that sends nothing for so long has gone, and frees its thread.
SILENCE_SECONDS = 60.0
#: What is read and dropped after a refusal, so that the client hears the answer.
DRAIN_BYTES = 32 * 1024 * 1024
DRAIN_SECONDS = 5.0
#: Holds the longest closing delimiter, with its boundary of up to 200 characters.
TAIL_BYTES = 256


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form that arrived whole: its fields, and its file in the hands of the intake, not yet durable."""

    fields: QueryDict
    receiver: Receiver
    filename: str
    claimed_type: str


@contextmanager
def received_form(body: Body) -> Iterator[Form]:
    """Read the whole body; leaving the block without `receiver.finish()` leaves nothing behind.

    Raises Problem for a body that is not such a form, Refused for a file that cannot be accepted (before the first
    byte when its announced size says so, else as early as its bytes do) and StorageUnavailable.
    """
    _check_announced(body)
    file = FileIntoIntake(created_by="rest")
    try:
        yield _form(_parse(body, file), file)
    finally:
        file.discard()


class Body:
    """A request's body, read to the end that its Content-Length announced."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self._socket: socket.socket | None = request.META.get("gunicorn.socket")
        announced = request.META.get("CONTENT_LENGTH") or ""
        self.announced = int(announced) if LENGTH.fullmatch(announced) else 0
        self.received = 0
        self._is_broken = False
        self._tail = b""

    def read(self, size: int = CHUNK_BYTES, /, *, silence_seconds: float = SILENCE_SECONDS) -> bytes:
        """The next bytes, none at the end; Problem when the client hangs up before, or falls silent."""
        if self._socket is not None:
            self._socket.settimeout(silence_seconds)
        try:
            chunk: bytes = self.request.read(size)
        except UnreadablePostError:
            chunk = b""
        if not chunk and self._missing():
            self._is_broken = True
            raise Problem(
                400, "body_incomplete", "The connection broke before the whole file had arrived. Send it again."
            )
        self.received += len(chunk)
        self._tail = (self._tail + chunk)[-TAIL_BYTES:] if len(chunk) < TAIL_BYTES else chunk[-TAIL_BYTES:]
        return chunk

    def ends_with(self, delimiter: bytes) -> bool:
        return self._tail.rstrip().endswith(delimiter)

    def drain(self) -> None:
        """Read and drop what is left if it is little: a client that is cut off while it sends sees no answer."""
        deadline = time.monotonic() + DRAIN_SECONDS
        with suppress(Problem):
            while 0 < self._missing() <= DRAIN_BYTES and time.monotonic() < deadline:
                self.read(silence_seconds=DRAIN_SECONDS)

    def _missing(self) -> int:
        return 0 if self._is_broken else self.announced - self.received


class FileIntoIntake(FileUploadHandler):
    """Hands the bytes of the form's one file to the intake, piece by piece."""

    chunk_size = CHUNK_BYTES

    def __init__(self, *, created_by: str) -> None:
        super().__init__()
        self._created_by = created_by
        self.boundary = b""
        self.receiver: Receiver | None = None
        self.is_complete = False

    def handle_raw_input(
        self, _input: object, _meta: object, _length: int, boundary: Any, _encoding: str | None = None
    ) -> None:
        self.boundary = boundary

    def new_file(self, field_name: str, *args: Any, **kwargs: Any) -> None:
        super().new_file(field_name, *args, **kwargs)
        if field_name != FILE_FIELD:
            raise Problem(422, "unknown_field", f"Send the file in the field {FILE_FIELD!r}.")
        if self.receiver is not None:
            raise Problem(422, "too_many_files", "Send one file at a time.")
        self.receiver = Receiver(created_by=self._created_by)

    def receive_data_chunk(self, raw_data: bytes, _start: int) -> None:
        assert self.receiver is not None
        self.receiver.write(raw_data)

    def file_complete(self, _size: int) -> None:
        self.is_complete = True

    def discard(self) -> None:
        if self.receiver is not None:
            self.receiver.abort()


class FormParser(MultiPartParser):
    """Django's parser, leaving file names as they came: the intake cleans them, for every door alike."""

    def sanitize_file_name(self, file_name: str) -> str:
        return file_name


def _check_announced(body: Body) -> None:
    if body.request.content_type != "multipart/form-data":
        raise Problem(415, "unsupported_media_type", "Send the file as multipart/form-data.")
    if not body.announced:
        raise Problem(411, "length_required", "Send the form with its Content-Length.")
    if body.announced > settings.MAX_UPLOAD_BYTES + FORM_BYTES:
        raise FileTooLarge(f"{body.announced} bytes announced", limit=settings.MAX_UPLOAD_BYTES)


def _parse(body: Body, file: FileIntoIntake) -> QueryDict:
    try:
        parser = FormParser(body.request.META, body, [file], "utf-8")  # type: ignore[arg-type]
        fields, _ = parser.parse()
    except MultiPartParserError as error:
        raise _malformed() from error
    if not body.ends_with(b"--" + file.boundary + b"--"):
        raise _malformed()
    return fields


def _form(fields: QueryDict, file: FileIntoIntake) -> Form:
    if file.receiver is None or not file.is_complete:
        raise Problem(422, "file_missing", f"Send one file, with its name, in the field {FILE_FIELD!r}.")
    return Form(
        fields=fields,
        receiver=file.receiver,
        filename=file.file_name or "",
        claimed_type=file.content_type or "",
    )


def _malformed() -> Problem:
    return Problem(400, "malformed_multipart", "The form is not well-formed multipart/form-data. Send it again.")
