"""From a message's row to an upload: once, with all of the intake's checks, whatever Telegram or a worker does."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from attachments.models import Attachment, StoredObject
from config.local.places import free_port
from notifications import fetches
from notifications.models import FetchState, TelegramUpdate
from notifications.telegram import fetching, files, updates
from notifications.telegram.outgoing import CallFailed
from pipeline import maintenance, shutdown
from pipeline.lifecycle import LeaseLost
from pipeline.models import Job, OutboxMessage
from tests.botapi import FILE, TOKEN, BotApi
from tests.pictures import png
from tests.waiting import until

pytestmark = pytest.mark.django_db

Sent = Callable[..., TelegramUpdate]


@pytest.fixture
def sent(bot_api: BotApi, settings: Any, user: User) -> Sent:
    """Ann sends a picture as a file, and the door has written it down."""
    settings.TELEGRAM_OWNER = "ann"

    def send(content: bytes | None = None, *, told_size: int | None = None, language: str = "en", **how: Any) -> Any:
        file_id = bot_api.keep_file(png() if content is None else content, suffix="png", **how)
        document = {"file_id": file_id, "file_unique_id": "u", "file_name": "photo.png", "mime_type": "image/png"}
        sender = {"id": 77, "is_bot": False, "first_name": "Ann", "language_code": language}
        told = {} if told_size is None else {"file_size": told_size}
        update = bot_api.receive(document={**document, **told}, sender=sender)
        updates.take(update)
        return TelegramUpdate.objects.get(update_id=update["update_id"])

    return send


def fetch(update: TelegramUpdate) -> str:
    """What a worker does with the message of the row's current attempt."""
    update.refresh_from_db()
    outcome = fetching.fetch(update.pk, attempt=update.attempt)
    update.refresh_from_db()
    return outcome


def make_due(update: TelegramUpdate) -> None:
    TelegramUpdate.objects.filter(pk=update.pk).update(due_at=Now())


def expire_lease() -> None:
    TelegramUpdate.objects.update(lease_until=Now() - timedelta(seconds=1))


def said(bot_api: BotApi) -> list[str]:
    """What the bot said, each of it below the message that it answers."""
    calls = bot_api.sent()
    assert all(call.params["reply_parameters"]["message_id"] and call.params["chat_id"] == 77 for call in calls)
    return [call.params["text"] for call in calls]


def test_a_file_becomes_an_attachment_that_knows_where_its_sender_waits(sent: Sent, bot_api: BotApi) -> None:
    update = sent(language="ru-RU")
    message_id = update.message_id
    assert fetch(update) == "accepted"
    job = Job.objects.get()
    assert (update.state, update.attachment_id) == (FetchState.ACCEPTED, job.attachment_id)
    assert (job.attachment.name, job.attachment.owner.username) == ("photo.png", "ann")
    origin = (job.source, job.reply_chat_id, job.reply_message_id, job.reply_thread_id, job.reply_language)
    assert origin == ("telegram", 77, message_id, None, "ru-RU")
    # The attachment has it all; what its owner deletes must not stay here.
    assert (update.file_id, update.name, update.claimed_type) == ("", "", "")
    assert fetching.fetch(update.pk, attempt=1) == "not_claimed"
    assert not bot_api.sent()


def test_where_it_is_asked_for_the_sender_hears_that_the_file_is_there(
    sent: Sent, bot_api: BotApi, settings: Any
) -> None:
    settings.TELEGRAM_ACKNOWLEDGE = True
    fetch(sent(language="ru"))
    assert said(bot_api) == ["Принято."]


def test_a_fetch_that_died_after_its_acceptance_finds_it_and_fetches_nothing(sent: Sent, bot_api: BotApi) -> None:
    update = sent()
    held = fetches.claim(update.pk, attempt=1, token=uuid.uuid4())
    assert held is not None
    fetching._accept(held)
    expire_lease()
    assert fetches.recover() == 1
    assert fetch(update) == "accepted"
    assert (update.attempt, Attachment.objects.count(), len(bot_api.sent(FILE))) == (2, 1, 1)


def test_two_that_fetch_the_same_file_make_one_attachment(sent: Sent) -> None:
    """The first lost its lease without knowing it, and both come to the end."""
    update = sent()
    first = fetches.claim(update.pk, attempt=1, token=uuid.uuid4())
    assert first is not None
    expire_lease()
    fetches.recover()
    assert fetch(update) == "accepted"
    attachment, is_new = fetching._accept(first)
    assert (attachment.pk, is_new) == (update.attachment_id, False)
    with pytest.raises(LeaseLost):
        fetches.retry_later(first, code="late", pause=timedelta(0))
    assert Attachment.objects.count() == 1


def test_a_file_that_telegram_hands_to_no_bot_is_refused_before_anything_is_fetched(
    sent: Sent, bot_api: BotApi
) -> None:
    update = sent(told_size=20_000_001, language="ru")
    assert fetch(update) == "refused"
    assert (update.state, update.error_code) == (FetchState.REFUSED, "too_large_for_bot")
    (sentence,) = said(bot_api)
    assert sentence.startswith("Telegram не отдаёт ботам")
    assert not bot_api.sent("getFile", FILE)


def test_a_file_of_untold_size_is_refused_as_soon_as_its_size_is_known(
    sent: Sent, bot_api: BotApi, settings: Any
) -> None:
    settings.TELEGRAM_MAX_FILE_BYTES = 1000
    assert fetch(sent(size=25 * 2**20)) == "refused"
    assert fetch(sent(size=1001)) == "refused"
    assert not bot_api.sent(FILE)
    assert fetch(sent(png() + bytes(1000), size=5)) == "refused"
    assert len(said(bot_api)) == 3
    assert not StoredObject.objects.exclude(bucket_role="trash").exists()


@pytest.mark.parametrize(("content", "code"), [(b"just words", "unsupported_type"), (b"", "empty_file")])
def test_a_file_that_nobody_works_on_is_refused_with_a_sentence_that_helps(
    sent: Sent, bot_api: BotApi, content: bytes, code: str
) -> None:
    update = sent(content)
    assert fetch(update) == "refused"
    assert update.error_code == code
    (sentence,) = said(bot_api)
    assert "Send" in sentence
    assert not Attachment.objects.exists()


@pytest.mark.parametrize(
    ("method", "how"),
    [
        (FILE, {"is_cut": True}),
        (FILE, {"status": 404}),
        (FILE, {"is_held": True}),
        (
            "getFile",
            {"status": 400, "description": "Bad Request: wrong file_id or the file is temporarily unavailable"},
        ),
    ],
)
def test_a_file_that_is_not_had_whole_is_fetched_anew_after_a_pause(
    sent: Sent, bot_api: BotApi, monkeypatch: pytest.MonkeyPatch, method: str, how: dict[str, Any]
) -> None:
    monkeypatch.setattr(files, "SILENCE_SECONDS", 0.3)
    update = sent()
    bot_api.fail(method, times=1, **how)
    assert fetch(update) == "retried"
    assert (update.state, update.attempt, update.failures) == (FetchState.WAITING, 2, 1)
    assert OutboxMessage.objects.get(attempt=2).due_at >= update.due_at
    assert fetch(update) == "not_claimed", "not due yet"
    make_due(update)
    assert fetch(update) == "accepted"
    assert Attachment.objects.get().size == len(png())


def test_a_link_that_grew_too_old_is_asked_for_again(sent: Sent, bot_api: BotApi) -> None:
    update = sent()
    path = files._find(update.file_id)
    bot_api.expire_links()
    with pytest.raises(files.NotFetched):
        list(files._pieces(path))
    assert fetch(update) == "accepted"


@pytest.mark.parametrize(
    "how", [{"is_cut": True}, {"is_held": True}, {"is_answer_lost": True}, {"status": 404}, {"status": 401}]
)
def test_no_error_of_a_download_and_no_line_about_it_holds_the_link(
    sent: Sent, bot_api: BotApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: dict[str, Any]
) -> None:
    monkeypatch.setattr(files, "SILENCE_SECONDS", 0.3)
    update = sent()
    bot_api.fail(FILE, **how)
    with pytest.raises((files.NotFetched, CallFailed)) as caught:
        list(files.download(update.file_id))
    known = [f"{error} {vars(error)}" for error in chain(caught.value)]
    with caplog.at_level(logging.DEBUG, logger="notifications"), caplog.at_level(logging.DEBUG, logger="pipeline"):
        fetch(update)
    told = [repr(record.__dict__) for record in caplog.records if record.name.startswith(("notifications", "pipeline"))]
    assert told
    secrets = (TOKEN.partition(":")[2], "file_10", bot_api.url)
    assert not [text for text in known + told if any(secret in text for secret in secrets)]


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error with all that led to it, shown in a traceback or not."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def test_a_file_that_is_never_had_is_given_up_with_a_kind_word(sent: Sent, bot_api: BotApi, settings: Any) -> None:
    update = sent()
    bot_api.fail(FILE, is_cut=True)
    outcomes = []
    for _ in range(settings.MAX_FAILURES):
        outcomes.append(fetch(update))
        make_due(update)
    assert outcomes == ["retried"] * (settings.MAX_FAILURES - 1) + ["failed"]
    assert (update.state, update.error_code) == (FetchState.FAILED, "not_fetched")
    assert said(bot_api) == [files.NotFetched.sentence]
    assert fetch(update) == "not_claimed"


@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("getFile", {"status": 401, "description": "Unauthorized"}),
        ("getFile", {"status": 502, "description": "Bad Gateway"}),
        (FILE, {"status": 503}),
        ("getFile", {"status": 429, "description": "Too Many Requests", "parameters": {"retry_after": 100}}),
    ],
)
def test_telegram_being_away_spends_no_chance_of_a_file(
    sent: Sent, bot_api: BotApi, settings: Any, method: str, how: dict[str, Any]
) -> None:
    settings.MAX_FAILURES = 1
    update = sent()
    bot_api.fail(method, times=1, **how)
    assert fetch(update) == "released"
    assert (update.state, update.attempt, update.failures) == (FetchState.WAITING, 2, 0)
    pause = timedelta(seconds=how.get("parameters", {}).get("retry_after", 10))
    assert TelegramUpdate.objects.filter(due_at__gte=F("outage_since") + pause).count() == 1
    make_due(update)
    assert fetch(update) == "accepted"
    assert update.outage_since is None


def test_an_outage_is_given_up_after_a_day(sent: Sent, bot_api: BotApi, settings: Any) -> None:
    update = sent()
    reachable, settings.TELEGRAM_API_URL = bot_api.url, f"http://127.0.0.1:{free_port()}"
    assert fetch(update) == "released"
    assert update.error_code == "network"
    make_due(update)
    TelegramUpdate.objects.update(outage_since=Now() - timedelta(days=1, seconds=1))
    bot_api.fail("getFile", status=401, description="Unauthorized")
    settings.TELEGRAM_API_URL = reachable
    assert fetch(update) == "failed"
    assert len(said(bot_api)) == 1


def test_a_worker_that_has_to_go_leaves_the_file_to_another(sent: Sent, settings: Any) -> None:
    update = sent()
    shutdown.request()
    try:
        shutdown._MOMENT.pack_into(shutdown._shared, 0, 1e-9)
        assert fetch(update) == "released"
    finally:
        shutdown.withdraw()
    assert (update.attempt, update.failures) == (2, 0)
    assert fetch(update) == "accepted"


def test_a_fetch_whose_worker_died_is_taken_back_and_ends_when_it_died_too_often(
    sent: Sent, bot_api: BotApi, settings: Any
) -> None:
    update = sent()
    for attempt in range(1, settings.MAX_FAILURES + 1):
        assert fetches.claim(update.pk, attempt=attempt, token=uuid.uuid4()) is not None
        expire_lease()
        assert (fetches.recover(), fetches.recover()) == (1, 0)
    update.refresh_from_db()
    assert (update.failures, update.error_code) == (settings.MAX_FAILURES, "worker_lost")
    assert fetch(update) == "failed"
    assert said(bot_api) == [files.NotFetched.sentence]


def test_an_outage_of_the_database_is_no_failure_of_a_fetch(sent: Sent, settings: Any) -> None:
    update = sent()
    fetches.claim(update.pk, attempt=1, token=uuid.uuid4())
    expire_lease()
    # By the look at jobs, for which nothing was ever answered in time.
    settings.LEASE_SECONDS = 0.0
    until(lambda: maintenance.recover() == 1)
    update.refresh_from_db()
    assert (update.attempt, update.failures) == (2, 0)


@pytest.mark.django_db(transaction=True)
def test_a_slow_download_keeps_its_lease(sent: Sent, bot_api: BotApi, settings: Any) -> None:
    settings.LEASE_SECONDS, settings.RENEW_SECONDS = 0.6, 0.1
    update = sent(png(400, 300))
    bot_api.fail(FILE, slow_seconds=0.2)
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(_fetch_alone, update.pk)
        until(lambda: fetches.recover() or fetched.done())
    assert fetched.result() == "accepted"
    update.refresh_from_db()
    assert update.attempt == 1


def _fetch_alone(update_id: int) -> str:
    with closing(connection):
        return fetching.fetch(update_id, attempt=1)


def test_a_nudge_that_was_lost_is_sent_again_each_time_later(sent: Sent, settings: Any) -> None:
    update = sent()
    messages = OutboxMessage.objects.filter(telegram_update=update)

    def sent_again(seconds: float) -> bool:
        messages.update(sent_at=Now() - timedelta(seconds=seconds))
        maintenance._send_fetches_again()
        return messages.filter(sent_at=None).exists()

    assert [sent_again(59), sent_again(61), sent_again(61), sent_again(121)] == [False, True, False, True]
    assert fetch(update) == "accepted"
    assert not sent_again(10_000)


def test_nothing_is_taken_or_ended_without_its_lease(sent: Sent) -> None:
    update = sent()
    token = uuid.uuid4()
    assert fetches.claim(update.pk, attempt=2, token=token) is None
    held = fetches.claim(update.pk, attempt=1, token=token)
    assert held is not None
    assert fetches.claim(update.pk, attempt=1, token=uuid.uuid4()) is None
    assert fetches.claim(update.pk, attempt=1, token=token) == held, "asked again after a COMMIT without answer"
    held.lease_token = uuid.uuid4()
    acts: tuple[Callable[[], None], ...] = (
        lambda: fetches.renew(held),
        lambda: fetches.refuse(held, code="x"),
        lambda: fetches.fail(held, code="x"),
        lambda: fetches.release(held, code="x", pause=timedelta(0)),
    )
    for act in acts:
        with pytest.raises(LeaseLost):
            act()
    update.refresh_from_db()
    assert (update.state, update.attempt) == (FetchState.FETCHING, 1)
