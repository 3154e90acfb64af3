"""What an operator sees of Telegram, and the one table that is written in the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from notifications.models import TelegramChat, TelegramUpdate
from notifications.telegram import fetching, updates
from pipeline.models import OutboxMessage
from tests.botapi import BotApi
from tests.pictures import png

pytestmark = [
    pytest.mark.django_db,
    # Nothing is collected in a checkout: WhiteNoise finds the files in their packages.
    pytest.mark.filterwarnings("ignore:No directory at:UserWarning"),
]
UPDATES, CHATS, MESSAGES = (
    f"/admin/{path}/"
    for path in ("notifications/telegramupdate", "notifications/telegramchat", "pipeline/outboxmessage")
)


@pytest.fixture
def fetched(bot_api: BotApi, settings: Any, user: User) -> TelegramUpdate:
    settings.TELEGRAM_OWNER = "ann"
    document = {"file_id": bot_api.keep_file(png()), "file_unique_id": "u", "file_name": "photo.png"}
    updates.take(bot_api.receive(document=document))
    update = TelegramUpdate.objects.get()
    fetching.fetch(update.pk, attempt=1)
    return update


def test_an_operator_sees_what_became_of_a_message_s_file_and_changes_nothing(
    admin_client: Client, fetched: TelegramUpdate
) -> None:
    for term, count in (("77", 1), ("-77", 0), ("photo", 0), ("9" * 30, 0)):
        found = admin_client.get(UPDATES, {"q": term}).context["cl"].result_list
        assert len(found) == count, term
    shown = admin_client.get(f"{UPDATES}{fetched.pk}/change/").content.decode()
    fetched.refresh_from_db()
    assert "accepted" in shown
    assert f"/admin/attachments/attachment/{fetched.attachment_id}/change/" in shown
    assert admin_client.post(f"{UPDATES}{fetched.pk}/change/", {}).status_code == 403
    assert admin_client.get(f"{UPDATES}add/").status_code == 403


def test_the_nudge_of_a_fetch_is_shown_among_the_messages(admin_client: Client, fetched: TelegramUpdate) -> None:
    message = OutboxMessage.objects.get(telegram_update=fetched)
    assert message.message_id in admin_client.get(MESSAGES).content.decode()
    assert admin_client.get(f"{MESSAGES}{message.pk}/change/").status_code == 200


def test_an_operator_gives_a_chat_its_owner(admin_client: Client, bot_api: BotApi, user: User) -> None:
    assert admin_client.get(f"{CHATS}add/").status_code == 200
    answer = admin_client.post(f"{CHATS}add/", {"chat_id": "-100500", "owner": user.pk, "note": "The choir"})
    assert answer.status_code == 302
    assert TelegramChat.objects.get().owner == user
    assert "The choir" in admin_client.get(CHATS).content.decode()
    voice = {"file_id": "A", "file_unique_id": "u", "duration": 3}
    chat = {"id": -100500, "type": "supergroup", "title": "Choir"}
    assert updates.take(bot_api.receive(voice=voice, chat=chat)) is updates.Taken.WRITTEN
