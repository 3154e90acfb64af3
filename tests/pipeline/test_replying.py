"""The answer to who sent a file by Telegram: when one is due, and that it leaves once, after the state is saved."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from attachments import storage
from pipeline import lifecycle, metrics, removal, replying
from pipeline.claims import Unclaimable
from pipeline.failures import CANCELLED, Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job, JobEvent
from pipeline.origins import Origin
from pipeline.registry import Pipeline
from pipeline.states import Reply, Source, State
from tests.botapi import BotApi
from tests.leases import VARIANTS, finish
from tests.speech import release_speech, transcribe
from tests.waiting import end_other_sessions, until
from tests.work import make_quick, work

pytestmark = pytest.mark.django_db(transaction=True)

ANN = Origin(Source.TELEGRAM, chat_id=77, message_id=1001, language="en")
BROKEN = Failure(code="bad_file", sentence="Damaged.")

Queued = Callable[..., Job]


@pytest.fixture
def ended(queued: Queued, leased: Callable[..., Lease]) -> Callable[..., Job]:
    """A job from Telegram that was just ended by a worker who then died: its answer is due."""

    def end(failure: Failure | None = None, *, origin: Origin = ANN) -> Job:
        lease = leased(queued(origin=origin))
        if failure:
            lifecycle.fail(lease, failure)
        else:
            finish(lease)
        return Job.objects.get(job_id=lease.job_id)

    return end


def age(job: Job, seconds: int, *, column: str = "reply_at") -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE pipeline_job SET {column} = now() - make_interval(secs => %s) WHERE job_id = %s",
            [seconds, job.job_id],
        )


def reply_of(job: Job) -> tuple[str, str]:
    job.refresh_from_db()
    return job.reply, job.reply_reason


def undelivered(reason: str) -> float:
    return float(metrics.REPLIES_UNDELIVERED.labels(reason=reason)._value.get())


def texts(server: BotApi) -> list[str]:
    return [str(call.params.get("text", call.params.get("caption"))) for call in server.sent()]


def test_a_recording_is_answered_with_what_was_said(
    bot_api: BotApi, queued: Queued, monkeypatch: pytest.MonkeyPatch
) -> None:
    release_speech(monkeypatch)
    job = queued(origin=ANN)
    assert work(job) == "ready"
    assert texts(bot_api) == [f"text of {job.attachment.size} bytes"]
    assert reply_of(job) == (Reply.SENT, "")


def test_a_picture_is_answered_with_its_thumbnail_and_a_link_to_the_attachment(
    bot_api: BotApi, queued: Queued, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    make_quick(monkeypatch)
    settings.PUBLIC_URL = "https://files.example"
    job = queued(origin=ANN)
    assert work(job) == "ready"
    (call,) = bot_api.sent("sendPhoto")
    assert call.files["photo"].content == f"thumbnail of {job.attachment.size} bytes".encode()
    address = call.params["caption"].split()[-1]
    assert address == f"https://files.example/api/v1/attachments/{job.attachment_id}/"


def test_the_answer_leaves_once_the_state_is_saved_without_lease_and_transaction(
    bot_api: BotApi, queued: Queued, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[transcription] ответ уходит после того, как достигнутое состояние сохранено."""
    make_quick(monkeypatch)
    job = queued(origin=ANN)
    bot_api.fail("sendPhoto", is_held=True)
    working = threading.Thread(target=_work_and_close, args=[job])
    working.start()
    until(lambda: bot_api.sent("sendPhoto"))
    seen = Job.objects.get(job_id=job.job_id)
    assert (seen.state, seen.lease_token, seen.reply) == (State.READY, None, Reply.SENDING)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in trans%'"
        )
        assert cursor.fetchone() == (0,)
    bot_api.recover()
    working.join()
    assert reply_of(job) == (Reply.UNDELIVERED, "timeout_unknown")


def test_a_slow_storage_is_read_before_the_answer_is_on_its_way(
    bot_api: BotApi, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an answer would be given up that was not even begun, and sent later all the same."""
    job = ended()
    seen, fetch = [], storage.fetch

    def look_and_fetch(*where: Any, **what: Any) -> None:
        seen.append(reply_of(job))
        fetch(*where, **what)

    monkeypatch.setattr(storage, "fetch", look_and_fetch)
    work(job)
    assert seen == [(Reply.DUE, "")]
    assert reply_of(job) == (Reply.SENT, "")


def test_a_database_that_goes_away_meanwhile_costs_the_record_and_not_the_step(
    bot_api: BotApi, queued: Queued, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it arrived is not known then, and it is not sent again."""
    make_quick(monkeypatch)
    job = queued(origin=ANN)
    bot_api.fail("sendPhoto", slow_seconds=0.05)
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(_work_and_close, job)
        until(lambda: bot_api.sent("sendPhoto"))
        end_other_sessions()
        assert working.result() == "ready"
    assert reply_of(job) == (Reply.SENDING, "")
    age(job, 61)
    assert replying.sweep() == 1
    assert reply_of(job) == (Reply.UNDELIVERED, "timeout_unknown")
    assert len(bot_api.sent()) == 1


def _work_and_close(job: Job) -> str:
    try:
        return work(job)
    finally:
        connection.close()


def test_of_many_who_would_send_an_answer_one_does(bot_api: BotApi, ended: Callable[..., Job]) -> None:
    job = ended(BROKEN)

    def send(_: int) -> None:
        replying.reply(job.job_id, actor="w")
        connection.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(8)))
    assert texts(bot_api) == ["Damaged."]


def test_a_redelivered_message_of_an_ended_job_sends_what_is_still_due(
    bot_api: BotApi, ended: Callable[..., Job]
) -> None:
    job = ended(BROKEN)
    assert [work(job), work(job)] == [Unclaimable.FINISHED.value] * 2
    assert texts(bot_api) == ["Damaged."]


def test_the_dispatcher_sends_what_no_worker_sent_but_leaves_it_a_moment(
    bot_api: BotApi, ended: Callable[..., Job]
) -> None:
    job = ended(BROKEN)
    age(job, -60)
    assert replying.sweep() == 0
    age(job, 2)
    assert [replying.sweep(), replying.sweep()] == [1, 0]
    assert texts(bot_api) == ["Damaged."]


def test_an_answer_that_somebody_died_over_is_given_up_and_never_sent_again(
    bot_api: BotApi, ended: Callable[..., Job]
) -> None:
    """Nobody knows how far it came."""
    job = ended(BROKEN)
    Job.objects.filter(job_id=job.job_id).update(reply=Reply.SENDING)
    age(job, 59)
    assert replying.sweep() == 0
    age(job, 61)
    counted = undelivered("timeout_unknown")
    assert replying.sweep() == 1
    assert reply_of(job) == (Reply.UNDELIVERED, "timeout_unknown")
    assert undelivered("timeout_unknown") == counted + 1
    assert work(job) == Unclaimable.FINISHED.value
    assert bot_api.calls == []


def test_what_is_no_news_any_more_is_not_told(bot_api: BotApi, ended: Callable[..., Job]) -> None:
    """[transcription] отложенной доставки это требование не заводит."""
    job = ended(BROKEN)
    age(job, 301)
    age(job, 301, column="finished_at")
    assert replying.sweep() == 1
    assert reply_of(job) == (Reply.UNDELIVERED, "too_late")
    assert bot_api.calls == []


def test_an_undelivered_answer_is_never_tried_again(bot_api: BotApi, ended: Callable[..., Job]) -> None:
    """[transcription] ответ, не ушедший сегодня, не уходит и потом."""
    job = ended(BROKEN)
    bot_api.fail("sendMessage", times=1, status=403, description="Forbidden: bot was blocked by the user")
    work(job)
    age(job, 3600)
    assert replying.sweep() == 0
    work(job)
    assert reply_of(job) == (Reply.UNDELIVERED, "blocked")
    assert bot_api.sent() == []
    assert JobEvent.objects.filter(job=job, reason="reply_undelivered").values_list("detail", flat=True)[0] == "blocked"


def test_a_result_that_cannot_be_read_is_a_reason(bot_api: BotApi, ended: Callable[..., Job]) -> None:
    """Its bytes are not those that were recorded."""
    job = ended()
    job.attachment.variants.filter(variant="thumbnail").update(
        stored_object=_damaged(job.attachment.variants.get(variant="thumbnail").stored_object)
    )
    work(job)
    assert reply_of(job) == (Reply.UNDELIVERED, "unreadable")


def _damaged(stored: Any) -> Any:
    stored.sha256 = "0" * 64
    stored.save(update_fields=["sha256"])
    return stored


def test_a_replay_that_ends_well_is_told_as_the_failure_was(
    bot_api: BotApi, ended: Callable[..., Job], leased: Callable[..., Lease]
) -> None:
    job = ended(BROKEN)
    work(job)
    lifecycle.replay(job.job_id, attempt=1, actor="operator:ann", reason="decoder updated")
    job.refresh_from_db()
    finish(leased(job))
    work(job)
    work(job)
    assert texts(bot_api) == ["Damaged.", "The picture is ready."]


def test_a_failure_that_was_replayed_before_it_was_told_is_not_told(
    bot_api: BotApi, ended: Callable[..., Job], leased: Callable[..., Lease]
) -> None:
    job = ended(BROKEN)
    lifecycle.replay(job.job_id, attempt=1, actor="operator:ann", reason="decoder updated")
    age(job, 2)
    assert replying.sweep() == 0
    job.refresh_from_db()
    finish(leased(job))
    work(job)
    assert texts(bot_api) == ["The picture is ready."]


def test_what_was_served_before_is_made_again_without_a_word(
    bot_api: BotApi, ended: Callable[..., Job], leased: Callable[..., Lease], release_image_v2: Callable[[], Pipeline]
) -> None:
    """By a repair, and by a newer version, whichever way it ends."""
    job = ended()
    work(job)
    lifecycle.repair(job.job_id, variants=VARIANTS, actor="verify", detail="lost")
    job.refresh_from_db()
    finish(leased(job))
    newer = lifecycle.reprocess(job.attachment_id, pipeline=release_image_v2(), actor="reprocess")
    lifecycle.fail(leased(newer), BROKEN)
    assert not Job.objects.filter(reply=Reply.DUE).exists()
    assert (reply_of(job), reply_of(newer)) == ((Reply.SENT, ""), (Reply.NONE, ""))
    assert texts(bot_api) == ["The picture is ready."]


def test_who_deleted_the_file_is_told_nothing(
    bot_api: BotApi, ended: Callable[..., Job], queued: Queued, leased: Callable[..., Lease]
) -> None:
    """Before the end, and between the end and the answer."""
    earlier, later = leased(queued(origin=ANN)), ended(BROKEN)
    lifecycle.fail(earlier, CANCELLED)
    removal.remove(later.attachment_id, actor="rest:1")
    work(later)
    assert set(Job.objects.values_list("reply", flat=True)) == {Reply.NONE}
    assert bot_api.calls == []


def test_a_job_of_a_later_try_is_not_told_before_its_end(
    bot_api: BotApi, queued: Queued, leased: Callable[..., Lease]
) -> None:
    job = queued(origin=ANN)
    lifecycle.release(leased(job), reason="outage", pause=replying.LEFT_TO_THE_WORKER)
    assert reply_of(job) == (Reply.NONE, "")


def test_silence_is_told(
    bot_api: BotApi, queued: Queued, leased: Callable[..., Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    release_speech(monkeypatch)
    lease = leased(queued(origin=ANN))
    transcribe(lease, "  ")
    replying.reply(lease.job_id, actor="w")
    assert texts(bot_api) == ["Nothing was said in this recording."]
