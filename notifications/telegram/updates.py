"""The door for Telegram: what an update asks for, written down before anybody says that it was received.

Only new messages with a file count, from people, in chats that belong to somebody. What is ignored is ignored for
good, so that one update never holds up a chat; of what was written nothing is kept, and nothing is logged.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.auth.models import User
from django.db import Error
from telegram import Message, Update

from attachments.names import NAME_LIMIT, display_name, printable
from attachments.outages import is_database_away, sqlstate_of
from config.logging import current_carrier
from notifications import fetches
from notifications.models import TelegramChat, TelegramUpdate

#: What the bot asks Telegram for; also what it reads.
KINDS = ("message", "business_message")
FILE_ID_LIMIT = 512
LANGUAGE_LIMIT = 16

logger = logging.getLogger(__name__)


class NotAnUpdate(Exception):
    """What arrived has no update_id: it does not come from Telegram."""


class Taken(enum.Enum):
    """What became of an update; each is an answer that Telegram need not repeat it."""

    WRITTEN = "written"
    REPEATED = "repeated"
    IGNORED = "ignored"


class Media(NamedTuple):
    """The file of a message. All but its id are claims, and each may be missing."""

    kind: str
    file_id: str
    size: int | None
    name: str
    claimed_type: str


def take(document: Any) -> Taken:
    """Commit what the update asks for. Raises NotAnUpdate, and the database's error while it is away.

    What it refuses for another reason it would refuse tomorrow, too: that is an ERROR in the log.
    """
    if not isinstance(document, Mapping) or type(document.get("update_id")) is not int:
        raise NotAnUpdate
    message = _read(document)
    if message is None:
        return Taken.IGNORED
    try:
        return _write(document["update_id"], message)
    except Error as error:
        if is_database_away(error):
            raise
        # The text of the error may quote the row.
        facts = {"update_id": document["update_id"], "cause": type(error).__name__, "sqlstate": sqlstate_of(error)}
        logger.error("update_lost", extra=facts)  # noqa: TRY400
        return Taken.IGNORED


def _read(document: Mapping[str, Any]) -> Message | None:
    """The message that counts; None when there is none, or it is of a shape that nobody knows."""
    try:
        update = Update.de_json(dict(document), None)
        message = update.message or update.business_message
        return message if message is not None and _is_from_a_person(message) else None
    except Exception as error:  # noqa: BLE001  (whatever a library makes of it, the chat goes on)
        logger.error(  # noqa: TRY400  (a traceback would quote the message)
            "update_not_understood", extra={"update_id": document["update_id"], "cause": type(error).__name__}
        )
        return None


def _write(update_id: int, message: Message) -> Taken:
    _follow(message)
    media = _media_of(message)
    owner = _owner_of(message) if media is not None else None
    if media is None or owner is None:
        return Taken.IGNORED
    is_new = fetches.begin(_as_row(update_id, message, media, owner))
    return Taken.WRITTEN if is_new else Taken.REPEATED


def _is_from_a_person(message: Message) -> bool:
    """Not from a bot, itself included, nor through one; nor what a channel or the business account's holder posts."""
    sender = message.from_user
    if sender is None or sender.is_bot or message.via_bot or message.sender_business_bot:
        return False
    if message.is_automatic_forward:
        return False
    return not message.business_connection_id or sender.id == message.chat.id


def _follow(message: Message) -> None:
    """A group that was upgraded has another number from now on, and the same owner."""
    if message.migrate_to_chat_id is None:
        return
    known = TelegramChat.objects.filter(chat_id=message.chat.id).first()
    if known is not None:
        TelegramChat.objects.get_or_create(
            chat_id=message.migrate_to_chat_id, defaults={"owner_id": known.owner_id, "note": known.note}
        )


def _media_of(message: Message) -> Media | None:
    if message.photo:
        largest = max(message.photo, key=lambda size: size.width * size.height)
        return _media("photo", largest)
    for kind in ("voice", "audio", "video_note", "video", "document"):
        file = getattr(message, kind)
        if file is not None:
            return _media(kind, file)
    return None


def _media(kind: str, file: Any) -> Media | None:
    if len(file.file_id) > FILE_ID_LIMIT:
        return None
    return Media(
        kind=kind,
        file_id=file.file_id,
        size=file.file_size,
        name=display_name(getattr(file, "file_name", None) or ""),
        claimed_type=printable(getattr(file, "mime_type", None) or "")[:NAME_LIMIT],
    )


def _owner_of(message: Message) -> User | None:
    """Whose files come from this chat; None where nobody is meant to send any.

    A stranger gets no word: whoever finds the bot could make it talk.
    """
    chat_id = message.chat.id
    allowed = settings.TELEGRAM_ALLOWED_CHATS
    owner = None
    if not allowed or str(chat_id) in allowed:
        known = TelegramChat.objects.filter(chat_id=chat_id).select_related("owner").first()
        owner = known.owner if known else User.objects.filter(username=settings.TELEGRAM_OWNER or None).first()
    if owner is None or not owner.is_active:
        logger.info("chat_unknown", extra={"chat_id": chat_id})
        return None
    return owner


def _as_row(update_id: int, message: Message, media: Media, owner: User) -> TelegramUpdate:
    assert message.from_user is not None
    return TelegramUpdate(
        bot=fetches.bot_id(),
        update_id=update_id,
        chat_id=message.chat.id,
        message_id=message.message_id,
        # The general topic has a number as well, which answers must not name.
        thread_id=message.message_thread_id if message.is_topic_message else None,
        business_id=message.business_connection_id or "",
        language=(message.from_user.language_code or "")[:LANGUAGE_LIMIT],
        owner=owner,
        kind=media.kind,
        file_id=media.file_id,
        file_size=media.size,
        name=media.name,
        claimed_type=media.claimed_type,
        carrier=current_carrier(),
    )
