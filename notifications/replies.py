"""Telling the sender: what became of a file, or just a sentence. At most once, never raising, never trying again.

Whoever calls has saved the reached state before, holds no lease and is in no transaction. No text and no address is in
anything that is logged or given back.
"""

from __future__ import annotations

import datetime
import logging
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from attachments import storage
from attachments.errors import AttachmentError
from attachments.models import Variant
from notifications.reasons import Reason, level_of
from notifications.telegram import messages
from notifications.telegram.outgoing import Address, CallFailed, Message
from notifications.telegram.sentences import explained, told

#: What is older was reached while nothing ran that could have told of it, and is not told any more.
NEWS_FOR = datetime.timedelta(minutes=5)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class News:
    """What became of an attachment; `error` is the owner's sentence where it failed, `age` is since that was saved."""

    attachment_id: uuid.UUID
    pipeline_version: int
    error_code: str = ""
    error: str = ""
    language: str = ""
    age: datetime.timedelta = datetime.timedelta(0)


def compose(news: News, address: Address | None) -> list[Message] | Reason:
    """What is to be sent of it, or why nothing can be. Raises nothing but the database's errors."""
    if address is None:
        return Reason.MISSING_CHAT
    if not settings.TELEGRAM_BOT_TOKEN:
        return Reason.NOT_CONFIGURED
    if news.age > NEWS_FOR:
        return Reason.TOO_LATE
    try:
        return _answer(news)
    except (AttachmentError, OSError, UnicodeError, LookupError) as error:
        logger.info("answer_unreadable", extra={"cause": type(error).__name__})
        return Reason.UNREADABLE


def send(answer: list[Message], address: Address) -> Reason | None:
    """Why it was not delivered, or None when it was."""
    # Deployments without a bot never load it; workers with one do so before they fork.
    from notifications.telegram import client

    try:
        client.send(answer, address)
    except CallFailed as failed:
        return failed.reason
    except Exception as error:  # noqa: BLE001  (a step must not fail by its answer, and the error may quote it)
        logger.error("answer_failed", extra={"cause": type(error).__name__})  # noqa: TRY400
        return Reason.TIMEOUT_UNKNOWN
    return None


def say(sentence: str, address: Address) -> Reason | None:
    """Send one sentence; why it was not delivered, which is also logged, or None when it was."""
    reason = send(messages.of_sentence(sentence), address) if settings.TELEGRAM_BOT_TOKEN else Reason.NOT_CONFIGURED
    if reason is not None:
        logger.log(level_of(reason), "sentence_undelivered", extra={"reason": reason.value})
    return reason


def _answer(news: News) -> list[Message]:
    if news.error_code:
        return messages.of_sentence(explained(news.error_code, news.error, news.language))
    made = _made(news)
    if "text" in made:
        text = _read(made["text"]).decode()
        return messages.of_transcript(text, _read(made["srt"]), language=news.language)
    if "thumbnail" in made:
        return messages.of_picture(_read(made["thumbnail"]), link=_link(news.attachment_id), language=news.language)
    return messages.of_sentence(told("kept", news.language))


def _made(news: News) -> dict[str, Variant]:
    variants = Variant.objects.filter(
        attachment=news.attachment_id, pipeline_version=news.pipeline_version, is_internal=False
    )
    return {variant.variant: variant for variant in variants.select_related("stored_object")}


def _read(variant: Variant) -> bytes:
    """Its bytes, with size and digest checked."""
    stored = variant.stored_object
    assert stored.size is not None and stored.sha256 is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "variant"
        storage.fetch(stored.bucket, stored.key, path, size=stored.size, sha256=stored.sha256)
        return path.read_bytes()


def _link(attachment_id: uuid.UUID) -> str:
    return f"{settings.PUBLIC_URL}/api/v1/attachments/{attachment_id}/" if settings.PUBLIC_URL else ""
