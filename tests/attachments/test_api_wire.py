"""The REST door over real sockets: clients that break off, many at once, and files larger than memory should hold."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from django.contrib.auth.models import User
from django.db import connection
from hypothesis import HealthCheck, given
from hypothesis import settings as bounds
from hypothesis import strategies as st
from rest_framework.authtoken.models import Token

from attachments.models import Attachment, StoredObject
from pipeline.models import Job
from tests.attachments.conftest import (
    URL,
    Form,
    Web,
    assert_problem,
    file_part,
    form,
    nothing_is_left,
    serve,
)
from tests.pictures import jpeg
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

MIB = 1024 * 1024


@pytest.fixture
def token(user: User) -> str:
    return str(Token.objects.create(user=user).key)


def head(token: str, length: int, *, content_type: str | None = None) -> bytes:
    lines = [
        f"POST {URL} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Token {token}",
        f"Content-Type: {content_type or form().content_type}",
        f"Content-Length: {length}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def test_twenty_at_once_with_one_key_make_one_row_and_one_body(web: Web, token: str) -> None:
    sent = form(jpeg(1200, 900))
    with ThreadPoolExecutor(20) as clients:
        answers = list(clients.map(lambda _: web.send(sent, token, Idempotency_Key="one"), range(20)))
    assert [answer.status_code for answer in answers] == [202] * 20
    assert len({answer.content for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
    assert Attachment.objects.count() == Job.objects.count() == StoredObject.objects.count() == 1
    assert len([path for path in web.storage_root.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("part", [200, 300_000, 2_000_000])
def test_a_client_that_hangs_up_half_way_leaves_nothing(web: Web, token: str, part: int) -> None:
    body = form(jpeg() + b"0" * 3_000_000).body
    with web.connect() as client:
        client.sendall(head(token, len(body)) + body[:part])
        if part > 1_500_000:
            until(StoredObject.objects.exists)
    until(lambda: web.process.says("body_incomplete"))
    until(nothing_is_left)


def test_a_client_that_still_sends_hears_why_its_file_is_refused(web: Web, token: str) -> None:
    sent = form(b"%PDF-1.7\n" + b"0" * 20 * MIB)
    assert_problem(web.send(sent, token), 415, "unsupported_type")
    assert_problem(web.send(sent, "wrong"), 401, "authentication_failed")
    assert nothing_is_left()


class Large:
    """A form around a file of `size` bytes that are made while they are sent."""

    piece = bytes(range(256)) * 4096

    def __init__(self, size: int) -> None:
        self.start = jpeg()
        self.pieces = (size - len(self.start)) // len(self.piece)
        self._form = Form((file_part(self.start),))

    def __len__(self) -> int:
        return len(self._form.body) + self.pieces * len(self.piece)

    def __iter__(self) -> Iterator[bytes]:
        closing = len(b"\r\n--frontier--\r\n")
        yield self._form.body[:-closing]
        for _ in range(self.pieces):
            yield self.piece
        yield self._form.body[-closing:]

    def sha256(self) -> str:
        digest = hashlib.sha256(self.start)
        for _ in range(self.pieces):
            digest.update(self.piece)
        return digest.hexdigest()


def test_the_memory_of_the_web_process_does_not_grow_with_the_file(web: Web, token: str) -> None:
    assert web.send(form(), token).status_code == 202
    (worker,) = web.process.children()
    before = worker.memory_info().rss
    large = Large(256 * MIB)
    with watched_memory(worker) as peak:
        answer = web.ask(
            "POST", URL, body=iter(large), Authorization=f"Token {token}",
            Content_Type=form().content_type, Content_Length=str(len(large)),
        )  # fmt: skip
    assert answer.status_code == 202
    assert answer.json()["sha256"] == large.sha256()
    assert max(peak) - before < 64 * MIB


@contextlib.contextmanager
def watched_memory(process: psutil.Process) -> Iterator[list[int]]:
    seen, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            seen.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def test_a_waiting_client_holds_no_database_connection(web: Web, token: str) -> None:
    attachment_id = web.send(form(), token).json()["id"]
    with web.connect() as client:
        request = (
            f"GET {URL}{attachment_id}/?wait=20 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Token {token}\r\n\r\n"
        )
        client.sendall(request.encode())
        until(lambda: connections_that_asked("SELECT", "told_by") == 0 and watching_connections() == 1)
        Job.objects.update(state="processing", runner="exchange")
        status, body = answer_of(client)
    assert (status, json.loads(body)["state"]) == (200, "processing")
    until(lambda: watching_connections() == 0)


def watching_connections() -> int:
    return connections_that_asked("stored_file", "IN (")


def connections_that_asked(*words: str) -> int:
    """How many other connections to this database had all these words in their last query."""
    conditions = " AND ".join(["query LIKE %s"] * len(words))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            f" AND {conditions}",
            [f"%{word}%" for word in words],
        )
        return int(cursor.fetchone()[0])


def answer_of(client: socket.socket) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(client)
    response.begin()
    return response.status, response.read()


@pytest.fixture(scope="module")
def web_without_database(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    yield from serve(tmp_path_factory.mktemp("web"), DATABASE_URL="postgres://nobody:none@127.0.0.1:1/none")


def test_without_the_database_every_call_is_a_503_that_says_so(web_without_database: Web) -> None:
    sent = form()
    calls = [
        ("GET", URL),
        ("POST", URL),
        ("GET", f"{URL}00000000-0000-0000-0000-000000000000/"),
        ("DELETE", f"{URL}00000000-0000-0000-0000-000000000000/"),
    ]
    for credentials in ({"Authorization": "Token t"}, {"Cookie": "sessionid=abcdefgh"}):
        for method, path in calls:
            body = sent.body if method == "POST" else None
            answer = web_without_database.ask(method, path, body=body, Content_Type=sent.content_type, **credentials)
            assert_problem(answer, 503, "database_unavailable")
            assert answer.headers["Retry-After"] == "5"


def test_without_the_database_the_process_lives_and_is_not_ready(web_without_database: Web) -> None:
    assert web_without_database.ask("GET", "/healthz").status_code == 200
    ready = web_without_database.ask("GET", "/readyz")
    assert ready.status_code == 503
    assert ready.json() == {"status": "unavailable", "database": "unavailable", "storage": "ok"}
    metrics = web_without_database.ask("GET", "/metrics")
    assert metrics.status_code == 200
    assert b"holdfast_database_up 0.0" in metrics.content
    assert web_without_database.ask("GET", "/admin/login/", Cookie="sessionid=abcdefgh").status_code == 503


def test_a_killed_web_process_takes_its_busy_workers_along(tmp_path: Path, token: str) -> None:
    """One that went on serving a slow client would hold the port, and no successor could open it."""
    with contextlib.contextmanager(serve)(tmp_path / "web") as web, web.connect() as client:
        client.sendall(head(token, MIB) + b"--")
        workers = web.process.children()
        assert workers
        os.kill(web.process.pid, signal.SIGKILL)
        psutil.wait_procs(workers, timeout=20)
        assert not any(worker.is_running() for worker in workers)


@bounds(max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_bytes_whatever_make_an_unexpected_error(web: Web, token: str, data: st.DataObject) -> None:
    """A whole request with a few of its bytes cut out, replaced or repeated."""
    request = head(token, len(form(b"\xff\xd8\xff" + b"0" * 600).body)) + form(b"\xff\xd8\xff" + b"0" * 600).body
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(len(f"POST {URL} HTTP/1.1\r\n"), len(request)))
        end = data.draw(st.integers(start, min(start + 40, len(request))))
        request = request[:start] + data.draw(st.binary(max_size=40)) + request[end:]
    with web.connect() as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert not answer.startswith(b"HTTP/1.1 5"), (request, answer)
    assert not web.process.says("unexpected_error"), web.process.tail()
