"""Replay in the admin: failures in groups, a page to confirm on, and the audit of what was done.

Every way leads to the one page, with the list's own parameters in its address, so that what a filter shows is what it
replays. The page carries, signed, the attempts that the operator saw: sending it twice does nothing twice.
"""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Unfold ships no types.

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.auth.models import User
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db import Error
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminTextInputWidget

from attachments.admin import ReadOnlyAdmin, ReadOnlyInline, as_uuid, link_to
from pipeline import replays
from pipeline.models import Job, Replay, ReplayedJob
from pipeline.replays import Act, Fate, Group, Look, Seen, UnusableReason
from pipeline.states import State

LIST = "admin:pipeline_job_changelist"
LINK = '<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>'
GROUP_HEADERS = ["code", "step", "failed", "of them without original", "oldest (UTC)", "newest (UTC)", ""]
#: What one request has the time for; `manage.py replay` takes more.
ACT_LIMIT = 500
#: A page that was left open longer has to be looked at again.
TICKET_SECONDS = 3600
RATE_LIMIT = 1000.0
#: In an address, for a failure without a step: an empty parameter means no filter.
NO_STEP = "-"

logger = logging.getLogger(__name__)


class ReplayForm(forms.Form):
    reason = forms.CharField(
        max_length=replays.REASON_LIMIT,
        widget=UnfoldAdminTextInputWidget,
        help_text="Kept in the audit and in the timeline of every job.",
    )
    per_second = forms.FloatField(
        label="Due per second",
        initial=replays.PER_SECOND,
        min_value=0.01,
        max_value=RATE_LIMIT,
        widget=UnfoldAdminTextInputWidget,
        help_text="Spreads the work over time, so that new uploads find their turn in between.",
    )

    def clean_reason(self) -> str:
        try:
            return replays.checked_reason(self.cleaned_data["reason"])
        except UnusableReason as error:
            raise forms.ValidationError(str(error)) from error


class ReplayingAdmin(ReadOnlyAdmin):
    """The list and pages of jobs, with the ways to replay them for those who have the permission."""

    actions = ("replay_selected",)
    actions_list = ("failures",)
    actions_detail = ("replay_this",)
    list_before_template = "admin/pipeline/job/replay_link.html"
    # It would offer the paginator's made-up number of rows; the link above the list means all of them.
    list_disable_select_all = True

    def get_custom_urls(self) -> tuple[Any, ...]:
        return (("replay/", "pipeline_job_replay", self.replay_view),)

    def has_replay_permission(self, request: HttpRequest, _object_id: str | None = None) -> bool:
        return request.user.has_perm("pipeline.replay_job") and self.has_view_permission(request)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        is_failed = Job.objects.filter(job_id=as_uuid(object_id), state=State.FAILED).exists()
        return list(super().get_actions_detail(request, object_id)) if is_failed else []

    @admin.action(description="Replay the failed ones…", permissions=["replay"])
    def replay_selected(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse:
        if request.POST.get("select_across") == "1":
            return redirect(replay_address(request.GET.urlencode()))
        return redirect(replay_address("job_id__in=" + ",".join(str(job.job_id) for job in jobs)))

    @action(description="Replay…", url_path="replay", permissions=["replay"])
    def replay_this(self, _request: HttpRequest, object_id: str) -> HttpResponse:
        return redirect(replay_address(urlencode({"job_id__in": object_id})))

    @action(description="Failures by code", url_path="failures", permissions=["view"])
    def failures(self, request: HttpRequest) -> HttpResponse:
        may_replay = self.has_replay_permission(request)
        rows = [_linked(group, may_replay=may_replay) for group in replays.groups(Job.objects.all())]
        return self._page(request, "failures", title="Failures by code and step", table=_table(rows))

    def replay_view(self, request: HttpRequest, **_: Any) -> HttpResponse:
        """The page to confirm on. Only the POST of a page that this operator was shown changes anything."""
        if not self.has_replay_permission(request):
            raise PermissionDenied
        form = ReplayForm(request.POST if request.method == "POST" else None)
        if form.is_valid():
            if (ticket := _read_ticket(request)) is not None:
                return self._replay(request, ticket, **form.cleaned_data)
            messages.error(request, "That page was too old; this is how things are now.")
        try:
            jobs, chosen_by = self._choose(request)
        except IncorrectLookupParameters:
            return redirect(LIST)
        look = replays.look(jobs, limit=ACT_LIMIT)
        table = _table([_row(group) for group in look.groups])
        ticket_text = _write_ticket(request, look, chosen_by)
        return self._page(
            request, "replay", title="Replay failed jobs", look=look, table=table, form=form, ticket=ticket_text
        )

    def _choose(self, request: HttpRequest) -> tuple[QuerySet[Job], dict[str, Any]]:
        """The jobs that the list shows for this address, and how the audit tells of it."""
        changelist = self.get_changelist_instance(request)
        chosen_by: dict[str, Any] = {name: ",".join(values) for name, values in changelist.get_filters_params().items()}
        if "job_id__in" in chosen_by:
            chosen_by["jobs"] = chosen_by.pop("job_id__in").split(",")
        if changelist.query:
            chosen_by["search"] = changelist.query
        return changelist.queryset, chosen_by

    def _replay(self, request: HttpRequest, ticket: Ticket, *, reason: str, per_second: float) -> HttpResponse:
        assert isinstance(request.user, User)
        actor = replays.operator(request.user)
        act = Act(actor=actor, via="admin", reason=reason, chosen_by=ticket.chosen_by, matching=ticket.matching)
        fates: Counter[Fate] = Counter()
        try:
            for fate in act.replay_all(ticket.seen, per_second=per_second):
                fates[fate] += 1
        except Error:
            logger.exception("replay_broken_off")
            messages.error(request, "Broken off by an error of the database. Look again, and replay what is left.")
        level = messages.SUCCESS if fates[Fate.REPLAYED] else messages.WARNING
        told = [f"{fates[fate]} {fate}" for fate in Fate if fates[fate]]
        messages.add_message(request, level, f"{', '.join(told) or 'Nothing to replay'}.")
        if act.row is not None and request.user.has_perm("pipeline.view_replay"):
            return redirect("admin:pipeline_replay_change", act.row.pk)
        return redirect(LIST)

    def _page(self, request: HttpRequest, name: str, **context: Any) -> HttpResponse:
        shared = {**self.admin_site.each_context(request), "opts": self.opts}
        return TemplateResponse(request, f"admin/pipeline/job/{name}.html", {**shared, **context})


class AuditInline(ReadOnlyInline):
    """Lines of the audit, for whoever may see its acts."""

    model = ReplayedJob
    ordering = ("id",)

    def has_view_permission(self, request: HttpRequest, _parent: Model | None = None) -> bool:
        return request.user.has_perm("pipeline.view_replay")


class ReplayInline(AuditInline):
    """Which operators' acts put the job back; the timeline says when, and why."""

    verbose_name_plural = "replays"
    fields = ("link", "actor", "reason")
    readonly_fields = ("link", "actor", "reason")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ReplayedJob]:
        found: QuerySet[ReplayedJob] = super().get_queryset(request)
        return found.select_related("replay")

    @display(description="replay")
    def link(self, replayed: ReplayedJob) -> str:
        return link_to(Replay, replayed.replay_id)

    @display(description="by")
    def actor(self, replayed: ReplayedJob) -> str:
        return replayed.replay.actor

    @display(description="why")
    def reason(self, replayed: ReplayedJob) -> str:
        return replayed.replay.reason


class ReplayedJobInline(AuditInline):
    verbose_name_plural = "jobs put back"
    fields = ("job_link", "stood", "stands")
    readonly_fields = ("job_link", "stood", "stands")

    @display(description="job")
    def job_link(self, replayed: ReplayedJob) -> str:
        return link_to(Job, replayed.job_id)

    @display(description="before")
    def stood(self, replayed: ReplayedJob) -> str:
        return _facts(replayed.before)

    @display(description="after")
    def stands(self, replayed: ReplayedJob) -> str:
        return _facts(replayed.after)


@admin.register(Replay)
class ReplayAdmin(ReadOnlyAdmin):
    """The audit: who replayed what, when and why."""

    list_display = ("id", "moment", "actor", "via", "reason", "matching")
    list_filter = ("via",)
    ordering = ("-at", "-id")
    search_help_text = "A job id."
    fields = ("moment", "actor", "via", "reason", "chosen_by", "matching", "replayed")
    readonly_fields = ("moment", "replayed")
    inlines = (ReplayedJobInline,)

    def find(self, term: str) -> Q | None:
        identity = as_uuid(term)
        return None if identity is None else Q(id__in=ReplayedJob.objects.filter(job=identity).values("replay"))

    @display(description="at (UTC)")
    def moment(self, replay: Replay) -> str:
        return f"{replay.at:%F %T}"

    @display(description="replayed")
    def replayed(self, replay: Replay) -> int:
        return replay.jobs.count()


class Ticket(NamedTuple):
    """What the page showed: the filter, how many failed jobs it matched, and the ones to put back."""

    chosen_by: dict[str, Any]
    matching: int
    seen: list[Seen]


def replay_address(query: str) -> str:
    return f"{reverse('admin:pipeline_job_replay')}?{query}"


def _write_ticket(request: HttpRequest, look: Look, chosen_by: dict[str, Any]) -> str:
    seen = [(str(job_id), attempt) for job_id, attempt in look.seen]
    return signing.dumps((chosen_by, look.matching, seen), salt=_salt(request), compress=True)


def _read_ticket(request: HttpRequest) -> Ticket | None:
    """None when it is too old, or was not made for this operator."""
    try:
        chosen_by, matching, seen = signing.loads(
            request.POST.get("ticket", ""), salt=_salt(request), max_age=TICKET_SECONDS
        )
    except signing.BadSignature:
        return None
    return Ticket(chosen_by, matching, [Seen(uuid.UUID(job_id), attempt) for job_id, attempt in seen])


def _salt(request: HttpRequest) -> str:
    return f"pipeline.replay.{request.user.pk}"


def _table(rows: list[list[object]]) -> dict[str, Any]:
    """As Unfold's table component takes it; the last column has no header."""
    return {"headers": GROUP_HEADERS[: len(rows[0])] if rows else GROUP_HEADERS[:-1], "rows": rows}


def _row(group: Group) -> list[object]:
    times = [f"{group.oldest:%F %T}", f"{group.newest:%F %T}"]
    return [group.error_code, group.error_step or NO_STEP, group.jobs, group.jobs - group.kept, *times]


def _linked(group: Group, *, may_replay: bool) -> list[object]:
    """The group's row, leading to the list of its jobs and to their replay."""
    step = group.error_step or NO_STEP
    query = urlencode({"state__exact": "failed", "error_code": group.error_code, "error_step": step})
    row = _row(group)
    row[2] = format_html(LINK, f"{reverse(LIST)}?{query}", group.jobs)
    return [*row, format_html(LINK, replay_address(query), "Replay…")] if may_replay else row


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value != "")
