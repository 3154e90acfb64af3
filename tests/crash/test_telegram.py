"""Files by Telegram through the whole of it: real processes over the scripted Bot API, ended in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User

from attachments.models import Attachment
from notifications.models import FetchState, TelegramUpdate
from pipeline.models import Job
from pipeline.states import State
from tests.botapi import FILE, TOKEN, BotApi
from tests.pictures import png
from tests.processes import Process, Stack
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api(user: User) -> Iterator[BotApi]:
    with BotApi() as server:
        yield server


def send_picture(api: BotApi) -> int:
    """Somebody sends one as a file; returns its message's number."""
    file_id = api.keep_file(png(), suffix="png")
    update = api.receive(document={"file_id": file_id, "file_unique_id": "u", "file_name": "photo.png"})
    return int(update["message"]["message_id"])


def answered(api: BotApi) -> list[int]:
    """Which messages the bot has answered."""
    return [call.params["reply_parameters"]["message_id"] for call in api.sent()]


@pytest.mark.timeout(240)
def test_files_come_in_and_answers_go_out_once_each_whatever_is_ended_meanwhile(running: Stack, api: BotApi) -> None:
    bot: dict[str, Any] = {"TELEGRAM_BOT_TOKEN": TOKEN, "TELEGRAM_API_URL": api.url, "TELEGRAM_OWNER": "ann"}
    # Of a server of which two downloads hang, and the others take a while.
    api.fail(FILE, times=2, is_held=True)
    api.fail(FILE, slow_seconds=0.05)
    sent = [send_picture(api) for _ in range(6)]
    poller = running.poller(**bot)
    dispatcher = running.dispatcher(**bot)
    fetcher = running.worker("telegram", **bot)
    running.worker("images", **bot)
    until(lambda: TelegramUpdate.objects.filter(state=FetchState.FETCHING).exists(), say=running.logs, seconds=60)
    turns: list[Callable[[], object]] = [
        fetcher.restart,
        poller.restart,
        dispatcher.restart,
        partial(end_gently, fetcher, bot),
    ]
    for turn in turns:
        turn()
        sent.append(send_picture(api))
    until(lambda: sorted(answered(api)) == sorted(sent), seconds=120, say=lambda: f"{answered(api)}\n{running.logs()}")
    # The last to be answered may not be written down as such yet.
    accepted = TelegramUpdate.objects.filter(state=FetchState.ACCEPTED)
    until(lambda: accepted.count() == len(sent), say=running.logs)
    assert Attachment.objects.count() == len(sent)
    told = Job.objects.filter(state=State.READY, source="telegram", reply="sent")
    until(lambda: told.count() == len(sent), say=running.logs)
    assert not api.waiting


def end_gently(process: Process, bot: dict[str, str]) -> None:
    process.terminate()
    process.start(**bot)
