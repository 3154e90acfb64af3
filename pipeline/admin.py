"""The operator's view of the work: jobs with their history, and the messages that nudge it. Read-only."""

# mypy: disable-error-code="import-untyped, untyped-decorator"
# Unfold ships no types.

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.html import format_html
from unfold.decorators import display

from attachments.admin import (
    STATE_COLOURS,
    ReadOnlyAdmin,
    ReadOnlyInline,
    as_uuid,
    coloured,
    is_sha256,
    link_to,
)
from attachments.models import Attachment
from pipeline.admin_replay import NO_STEP, ReplayingAdmin, ReplayInline
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.origins import COLUMNS
from pipeline.registry import PIPELINES
from pipeline.states import State

#: Unsent this long after falling due, a message is stuck rather than on its way.
OVERDUE = timedelta(minutes=1)
RECENT_FAILURES = 1000


class EventInline(ReadOnlyInline):
    """The job's timeline, oldest first."""

    model = JobEvent
    verbose_name_plural = "timeline"
    fields = ("moment", "move", "attempt", "reason", "actor", "cause")
    readonly_fields = ("moment", "move", "cause")
    ordering = ("id",)

    @display(description="at (UTC)")
    def moment(self, event: JobEvent) -> str:
        return to_the_millisecond(event.at)

    @display(description="to")
    def move(self, event: JobEvent) -> str:
        return coloured(event.to_state, STATE_COLOURS)

    @display(description="detail")
    def cause(self, event: JobEvent) -> str:
        """With its lines kept, since it may be a traceback."""
        return format_html('<pre class="text-xs whitespace-pre-wrap">{}</pre>', event.detail) if event.detail else "-"


class MessageInline(ReadOnlyInline):
    model = OutboxMessage
    verbose_name_plural = "messages"
    fields = ("link", "queue", "due_at", "sent_at", "tries", "redispatches", "last_error")
    readonly_fields = ("link",)
    ordering = ("attempt",)

    @display(description="message")
    def link(self, message: OutboxMessage) -> str:
        return link_to(OutboxMessage, message.pk, text=message.message_id)


class PipelineFilter(admin.SimpleListFilter):
    """The registered pipelines: asking the table for its distinct values would read all of it."""

    title = "pipeline"
    parameter_name = "pipeline"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in sorted({pipeline.name for pipeline in PIPELINES})]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset.filter(pipeline=self.value()) if self.value() else queryset


class ErrorFilter(admin.SimpleListFilter):
    """The error codes of the newest failures."""

    title = "error code"
    parameter_name = "error_code"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [(code, code) for code in _of_newest_failures("error_code")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset.filter(state=State.FAILED, error_code=self.value()) if self.value() else queryset


class StepFilter(admin.SimpleListFilter):
    """The stages that the newest failures came from."""

    title = "failed step"
    parameter_name = "error_step"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [(step or NO_STEP, step or "none") for step in _of_newest_failures("error_step")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if not self.value():
            return queryset
        step = "" if self.value() == NO_STEP else self.value()
        return queryset.filter(state=State.FAILED, error_step=step)


class FailedFilter(admin.SimpleListFilter):
    """How long ago a job failed."""

    title = "failed within"
    parameter_name = "failed_within"
    SPANS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [(name, f"the last {name}") for name in self.SPANS]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        span = self.SPANS.get(self.value() or "")
        return queryset.filter(state=State.FAILED, finished_at__gte=Now() - span) if span else queryset


@admin.register(Job)
class JobAdmin(ReplayingAdmin):
    list_display = (
        "job_id",
        "state_label",
        "version",
        "attempt",
        "failures",
        "error_code",
        "error_step",
        "leased_by",
        "created_at",
        "attachment_link",
    )
    list_filter = ("state", PipelineFilter, ErrorFilter, StepFilter, FailedFilter)
    ordering = ("-created_at",)
    search_help_text = "A job id, an attachment id, or the SHA-256 of an original."
    fieldsets = (
        (None, {"fields": ("job_id", "attachment", "pipeline", "pipeline_version", "runner", "source")}),
        (
            "State",
            {"fields": ("coloured_state", "attempt", "failures", "due_at", "outage_since", "cancel_requested_at")},
        ),
        ("Lease", {"fields": ("leased_by", "lease_until")}),
        ("Outcome", {"fields": ("error_code", "error_step", "error", "finished_at", "created_at", "trace")}),
        (
            "Answer",
            {"fields": ("reply", "reply_reason", "reply_at", *(name for name in COLUMNS if name != "source"))},
        ),
    )
    readonly_fields = ("coloured_state", "trace")
    inlines = (EventInline, ReplayInline, MessageInline)

    def find(self, term: str) -> Q | None:
        if (identity := as_uuid(term)) is not None:
            return Q(job_id=identity) | Q(attachment=identity)
        if is_sha256(term):
            return Q(attachment__in=Attachment.objects.filter(sha256=term.lower()))
        return None

    @display(description="state", label=STATE_COLOURS)
    def state_label(self, job: Job) -> str:
        return job.state

    @display(description="state")
    def coloured_state(self, job: Job) -> str:
        return coloured(job.state, STATE_COLOURS)

    @display(description="pipeline")
    def version(self, job: Job) -> str:
        return f"{job.pipeline} v{job.pipeline_version}"

    @display(description="attachment")
    def attachment_link(self, job: Job) -> str:
        return link_to(Attachment, job.attachment_id)

    @display(description="trace id in the logs")
    def trace(self, job: Job) -> str:
        return str(job.carrier.get("traceparent", "--")).split("-")[1]


@admin.register(JobEvent)
class JobEventAdmin(ReadOnlyAdmin):
    list_display = ("id", "moment", "job_link", "move", "attempt", "reason", "actor")
    ordering = ("-id",)
    search_help_text = "A job id."

    def find(self, term: str) -> Q | None:
        identity = as_uuid(term)
        return None if identity is None else Q(job=identity)

    @display(description="at (UTC)")
    def moment(self, event: JobEvent) -> str:
        return to_the_millisecond(event.at)

    @display(description="to", label=STATE_COLOURS)
    def move(self, event: JobEvent) -> str:
        return event.to_state

    @display(description="job")
    def job_link(self, event: JobEvent) -> str:
        return link_to(Job, event.job_id)


class SentFilter(admin.SimpleListFilter):
    """How far a message has come."""

    title = "sent"
    parameter_name = "sent"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("no", "unsent"), ("overdue", "unsent and overdue"), ("yes", "sent")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[OutboxMessage]) -> QuerySet[OutboxMessage]:
        match self.value():
            case "no":
                return queryset.filter(sent_at__isnull=True)
            case "overdue":
                return queryset.filter(sent_at__isnull=True, due_at__lt=Now() - OVERDUE)
            case "yes":
                return queryset.filter(sent_at__isnull=False)
            case _:
                return queryset


@admin.register(OutboxMessage)
class OutboxMessageAdmin(ReadOnlyAdmin):
    list_display = (
        "message_id",
        "progress",
        "queue",
        "due_at",
        "sent_at",
        "tries",
        "redispatches",
        "last_error",
        "job_link",
    )
    list_filter = (SentFilter,)
    ordering = ("-id",)
    search_help_text = "A job id, or a message id (job id:attempt)."
    fields = (
        "message_id",
        "job",
        "telegram_update",
        "attempt",
        "queue",
        "task",
        "created_at",
        "due_at",
        "sent_at",
        "tries",
        "redispatches",
        "last_error",
        "headers",
        "body",
        "in_flower",
    )
    readonly_fields = ("in_flower",)

    def find(self, term: str) -> Q | None:
        identity = as_uuid(term)
        return Q(message_id=term) if identity is None else Q(job=identity)

    @display(description="", label={"sent": "success", "unsent": "warning"})
    def progress(self, message: OutboxMessage) -> str:
        return "unsent" if message.sent_at is None else "sent"

    @display(description="job")
    def job_link(self, message: OutboxMessage) -> str:
        return link_to(Job, message.job_id) if message.job_id else "-"

    @display(description="Flower")
    def in_flower(self, message: OutboxMessage) -> str:
        """Where Flower shows the delivery, while it remembers it."""
        if not settings.FLOWER_URL:
            return "FLOWER_URL is not set"
        url = f"{settings.FLOWER_URL.rstrip('/')}/task/{message.message_id}"
        return format_html('<a href="{}" rel="noreferrer">{}</a>', url, url)


def to_the_millisecond(at: datetime) -> str:
    """A time as the logs write it: the admin's usual format shows minutes."""
    return at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def _of_newest_failures(column: str) -> list[str]:
    newest = Job.objects.filter(state=State.FAILED).order_by("-created_at")
    return sorted(set(newest.values_list(column, flat=True)[:RECENT_FAILURES]))
