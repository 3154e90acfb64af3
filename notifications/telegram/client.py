"""The one place that talks to the Bot API: a call at a time, with a deadline, and errors of our own.

python-telegram-bot makes and reads the requests. Its errors quote addresses, which hold the token, and its `Bot` logs
what is sent: so an error becomes a Reason by a table here, unchained, and nothing but its requests is used.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

import httpx
from django.conf import settings
from telegram import InputFile
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
    TelegramError,
    TimedOut,
)
from telegram.request import HTTPXRequest, RequestData
from telegram.request._requestparameter import RequestParameter

from notifications.reasons import Reason
from notifications.telegram.outgoing import Address, CallFailed, File, Message, NotAlone

# The library's own choice of a type for how long to wait warns at every use; this is the one to come.
os.environ.setdefault("PTB_TIMEDELTA", "true")

CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
#: All messages of one answer, the wait that Telegram asks for not counted.
SEND_SECONDS = 20.0

#: The first row that fits tells; the words are those of the Bot API's descriptions, in lower case.
REASONS: tuple[tuple[type[TelegramError], str, Reason], ...] = (
    (InvalidToken, "", Reason.UNAUTHORIZED),
    (RetryAfter, "", Reason.RATE_LIMITED),
    (ChatMigrated, "", Reason.CHAT_GONE),
    (Forbidden, "blocked by the user", Reason.BLOCKED),
    (Forbidden, "deactivated", Reason.CHAT_GONE),
    (Forbidden, "kicked", Reason.CHAT_GONE),
    (Forbidden, "not a member", Reason.CHAT_GONE),
    (Forbidden, "deleted", Reason.CHAT_GONE),
    (Forbidden, "", Reason.NO_RIGHTS),
    (BadRequest, "chat not found", Reason.CHAT_GONE),
    (BadRequest, "user not found", Reason.CHAT_GONE),
    (BadRequest, "peer_id_invalid", Reason.CHAT_GONE),
    (BadRequest, "deactivated", Reason.CHAT_GONE),
    (BadRequest, "thread not found", Reason.CHAT_GONE),
    (BadRequest, "topic_deleted", Reason.CHAT_GONE),
    (BadRequest, "topic_closed", Reason.NO_RIGHTS),
    (BadRequest, "rights", Reason.NO_RIGHTS),
    (BadRequest, "forbidden", Reason.NO_RIGHTS),
    (BadRequest, "chat_restricted", Reason.NO_RIGHTS),
    (BadRequest, "business_connection", Reason.NO_RIGHTS),
    (BadRequest, "too long", Reason.TOO_LARGE),
    (BadRequest, "too big", Reason.TOO_LARGE),
    (BadRequest, "", Reason.REJECTED),
    (TimedOut, "", Reason.TIMEOUT_UNKNOWN),
    (NetworkError, "entity too large", Reason.TOO_LARGE),
    (NetworkError, "too many requests", Reason.RATE_LIMITED),
    (NetworkError, "", Reason.NETWORK),
)
#: What happens before the request leaves.
NEVER_LEFT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def send(messages: Iterable[Message], address: Address) -> None:
    """Send these, one after the other, each at most once; raises CallFailed at the first that is not delivered.

    Waits at most TELEGRAM_MAX_WAIT in all where Telegram asks for it, and follows a group that was upgraded.
    """
    asyncio.run(_send_all(messages, address))


def call(method: str, **parameters: Any) -> Any:
    """The result of one call; raises CallFailed."""
    return asyncio.run(_call_alone(method, parameters))


class Line:
    """A connection to the Bot API, as an async context manager of the event loop that uses it."""

    def __init__(self, *, read_seconds: float = READ_SECONDS) -> None:
        self._request = QuietRequest(
            connection_pool_size=1,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=read_seconds,
            write_timeout=READ_SECONDS,
            httpx_kwargs={"verify": _certificates()},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._request.shutdown()

    async def call(self, method: str, parameters: Mapping[str, Any], files: Mapping[str, File] | None = None) -> Any:
        """The result of one call; raises CallFailed."""
        url = f"{settings.TELEGRAM_API_URL}/bot{settings.TELEGRAM_BOT_TOKEN}/{method}"
        data = [RequestParameter.from_input(name, value) for name, value in parameters.items()]
        data += [RequestParameter.from_input(name, _attached(file)) for name, file in (files or {}).items()]
        try:
            return await self._request.post(url, request_data=RequestData(data))
        except TelegramError as error:
            failed = _failed(error)
        raise failed


class QuietRequest(HTTPXRequest):
    """Does not log an answer that is no JSON: a gateway may quote the request in it."""

    @staticmethod
    def parse_json_payload(payload: bytes) -> Any:
        try:
            return httpx.Response(200, content=payload).json()
        except ValueError:
            raise TelegramError("Invalid server response") from None


async def _call_alone(method: str, parameters: Mapping[str, Any]) -> Any:
    async with Line() as line:
        return await _before_deadline(line.call(method, parameters), SEND_SECONDS)


async def _send_all(messages: Iterable[Message], address: Address) -> None:
    async with Line() as line:
        sending = Sending(line, address)
        await _before_deadline(sending.run(messages), SEND_SECONDS + settings.TELEGRAM_MAX_WAIT)


async def _before_deadline(work: Any, seconds: float) -> Any:
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        failed = CallFailed(Reason.TIMEOUT_UNKNOWN)
    raise failed


class Sending:
    """One answer on its way."""

    def __init__(self, line: Line, address: Address) -> None:
        self._line = line
        self._address = address
        self._patience = float(settings.TELEGRAM_MAX_WAIT)
        self._has_moved = False

    async def run(self, messages: Iterable[Message]) -> None:
        for message in messages:
            while not await self._is_sent(message):
                pass

    async def _is_sent(self, message: Message) -> bool:
        """False when Telegram took nothing, and says how it will."""
        parameters = {**self._address.parameters(), **message.parameters}
        try:
            await self._line.call(message.method, parameters, message.files)
        except CallFailed as failed:
            if failed.migrated_to is not None and not self._has_moved:
                # The message to answer stays behind in the old group, whose numbers mean nothing in the new one.
                self._address = replace(self._address, chat_id=failed.migrated_to, message_id=None)
                self._has_moved = True
                return False
            if failed.retry_after is None or failed.retry_after > self._patience:
                raise
            self._patience -= failed.retry_after
            await asyncio.sleep(failed.retry_after)
            return False
        return True


def _failed(error: TelegramError) -> CallFailed:
    if isinstance(error, RetryAfter):
        wait = error.retry_after
        seconds = wait.total_seconds() if isinstance(wait, datetime.timedelta) else float(wait)
        return CallFailed(Reason.RATE_LIMITED, retry_after=seconds)
    if isinstance(error, Conflict):
        return NotAlone(Reason.REJECTED)
    if isinstance(error, ChatMigrated):
        return CallFailed(Reason.CHAT_GONE, migrated_to=error.new_chat_id)
    if isinstance(error.__cause__, httpx.HTTPError):
        return CallFailed(Reason.NETWORK if isinstance(error.__cause__, NEVER_LEFT) else Reason.TIMEOUT_UNKNOWN)
    words = error.message.lower()
    fitting = (reason for kind, said, reason in REASONS if isinstance(error, kind) and said in words)
    # What is no error of a kind that is known came after the request left: an answer that is none.
    return CallFailed(next(fitting, Reason.TIMEOUT_UNKNOWN))


def _attached(file: File) -> InputFile:
    attached = InputFile(file.content, filename=file.name)
    attached.mimetype = file.content_type
    return attached


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Reading them takes longer than a short message."""
    return ssl.create_default_context()
