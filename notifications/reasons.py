"""Why an answer did not reach its sender: a closed list, the label of a metric and a word for the log."""

from __future__ import annotations

import enum
import logging


class Reason(enum.StrEnum):
    #: No bot token: the door is down, as somebody meant it to be.
    NOT_CONFIGURED = "not_configured"
    #: A job from Telegram without a chat, which only damage can bring about.
    MISSING_CHAT = "missing_chat"
    #: The sender blocked the bot.
    BLOCKED = "blocked"
    #: The chat, its topic or the account is no more, or the bot was put out of it.
    CHAT_GONE = "chat_gone"
    #: The bot may not write there.
    NO_RIGHTS = "no_rights"
    #: Telegram asks to wait for longer than an answer may.
    RATE_LIMITED = "rate_limited"
    #: The request left and was not answered, so it may have arrived.
    TIMEOUT_UNKNOWN = "timeout_unknown"
    #: The Bot API was not reached, or was itself in trouble.
    NETWORK = "network"
    #: The token is wrong or was revoked.
    UNAUTHORIZED = "unauthorized"
    #: The Bot API refused it otherwise.
    REJECTED = "rejected"
    #: Longer or larger than a message may be.
    TOO_LARGE = "too_large"
    #: What was made of the file could not be read.
    UNREADABLE = "unreadable"
    #: Nothing of ours ran while it was news.
    TOO_LATE = "too_late"


def level_of(reason: Reason) -> int:
    """A chat that went missing must not drown among the records of a bot that is down ([transcription])."""
    return logging.ERROR if reason is Reason.MISSING_CHAT else logging.WARNING
