"""Replay through the REST door: who may, what it answers, and that asking twice does nothing twice."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client

from attachments.models import Attachment, BucketRole, StoredObject, Variant
from pipeline import registry, removal
from pipeline.lifecycle import Lease
from pipeline.models import Job, JobEvent, OutboxMessage, Replay
from pipeline.states import State
from tests.attachments.conftest import URL, Door, assert_problem
from tests.processes import Stack
from tests.waiting import until

pytestmark = pytest.mark.django_db
REASON = {"reason": "decoder updated"}


@pytest.fixture
def operator() -> Door:
    operating = User.objects.create_user("olga")
    operating.user_permissions.add(Permission.objects.get(codename="replay_job"))
    return Door(operating)


def replay(door: Door, attachment_id: object, body: Any = REASON, **options: Any) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    options.setdefault("content_type", "application/json")
    return door.client.generic("POST", f"{URL}{attachment_id}/replay/", data, **options)


def test_an_operator_replays_anybodys_attachment_and_sees_its_state(operator: Door, failed: Callable[..., Job]) -> None:
    job = failed()
    response = replay(operator, job.attachment_id)
    assert response.status_code == 202, response.content
    told = response.json()
    assert (told["id"], told["job_id"]) == (str(job.attachment_id), str(job.job_id))
    assert (told["state"], told["attempt"], told["error_code"]) == ("queued", 2, None)
    act = Replay.objects.get()
    assert (act.actor, act.via, act.reason) == (f"operator:{operator.owner.pk}:olga", "api", "decoder updated")
    assert (act.chosen_by, act.matching) == ({"attachment": str(job.attachment_id)}, 1)
    assert act.jobs.get().job_id == job.job_id
    assert JobEvent.objects.get(job=job, reason="replay").actor == act.actor


def test_an_identical_second_call_does_nothing_twice(operator: Door, failed: Callable[..., Job]) -> None:
    job = failed()
    assert replay(operator, job.attachment_id).status_code == 202
    assert_problem(replay(operator, job.attachment_id), 409, "nothing_failed")
    assert Job.objects.get().attempt == 2
    assert Replay.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_many_calls_at_once_one_is_answered_202(operator: Door, failed: Callable[..., Job]) -> None:
    job = failed()
    together = Barrier(4)

    def call(_: int) -> int:
        try:
            together.wait()
            return int(replay(Door(operator.owner), job.attachment_id).status_code)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as callers:
        assert sorted(callers.map(call, range(4))) == [202, 409, 409, 409]
    assert Job.objects.get().attempt == 2
    assert OutboxMessage.objects.filter(job=job).count() == 2
    assert Replay.objects.count() == 1


def test_who_is_no_operator_hears_of_their_own_only(door: Door, other_door: Door, failed: Callable[..., Job]) -> None:
    job = failed()
    assert_problem(replay(door, job.attachment_id), 403, "permission_denied")
    assert_problem(replay(other_door, job.attachment_id), 404, "not_found")
    assert_problem(replay(door, uuid.uuid4()), 404, "not_found")
    # Nothing of the body is looked at before.
    assert_problem(replay(door, job.attachment_id, b"{", content_type="text/plain"), 403, "permission_denied")
    job.refresh_from_db()
    assert job.state == State.FAILED
    assert not Replay.objects.exists()


def test_nobody_replays_without_a_token_or_with_a_session_but_without_its_csrf_token(
    operator: Door, failed: Callable[..., Job]
) -> None:
    address = f"{URL}{failed().attachment_id}/replay/"
    assert_problem(Client().post(address, REASON, content_type="application/json"), 401, "not_authenticated")
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(operator.owner)
    assert_problem(browser.post(address, REASON, content_type="application/json"), 403, "permission_denied")
    assert_problem(operator.get(address), 405, "method_not_allowed")
    assert not Replay.objects.exists()


def test_what_has_not_failed_is_not_replayed(
    operator: Door, queued: Callable[..., Job], leased: Callable[..., Lease], finished: Callable[..., Attachment]
) -> None:
    for attachment_id in (queued().attachment_id, leased().attachment_id, finished().id):
        assert_problem(replay(operator, attachment_id), 409, "nothing_failed")
    assert not Replay.objects.exists()


def test_without_an_original_there_is_nothing_to_replay(operator: Door, failed: Callable[..., Job]) -> None:
    swept, deleted = failed(), failed()
    StoredObject.objects.filter(attachment=swept.attachment_id).update(bucket_role=BucketRole.TRASH)
    removal.remove(deleted.attachment_id, actor="test")
    assert_problem(replay(operator, swept.attachment_id), 409, "original_gone")
    assert_problem(replay(operator, deleted.attachment_id), 404, "not_found")
    assert set(Job.objects.values_list("state", flat=True)) == {State.FAILED}
    assert not Replay.objects.exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "reason"),
        (b"", "reason"),
        ({"reason": None}, "reason"),
        ({"reason": ""}, "reason"),
        ({"reason": " \n\u200b..."}, "reason"),
        ({"reason": "x" * 501}, "reason"),
        ({"reason": ["why"]}, "reason"),
        ({"reason": "a\x00b"}, "reason"),
        (b'{"reason": "\\ud800"}', "reason"),
        ({**REASON, "attempt": 1}, "attempt"),
        ([REASON], "non_field_errors"),
        ("why", "non_field_errors"),
        (b"null", "non_field_errors"),
    ],
)
def test_a_reason_is_needed_and_nothing_else(operator: Door, failed: Callable[..., Job], body: Any, field: str) -> None:
    job = failed()
    problem = assert_problem(replay(operator, job.attachment_id, body), 422, "invalid")
    assert list(problem["errors"]) == [field]
    assert Job.objects.get().state == State.FAILED


@pytest.mark.parametrize(
    "body", [b"{", b"\xff\xfe", b"[" * 200_000, b'{"reason": NaN}', b"1" * 5000, b'{"reason": "a"} b']
)
def test_what_is_no_json_is_refused(operator: Door, failed: Callable[..., Job], body: bytes) -> None:
    job = failed()
    assert_problem(replay(operator, job.attachment_id, body), 400, "malformed_json")
    assert Job.objects.get().state == State.FAILED


def test_a_body_is_json_of_a_size_that_memory_takes(operator: Door, failed: Callable[..., Job]) -> None:
    job = failed()
    form = {"content_type": "application/x-www-form-urlencoded"}
    assert_problem(replay(operator, job.attachment_id, b"reason=why", **form), 415, "unsupported_media_type")
    assert_problem(replay(operator, job.attachment_id, {"reason": "x" * 3_000_000}), 413, "form_too_large")
    squeezed = {"content_type": "application/json; charset=zlib"}
    assert_problem(replay(operator, job.attachment_id, b"{}", **squeezed), 400, "malformed_json")
    assert Job.objects.get().state == State.FAILED


class BrokenConnection(io.RawIOBase):
    def read(self, *_: object) -> bytes:
        raise ConnectionResetError


def test_a_connection_that_breaks_is_no_fault_of_ours(operator: Door, failed: Callable[..., Job]) -> None:
    broken = {"wsgi.input": BrokenConnection()}
    assert_problem(replay(operator, failed().attachment_id, **broken), 400, "body_incomplete")


@pytest.mark.django_db(transaction=True)
def test_a_replayed_attachment_becomes_ready_as_the_same_job(
    running: Stack, operator: Door, failed: Callable[..., Job]
) -> None:
    """[attachments] failed → queued: новая попытка, прежний логический эффект защищён от дубля."""
    job = failed()
    running.dispatcher(), running.worker()
    assert replay(operator, job.attachment_id).status_code == 202
    until(lambda: Job.objects.get().state == State.READY, seconds=60, say=running.logs)
    ready = Job.objects.get()
    assert (ready.job_id, ready.attempt, ready.failures) == (job.job_id, 2, 0)
    made = Variant.objects.filter(attachment=job.attachment_id).values_list("variant", flat=True)
    assert sorted(made) == sorted(registry.newest("image").promised)
