"""Replays by operators: which failed jobs a filter means, what one act does, and what its audit tells afterwards."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier, Event
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.models.functions import Now

from attachments.models import Attachment, BucketRole, StoredObject
from pipeline import lifecycle, removal, replays
from pipeline.failures import Failure
from pipeline.models import Job, JobEvent, OutboxMessage, Replay, ReplayedJob
from pipeline.registry import Pipeline
from pipeline.replays import Act, Fate, Seen, UnusableReason
from pipeline.states import State
from tests.attachments.conftest import add_job, in_a_thread
from tests.waiting import until

pytestmark = pytest.mark.django_db


def act(**changes: Any) -> Act:
    told = {"actor": "operator:7:ann", "via": "test", "reason": "decoder updated", "chosen_by": {}, "matching": 1}
    return Act(**{**told, **changes})


def seen(job: Job) -> Seen:
    return Seen(job.job_id, job.attempt)


def replay_everything(**changes: Any) -> Counter[Fate]:
    found = replays.look(Job.objects.all())
    return Counter(act(matching=found.matching, **changes).replay_all(found.seen))


def lose_original(job: Job) -> None:
    StoredObject.objects.filter(attachment=job.attachment_id).update(bucket_role=BucketRole.TRASH)


def test_an_act_keeps_who_what_when_and_why_with_each_job_before_and_after(failed: Callable[..., Job]) -> None:
    """[attachments] failed → queued: Audit, новая попытка."""
    jobs = {failed().job_id, failed().job_id}
    assert replay_everything(chosen_by={"error_code": "bad_file"}) == {Fate.REPLAYED: 2}
    row = Replay.objects.get()
    assert (row.actor, row.via, row.reason) == ("operator:7:ann", "test", "decoder updated")
    assert (row.chosen_by, row.matching) == ({"error_code": "bad_file"}, 2)
    lines = ReplayedJob.objects.filter(replay=row)
    assert {line.job_id for line in lines} == jobs
    for line in lines:
        assert line.before == {
            "state": "failed",
            "attempt": 1,
            "failures": 1,
            "error_code": "bad_file",
            "error_step": "image",
        }
        assert line.after == {"state": "queued", "attempt": 2, "failures": 0}
    assert set(Job.objects.values_list("state", "attempt")) == {(State.QUEUED, 2)}
    assert JobEvent.objects.filter(reason="replay", actor="operator:7:ann", detail="decoder updated").count() == 2
    assert set(OutboxMessage.objects.filter(attempt=2).values_list("message_id", flat=True)) == {
        f"{job_id}:2" for job_id in jobs
    }


def test_what_the_operator_did_not_see_fail_is_left_alone(failed: Callable[..., Job]) -> None:
    """It was replayed by somebody else and failed again: that is another failure, to be looked at first."""
    job = failed()
    looked = replays.look(Job.objects.all()).seen
    assert list(act().replay_all(looked)) == [Fate.REPLAYED]
    lease = lifecycle.claim(job.job_id, attempt=2, worker="w")
    assert lease is not None
    lifecycle.fail(lease, Failure(code="bad_file", sentence="Damaged again."))
    assert list(act().replay_all(looked)) == [Fate.NOT_FAILED]
    assert Job.objects.get().state == State.FAILED


def test_an_act_that_changes_nothing_leaves_no_audit(failed: Callable[..., Job]) -> None:
    job = failed()
    lose_original(job)
    strange = Seen(uuid.uuid4(), 1)
    assert list(act().replay_all([seen(job), strange])) == [Fate.GONE, Fate.NOT_FAILED]
    assert not Replay.objects.exists()


def test_an_act_that_dies_half_way_has_told_what_it_did_and_the_next_one_goes_on(failed: Callable[..., Job]) -> None:
    jobs = [failed() for _ in range(3)]
    found = replays.look(Job.objects.all())
    steps = act(matching=3).replay_all(found.seen)
    assert [next(steps), next(steps)] == [Fate.REPLAYED] * 2
    steps.close()
    assert list(ReplayedJob.objects.order_by("id").values_list("job_id", flat=True)) == [job.job_id for job in jobs[:2]]
    assert Replay.objects.get().matching == 3
    assert replay_everything() == {Fate.REPLAYED: 1}
    assert set(Job.objects.values_list("attempt", flat=True)) == {2}


def test_without_its_line_in_the_audit_no_job_moves(failed: Callable[..., Job]) -> None:
    first, second = failed(), failed()
    running = act(matching=2)
    running.replay(seen(first))
    # The line of the second cannot be written: there is one already.
    ReplayedJob.objects.create(replay=Replay.objects.get(), job=second, before={}, after={})
    with pytest.raises(IntegrityError):
        running.replay(seen(second))
    assert Job.objects.get(job_id=second.job_id).state == State.FAILED
    assert not OutboxMessage.objects.filter(job=second, attempt=2).exists()


@pytest.mark.django_db(transaction=True)
def test_two_operators_at_once_put_every_job_back_once(failed: Callable[..., Job]) -> None:
    jobs = [failed() for _ in range(8)]
    together = Barrier(2)

    def click(operator: str) -> Counter[Fate]:
        try:
            found = replays.look(Job.objects.all())
            together.wait()
            return Counter(act(actor=operator, matching=8).replay_all(found.seen))
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as operators:
        first, second = operators.map(click, ["operator:1:ann", "operator:2:bob"])
    assert first + second == {Fate.REPLAYED: 8, Fate.NOT_FAILED: 8}
    assert set(Job.objects.values_list("state", "attempt")) == {(State.QUEUED, 2)}
    assert OutboxMessage.objects.filter(attempt=2).count() == 8
    for job in jobs:
        line = ReplayedJob.objects.get(job=job)
        assert JobEvent.objects.get(job=job, reason="replay").actor == line.replay.actor


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("sweep_commits", [True, False])
def test_a_replay_waits_for_a_sweep_of_its_original_and_then_knows(
    failed: Callable[..., Job], sweep_commits: bool
) -> None:
    """Either the original is kept and the job is queued, or it is trash and the job stays failed."""
    job = failed()
    found = replays.look(Job.objects.all())
    fates: list[Fate] = []
    swept = Event()

    def sweep() -> None:
        with transaction.atomic():
            StoredObject.objects.select_for_update(of=("self",)).get(attachment=job.attachment_id)
            swept.set()
            until(replay_waits_for_a_lock)
            lose_original(job)
            if not sweep_commits:
                transaction.set_rollback(True)

    def replay() -> None:
        swept.wait(30)
        fates.extend(act().replay_all(found.seen))

    for thread in (in_a_thread(sweep), in_a_thread(replay)):
        thread.join()
    assert fates == [Fate.GONE if sweep_commits else Fate.REPLAYED]
    assert Job.objects.get().state == (State.FAILED if sweep_commits else State.QUEUED)
    assert ReplayedJob.objects.exists() is not sweep_commits


def replay_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        row = cursor.fetchone()
    return bool(row and row[0])


def test_many_replays_fall_due_one_after_the_other_so_that_new_uploads_get_their_turn(
    failed: Callable[..., Job],
) -> None:
    for _ in range(4):
        failed()
    lose_original(Job.objects.order_by("finished_at")[1])
    looked = [seen(job) for job in Job.objects.order_by("finished_at")]
    assert Counter(act(matching=4).replay_all(looked, per_second=0.1)) == {Fate.REPLAYED: 3, Fate.GONE: 1}
    due = [message.due_at for message in OutboxMessage.objects.filter(attempt=2).order_by("id")]
    for number, pause in enumerate(due):
        # The act itself took a moment; what was not replayed takes no place in the row.
        assert timedelta(seconds=10 * number) <= pause - due[0] < timedelta(seconds=10 * number + 8)
    for message in OutboxMessage.objects.filter(attempt=2).select_related("job"):
        assert message.job is not None and message.job.due_at <= message.due_at
    assert Job.objects.filter(state=State.QUEUED, due_at__lte=Now()).count() == 1


def test_failures_are_chosen_by_what_they_have_in_common(
    failed: Callable[..., Job], user: User, queued: Callable[..., Job]
) -> None:
    queued()
    bad, slow, stepless = failed(), failed(code="time_limit"), failed(code="time_limit", step="")
    other = User.objects.create_user("bob")
    Attachment.objects.filter(id=slow.attachment_id).update(owner=other)

    def chosen(**wanted: Any) -> set[uuid.UUID]:
        return set(replays.failures(**wanted).values_list("job_id", flat=True))

    assert chosen() == {bad.job_id, slow.job_id, stepless.job_id}
    assert chosen(error_code="time_limit") == {slow.job_id, stepless.job_id}
    assert chosen(error_code="time_limit", error_step="image") == {slow.job_id}
    assert chosen(error_step="") == {stepless.job_id}
    assert chosen(pipeline="image", pipeline_version=1, owner="bob") == {slow.job_id}
    assert chosen(pipeline_version=2) == set()
    assert chosen(failed_after=slow.finished_at) == {slow.job_id, stepless.job_id}
    assert chosen(failed_before=slow.finished_at) == {bad.job_id}


def test_a_look_counts_by_code_and_step_and_tells_what_cannot_be_replayed(failed: Callable[..., Job]) -> None:
    first, swept, deleted, other = failed(), failed(), failed(), failed(code="time_limit", step="")
    lose_original(swept)
    removal.remove(deleted.attachment_id, actor="test")
    found = replays.look(Job.objects.all())
    assert [group[:4] for group in found.groups] == [("bad_file", "image", 3, 1), ("time_limit", "", 1, 1)]
    assert (found.groups[0].oldest, found.groups[0].newest) == (first.finished_at, deleted.finished_at)
    assert found.seen == [seen(first), seen(other)]
    assert (found.matching, found.gone, found.left) == (4, 2, 0)


def test_what_failed_first_is_replayed_first_and_the_limit_leaves_the_rest(failed: Callable[..., Job]) -> None:
    """What has no original stands in nobody's way, else the oldest of them would use up every limit."""
    jobs = [failed() for _ in range(5)]
    lose_original(jobs[0])
    found = replays.look(Job.objects.all(), limit=2)
    assert found.seen == [seen(jobs[1]), seen(jobs[2])]
    assert (found.matching, found.gone, found.left) == (5, 1, 2)
    assert Counter(act(matching=5).replay_all(found.seen)) == {Fate.REPLAYED: 2}
    assert replays.look(Job.objects.all(), limit=2).seen == [seen(jobs[3]), seen(jobs[4])]


def test_of_an_attachment_only_the_newest_job_counts(
    failed: Callable[..., Job], queued: Callable[..., Job], release_image_v2: Callable[[], Pipeline]
) -> None:
    old = failed()
    assert replays.get_newest_failure(old.attachment_id) == seen(old)
    newer = release_image_v2()
    attachment = Attachment.objects.get(id=old.attachment_id)
    waiting = add_job(attachment, newer, queue="images", created_at=Now() + timedelta(seconds=1))
    with pytest.raises(lifecycle.NotFailed):
        replays.get_newest_failure(old.attachment_id)
    lease = lifecycle.claim(waiting.job_id, attempt=1, worker="w")
    assert lease is not None
    lifecycle.fail(lease, Failure(code="bad_file", sentence="Damaged."))
    assert replays.get_newest_failure(old.attachment_id) == seen(waiting)
    for attachment_id in (queued().attachment_id, uuid.uuid4()):
        with pytest.raises(lifecycle.NotFailed):
            replays.get_newest_failure(attachment_id)


def test_a_reason_says_something_on_one_line() -> None:
    assert replays.checked_reason("  decoder\n updated\x00 ") == "decoder updated"
    assert replays.checked_reason("почему бы и нет") == "почему бы и нет"
    for nothing in ("", " \n\t", "\u200b\u2060", "...", "\x00", "\ud800"):
        with pytest.raises(UnusableReason):
            replays.checked_reason(nothing)
    assert len(replays.checked_reason("x" * 500)) == 500
    with pytest.raises(UnusableReason):
        replays.checked_reason("x" * 501)


def test_a_person_is_named_by_number_and_name_within_the_column() -> None:
    assert replays.operator(User(pk=7, username="ann")) == "operator:7:ann"
    assert len(replays.operator(User(pk=7, username="a" * 150))) == replays.ACTOR_LIMIT


def test_the_limits_are_those_of_the_columns() -> None:
    assert Replay._meta.get_field("reason").max_length == replays.REASON_LIMIT
    for model in (Replay, JobEvent):
        assert model._meta.get_field("actor").max_length == replays.ACTOR_LIMIT
