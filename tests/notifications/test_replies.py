"""Answers over HTTP: what arrives, and by which reason nothing did; each at most once."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from notifications import replies
from notifications.reasons import Reason
from notifications.replies import News
from notifications.telegram import client, messages
from notifications.telegram.outgoing import Address, CallFailed
from tests.botapi import BotApi, Call

ANN = Address(chat_id=77, message_id=1001)
MARKUP = "*bold* _under_ `code` [link](x) <b>&amp; \\ 5 < 6"


def only(server: BotApi) -> Call:
    (call,) = server.sent()
    return call


def test_an_answer_is_plain_text_below_the_message_and_may_outlive_it(bot_api: BotApi) -> None:
    assert replies.say(MARKUP, ANN) is None
    assert only(bot_api).params == {
        "chat_id": 77,
        "text": MARKUP,
        "reply_parameters": {"message_id": 1001, "allow_sending_without_reply": True},
    }


def test_an_answer_finds_its_topic_and_its_business_connection(bot_api: BotApi) -> None:
    assert replies.say("Hello.", Address(chat_id=-100, thread_id=7, business_id="b1")) is None
    assert only(bot_api).params == {
        "chat_id": -100,
        "text": "Hello.",
        "message_thread_id": 7,
        "business_connection_id": "b1",
    }


@pytest.mark.parametrize(
    ("status", "description", "reason"),
    [
        (403, "Forbidden: bot was blocked by the user", Reason.BLOCKED),
        (403, "Forbidden: user is deactivated", Reason.CHAT_GONE),
        (403, "Forbidden: bot was kicked from the supergroup chat", Reason.CHAT_GONE),
        (403, "Forbidden: bot is not a member of the channel chat", Reason.CHAT_GONE),
        (403, "Forbidden: the group chat was deleted", Reason.CHAT_GONE),
        (403, "Forbidden: bot can't initiate conversation with a user", Reason.NO_RIGHTS),
        (400, "Bad Request: chat not found", Reason.CHAT_GONE),
        (400, "Bad Request: message thread not found", Reason.CHAT_GONE),
        (400, "Bad Request: TOPIC_CLOSED", Reason.NO_RIGHTS),
        (400, "Bad Request: not enough rights to send text messages to the chat", Reason.NO_RIGHTS),
        (400, "Bad Request: CHAT_WRITE_FORBIDDEN", Reason.NO_RIGHTS),
        (400, "Bad Request: message is too long", Reason.TOO_LARGE),
        (413, "Request Entity Too Large", Reason.TOO_LARGE),
        (400, "Bad Request: can't parse entities", Reason.REJECTED),
        (409, "Conflict", Reason.REJECTED),
        (401, "Unauthorized", Reason.UNAUTHORIZED),
        (404, "Not Found", Reason.UNAUTHORIZED),
        (429, "Too Many Requests", Reason.RATE_LIMITED),
        (500, "Internal Server Error", Reason.NETWORK),
        (502, "Bad Gateway", Reason.NETWORK),
    ],
)
def test_a_refusal_has_its_reason(bot_api: BotApi, status: int, description: str, reason: Reason) -> None:
    bot_api.fail("sendMessage", times=1, status=status, description=description)
    assert replies.say("Hello.", ANN) is reason
    assert bot_api.sent() == []


def test_without_a_token_nothing_is_asked(bot_api: BotApi, settings: Any) -> None:
    settings.TELEGRAM_BOT_TOKEN = ""
    assert replies.say("Hello.", ANN) is Reason.NOT_CONFIGURED
    assert bot_api.calls == []


def test_a_wrong_token_is_told(bot_api: BotApi) -> None:
    bot_api.tokens.clear()
    assert replies.say("Hello.", ANN) is Reason.UNAUTHORIZED


def test_a_bot_api_that_is_not_there_is_told(settings: Any) -> None:
    with BotApi() as server:
        settings.TELEGRAM_API_URL = server.url
    settings.TELEGRAM_BOT_TOKEN = "1:gone"
    assert replies.say("Hello.", ANN) is Reason.NETWORK


@pytest.mark.parametrize("fault", ["is_answer_lost", "is_cut", "is_held"])
def test_what_left_and_got_no_answer_is_not_sent_again(
    bot_api: BotApi, settings: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending has no key that would make it safe to repeat."""
    settings.TELEGRAM_MAX_WAIT = 0
    monkeypatch.setattr(client, "SEND_SECONDS", 0.5)
    bot_api.fail("sendMessage", times=1, **{fault: True})
    assert replies.say("Hello.", ANN) is Reason.TIMEOUT_UNKNOWN
    assert only(bot_api).params["text"] == "Hello."


def test_an_answer_that_comes_too_slowly_is_not_waited_for(
    bot_api: BotApi, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, all of them would not: the deadline is for the whole."""
    settings.TELEGRAM_MAX_WAIT = 0
    monkeypatch.setattr(client, "SEND_SECONDS", 0.5)
    bot_api.fail("sendMessage", slow_seconds=0.3)
    assert replies.say("Hello.", ANN) is Reason.TIMEOUT_UNKNOWN


def test_a_short_wait_is_waited_out_and_a_long_one_is_not(bot_api: BotApi, settings: Any) -> None:
    settings.TELEGRAM_MAX_WAIT = 1
    bot_api.fail("sendMessage", times=1, status=429, description="Too Many Requests", parameters={"retry_after": 1})
    assert replies.say("Hello.", ANN) is None
    assert only(bot_api).params["text"] == "Hello."
    bot_api.fail("sendMessage", times=1, status=429, description="Too Many Requests", parameters={"retry_after": 2})
    assert replies.say("Hello again.", ANN) is Reason.RATE_LIMITED


def test_the_waits_of_one_answer_are_counted_together(bot_api: BotApi, settings: Any) -> None:
    settings.TELEGRAM_MAX_WAIT = 1
    bot_api.fail("sendMessage", status=429, description="Too Many Requests", parameters={"retry_after": 1})
    assert replies.say("Hello.", ANN) is Reason.RATE_LIMITED


def test_a_group_that_was_upgraded_is_followed_once(bot_api: BotApi) -> None:
    """In the new one the old message's number is another's."""
    upgraded = {"status": 400, "description": "Bad Request: group chat was upgraded to a supergroup chat"}
    bot_api.fail("sendMessage", times=1, parameters={"migrate_to_chat_id": -1007}, **upgraded)
    assert replies.say("Hello.", ANN) is None
    assert only(bot_api).params == {"chat_id": -1007, "text": "Hello."}
    bot_api.fail("sendMessage", parameters={"migrate_to_chat_id": -1008}, **upgraded)
    assert replies.say("Hello.", ANN) is Reason.CHAT_GONE


def test_after_a_failure_in_the_middle_nothing_more_is_sent(bot_api: BotApi) -> None:
    bot_api.fail("sendDocument", status=500, description="Internal Server Error")
    answer = messages.of_transcript("word " * 4000, b"1\n", language="en")
    with pytest.raises(CallFailed) as failed:
        client.send(answer, ANN)
    assert failed.value.reason is Reason.NETWORK
    assert [call.method for call in bot_api.sent()] == ["sendMessage"]


def test_files_arrive_with_their_names_and_types(bot_api: BotApi) -> None:
    client.send(messages.of_transcript("слово " * 4000, b"1\n", language="ru"), ANN)
    client.send(messages.of_picture(b"picture", link="https://x.example/a/", language="en"), ANN)
    text, transcript, subtitles, picture = bot_api.sent()
    assert text.params["text"].startswith("слово слово")
    assert transcript.files["document"].name == "transcript.txt"
    assert transcript.files["document"].content.decode() == "слово " * 4000
    assert transcript.params["caption"].startswith("Весь текст")
    assert (subtitles.files["document"].name, subtitles.files["document"].content) == ("transcript.srt", b"1\n")
    assert (picture.files["photo"].content_type, picture.files["photo"].content) == ("image/webp", b"picture")
    assert picture.params["caption"] == "The picture is ready. https://x.example/a/"
    assert all(call.params["reply_parameters"]["message_id"] == 1001 for call in bot_api.sent())


def test_no_error_of_a_library_leaves_the_sender(
    bot_api: BotApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy of a kind that nobody knows is met where nothing foresees it; its address may hold a password."""
    monkeypatch.setenv("HTTP_PROXY", "gopher://ann:hush@127.0.0.1")
    assert replies.say("Hello.", ANN) is Reason.TIMEOUT_UNKNOWN
    assert "hush" not in caplog.text


def test_a_failure_is_told_in_the_senders_language(bot_api: BotApi) -> None:
    for language in ("en-GB", "ru"):
        news = News(
            attachment_id=uuid.uuid4(), pipeline_version=1, error_code="crashed", error="It died.", language=language
        )
        answer = replies.compose(news, ANN)
        assert isinstance(answer, list)
        assert replies.send(answer, ANN) is None
    english, russian = (call.params["text"] for call in bot_api.sent())
    assert english == "It died."
    assert russian.startswith("На этом файле остановилась программа")
