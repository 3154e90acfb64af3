"""Storage that refuses, stalls, cuts, shortens, alters and loses, between the real executor or door and a real server.

A fault that passes is waited out and costs the job no chance; damage is found by its digest and named; and at no time
does a row point at bytes that are not there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from rest_framework.authtoken.models import Token

from attachments import storage_s3
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from attachments.storage_s3 import PART_BYTES
from attachments.storage_s3_client import connect
from pipeline import lifecycle
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.retention import Sweeper
from pipeline.states import State
from tests.attachments.conftest import URL, form
from tests.backends import BUCKET, LocalBackend, S3Backend
from tests.pictures import jpeg
from tests.work import make_quick, work

pytestmark = pytest.mark.django_db(transaction=True)
Backend = LocalBackend | S3Backend

WRITING: dict[str, dict[str, Any]] = {
    "refused": {"method": "PUT", "status": 503, "code": "SlowDown"},
    "forbidden": {"method": "PUT", "status": 403, "code": "AccessDenied"},
    "cut in the middle": {"method": "PUT", "is_request_cut": True},
    "altered on its way": {"method": "PUT", "is_request_flipped": True},
    "stored short": {"method": "PUT", "is_stored_short": True},
    "never answered": {"method": "PUT", "is_held": True},
    "not to be looked at": {"method": "HEAD", "status": 503, "code": "SlowDown"},
}
READING: dict[str, dict[str, Any]] = {
    "refused": {"method": "GET", "status": 503, "code": "SlowDown"},
    "cut in the middle": {"method": "GET", "is_answer_cut": True},
    "never answered": {"method": "GET", "is_held": True},
}
FAULTS = {f"reading {name}": fault for name, fault in READING.items()} | {
    f"writing {name}": fault for name, fault in WRITING.items()
}


@pytest.fixture(autouse=True)
def _quick_work(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client that waits for three seconds and asks twice, where ours would for half a minute and thrice."""
    storage_s3._store.cache_clear()
    monkeypatch.setattr(storage_s3, "connect", partial(connect, read_seconds=3, attempts=2))
    yield
    storage_s3._store.cache_clear()


def attempt(job: Job) -> str:
    """Work on the job's message as soon as it is due."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pipeline_job SET due_at = now() WHERE job_id = %s", [job.job_id])
    outcome = work(job)
    job.refresh_from_db()
    return outcome


def assert_pointers_lead_to_their_bytes(backend: Backend) -> None:
    pointed_at = StoredObject.objects.filter(variant__isnull=False) | StoredObject.objects.filter(
        attachment__isnull=False
    )
    for stored in pointed_at:
        body = backend.body_of(stored.key)
        assert (len(body), hashlib.sha256(body).hexdigest()) == (stored.size, stored.sha256), stored.key


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_is_waited_out_and_nothing_of_it_is_recorded(
    fault: str,
    queued: Callable[..., Job],
    s3: S3Backend,
) -> None:
    job = queued()
    s3.proxy.fail(**FAULTS[fault])
    assert attempt(job) == "released"
    assert (job.state, job.failures, job.attempt) == (State.QUEUED, 0, 2)
    assert job.outage_since is not None
    assert job.due_at > job.outage_since
    assert OutboxMessage.objects.get(job=job, attempt=2).due_at >= job.due_at
    assert not Variant.objects.exists()
    assert_pointers_lead_to_their_bytes(s3)
    s3.proxy.recover()
    assert attempt(job) == "ready"
    assert (job.failures, Variant.objects.count()) == (0, 3)
    assert_pointers_lead_to_their_bytes(s3)


def test_a_server_that_is_busy_for_a_moment_costs_no_attempt(
    queued: Callable[..., Job],
    s3: S3Backend,
) -> None:
    job = queued()
    for method in ("GET", "PUT", "HEAD"):
        s3.proxy.fail(method, times=1, status=503, code="SlowDown")
    assert attempt(job) == "ready"
    assert job.attempt == 1


def test_a_folder_that_is_not_mounted_is_waited_out(queued: Callable[..., Job], local: LocalBackend) -> None:
    job = queued()
    (local.root / BUCKET).rename(local.root / "elsewhere")
    assert attempt(job) == "released"
    assert (job.state, job.failures) == (State.QUEUED, 0)
    (local.root / "elsewhere").rename(local.root / BUCKET)
    assert attempt(job) == "ready"
    assert_pointers_lead_to_their_bytes(local)


@pytest.mark.parametrize(("hours", "outcome"), [(1, "released"), (23.9, "released"), (24.1, "gave_up")])
def test_an_outage_fails_nothing_before_it_has_lasted_a_day(
    hours: float,
    outcome: str,
    queued: Callable[..., Job],
    s3: S3Backend,
) -> None:
    job = queued()
    s3.proxy.fail("GET", status=503, code="SlowDown")
    assert attempt(job) == "released"
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pipeline_job SET outage_since = outage_since - make_interval(secs => %s)", [hours * 3600]
        )
    assert attempt(job) == outcome
    assert (job.failures, job.error_code) == (0, "" if outcome == "released" else "outage")
    s3.proxy.recover()
    if outcome == "gave_up":
        lifecycle.replay(job.job_id, attempt=job.attempt, actor="operator:ann", reason="the storage is back")
    assert attempt(job) == "ready"


def test_an_outage_that_was_over_in_between_counts_from_anew(
    queued: Callable[..., Job],
    s3: S3Backend,
) -> None:
    """Two hours of outage a day apart are no outage of a day."""
    job = queued()
    s3.proxy.fail("GET", status=503, code="SlowDown")
    assert attempt(job) == "released"
    s3.proxy.recover()
    s3.proxy.fail("GET", is_answer_flipped=True)
    assert attempt(job) == "retried"
    assert job.outage_since is None


HARM: dict[str, tuple[Callable[[Backend, str], None], str]] = {
    "cut": (lambda storing, key: storing.put_beside(key, storing.body_of(key)[:-1]), "object_corrupt"),
    "altered": (lambda storing, key: storing.put_beside(key, storing.body_of(key)[:-1] + b"?"), "object_corrupt"),
    "lost": (lambda storing, key: storing.lose(key), "object_missing"),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_original_is_named_and_never_worked_on(
    harm: str,
    queued: Callable[..., Job],
    backend: Backend,
    settings: Any,
) -> None:
    settings.MAX_FAILURES = 2
    job = queued()
    stored = StoredObject.objects.get(attachment=job.attachment_id)
    intact = backend.body_of(stored.key)
    do_harm, code = HARM[harm]
    do_harm(backend, stored.key)
    assert attempt(job) == "retried"
    assert JobEvent.objects.filter(job=job).latest("id").reason == code
    assert attempt(job) == "dead"
    assert (job.state, job.error_code, job.failures) == (State.FAILED, code, 2)
    assert "operator" in job.error
    assert stored.key not in job.error
    assert not Variant.objects.exists()
    backend.put_beside(stored.key, intact)
    lifecycle.replay(job.job_id, attempt=job.attempt, actor="operator:ann", reason="restored from a backup")
    assert attempt(job) == "ready"


def test_other_bytes_that_are_read_once_are_read_again(queued: Callable[..., Job], s3: S3Backend) -> None:
    job = queued()
    s3.proxy.fail("GET", times=1, is_answer_flipped=True)
    assert attempt(job) == "retried"
    assert attempt(job) == "ready"
    assert_pointers_lead_to_their_bytes(s3)


def test_rows_come_before_bytes_and_pointers_after_them(queued: Callable[..., Job], s3: S3Backend) -> None:
    seen: dict[str, tuple[str, bool]] = {}

    def look(method: str, path: str) -> None:
        key = path.removeprefix(f"/{BUCKET}/")
        if method == "PUT":
            # Another connection sees only what is committed.
            with closing(connection.copy()) as other, other.cursor() as cursor:
                cursor.execute(
                    "SELECT bucket_role, EXISTS (SELECT FROM attachment_variant WHERE stored_object_id = o.id)"
                    " OR EXISTS (SELECT FROM stored_file WHERE original_id = o.id) FROM s3_object o WHERE key = %s",
                    [key],
                )
                seen[key] = cursor.fetchone()

    s3.proxy.watch = look
    assert attempt(queued()) == "ready"
    assert len(seen) == 4
    assert set(seen.values()) == {(BucketRole.STAGING, False)}


@pytest.fixture
def door(user: User) -> Client:
    return Client(headers={"Authorization": f"Token {Token.objects.create(user=user).key}"})


def send(door: Client, data: bytes) -> Any:
    sent = form(data)
    return door.generic("POST", URL, sent.body, content_type=sent.content_type)


@pytest.mark.parametrize(
    ("fault", "size"),
    [(fault, 1000) for fault in WRITING]
    + [(fault, 2 * PART_BYTES) for fault in ("refused", "cut in the middle", "stored short")],
)
def test_an_upload_that_the_storage_does_not_take_is_answered_503_and_leaves_nothing(
    fault: str, size: int, door: Client, s3: S3Backend, settings: Any
) -> None:
    """Not even where nothing can be cleared away at once; then the sweep does it."""
    settings.STAGING_RETENTION_SECONDS = 0.0
    s3.proxy.fail(**WRITING[fault])
    s3.proxy.fail("DELETE", status=503, code="SlowDown")
    answer = send(door, jpeg() + bytes(size))
    assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
    assert answer.headers["Retry-After"]
    assert not Attachment.objects.exists()
    assert not Job.objects.exists()
    assert not OutboxMessage.objects.exists()
    s3.proxy.recover()
    Sweeper().run()
    assert not StoredObject.objects.exists()
    assert s3.everything() == []
    assert send(door, jpeg()).status_code == 202
    assert_pointers_lead_to_their_bytes(s3)


@pytest.mark.django_db
def test_a_server_that_cannot_list_unfinished_uploads_is_not_listed_again_and_again(s3: S3Backend) -> None:
    s3.proxy.fail("GET", matches="?uploads", status=501, code="NotImplemented")
    sweeper = Sweeper()
    for _ in range(3):
        sweeper.run()
    assert len([request for request in s3.proxy.seen if "list-type=2" in request.query]) == 1
