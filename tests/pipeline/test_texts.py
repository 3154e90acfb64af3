"""The texts of a recording go when they are old, all of them at once and for good, and nothing else goes with them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from rest_framework.authtoken.models import Token

from attachments import search, storage
from attachments.models import Attachment, StoredObject, Transcript, Variant
from pipeline import lifecycle, registry, removal, texts, verification
from pipeline.failures import Failure
from pipeline.lifecycle import Gone, Lease
from pipeline.models import Job
from pipeline.reprocessing import Reprocessing
from pipeline.retention import Sweeper
from pipeline.selection import Selection
from pipeline.steps.speech import WINDOW_PREFIX
from tests.leases import record
from tests.speech import kept, release_speech, transcribe
from tests.waiting import somebody_waits_for_a_lock, until
from tests.work import work

pytestmark = pytest.mark.django_db

DAYS = 30
DAMAGED = Failure(code="bad_file", sentence="Damaged.")


@pytest.fixture(autouse=True)
def _limited(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TRANSCRIPT_RETENTION_DAYS = DAYS
    settings.FAILED_RETENTION_DAYS = 0
    release_speech(monkeypatch, versions=2)
    monkeypatch.setattr(registry, "newest", lambda name: registry.get(name, 1))


@pytest.fixture
def door(user: User) -> Client:
    return Client(headers={"Authorization": f"Token {Token.objects.create(user=user).key}"})


def let_pass(days: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pipeline_job SET finished_at = finished_at - make_interval(secs => %s)", [86400 * days])


def reprocess(attachment: Attachment) -> Job:
    return lifecycle.reprocess(attachment.id, pipeline=registry.get(texts.PIPELINE, 2), actor="test")


def test_texts_go_when_they_are_old_and_their_owner_is_told_when(leased: Callable[..., Lease], door: Client) -> None:
    attachment = transcribe(leased())
    stored = list(StoredObject.objects.filter(variant__attachment=attachment))
    address = f"/api/v1/attachments/{attachment.id}/"
    let_pass(DAYS - 1)
    Sweeper().run()
    before = door.get(address).json()
    assert (before["texts_expired_at"], before["variants"].keys()) == (None, texts.VARIANTS)
    let_pass(2)
    Sweeper().run()
    after = door.get(address).json()
    assert (after["state"], after["variants"], after["original"]) == ("ready", {}, before["original"])
    assert after["texts_expired_at"] is not None
    assert door.get("/api/v1/attachments/?q=harbour").json()["results"] == []
    assert not Transcript.objects.exists()
    assert {storage.size_of(gone.bucket, gone.key) for gone in stored} == {None}
    Sweeper().run()
    assert door.get(address).json() == after


def test_nothing_makes_expired_texts_again(leased: Callable[..., Lease]) -> None:
    attachment, retried = transcribe(leased()), transcribe(leased())
    newer = leased(reprocess(retried))
    lifecycle.fail(newer, DAMAGED)
    let_pass(DAYS + 1)
    Sweeper().run()
    for step in verification.attachments(Selection(), digests=True, repair=True):
        assert step.findings == ()
    with pytest.raises(Gone):
        lifecycle.repair(attachment.jobs.get().job_id, variants=texts.VARIANTS, actor="verify", detail="")
    with pytest.raises(Gone):
        lifecycle.replay(newer.job_id, attempt=1, actor="operator:ann", reason="again")
    with pytest.raises(Gone):
        reprocess(attachment)
    plan = Reprocessing(pipeline=registry.get(texts.PIPELINE, 2), selection=Selection()).plan()
    assert (plan.total, plan.gone) == (0, 1)
    assert search.index(attachment.id, 1, "en", [(0, 1, "Late.")]) is False


def test_what_was_never_served_loses_its_texts_and_may_be_replayed(leased: Callable[..., Lease]) -> None:
    lease = leased()
    record(lease, texts.TRANSCRIPT)
    record(lease, f"{WINDOW_PREFIX}0001")
    lifecycle.fail(lease, DAMAGED)
    let_pass(DAYS + 1)
    Sweeper().run()
    attachment = Attachment.objects.get()
    assert (kept(attachment), attachment.texts_expired_at) == (set(), None)
    lifecycle.replay(lease.job_id, attempt=1, actor="operator:ann", reason="again")
    assert work(Job.objects.get()) == "ready"
    Sweeper().run()
    assert kept(attachment) == texts.VARIANTS


@pytest.mark.parametrize("why", ["for ever", "worked on again", "made anew of late", "no recording"])
def test_texts_are_kept(why: str, leased: Callable[..., Lease], settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    attachment = transcribe(leased())
    let_pass(DAYS + 1)
    if why == "for ever":
        settings.TRANSCRIPT_RETENTION_DAYS = 0
    elif why == "no recording":
        Job.objects.update(pipeline="document")
    else:
        newer = leased(reprocess(attachment))
        if why == "made anew of late":
            lifecycle.fail(newer, DAMAGED)
    Sweeper().run()
    assert kept(attachment) == texts.VARIANTS
    assert Transcript.objects.filter(attachment=attachment).exists()
    assert Attachment.objects.get(id=attachment.id).texts_expired_at is None


def test_a_superseded_transcript_is_searched_no_more_once_it_is_swept(leased: Callable[..., Lease]) -> None:
    attachment = transcribe(leased())
    transcribe(leased(reprocess(attachment)))
    Sweeper().run()
    assert Transcript.objects.count() == 2
    let_pass(1.1)
    Sweeper().run()
    assert Transcript.objects.get().pipeline_version == 2


def test_a_deletion_takes_the_texts_with_it(leased: Callable[..., Lease]) -> None:
    deleted, other = transcribe(leased()), transcribe(leased())
    removal.remove(deleted.id, actor="test")
    assert Transcript.objects.get().attachment_id == other.id
    Sweeper().run()
    assert set(StoredObject.objects.filter(variant__isnull=False)) == {
        variant.stored_object for variant in Variant.objects.filter(attachment=other)
    }


@pytest.mark.django_db(transaction=True)
def test_texts_whose_work_begins_anew_while_a_sweep_waits_for_its_lock_are_kept(leased: Callable[..., Lease]) -> None:
    attachment = transcribe(leased())
    let_pass(DAYS + 1)

    def sweep() -> None:
        try:
            Sweeper().run()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            list(StoredObject.objects.select_for_update(of=("self",)).filter(variant__attachment=attachment))
            swept = thread.submit(sweep)
            until(lambda: swept.done() or somebody_waits_for_a_lock())
            with connection.cursor() as cursor:
                cursor.execute("UPDATE pipeline_job SET state = 'queued', finished_at = NULL, attempt = attempt + 1")
        swept.result()
    assert kept(attachment) == texts.VARIANTS
    assert Transcript.objects.exists()
