"""A small client of the REST API: what a script of a few lines would do, with progress."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

CHUNK_BYTES = 256 * 1024
ANSWER_SECONDS = 60.0


class Refusal(Exception):
    """The API said no: its HTTP status, its stable code, and its sentence."""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


@dataclass(frozen=True)
class Download:
    """Bytes that were fetched, as they arrived."""

    size: int
    sha256: str
    content: bytes


@dataclass(frozen=True)
class Client:
    """Speaks for the person that `token` belongs to."""

    web_url: str
    token: str

    def upload(self, file: Path, *, on_sent: Callable[[float], None]) -> dict[str, Any]:
        """Sends a file and returns what was accepted; `on_sent` hears the share sent so far. Raises Refusal."""
        boundary = secrets.token_hex(16)
        name = quote(file.name, safe=" !#$&+-.^_`|~()[]{}@,;=' ")
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"; '
            f"filename*=UTF-8''{quote(file.name, safe='')}\r\nContent-Type: application/octet-stream\r\n\r\n"
        ).encode()
        tail = f"\r\n--{boundary}--\r\n".encode()
        headers = {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(len(head) + file.stat().st_size + len(tail)),
        }
        body = _form_body(head, file, tail, on_sent=on_sent)
        accepted: dict[str, Any] = json.loads(
            self._call("POST", f"{self.web_url}/api/v1/attachments/", headers=headers, body=body)
        )
        return accepted

    def status(self, attachment_id: str, *, wait_seconds: int) -> dict[str, Any]:
        """The attachment as it is now, or as soon as its state changes. Raises Refusal."""
        address = f"{self.web_url}/api/v1/attachments/{attachment_id}/?wait={wait_seconds}"
        status: dict[str, Any] = json.loads(self._call("GET", address))
        return status

    def download(self, url: str) -> Download:
        """Fetches a variant or an original. Raises Refusal."""
        content = self._call("GET", url)
        return Download(len(content), hashlib.sha256(content).hexdigest(), content)

    def _call(
        self, method: str, url: str, *, headers: dict[str, str] | None = None, body: Iterator[bytes] | None = None
    ) -> bytes:
        parts = urlsplit(url)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)
        try:
            address = f"{parts.path}?{parts.query}" if parts.query else parts.path
            authorised = {"Authorization": f"Token {self.token}", **(headers or {})}
            connection.request(method, address, body=body, headers=authorised)
            return _checked(connection.getresponse())
        finally:
            connection.close()


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with 200."""
    try:
        Client(url, "")._call("GET", url)  # noqa: SLF001  (its own module)
    except (OSError, HTTPException, Refusal):
        return False
    return True


def _form_body(head: bytes, file: Path, tail: bytes, *, on_sent: Callable[[float], None]) -> Iterator[bytes]:
    size = file.stat().st_size or 1
    sent = 0
    yield head
    with file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk
            sent += len(chunk)
            on_sent(sent / size)
    yield tail


def _checked(response: HTTPResponse) -> bytes:
    content = response.read()
    if response.status < 300:
        return content
    try:
        problem = json.loads(content)
    except ValueError:
        problem = {}
    sentence = problem.get("detail") or problem.get("title") or f"The server answered {response.status}."
    raise Refusal(response.status, problem.get("code", "http_error"), sentence)
