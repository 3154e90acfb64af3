"""A real HTTP hop in front of an S3 server: it fails on demand, and checks what a strict server checks.

The server behind it does not compare a body with its signed SHA-256, as every real one does, so this hop
does: a body that is unsigned, or not what was signed, is refused. Nor does it know when an upload in parts
began, so this hop remembers that, and says it in the server's listing.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Self
from urllib.parse import urlsplit


@dataclass
class Fault:
    """What happens to the next `times` requests that match; `times` below zero means all of them."""

    method: str
    times: int
    matches: str = ""
    status: int = 0
    code: str = ""
    needs_header: str = ""
    is_request_cut: bool = False
    is_request_flipped: bool = False
    is_stored_short: bool = False
    is_stored_flipped: bool = False
    is_held: bool = False
    is_answer_lost: bool = False
    is_answer_cut: bool = False
    is_answer_flipped: bool = False


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    payload_sha256: str
    body_sha256: str


class S3Proxy(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1; use it in a with-block."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, upstream: str, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.upstream = urlsplit(upstream).netloc
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_port}"
        self.seen: list[Seen] = []
        self.released = Event()
        self.begun: dict[bytes, bytes] = {}
        #: Is told of every request's method and path before it goes on.
        self.watch: Callable[[str, str], None] = lambda *_: None
        self._faults: list[Fault] = []
        self._lock = Lock()

    def fail(self, method: str, *, times: int = -1, **how: object) -> None:
        self.released.clear()
        self._faults.append(Fault(method=method, times=times, **how))  # type: ignore[arg-type]

    def recover(self) -> None:
        self.released.set()
        self.watch = lambda *_: None
        self._faults.clear()
        self.seen.clear()

    def next_fault(self, request: BaseHTTPRequestHandler) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                is_meant = request.command == fault.method and fault.matches in request.path
                if is_meant and fault.times and (not fault.needs_header or fault.needs_header in request.headers):
                    fault.times -= 1
                    return fault
        return None

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what the tests are about."""

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: S3Proxy

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ssl.SSLError):
            self.close_connection = True

    def pass_on(self) -> None:
        fault = self.server.next_fault(self) or Fault("", 0)
        length = int(self.headers.get("Content-Length") or 0)
        if fault.is_request_cut:
            self.rfile.read(length // 2)
            return self._hang_up()
        body = self.rfile.read(length)
        if fault.is_request_flipped:
            body = _flipped(body)
        signed = self.headers.get("X-Amz-Content-SHA256", "")
        received = hashlib.sha256(body).hexdigest()
        url = urlsplit(self.path)
        self.server.watch(self.command, url.path)
        self.server.seen.append(Seen(self.command, url.path, url.query, signed, received))
        if fault.status:
            return self._refuse(fault.status, fault.code)
        if body and signed != received:
            return self._refuse(400, "XAmzContentSHA256Mismatch")
        if fault.is_held:
            self.server.released.wait(30)
            return self._hang_up()
        if fault.is_stored_short:
            body = body[: len(body) // 2]
        answer, content = self._ask(_flipped(body) if fault.is_stored_flipped else body)
        content = self._tell_of_uploads(content)
        return self._hang_up() if fault.is_answer_lost else self._answer(fault, answer, content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815  (names that http.server calls)

    def _ask(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=30)
        upstream.request(self.command, self.path, body, {**self.headers, "Content-Length": str(len(body))})
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        return answer, content

    def _tell_of_uploads(self, content: bytes) -> bytes:
        """Keep in mind when an upload begins, and put it where the server says something else."""
        if self.command == "POST":
            for upload_id in re.findall(
                rb"<InitiateMultipartUploadResult.*<UploadId>(.+?)</UploadId>", content, re.DOTALL
            ):
                self.server.begun[upload_id] = datetime.now(UTC).isoformat().encode()
        if b"<ListMultipartUploadsResult" not in content:
            return content
        return re.sub(rb"<Upload>.+?</Upload>", self._with_its_begin, content, flags=re.DOTALL)

    def _with_its_begin(self, upload: re.Match[bytes]) -> bytes:
        (upload_id,) = re.findall(rb"<UploadId>(.+?)</UploadId>", upload[0])
        return re.sub(rb"(<Initiated>).+?(</Initiated>)", rb"\g<1>" + self.server.begun[upload_id] + rb"\2", upload[0])

    def _answer(self, fault: Fault, answer: http.client.HTTPResponse, content: bytes) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"connection", "transfer-encoding", "server", "date", "content-length"}:
                self.send_header(name.title(), value)  # as servers written in Go do, also to metadata
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if fault.is_answer_cut:
            content = content[: len(content) // 2]
        self.wfile.write(_flipped(content) if fault.is_answer_flipped else content)
        if fault.is_answer_cut:
            self._hang_up()

    def _refuse(self, status: int, code: str) -> None:
        content = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None: ...


def _flipped(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:] if content else content
