"""Clients of the REST door: in this process, and over a real socket to the real web server."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from rest_framework.authtoken.models import Token

from attachments import objects, storage
from attachments.models import Attachment, StoredObject, Variant
from config.local.places import free_port
from pipeline import lifecycle
from pipeline.lifecycle import Lease
from pipeline.models import Job
from pipeline.registry import Pipeline
from tests.pictures import jpeg
from tests.processes import Process
from tests.waiting import until

URL = "/api/v1/attachments/"


@pytest.fixture(autouse=True)
def _collected_static_files(settings: Any, tmp_path: Path) -> None:
    """WhiteNoise warns where `collectstatic` was never run."""
    settings.STATIC_ROOT = str(tmp_path)


@dataclass(frozen=True)
class Form:
    """A multipart body, written by hand so that it can be wrong."""

    parts: tuple[bytes, ...]
    boundary: str = "frontier"

    @property
    def body(self) -> bytes:
        opening = b"--" + self.boundary.encode() + b"\r\n"
        return b"".join(opening + part + b"\r\n" for part in self.parts) + b"--" + self.boundary.encode() + b"--\r\n"

    @property
    def content_type(self) -> str:
        return f"multipart/form-data; boundary={self.boundary}"


def file_part(data: bytes, *, name: str = "photo.jpg", field: str = "file", kind: str = "image/jpeg") -> bytes:
    head = f'Content-Disposition: form-data; name="{field}"; filename="{name}"\r\nContent-Type: {kind}\r\n\r\n'
    return head.encode() + data


def field_part(name: str, value: str) -> bytes:
    return f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()


def form(data: bytes | None = None, **fields: str) -> Form:
    """The form of an ordinary upload: fields first, then the file."""
    parts = [field_part(name, value) for name, value in fields.items()]
    return Form((*parts, file_part(jpeg() if data is None else data)))


class Door:
    """One person's client of the REST door, in this process."""

    def __init__(self, owner: User) -> None:
        self.owner = owner
        self.token = Token.objects.get_or_create(user=owner)[0].key
        self.client = Client(headers={"Authorization": f"Token {self.token}"})

    def send(self, sent: Form | None = None, *, key: str | None = None, **headers: str) -> Any:
        sent = sent or form()
        if key is not None:
            headers["Idempotency-Key"] = key
        return self.client.generic("POST", URL, sent.body, content_type=sent.content_type, headers=headers)

    def get(self, path: str = "", **headers: str) -> Any:
        return self.client.get(path if path.startswith("/") else URL + path, headers=headers)

    def delete(self, path: object) -> Any:
        return self.client.delete(f"{URL}{path}/")


@pytest.fixture
def door(user: User) -> Door:
    return Door(user)


@pytest.fixture
def other_door(user: User) -> Door:
    return Door(User.objects.create_user("bob"))


def assert_problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """The response is a whole problem document with that status and code; returns it."""
    assert response.headers["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert (response.status_code, document["status"], document["code"]) == (status, status, code), document
    assert document["type"] == f"/problems/{code}"
    assert document["title"]
    assert document["detail"].endswith(".")
    assert len(document["trace_id"]) == 32
    return document


def nothing_is_left() -> bool:
    """No row, no object and no part of one."""
    bucket = Path(settings.STORAGE_ROOT) / settings.STORAGE_BUCKET
    return not (Attachment.objects.exists() or StoredObject.objects.exists() or any(bucket.rglob("*")))


@pytest.fixture
def finished(leased: Callable[..., Lease]) -> Callable[..., Attachment]:
    """Makes a job ready with the given bytes for each promised variant, as a worker would."""

    def finish(
        job: Job | None = None, *, data: bytes = b"variant bytes", content_type: str = "image/webp"
    ) -> Attachment:
        lease = leased(job)
        for variant in sorted(lease.pipeline.promised):
            put_variant(lease, variant, data=data, content_type=content_type)
        lifecycle.complete(lease)
        return Attachment.objects.get(id=lease.attachment_id)

    return finish


def put_variant(
    lease: Lease, variant: str, *, data: bytes, content_type: str = "image/webp", **options: Any
) -> Variant:
    """Store the bytes and record them, as a worker would."""
    key = objects.variant_key(
        lease.attachment_id, version=lease.pipeline.version, attempt=lease.attempt, variant=variant
    )
    stored = objects.register(key, content_type=content_type, created_by=lease.worker)
    with storage.writer(stored.bucket, stored.key, content_type=content_type) as writer:
        writer.write(data)
        written = writer.finish()
    lifecycle.record(
        lease, variant=variant, object_id=stored.id, written=written, facts={"width": 12}, original_facts={}, **options
    )
    return Variant.objects.get(stored_object=stored)


def in_a_thread(act: Callable[[], None]) -> threading.Thread:
    """Act at the same time as the test, on a connection of its own."""

    def run() -> None:
        try:
            act()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def add_job(attachment: Attachment, pipeline: Pipeline, **fields: Any) -> Job:
    """A job of another version for an attachment that has one already, as reprocessing would make it."""
    defaults = {"runner": pipeline.runner, "source": "rest", "carrier": {}}
    return Job.objects.create(
        attachment=attachment, pipeline=pipeline.name, pipeline_version=pipeline.version, **{**defaults, **fields}
    )


@dataclass
class Answer:
    """What came back over a socket; looks enough like Django's test response for `assert_problem`."""

    status_code: int
    headers: Message
    content: bytes = field(repr=False)

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass
class Web:
    """A real gunicorn on the test database, with a storage of its own."""

    process: Process
    port: int
    storage_root: Path

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def ask(self, method: str, path: str, *, body: Any = None, **headers: str) -> Answer:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            client.request(method, path, body=body, headers=sent)
            response = client.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            client.close()

    def send(self, sent: Form, token: str, **headers: str) -> Answer:
        headers = {"Authorization": f"Token {token}", "Content_Type": sent.content_type, **headers}
        return self.ask("POST", URL, body=sent.body, **headers)

    def is_up(self) -> bool:
        try:
            return self.ask("GET", "/healthz").status_code == 200
        except OSError:
            return False


def serve(folder: Path, **changes: str) -> Iterator[Web]:
    """Run the web server until the generator goes on."""
    root = folder / "storage"
    (root / settings.STORAGE_BUCKET).mkdir(parents=True)
    port = free_port()
    command = ["-m", "gunicorn", "config.wsgi", "-c", "config/gunicorn.py"]
    settled = {"WEB_BIND": f"127.0.0.1:{port}", "WEB_WORKERS": "1", "WEB_THREADS": "24", "STORAGE_ROOT": str(root)}
    process = Process(command, folder / "web.log", **{**settled, **changes}).start()
    web = Web(process, port, root)
    try:
        until(web.is_up, say=process.tail)
        yield web
    finally:
        process.kill()


@pytest.fixture(scope="module")
def shared_web(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    yield from serve(tmp_path_factory.mktemp("web"))


@pytest.fixture
def web(shared_web: Web, settings: Any) -> Iterator[Web]:
    """The module's web server, with an empty log and an empty storage, which is this test's own too."""
    settings.STORAGE_ROOT = str(shared_web.storage_root)
    shared_web.process.log.write_text("")
    yield shared_web
    shutil.rmtree(shared_web.storage_root)
    storage.make_bucket(settings.STORAGE_BUCKET)
