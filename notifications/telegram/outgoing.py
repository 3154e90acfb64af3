"""What goes to the Bot API, and how it fails; apart from `client`, whose libraries are slow to load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from notifications.reasons import Reason


class CallFailed(Exception):
    """The Bot API did not do what it was asked; `retry_after` in seconds where it asks to wait."""

    def __init__(self, reason: Reason, *, retry_after: float | None = None, migrated_to: int | None = None) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.retry_after = retry_after
        self.migrated_to = migrated_to


class NotAlone(CallFailed):
    """Somebody else polls with the same token, or a webhook is set."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where an answer goes: below the message, in its topic, by its business connection."""

    chat_id: int
    message_id: int | None = None
    thread_id: int | None = None
    business_id: str = ""

    def parameters(self) -> dict[str, Any]:
        found: dict[str, Any] = {"chat_id": self.chat_id}
        if self.message_id is not None:
            found["reply_parameters"] = {"message_id": self.message_id, "allow_sending_without_reply": True}
        if self.thread_id is not None:
            found["message_thread_id"] = self.thread_id
        if self.business_id:
            found["business_connection_id"] = self.business_id
        return found


class File(NamedTuple):
    name: str
    content: bytes
    content_type: str


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message: a method of the Bot API with what it takes, `files` by the names of their parameters."""

    method: str
    parameters: Mapping[str, str]
    files: Mapping[str, File]
