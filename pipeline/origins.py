"""Where a file came from, and where its sender waits for the answer; written once, by `lifecycle.accept`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from pipeline.states import Source

#: The columns of a job that an origin fills, and that no move ever writes.
COLUMNS = (
    "source",
    "reply_chat_id",
    "reply_message_id",
    "reply_thread_id",
    "reply_business_id",
    "reply_language",
)


@dataclass(frozen=True)
class Origin:
    """The door, and for Telegram the chat, the message that is answered, and what else leads the answer there.

    `thread_id` is that of a topic, `business_id` that of a business connection, `language` an IETF tag such as `ru`.
    """

    source: Source
    _: KW_ONLY
    chat_id: int | None = None
    message_id: int | None = None
    thread_id: int | None = None
    business_id: str = ""
    language: str = ""

    def columns(self) -> dict[str, Any]:
        facts = (self.source, self.chat_id, self.message_id, self.thread_id, self.business_id, self.language)
        return dict(zip(COLUMNS, facts, strict=True))
