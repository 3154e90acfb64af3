"""One attachment as its owner sees it: what it shows, what it hides, and waiting for it to change."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from attachments import waiting
from attachments.models import Attachment
from attachments.waiting import watcher
from pipeline import lifecycle, maintenance, registry
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job
from tests.attachments.conftest import URL, Door, add_job, assert_problem, in_a_thread, put_variant
from tests.pictures import png
from tests.waiting import until

pytestmark = pytest.mark.django_db

NOBODYS = uuid.UUID(int=0)


def look(door: Door, attachment_id: object, query: str = "") -> Any:
    response = door.get(f"{attachment_id}/{query}")
    assert response.status_code == 200, response.content
    return response.json()


def test_a_queued_attachment_shows_its_job_and_no_variants(door: Door, queued: Callable[..., Job]) -> None:
    job = queued(png())
    seen = look(door, job.attachment_id)
    assert (seen["state"], seen["attempt"], seen["progress"]) == ("queued", 1, 0.0)
    assert (seen["job_id"], seen["pipeline"], seen["pipeline_version"]) == (str(job.job_id), "image", 1)
    assert (seen["error_code"], seen["error"], seen["finished_at"], seen["retry_at"]) == (None, None, None, None)
    assert seen["variants"] == {}
    assert seen["original"] == {
        "url": f"http://testserver{URL}{job.attachment_id}/original/",
        "size": len(png()),
        "sha256": job.attachment.sha256,
        "content_type": "image/png",
    }


def test_variants_are_hidden_until_all_of_them_are_there(door: Door, leased: Callable[..., Lease]) -> None:
    lease = leased()
    promised = sorted(lease.pipeline.promised)
    put_variant(lease, promised[0], data=b"one")
    seen = look(door, lease.attachment_id)
    assert (seen["state"], seen["variants"]) == ("processing", {})
    assert seen["progress"] == round(1 / len(promised), 2)
    assert_problem(door.get(f"{lease.attachment_id}/variants/{promised[0]}/"), 404, "not_found")


def test_a_ready_attachment_shows_each_variant_with_its_facts(door: Door, finished: Callable[..., Attachment]) -> None:
    attachment = finished(data=b"bytes of a variant")
    seen = look(door, attachment.id)
    assert (seen["state"], seen["progress"]) == ("ready", 1.0)
    assert seen["finished_at"] is not None
    assert seen["variants"].keys() == registry.newest("image").promised
    for name, variant in seen["variants"].items():
        assert variant["url"] == f"http://testserver{URL}{attachment.id}/variants/{name}/"
        assert (variant["size"], variant["content_type"], variant["width"]) == (18, "image/webp", 12)


def test_what_only_we_need_is_never_shown(door: Door, leased: Callable[..., Lease]) -> None:
    lease = leased()
    put_variant(lease, "converted", data=b"ours", is_internal=True)
    for variant in lease.pipeline.promised:
        put_variant(lease, variant, data=b"theirs")
    lifecycle.complete(lease)
    assert "converted" not in look(door, lease.attachment_id)["variants"]
    assert_problem(door.get(f"{lease.attachment_id}/variants/converted/"), 404, "not_found")


def test_a_failure_tells_its_code_and_what_to_do(door: Door, leased: Callable[..., Lease]) -> None:
    lease = leased()
    lifecycle.fail(lease, Failure(code="bad_file", sentence="Send an intact copy.", cause="Traceback (secret)"))
    response = door.get(f"{lease.attachment_id}/")
    assert b"secret" not in response.content
    seen = response.json()
    assert (seen["state"], seen["error_code"], seen["error"]) == ("failed", "bad_file", "Send an intact copy.")


def test_a_job_that_was_put_off_tells_when_it_is_tried_again(door: Door, leased: Callable[..., Lease]) -> None:
    lease = leased()
    lifecycle.retry_later(
        lease, Failure(code="internal_error", sentence="Something went wrong."), pause=maintenance.REDISPATCH_CAP
    )
    seen = look(door, lease.attachment_id)
    due_at = Job.objects.get(job_id=lease.job_id).due_at
    assert (seen["state"], seen["attempt"]) == ("queued", 2)
    assert seen["retry_at"] == due_at.isoformat().replace("+00:00", "Z")


def test_the_served_version_stays_while_a_newer_one_is_made_and_when_it_fails(
    door: Door, finished: Callable[..., Attachment]
) -> None:
    attachment = finished()
    before = look(door, attachment.id)
    newer = add_job(attachment, replace(registry.newest("image"), version=2))
    assert look(door, attachment.id) == before
    Job.objects.filter(job_id=newer.job_id).update(state="failed", error_code="bad_file", finished_at=newer.created_at)
    assert look(door, attachment.id) == before


def test_another_owners_attachment_is_not_there(other_door: Door, finished: Callable[..., Attachment]) -> None:
    attachment = finished()
    for path in ("", "original/", "variants/thumbnail/"):
        assert_problem(other_door.get(f"{attachment.id}/{path}"), 404, "not_found")
    assert_problem(other_door.delete(attachment.id), 404, "not_found")
    assert other_door.get().json() == {"results": [], "next": None}
    assert Attachment.objects.get().deleted_at is None


@pytest.mark.parametrize("path", [f"{NOBODYS}/", "not-a-uuid/", f"{NOBODYS}/original/", f"{NOBODYS}/variants/a%00b/"])
def test_what_is_not_there_is_a_404_whatever_its_address_looks_like(door: Door, path: str) -> None:
    assert_problem(door.get(path), 404, "not_found")


@pytest.mark.django_db(transaction=True)
def test_waiting_ends_when_the_state_changes(door: Door, queued: Callable[..., Job]) -> None:
    job = queued()
    seen: list[Any] = []
    client = in_a_thread(lambda: seen.append(look(door, job.attachment_id, "?wait=20")))
    until(lambda: not watcher.is_idle())
    assert lifecycle.claim(job.job_id, attempt=1, worker="worker-a") is not None
    client.join(timeout=20)
    assert seen[0]["state"] == "processing"
    until(watcher.is_idle)


@pytest.mark.django_db(transaction=True)
def test_waiting_ends_when_the_attachment_is_deleted(door: Door, queued: Callable[..., Job]) -> None:
    job = queued()
    seen: list[int] = []
    client = in_a_thread(lambda: seen.append(door.get(f"{job.attachment_id}/?wait=20").status_code))
    until(lambda: not watcher.is_idle())
    assert door.delete(job.attachment_id).status_code == 204
    client.join(timeout=20)
    assert seen == [404]
    until(watcher.is_idle)


@pytest.mark.django_db(transaction=True)
def test_waiting_ends_with_its_time_and_leaves_no_thread(door: Door, queued: Callable[..., Job]) -> None:
    assert look(door, queued().attachment_id, "?wait=1")["state"] == "queued"
    until(watcher.is_idle)


def test_what_is_over_is_told_at_once(
    door: Door, finished: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch
) -> None:
    attachment = finished()
    monkeypatch.setattr(waiting.Watcher, "wait", lambda *_, **__: pytest.fail("waited"))
    assert look(door, attachment.id, "?wait=30")["state"] == "ready"


@pytest.mark.django_db(transaction=True)
def test_more_waiters_than_allowed_are_answered_at_once(door: Door, queued: Callable[..., Job], settings: Any) -> None:
    settings.MAX_WAITERS = 0
    response = door.get(f"{queued().attachment_id}/?wait=30")
    assert (response.status_code, response.json()["state"]) == (200, "queued")
    assert response.headers["Retry-After"] == "1"
    assert watcher.is_idle()


@pytest.mark.parametrize("wait", ["-1", "31", "soon", "1.5", "", "9" * 2000])
def test_a_wait_that_cannot_be_is_refused(door: Door, wait: str) -> None:
    assert "wait" in assert_problem(door.get(f"{NOBODYS}/?wait={wait}"), 422, "invalid")["errors"]
