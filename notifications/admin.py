"""Whose chats they are, which an operator decides here; and how far the fetching of each message's file has come."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Unfold ships no types.

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.db.models import Q
from unfold.admin import ModelAdmin
from unfold.decorators import display

from attachments.admin import ReadOnlyAdmin, link_to
from attachments.models import Attachment
from notifications import fetches
from notifications.models import FetchState, TelegramChat, TelegramUpdate


@admin.register(TelegramChat)
class TelegramChatAdmin(ModelAdmin):
    """The one table that is written here: a chat's number is in the log's line `chat_unknown`."""

    list_display = ("chat_id", "owner", "note", "added_at")
    list_select_related = ("owner",)
    fields = ("chat_id", "owner", "note")
    autocomplete_fields = ("owner",)
    ordering = ("-added_at",)


@admin.register(TelegramUpdate)
class TelegramUpdateAdmin(ReadOnlyAdmin):
    list_display = ("id", "coloured_state", "chat_id", "kind", "attempt", "failures", "error_code", "created_at")
    ordering = ("-id",)
    fields = (
        "coloured_state",
        "error_code",
        "chat_id",
        "message_id",
        "thread_id",
        "owner",
        "kind",
        "name",
        "file_size",
        "claimed_type",
        "attempt",
        "failures",
        "due_at",
        "lease_until",
        "attachment_link",
        "created_at",
        "finished_at",
    )
    readonly_fields = ("coloured_state", "attachment_link")
    search_help_text = "A chat's number."

    def find(self, term: str) -> Q | None:
        """Told by the bot in use, whose chats an index serves."""
        is_number = term.removeprefix("-").isdecimal() and len(term) < 20
        if not is_number or not settings.TELEGRAM_BOT_TOKEN:
            return None
        return Q(bot=fetches.bot_id(), chat_id=int(term))

    @display(
        description="state",
        label={
            FetchState.WAITING: "warning",
            FetchState.FETCHING: "info",
            FetchState.ACCEPTED: "success",
            FetchState.REFUSED: "danger",
            FetchState.FAILED: "danger",
        },
    )
    def coloured_state(self, update: TelegramUpdate) -> str:
        return update.state

    @display(description="attachment")
    def attachment_link(self, update: TelegramUpdate) -> str:
        return link_to(Attachment, update.attachment_id) if update.attachment_id else "-"
