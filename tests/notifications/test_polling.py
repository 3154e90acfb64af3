"""Long polling: an update is confirmed once it is committed, and nothing but an order ends it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from notifications.models import TelegramUpdate
from notifications.telegram import polling
from tests.botapi import BotApi
from tests.waiting import end_other_sessions, until

pytestmark = pytest.mark.django_db(transaction=True)

VOICE = {"file_id": "AwACAgI", "file_unique_id": "u", "duration": 3}


@pytest.fixture
def api(bot_api: BotApi, settings: Any, user: User) -> BotApi:
    settings.TELEGRAM_OWNER = "ann"
    return bot_api


@contextmanager
def poller() -> Iterator[threading.Thread]:
    """One that runs in a thread of this process."""
    stop = threading.Event()

    def run() -> None:
        with closing(connection):
            polling.run(stop)

    running = threading.Thread(target=run)
    running.start()
    try:
        yield running
        assert running.is_alive()
    finally:
        stop.set()
        running.join(20)
        assert not running.is_alive()


def until_taken(api: BotApi, count: int) -> None:
    """Until so many are written down and Telegram knows it."""
    until(lambda: TelegramUpdate.objects.count() == count and not api.waiting)


def test_what_waited_is_taken_in_order_and_the_rest_as_it_comes(api: BotApi) -> None:
    api.webhook = {"url": "https://elsewhere.example/"}
    sent = [api.receive(voice=VOICE)["update_id"] for _ in range(3)]
    with poller():
        until_taken(api, 3)
        sent.append(api.receive(voice=VOICE)["update_id"])
        until_taken(api, 4)
    assert list(TelegramUpdate.objects.order_by("id").values_list("update_id", flat=True)) == sent
    # While a webhook is set nobody may poll; what waited for it must not be dropped.
    assert [call.params["drop_pending_updates"] for call in api.sent("deleteWebhook")] == [False]
    assert {"message", "business_message"} == set(api.sent("getUpdates")[0].params["allowed_updates"])


def test_nothing_is_confirmed_that_is_not_committed(api: BotApi, caplog: pytest.LogCaptureFixture) -> None:
    with poller():
        api.receive(voice=VOICE)
        until_taken(api, 1)
        with no_database():
            api.receive(voice=VOICE)
            until(lambda: "database_unavailable" in caplog.messages)
            assert len(api.waiting) == 1
    with poller():
        until_taken(api, 2)


@contextmanager
def no_database() -> Iterator[None]:
    """Nobody but this thread reaches it."""
    port, connection.settings_dict["PORT"] = connection.settings_dict["PORT"], "1"
    try:
        end_other_sessions()
        yield
    finally:
        connection.settings_dict["PORT"] = port


def test_two_pollers_lose_and_double_nothing_and_are_told_of(api: BotApi, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as both:
        for _ in range(2):
            both.enter_context(poller())
        until(lambda: "poller_not_alone" in caplog.messages)
        for _ in range(5):
            api.receive(voice=VOICE)
        until_taken(api, 5)


@pytest.mark.parametrize(
    "how",
    [
        {"status": 401, "description": "Unauthorized"},
        {"status": 429, "description": "Too Many Requests", "parameters": {"retry_after": 1}},
        {"status": 502, "description": "Bad Gateway"},
        {"is_cut": True},
        {"is_answer_lost": True},
    ],
)
def test_what_telegram_has_is_taken_once_it_answers_again(
    api: BotApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    monkeypatch.setattr(polling, "PAUSE_SECONDS", 0.1)
    api.receive(voice=VOICE)
    api.fail("getUpdates", times=1, **how)
    with caplog.at_level(logging.DEBUG), poller():
        until_taken(api, 1)
    assert "poll_failed" in caplog.messages


def test_a_poll_in_its_wait_ends_when_it_is_told_to(api: BotApi) -> None:
    with poller():
        until(lambda: api.sent("getUpdates"))
    api.fail("getUpdates", is_held=True)
    with poller():
        until(lambda: len(api.sent("getUpdates")) > 1)


def test_the_command_says_what_it_lacks(settings: Any) -> None:
    with pytest.raises(CommandError, match="TELEGRAM_BOT_TOKEN"):
        call_command("telegram")


def test_updates_come_one_way_only(api: BotApi, settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    url = "https://files.example/telegram/webhook"
    with pytest.raises(CommandError, match="TELEGRAM_WEBHOOK_SECRET"):
        call_command("telegram", set_webhook=url)
    settings.TELEGRAM_WEBHOOK_SECRET = "only-telegram-knows"
    call_command("telegram", set_webhook=url)
    assert (api.webhook["url"], api.webhook["secret_token"]) == (url, "only-telegram-knows")
    assert url in capsys.readouterr().out
    with pytest.raises(CommandError, match="Unset it to poll"):
        call_command("telegram")
    api.fail("setWebhook", status=400, description="Bad Request: bad webhook: HTTPS url must be provided")
    with pytest.raises(CommandError, match="rejected"):
        call_command("telegram", set_webhook="http://files.example/telegram/webhook")
