"""The door for Telegram: what an update asks for is written down once, and nothing else is done or kept."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponse
from django.test import Client

from notifications.models import TelegramChat, TelegramUpdate
from notifications.telegram import updates
from notifications.telegram.updates import Taken
from notifications.telegram.webhook import SECRET_HEADER, UPDATE_LIMIT_BYTES
from pipeline.models import OutboxMessage
from tests.botapi import BOT, BotApi

pytestmark = pytest.mark.django_db

SECRET = "only-telegram-knows"
CANARY = "canary sentence that nobody may keep"
VOICE = {"file_id": "AwACAgI", "file_unique_id": "u", "duration": 3, "mime_type": "audio/ogg", "file_size": 9000}
GROUP: dict[str, Any] = {"id": -100500, "type": "supergroup", "title": CANARY}


@pytest.fixture
def door(bot_api: BotApi, settings: Any, user: User) -> BotApi:
    """A bot whose unknown chats are Ann's."""
    settings.TELEGRAM_OWNER, settings.TELEGRAM_WEBHOOK_SECRET = "ann", SECRET
    return bot_api


def post(update: Any, *, secret: str = SECRET, client: Client | None = None) -> HttpResponse:
    body = update if isinstance(update, (str, bytes)) else json.dumps(update)
    headers = {SECRET_HEADER: secret}
    answer = (client or Client()).post("/telegram/webhook", body, content_type="application/json", headers=headers)
    assert isinstance(answer, HttpResponse)
    return answer


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"voice": VOICE}, ("voice", "AwACAgI", 9000, "")),
        ({"audio": {**VOICE, "file_name": "a/b\x00.mp3"}}, ("audio", "AwACAgI", 9000, "b.mp3")),
        ({"video_note": {**VOICE, "length": 240}}, ("video_note", "AwACAgI", 9000, "")),
        ({"video": {**VOICE, "width": 1, "height": 1}, "caption": CANARY}, ("video", "AwACAgI", 9000, "")),
        ({"document": {"file_id": "D", "file_unique_id": "u"}, "caption": CANARY}, ("document", "D", None, "")),
        (
            {
                "photo": [
                    {"file_id": "large", "file_unique_id": "u", "width": 1280, "height": 720, "file_size": 5},
                    {"file_id": "small", "file_unique_id": "v", "width": 90, "height": 51, "file_size": 6},
                ]
            },
            ("photo", "large", 5, ""),
        ),
    ],
)
def test_a_message_with_a_file_is_written_down_with_its_nudge_and_without_its_words(
    door: BotApi, fields: dict[str, Any], expected: tuple[object, ...]
) -> None:
    update = door.receive(**fields)
    assert post(update).status_code == 200
    row = TelegramUpdate.objects.get()
    assert (row.kind, row.file_id, row.file_size, row.name) == expected
    assert (row.bot, row.update_id, row.chat_id, row.language) == (4242, update["update_id"], 77, "en")
    message = OutboxMessage.objects.get()
    assert (message.telegram_update_id, message.queue, message.sent_at) == (row.pk, "telegram", None)
    assert message.message_id == f"telegram-{row.pk}:1"
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(u)::text || row_to_json(o)::text FROM telegram_update u, pipeline_outbox o")
        (everything,) = cursor.fetchone()
    assert CANARY not in everything
    assert row.file_id not in message.body


def test_each_item_of_an_album_is_a_file_of_its_own(door: BotApi) -> None:
    for _ in range(3):
        assert post(door.receive(voice=VOICE, media_group_id="77")).status_code == 200
    assert TelegramUpdate.objects.count() == 3


def test_an_answer_leads_to_the_topic_only_where_there_is_one(door: BotApi) -> None:
    post(door.receive(voice=VOICE, chat=GROUP, message_thread_id=5, is_topic_message=True))
    post(door.receive(voice=VOICE, chat=GROUP, message_thread_id=5))
    assert list(TelegramUpdate.objects.order_by("id").values_list("thread_id", flat=True)) == [5, None]


def test_a_business_account_s_customer_counts_and_its_holder_does_not(door: BotApi) -> None:
    customer = {"id": 77, "is_bot": False, "first_name": "Bea"}
    holder = {"id": 5, "is_bot": False, "first_name": "Ann"}
    for sender in (customer, holder):
        post(door.receive(kind="business_message", voice=VOICE, sender=sender, business_connection_id="b1"))
    assert TelegramUpdate.objects.get().business_id == "b1"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("edited_message", {"voice": VOICE}),
        ("channel_post", {"voice": VOICE}),
        ("message", {"text": CANARY}),
        ("message", {"voice": VOICE, "via_bot": BOT}),
        ("message", {"voice": VOICE, "sender": BOT}),
        (
            "message",
            {
                "voice": VOICE,
                "sender": {"id": 777000, "is_bot": False, "first_name": "T"},
                "is_automatic_forward": True,
            },
        ),
        ("business_message", {"voice": VOICE, "sender_business_bot": BOT, "business_connection_id": "b1"}),
        ("callback_query", {}),
    ],
)
def test_what_is_no_new_message_of_a_person_with_a_file_is_ignored(
    door: BotApi, kind: str, fields: dict[str, Any]
) -> None:
    assert updates.take(door.receive(kind=kind, **fields)) is Taken.IGNORED
    assert not TelegramUpdate.objects.exists()


def test_an_update_of_a_shape_that_nobody_knows_holds_up_no_chat_and_is_quoted_nowhere(
    door: BotApi, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert post({"update_id": 7, "message": {"text": CANARY, "chat": CANARY}}).status_code == 200
        assert post({**door.receive(voice=VOICE), "update_id": 2**70}).status_code == 200
    assert {"update_not_understood", "update_lost"} <= set(caplog.messages)
    assert not [record for record in caplog.records if CANARY in repr(record.__dict__) or record.exc_info]


@pytest.mark.django_db(transaction=True)
def test_the_same_update_or_message_counts_once_however_often_and_at_once_it_comes(door: BotApi) -> None:
    update = door.receive(voice=VOICE)
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: _post_alone(update), range(5)))
    # The same message under another number: as Telegram numbers anew after a week of silence.
    answers.append(post({**update, "update_id": 3}).status_code)
    assert answers == [200] * 6
    assert (TelegramUpdate.objects.count(), OutboxMessage.objects.count()) == (1, 1)


def _post_alone(update: dict[str, Any]) -> int:
    try:
        return post(update).status_code
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
def test_an_update_comes_again_only_where_the_database_is_away(door: BotApi, settings: Any) -> None:
    update = door.receive(voice=VOICE)
    assert not TelegramUpdate.objects.exists()
    healthy = settings.DATABASES["default"]["PORT"]
    connection.close()
    connection.settings_dict["PORT"] = "1"
    try:
        away = post(update)
    finally:
        connection.close()
        connection.settings_dict["PORT"] = healthy
    assert (away.status_code, away.headers["Retry-After"]) == (503, "5")
    assert post(update).status_code == 200
    assert TelegramUpdate.objects.count() == 1


def test_only_who_knows_the_secret_is_heard(door: BotApi, settings: Any) -> None:
    update = door.receive(voice=VOICE)
    assert [post(update, secret=secret).status_code for secret in ("", "wrong", SECRET + "x", "ключ")] == [403] * 4
    assert Client().get("/telegram/webhook").status_code == 405
    settings.TELEGRAM_WEBHOOK_SECRET = ""
    assert post(update, secret="").status_code == 404
    settings.TELEGRAM_WEBHOOK_SECRET, settings.TELEGRAM_BOT_TOKEN = SECRET, ""
    assert post(update).status_code == 404
    assert not TelegramUpdate.objects.exists()


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "null", '{"update_id": "7"}', '{"update_id": true}', b"\xff", "[" * 9999]
)
def test_what_is_no_update_is_refused(door: BotApi, body: str | bytes) -> None:
    assert post(body).status_code == 400


def test_more_than_any_update_is_not_read(door: BotApi) -> None:
    assert post(json.dumps({"update_id": 1, "x": "x" * UPDATE_LIMIT_BYTES})).status_code == 413


def test_a_chat_s_files_are_its_owner_s_and_a_stranger_s_are_nobody_s(
    door: BotApi, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bea = User.objects.create_user("bea")
    TelegramChat.objects.create(chat_id=GROUP["id"], owner=bea)
    strange = {"id": 5, "type": "private", "first_name": "X"}

    def owners() -> list[str]:
        sent = [door.receive(voice=VOICE, chat=chat) for chat in (GROUP, strange)]
        for update in sent:
            updates.take(update)
        written = TelegramUpdate.objects.filter(update_id__in=[update["update_id"] for update in sent])
        return list(written.order_by("id").values_list("owner__username", flat=True))

    assert owners() == ["bea", "ann"]
    settings.TELEGRAM_ALLOWED_CHATS = ["5"]
    assert owners() == ["ann"]
    settings.TELEGRAM_ALLOWED_CHATS, settings.TELEGRAM_OWNER = [], ""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert owners() == ["bea"]
    assert [record.__dict__["chat_id"] for record in caplog.records if record.message == "chat_unknown"] == [5]
    bea.is_active = False
    bea.save()
    assert owners() == []
    assert not door.sent()


def test_a_group_that_was_upgraded_keeps_its_owner(door: BotApi, settings: Any, user: User) -> None:
    settings.TELEGRAM_OWNER = ""
    TelegramChat.objects.create(chat_id=-5, owner=user)
    old = {"id": -5, "type": "group", "title": "G"}
    updates.take(door.receive(chat=old, migrate_to_chat_id=GROUP["id"]))
    assert updates.take(door.receive(chat=GROUP, voice=VOICE)) is Taken.WRITTEN
