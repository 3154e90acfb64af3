"""Each invariant holds of a run in which nothing went wrong, and breaks when what it forbids is planted."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kombu
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now

from attachments import objects
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from bench.chaos import invariants
from bench.chaos.invariants import Evidence
from bench.chaos.verdicts import Verdict
from pipeline import lifecycle
from pipeline.broker import DEAD_EXCHANGE, DEAD_QUEUE
from pipeline.models import Job, JobEvent, OutboxMessage
from tests.chaos.evidence import DELETED, READY, RETRIED, RUN, held, job_of, lease_of, send
from tests.conftest import expire_lease

pytestmark = pytest.mark.django_db

Plant = Callable[[Evidence], object]


@pytest.fixture
def evidence(user: User, rabbit: kombu.Connection, settings: Any) -> Evidence:
    settings.LEASE_SECONDS = settings.REDISPATCH_AFTER_SECONDS = settings.REDISPATCH_EVERY_SECONDS = 0.1
    return held(user)


def test_of_a_run_in_which_nothing_went_wrong_everything_holds(evidence: Evidence) -> None:
    verdicts = invariants.by_the_rows(evidence)
    assert {verdict.name: verdict.broken for verdict in verdicts if not verdict.holds} == {}
    assert [verdict.name for verdict in verdicts if not verdict.asked] == ["no unexpected dead letter"]


def path_of(stored: StoredObject) -> Path:
    return Path(settings.STORAGE_ROOT, stored.bucket, stored.key)


def id_of(evidence: Evidence, number: int = READY) -> uuid.UUID:
    return uuid.UUID(evidence.uploads[number].id)


def variant(evidence: Evidence, number: int = READY) -> Variant:
    return Variant.objects.filter(attachment=id_of(evidence, number)).earliest("id")


def original(evidence: Evidence) -> StoredObject:
    return StoredObject.objects.get(attachment=id_of(evidence))


def forget_the_rows(evidence: Evidence) -> None:
    evidence.uploads[READY].id = str(uuid.uuid4())


def tell_no_client(evidence: Evidence) -> None:
    send(User.objects.get())


def leave_one_waiting(evidence: Evidence) -> None:
    evidence.uploads.append(send(User.objects.get()))


def make_an_effect_twice(evidence: Evidence) -> None:
    made = variant(evidence)
    stored = objects.register("another", content_type="image/webp", created_by="test")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE attachment_variant DROP CONSTRAINT attachment_variant_effect_key")
    Variant.objects.create(
        attachment_id=made.attachment_id, pipeline_version=1, variant=made.variant, stored_object=stored
    )


def take_a_variant_away(evidence: Evidence) -> None:
    variant(evidence).delete()


def take_the_original_away(evidence: Evidence) -> None:
    Attachment.objects.filter(id=id_of(evidence)).update(original=None)


def remove_bytes(evidence: Evidence) -> None:
    path_of(variant(evidence).stored_object).unlink()


def cut_bytes(evidence: Evidence) -> None:
    path_of(original(evidence)).write_bytes(b"cut")


def change_bytes(evidence: Evidence) -> None:
    path = path_of(variant(evidence, RETRIED).stored_object)
    path.write_bytes(b"B" + path.read_bytes()[1:])


def send_other_bytes(evidence: Evidence) -> None:
    evidence.uploads[READY].sha256 = "0" * 64


def keep_what_was_deleted(evidence: Evidence) -> None:
    key = f"attachments/{evidence.uploads[DELETED].id}/original"
    assert StoredObject.objects.filter(key=key).update(bucket_role=BucketRole.ORIGINALS)


def log(evidence: Evidence, before: str, after: str, attempt: int, number: int = READY) -> None:
    JobEvent.objects.create(
        job=job_of(evidence.uploads[number]),
        from_state=before,
        to_state=after,
        attempt=attempt,
        reason="planted",
        actor="test",
    )


def make_an_unlawful_move(evidence: Evidence) -> None:
    log(evidence, "ready", "processing", 1)


def skip_a_move(evidence: Evidence) -> None:
    log(evidence, "processing", "failed", 1)


def keep_an_attempt(evidence: Evidence) -> None:
    log(evidence, "ready", "queued", 1)


def lose_an_attempt(evidence: Evidence) -> None:
    log(evidence, "ready", "queued", 3, RETRIED)
    log(evidence, "queued", "processing", 2, RETRIED)


def move_the_row_alone(evidence: Evidence) -> None:
    Job.objects.filter(attachment=id_of(evidence)).update(attempt=7)


def be_ready_again(evidence: Evidence) -> None:
    for move in (("ready", "queued", 2), ("queued", "processing", 2), ("processing", "ready", 2)):
        log(evidence, *move)


PLANTED: dict[Plant, str] = {
    forget_the_rows: "every 202 has its rows",
    tell_no_client: "no attachment is unknown to its client",
    leave_one_waiting: "every job has ended",
    make_an_effect_twice: "one row per effect key",
    take_a_variant_away: "ready means complete",
    take_the_original_away: "ready means complete",
    remove_bytes: "every pointer has its bytes",
    cut_bytes: "every pointer has its bytes",
    change_bytes: "every pointer has its bytes",
    send_other_bytes: "originals are what was sent",
    keep_what_was_deleted: "deleted bytes are let go",
    make_an_unlawful_move: "no unlawful move in the event log",
    skip_a_move: "no unlawful move in the event log",
    keep_an_attempt: "no unlawful move in the event log",
    lose_an_attempt: "no unlawful move in the event log",
    move_the_row_alone: "no unlawful move in the event log",
    be_ready_again: "no job became ready twice",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_what_an_invariant_forbids_is_found(evidence: Evidence, plant: Plant) -> None:
    plant(evidence)
    assert PLANTED[plant] in broken(evidence)


def broken(evidence: Evidence) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in invariants.by_the_rows(evidence) if not verdict.holds}


def test_every_invariant_was_seen_to_break() -> None:
    by_hand = {invariants.dead_letters_are_explained}
    names = {check(Evidence("", [])).name for check in set(invariants.CHECKS) - by_hand}
    assert names == set(PLANTED.values())


@pytest.mark.parametrize(("reason", "is_explained"), [("delivery_limit", True), ("rejected", False)])
def test_a_dead_letter_of_ours_needs_an_explanation_and_stays_where_it_is(
    evidence: Evidence, rabbit: kombu.Connection, reason: str, *, is_explained: bool
) -> None:
    message_id = OutboxMessage.objects.filter(job__attachment=id_of(evidence)).get().message_id
    with rabbit.channel() as channel:
        for name in (message_id, "a-stranger"):
            headers = {"x-first-death-reason": reason}
            message = channel.prepare_message(b"[]", headers=headers, properties={"message_id": name})
            channel.basic_publish(message, DEAD_EXCHANGE.name, DEAD_QUEUE)
    for _ in range(2):
        verdict = invariants.dead_letters_are_explained(evidence)
        assert verdict.asked == 1
        assert verdict.broken == ({} if is_explained else {message_id: f"is a dead letter: {reason}"})


def test_figures_tell_what_the_run_came_to(evidence: Evidence) -> None:
    lost = send(User.objects.get())
    evidence.uploads.append(lost)
    expire_lease(lease_of(lost).job_id)
    assert lifecycle.recover() == 1
    OutboxMessage.objects.filter(job=job_of(lost), attempt=2).update(redispatches=3)
    told = invariants.figures(evidence)
    assert (told["retries"], told["recovered"], told["redispatched"]) == (2, 1, 3)
    assert told["slowest_job"] in {upload.job_id for upload in evidence.uploads}


def test_a_message_that_was_sent_again_may_wait_twice_as_long_each_time(evidence: Evidence) -> None:
    waiting = send(User.objects.get())
    once = settings.LEASE_SECONDS + settings.REDISPATCH_AFTER_SECONDS + settings.REDISPATCH_EVERY_SECONDS
    assert invariants.may_stand([waiting]) == pytest.approx(once)
    OutboxMessage.objects.filter(job=job_of(waiting)).update(redispatches=2, sent_at=Now())
    assert invariants.may_stand([waiting]) == pytest.approx(once + 3 * settings.REDISPATCH_AFTER_SECONDS)
    OutboxMessage.objects.filter(job=job_of(waiting)).update(redispatches=40)
    assert invariants.may_stand([waiting]) == pytest.approx(3600.2)


def test_what_cannot_be_reached_is_not_asked(evidence: Evidence) -> None:
    remove_bytes(evidence)
    blind = Evidence(RUN, evidence.uploads, has_storage=False, has_broker=False)
    asked = {verdict.name: verdict.asked for verdict in invariants.by_the_rows(blind) if verdict.holds}
    assert asked["every pointer has its bytes"] == asked["no unexpected dead letter"] == 0


def test_the_history_of_a_broken_thing_is_found_by_any_name(evidence: Evidence) -> None:
    upload = evidence.uploads[RETRIED]
    lines = invariants.timeline(str(upload.job_id))
    assert len(lines) == 5
    assert "shutdown" in "".join(lines)
    for name in (upload.id, f"{upload.job_id}:1", str(variant(evidence, RETRIED).stored_object)):
        assert invariants.timeline(str(name)) == lines
