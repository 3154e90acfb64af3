"""The tables of work: `pipeline_job`, its append-only history `pipeline_job_event`, `pipeline_outbox`, and the audit of
what operators replayed.

Only `pipeline.lifecycle` writes a job's state. Every time that decides anything is set and compared by the
database's clock. Lock order everywhere: attachment, object, job, outbox.
"""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from attachments.models import Attachment
from notifications.models import TelegramUpdate
from pipeline.states import Reply, Runner, Source, State

_UNLEASED = Q(lease_token__isnull=True, lease_until__isnull=True, leased_by="")
_LEASED = Q(lease_token__isnull=False, lease_until__isnull=False) & ~Q(leased_by="")


class Job(models.Model):
    """One logical piece of work; `job_id` never changes.

    `attempt` counts managed tries from 1 and only grows; a broker redelivery is not one. `failures` counts
    what leads to dead (`failed` with failures spent); outages and shutdowns leave it alone. No CHECK ties a chat to
    the source: a job from Telegram without one is the damage that must stay visible.
    """

    job_id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    attachment = models.ForeignKey(Attachment, on_delete=models.PROTECT, related_name="jobs")
    pipeline = models.CharField(max_length=32)
    pipeline_version = models.PositiveIntegerField()
    runner = models.CharField(max_length=16, choices=Runner.choices, default=Runner.WORKER)
    queue = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=State.choices, default=State.QUEUED)
    attempt = models.PositiveIntegerField(default=1)
    failures = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(db_default=Now())
    outage_since = models.DateTimeField(null=True)
    lease_token = models.UUIDField(null=True)
    lease_until = models.DateTimeField(null=True)
    leased_by = models.CharField(max_length=128, blank=True, default="")
    cancel_requested_at = models.DateTimeField(null=True)
    error_code = models.CharField(max_length=64, blank=True, default="")
    error_step = models.CharField(max_length=32, blank=True, default="", db_default="")
    error = models.CharField(max_length=500, blank=True, default="")
    carrier = models.JSONField(default=dict)
    media = models.JSONField(default=dict, db_default={})
    progress = models.FloatField(null=True)
    source = models.CharField(max_length=16, choices=Source.choices)
    reply_chat_id = models.BigIntegerField(null=True)
    reply_message_id = models.BigIntegerField(null=True)
    reply_thread_id = models.BigIntegerField(null=True)
    reply_business_id = models.CharField(max_length=128, blank=True, default="", db_default="")
    reply_language = models.CharField(max_length=16, blank=True, default="", db_default="")
    reply = models.CharField(max_length=16, choices=Reply.choices, default=Reply.NONE, db_default=Reply.NONE)
    reply_reason = models.CharField(max_length=32, blank=True, default="", db_default="")
    reply_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "pipeline_job"
        constraints = [
            models.UniqueConstraint(
                name="pipeline_job_one_per_version", fields=["attachment", "pipeline", "pipeline_version"]
            ),
            models.CheckConstraint(name="pipeline_job_state_known", condition=Q(state__in=State.values)),
            models.CheckConstraint(name="pipeline_job_runner_known", condition=Q(runner__in=Runner.values)),
            models.CheckConstraint(name="pipeline_job_source_known", condition=Q(source__in=Source.values)),
            models.CheckConstraint(name="pipeline_job_reply_known", condition=Q(reply__in=Reply.values)),
            models.CheckConstraint(name="pipeline_job_attempt_from_one", condition=Q(attempt__gte=1)),
            models.CheckConstraint(
                name="pipeline_job_lease_is_processing",
                condition=(Q(state=State.PROCESSING, runner=Runner.WORKER) & _LEASED)
                | (Q(state=State.PROCESSING, runner=Runner.EXCHANGE) & _UNLEASED)
                | (~Q(state=State.PROCESSING) & _UNLEASED),
            ),
            models.CheckConstraint(
                name="pipeline_job_finished_is_terminal",
                condition=Q(state__in=[State.READY, State.FAILED], finished_at__isnull=False)
                | Q(state__in=[State.QUEUED, State.PROCESSING], finished_at__isnull=True),
            ),
            models.CheckConstraint(
                name="pipeline_job_failed_has_a_code",
                condition=(Q(state=State.FAILED) & ~Q(error_code="")) | ~Q(state=State.FAILED),
            ),
        ]
        indexes = [
            # lifecycle.recover: leases that ran out.
            models.Index(
                name="pipeline_job_leases",
                fields=["lease_until"],
                condition=Q(state=State.PROCESSING, runner=Runner.WORKER),
            ),
            # config.health: queued jobs of our workers, longest waiting first.
            models.Index(
                name="pipeline_job_waiting",
                fields=["due_at"],
                condition=Q(state=State.QUEUED, runner=Runner.WORKER),
            ),
            # admin: all jobs, newest first.
            models.Index(F("created_at").desc(), name="pipeline_job_newest"),
            # api and admin: jobs by state, newest first.
            models.Index(F("state"), F("created_at").desc(), name="pipeline_job_state_newest"),
            # replays and admin: failures grouped by their code and step, and chosen by them.
            models.Index(
                name="pipeline_job_failures",
                fields=["error_code", "error_step", "finished_at"],
                condition=Q(state=State.FAILED),
            ),
            # replying.sweep: answers that are due or on their way, longest first.
            models.Index(
                name="pipeline_job_replies", fields=["reply_at"], condition=Q(reply__in=[Reply.DUE, Reply.SENDING])
            ),
        ]
        permissions = [("replay_job", "Can replay failed jobs")]

    def __str__(self) -> str:
        return str(self.job_id)


class JobEvent(models.Model):
    """One move of a job, or one thing that happened to it; append-only (a trigger refuses changes)."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="events")
    at = models.DateTimeField(db_default=Now())
    from_state = models.CharField(max_length=16, blank=True, default="")
    to_state = models.CharField(max_length=16)
    attempt = models.PositiveIntegerField()
    reason = models.CharField(max_length=64)
    actor = models.CharField(max_length=128)
    detail = models.TextField(blank=True, default="")

    class Meta:
        db_table = "pipeline_job_event"
        indexes = [
            # admin and api: one job's timeline, in order.
            models.Index(name="pipeline_job_event_timeline", fields=["job", "id"]),
        ]

    def __str__(self) -> str:
        return f"{self.from_state or '-'} -> {self.to_state} ({self.reason})"


class OutboxMessage(models.Model):
    """A message that must reach the broker; `sent_at` is the time of its confirm.

    One row per attempt of a job, or of fetching a Telegram message's file; redispatch makes the same row unsent again.
    Unsent rows never expire.
    """

    # The unique constraints with the attempt begin with these, so they need no index of their own.
    job = models.ForeignKey(Job, on_delete=models.PROTECT, null=True, related_name="messages", db_index=False)
    telegram_update = models.ForeignKey(
        TelegramUpdate, on_delete=models.PROTECT, null=True, related_name="messages", db_index=False
    )
    attempt = models.PositiveIntegerField()
    queue = models.CharField(max_length=64)
    task = models.CharField(max_length=64)
    message_id = models.CharField(max_length=128)
    headers = models.JSONField(default=dict)
    body = models.TextField()
    created_at = models.DateTimeField(db_default=Now())
    due_at = models.DateTimeField(db_default=Now())
    sent_at = models.DateTimeField(null=True)
    tries = models.PositiveIntegerField(default=0)
    redispatches = models.PositiveIntegerField(default=0)
    last_error = models.CharField(max_length=255, blank=True, default="")

    class Meta:
        db_table = "pipeline_outbox"
        constraints = [
            models.UniqueConstraint(name="pipeline_outbox_one_per_attempt", fields=["job", "attempt"]),
            models.UniqueConstraint(
                name="pipeline_outbox_one_per_fetch",
                fields=["telegram_update", "attempt"],
                condition=Q(telegram_update__isnull=False),
            ),
            models.CheckConstraint(
                name="pipeline_outbox_about_one_thing",
                condition=Q(job__isnull=False, telegram_update__isnull=True)
                | Q(job__isnull=True, telegram_update__isnull=False),
            ),
        ]
        indexes = [
            # relay: what is unsent, in the order it fell due.
            models.Index(name="pipeline_outbox_unsent", fields=["due_at", "id"], condition=Q(sent_at__isnull=True)),
            # maintenance.redispatch: what a queue was sent, newest first; and the sweep of sent rows.
            models.Index(name="pipeline_outbox_sent", fields=["queue", "sent_at"], condition=Q(sent_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.message_id


class Replay(models.Model):
    """One act of an operator: who replayed what, when and why; append-only (a trigger refuses changes)."""

    at = models.DateTimeField(db_default=Now())
    actor = models.CharField(max_length=128)
    via = models.CharField(max_length=16)
    reason = models.CharField(max_length=500)
    chosen_by = models.JSONField(default=dict)
    matching = models.PositiveIntegerField()

    class Meta:
        db_table = "pipeline_replay"
        indexes = [
            # admin: the newest acts first.
            models.Index(F("at").desc(), name="pipeline_replay_newest"),
        ]

    def __str__(self) -> str:
        return f"replay {self.pk} by {self.actor}"


class ReplayedJob(models.Model):
    """One job that an operator's act put back, and how it stood before and after; append-only."""

    replay = models.ForeignKey(Replay, on_delete=models.PROTECT, related_name="jobs")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="replays")
    before = models.JSONField()
    after = models.JSONField()

    class Meta:
        db_table = "pipeline_replayed_job"
        constraints = [models.UniqueConstraint(name="pipeline_replayed_job_once_per_act", fields=["replay", "job"])]

    def __str__(self) -> str:
        return f"{self.job_id} ({self.replay_id})"
