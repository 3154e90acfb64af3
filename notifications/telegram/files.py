"""A message's file, piece by piece: python-telegram-bot would hold all of it in memory.

A link to a file holds the token and is good for an hour, so it is asked for at each try, kept nowhere and told to
nobody: an error of the library, which quotes it, becomes ours unchained.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
from django.conf import settings

from attachments.errors import AttachmentError, Refused
from notifications.reasons import Reason
from notifications.telegram.client import CONNECT_SECONDS, call
from notifications.telegram.outgoing import CallFailed

#: A server that falls silent for so long is given up on; well within a lease, which is renewed between two pieces.
SILENCE_SECONDS = 5.0
DOWNLOAD_SECONDS = 300.0


class TooLargeForBot(Refused):
    """Telegram does not give bots files of this size."""

    code = "too_large_for_bot"
    status = 413
    sentence = "Telegram does not hand files of this size to bots. Send a smaller one, or a part of it."


class NotFetched(AttachmentError):
    """Telegram did not give the whole file, however often it was asked."""

    code = "not_fetched"
    status = 503
    sentence = "The file could not be fetched from Telegram. Send it again."


def download(file_id: str) -> Iterator[bytes]:
    """The file's bytes as they arrive.

    Raises TooLargeForBot, before its first byte where Telegram tells; NotFetched when it breaks off or may not be had;
    and CallFailed when Telegram is not to be reached, or does not want to be asked now.
    """
    path = _find(file_id)
    problem: AttachmentError | CallFailed
    try:
        yield from _pieces(path)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
        problem = CallFailed(Reason.NETWORK)
    except httpx.HTTPError as error:
        problem = NotFetched(type(error).__name__)
    else:
        return
    raise problem


def check_size(size: int | None) -> None:
    """Raise TooLargeForBot for a size that Telegram would not hand out; None is a size that nobody told."""
    if size is not None and size > settings.TELEGRAM_MAX_FILE_BYTES:
        raise TooLargeForBot(f"{size} bytes")


def _find(file_id: str) -> str:
    """The path on the server, of which the link is made."""
    try:
        found = call("getFile", file_id=file_id)
    except CallFailed as failed:
        if failed.reason is Reason.TOO_LARGE:
            raise TooLargeForBot from None
        if failed.reason in (Reason.REJECTED, Reason.TIMEOUT_UNKNOWN):
            raise NotFetched(failed.reason.value) from None
        raise
    check_size(found.get("file_size"))
    if "file_path" not in found:
        raise NotFetched("no file_path")
    return str(found["file_path"])


def _pieces(path: str) -> Iterator[bytes]:
    url = f"{settings.TELEGRAM_API_URL}/file/bot{settings.TELEGRAM_BOT_TOKEN}/{path}"
    timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    until, size = time.monotonic() + DOWNLOAD_SECONDS, 0
    with httpx.stream("GET", url, timeout=timeout, headers={"Accept-Encoding": "identity"}) as response:
        _check(response.status_code)
        # As they come, however small: between two of them the lease is renewed.
        for piece in response.iter_raw():
            size += len(piece)
            check_size(size)
            if time.monotonic() > until:
                raise NotFetched("too slow")
            yield piece


def _check(status: int) -> None:
    """A link that is too old (404) is asked for anew at the next try; what is no fault of the file is waited out."""
    if status == 200:
        return
    if status in (401, 403):
        raise CallFailed(Reason.UNAUTHORIZED)
    if status == 429:
        raise CallFailed(Reason.RATE_LIMITED)
    if status >= 500:
        raise CallFailed(Reason.NETWORK)
    raise NotFetched(f"status {status}")
