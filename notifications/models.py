"""What a Telegram bot is told: `telegram_update`, the messages with a file and how far the fetching has come, and
`telegram_chat`, whose files they are.

Only `notifications.fetches` writes an update's state. Every time that decides anything is the database's.
"""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from attachments.models import Attachment


class FetchState(models.TextChoices):
    """How far the fetching of one message's file has come; the last three are where it ends."""

    WAITING = "waiting"
    FETCHING = "fetching"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    FAILED = "failed"


class TelegramChat(models.Model):
    """Whose files come from a chat. Chats that are not here belong to TELEGRAM_OWNER, if that is set."""

    chat_id = models.BigIntegerField(primary_key=True)
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="telegram_chats")
    note = models.CharField(max_length=255, blank=True, default="")
    added_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "telegram_chat"

    def __str__(self) -> str:
        return str(self.chat_id)


class TelegramUpdate(models.Model):
    """A message whose file is to be fetched: what that takes, where the answer goes, and nothing that was written.

    `attempt` grows with every managed try, `failures` counts what leads to failed. What names the file is cleared when
    the fetching ends; the row stays, so that the same message never counts twice.
    """

    bot = models.BigIntegerField()
    update_id = models.BigIntegerField()
    chat_id = models.BigIntegerField()
    message_id = models.BigIntegerField()
    thread_id = models.BigIntegerField(null=True)
    business_id = models.CharField(max_length=128, blank=True, default="")
    language = models.CharField(max_length=16, blank=True, default="")
    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="telegram_updates")
    kind = models.CharField(max_length=16)
    file_id = models.CharField(max_length=512, blank=True)
    file_size = models.BigIntegerField(null=True)
    name = models.CharField(max_length=255, blank=True, default="")
    claimed_type = models.CharField(max_length=255, blank=True, default="")
    state = models.CharField(max_length=16, choices=FetchState.choices, default=FetchState.WAITING)
    attempt = models.PositiveIntegerField(default=1)
    failures = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(db_default=Now())
    outage_since = models.DateTimeField(null=True)
    lease_token = models.UUIDField(null=True)
    lease_until = models.DateTimeField(null=True)
    error_code = models.CharField(max_length=64, blank=True, default="")
    attachment = models.OneToOneField(Attachment, on_delete=models.PROTECT, null=True, related_name="telegram_update")
    carrier = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "telegram_update"
        constraints = [
            models.UniqueConstraint(name="telegram_update_once", fields=["bot", "update_id"]),
            models.UniqueConstraint(name="telegram_update_one_per_message", fields=["bot", "chat_id", "message_id"]),
            models.CheckConstraint(name="telegram_update_state_known", condition=Q(state__in=FetchState.values)),
            models.CheckConstraint(
                name="telegram_update_lease_is_fetching",
                condition=Q(state=FetchState.FETCHING, lease_token__isnull=False, lease_until__isnull=False)
                | (~Q(state=FetchState.FETCHING) & Q(lease_token__isnull=True, lease_until__isnull=True)),
            ),
            models.CheckConstraint(
                name="telegram_update_accepted_has_a_file",
                condition=Q(state=FetchState.ACCEPTED, attachment__isnull=False)
                | (~Q(state=FetchState.ACCEPTED) & Q(attachment__isnull=True)),
            ),
            models.CheckConstraint(
                name="telegram_update_finished_is_terminal",
                condition=Q(state__in=[FetchState.WAITING, FetchState.FETCHING], finished_at__isnull=True)
                | (
                    Q(state__in=[FetchState.ACCEPTED, FetchState.REFUSED, FetchState.FAILED])
                    & Q(finished_at__isnull=False, file_id="", name="", claimed_type="")
                ),
            ),
        ]
        indexes = [
            # fetches.recover: leases that ran out.
            models.Index(name="telegram_update_leases", fields=["lease_until"], condition=Q(state=FetchState.FETCHING)),
            # maintenance.redispatch: what waits for a worker, longest first.
            models.Index(name="telegram_update_waiting", fields=["due_at"], condition=Q(state=FetchState.WAITING)),
        ]

    def __str__(self) -> str:
        return f"{self.chat_id}/{self.message_id}"
