"""Lists, and taking things out of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from attachments.models import Attachment, BucketRole, StoredObject, Variant
from pipeline import lifecycle, retention
from pipeline.failures import Failure
from pipeline.lifecycle import Cancelled, Lease
from pipeline.models import Job
from tests.attachments.conftest import URL, Door, assert_problem, in_a_thread, put_variant

pytestmark = pytest.mark.django_db

NOBODYS = uuid.UUID(int=0)


def ids(door: Door, **parameters: object) -> list[str]:
    response = door.get(f"?{urlencode(parameters)}")
    assert response.status_code == 200, response.content
    return [seen["id"] for seen in response.json()["results"]]


def test_a_list_is_filtered_by_state_pipeline_name_and_death(
    door: Door,
    queued: Callable[..., Job],
    leased: Callable[..., Lease],
    finished: Callable[..., Attachment],
    settings: Any,
) -> None:
    waiting_one, ready_one = str(queued().attachment_id), str(finished().id)
    failing = {name: leased() for name in ("dead", "failed")}
    dead_one, failed_one = (str(lease.attachment_id) for lease in failing.values())
    Job.objects.filter(job_id=failing["dead"].job_id).update(failures=settings.MAX_FAILURES - 1)
    for lease in failing.values():
        lifecycle.fail(lease, Failure(code="internal_error", sentence="Something went wrong."))
    Attachment.objects.filter(id=waiting_one).update(name="Fünf 100% _Katzen_.PNG")

    everything = [failed_one, dead_one, ready_one, waiting_one]
    assert ids(door) == everything
    assert ids(door, state="queued") == [waiting_one]
    assert ids(door, state="ready") == [ready_one]
    assert ids(door, state="processing") == []
    assert ids(door, state="failed") == [failed_one, dead_one]
    assert ids(door, dead="true") == [dead_one]
    assert ids(door, dead="false") == [failed_one, ready_one, waiting_one]
    assert ids(door, pipeline="image") == everything
    assert ids(door, pipeline="store") == []
    assert ids(door, name="fünf 100% _katzen_") == [waiting_one]
    assert ids(door, name="_h_t_") == []
    assert ids(door, name="photo", state="ready") == [ready_one]


def test_pages_follow_each_other_without_gap_or_repetition(
    door: Door, queued: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attachments.listing.PAGE_SIZE", 2)
    sent = [str(queued().attachment_id) for _ in range(5)]
    # Of the same moment: the id decides.
    Attachment.objects.update(created_at=Attachment.objects.earliest("created_at").created_at)
    seen, address = [], f"{URL}?state=queued"
    while address:
        page = door.get(address).json()
        seen.append([found["id"] for found in page["results"]])
        if len(seen) == 1:
            queued()  # newer than where we are, so no page shows it
        address = (page["next"] or "").removeprefix("http://testserver")
    assert seen == [sorted(sent, reverse=True)[start : start + 2] for start in (0, 2, 4)]


def test_a_page_asks_the_same_few_queries_however_long_it_is(
    door: Door, queued: Callable[..., Job], django_assert_max_num_queries: Any
) -> None:
    for _ in range(5):
        queued()
    with django_assert_max_num_queries(4):  # who asks, the attachments, their jobs, their variants
        assert len(ids(door)) == 5


@pytest.mark.parametrize(
    ("parameter", "value", "hint"),
    [
        ("state", "done", "queued, processing, ready, failed"),
        ("pipeline", "audio", "image"),
        ("dead", "maybe", "true or false"),
        ("name", "a\x00b", "Null"),
        ("name", "x" * 300, "255"),
        ("cursor", "yesterday", "next"),
        ("cursor", "f" * 32, "next"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_with_what_may_be(
    door: Door, parameter: str, value: str, hint: str
) -> None:
    problem = assert_problem(door.get(f"?{urlencode({parameter: value})}"), 422, "invalid")
    assert hint in problem["errors"][parameter][0]


def test_deleting_takes_away_bytes_and_names_and_keeps_the_history(
    door: Door, finished: Callable[..., Attachment]
) -> None:
    attachment = finished()
    Attachment.objects.filter(id=attachment.id).update(language="en", media={"camera": "x"}, idempotency_key="one")
    assert door.delete(attachment.id).status_code == 204
    attachment.refresh_from_db()
    assert attachment.deleted_at is not None
    assert (attachment.name, attachment.claimed_type, attachment.language, attachment.media) == ("", "", "", {})
    assert (attachment.idempotency_key, attachment.original) == ("one", None)
    assert not Variant.objects.exists()
    assert set(StoredObject.objects.values_list("bucket_role", flat=True)) == {BucketRole.TRASH}
    assert Job.objects.get(attachment=attachment).events.count() == 3
    retention.sweep()
    assert not StoredObject.objects.exists()


def test_a_deleted_attachment_is_nowhere_to_be_seen(door: Door, finished: Callable[..., Attachment]) -> None:
    attachment = finished()
    door.delete(attachment.id)
    assert_problem(door.delete(attachment.id), 404, "not_found")
    for path in ("", "original/", "variants/thumbnail/"):
        assert_problem(door.get(f"{attachment.id}/{path}"), 404, "not_found")
    assert ids(door) == []


def test_running_work_cannot_publish_after_the_deletion(door: Door, leased: Callable[..., Lease]) -> None:
    lease = leased()
    put_variant(lease, "thumbnail", data=b"before")
    assert door.delete(lease.attachment_id).status_code == 204
    with pytest.raises(Cancelled):
        put_variant(lease, "optimized", data=b"after")
    with pytest.raises(Cancelled):
        lifecycle.renew(lease)
    assert not Variant.objects.exists()


def test_a_repeated_upload_that_arrives_after_the_deletion_does_not_bring_the_file_back(door: Door) -> None:
    first = door.send(key="one").json()["id"]
    door.delete(first)
    assert_problem(door.send(key="one"), 410, "deleted")
    assert ids(door) == []
    retention.sweep()
    assert not StoredObject.objects.exists()
    assert door.send(key="two").status_code == 202


@pytest.mark.django_db(transaction=True)
def test_of_two_deletions_at_once_one_finds_it_gone(door: Door, finished: Callable[..., Attachment]) -> None:
    attachment = finished()
    statuses: list[int] = []
    clients = [in_a_thread(lambda: statuses.append(door.delete(attachment.id).status_code)) for _ in range(2)]
    for client in clients:
        client.join()
    assert sorted(statuses) == [204, 404]
