"""The operator's view of what is stored: attachments, their variants and every object.

Read-only, and quick on big tables: nothing is counted, sorted or searched that an index does not serve.
"""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Unfold ships no types.

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.templatetags.admin_urls import admin_urlname
from django.contrib.auth.models import User
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import display
from unfold.paginator import InfinitePaginator

from attachments import listing
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from pipeline.models import Job
from pipeline.states import State

STATE_COLOURS = {
    State.QUEUED: "warning",
    State.PROCESSING: "info",
    State.READY: "success",
    State.FAILED: "danger",
    "deleted": "default",
}
ROLE_COLOURS = {
    BucketRole.STAGING: "warning",
    BucketRole.ORIGINALS: "success",
    BucketRole.VARIANTS: "success",
    BucketRole.RESULTS: "success",
    BucketRole.TRASH: "danger",
}


class _ReadOnly:
    """Nobody adds, changes or deletes here, superusers included."""

    def has_add_permission(self, *_: Any) -> bool:
        return False

    def has_change_permission(self, *_: Any) -> bool:
        return False

    def has_delete_permission(self, *_: Any) -> bool:
        return False


class ReadOnlyAdmin(_ReadOnly, ModelAdmin):
    """A list and pages to look at. A subclass says by `find` what a search term means."""

    # The number of all rows would cost more than the page that shows fifty of them.
    paginator = InfinitePaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    actions: tuple[str, ...] | None = None
    search_fields = ("pk",)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Lists are asked by addresses, which anybody may mistype; PostgreSQL takes no NUL."""
        if any("\x00" in value for _, values in request.GET.lists() for value in values):
            raise IncorrectLookupParameters
        return super().get_changelist_instance(request)

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        condition = self.find(term)
        return (queryset.none() if condition is None else queryset.filter(condition)), False

    def find(self, _term: str) -> Q | None:
        """The rows that a search term names; None when it names none."""
        return None


class ReadOnlyInline(_ReadOnly, TabularInline):
    """Rows of the page's object, with a link to each."""

    extra = 0
    hide_title = True
    per_page = 50


class JobInline(ReadOnlyInline):
    model = Job
    fields = ("link", "version", "coloured_state", "attempt", "failures", "error_code", "created_at")
    readonly_fields = ("link", "version", "coloured_state")
    ordering = ("-created_at",)

    @display(description="job")
    def link(self, job: Job) -> str:
        return link_to(Job, job.job_id)

    @display(description="pipeline")
    def version(self, job: Job) -> str:
        return f"{job.pipeline} v{job.pipeline_version}"

    @display(description="state")
    def coloured_state(self, job: Job) -> str:
        return coloured(job.state, STATE_COLOURS)


class VariantInline(ReadOnlyInline):
    model = Variant
    fields = ("variant", "pipeline_version", "stored_object", "is_internal", "created_at")
    ordering = ("pipeline_version", "variant")


class ServedFilter(admin.SimpleListFilter):
    """What an owner would see of an attachment."""

    title = "what is served"
    parameter_name = "served"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "ready"), ("no", "not ready yet, or failed"), ("deleted", "deleted")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Attachment]) -> QuerySet[Attachment]:
        match self.value():
            case "yes":
                return queryset.filter(served_version__isnull=False, deleted_at__isnull=True)
            case "no":
                return queryset.filter(served_version__isnull=True, deleted_at__isnull=True)
            case "deleted":
                return queryset.filter(deleted_at__isnull=False)
            case _:
                return queryset


@admin.register(Attachment)
class AttachmentAdmin(ReadOnlyAdmin):
    list_display = ("id", "state", "owner", "content_type", "readable_size", "served_version", "created_at")
    list_select_related = ("owner",)
    list_filter = (ServedFilter,)
    ordering = ("-created_at",)
    search_help_text = "An attachment id, a job id, a SHA-256, or an owner's user name."
    fields = (
        "id",
        "owner",
        "name",
        "claimed_type",
        "content_type",
        "readable_size",
        "sha256",
        "original",
        "media",
        "language",
        "served_version",
        "needs_check",
        "created_at",
        "deleted_at",
    )
    readonly_fields = ("readable_size",)
    inlines = (JobInline, VariantInline)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attachment]:
        return listing.with_state(super().get_queryset(request))

    def find(self, term: str) -> Q | None:
        if (identity := as_uuid(term)) is not None:
            return Q(id=identity) | Q(id__in=Job.objects.filter(job_id=identity).values("attachment"))
        if is_sha256(term):
            return Q(sha256=term.lower())
        return Q(owner__in=User.objects.filter(username=term))

    @display(description="state", label=STATE_COLOURS)
    def state(self, attachment: Attachment) -> str:
        """What its owner sees of it, until it is deleted."""
        return "deleted" if attachment.deleted_at is not None else str(attachment.state)  # type: ignore[attr-defined]

    @display(description="size")
    def readable_size(self, attachment: Attachment) -> str:
        return filesizeformat(attachment.size)


@admin.register(Variant)
class VariantAdmin(ReadOnlyAdmin):
    list_display = ("id", "variant", "pipeline_version", "attachment_link", "is_internal", "created_at")
    ordering = ("-id",)
    search_help_text = "An attachment id."

    def find(self, term: str) -> Q | None:
        identity = as_uuid(term)
        return None if identity is None else Q(attachment=identity)

    @display(description="attachment")
    def attachment_link(self, variant: Variant) -> str:
        return link_to(Attachment, variant.attachment_id)


@admin.register(StoredObject)
class StoredObjectAdmin(ReadOnlyAdmin):
    list_display = ("id", "role", "key", "content_type", "readable_size", "created_by", "created_at")
    list_filter = ("bucket_role",)
    ordering = ("-id",)
    search_help_text = "An attachment id, or a whole key."
    fields = (
        "bucket_role",
        "bucket",
        "key",
        "readable_size",
        "sha256",
        "content_type",
        "created_by",
        "created_at",
        "belongs_to",
    )
    readonly_fields = ("readable_size", "belongs_to")

    def find(self, term: str) -> Q | None:
        identity = as_uuid(term)
        if identity is None:
            return Q(key=term)
        variants = Variant.objects.filter(attachment=identity).values("stored_object")
        return Q(attachment=identity) | Q(id__in=variants)

    @display(description="role", label=ROLE_COLOURS)
    def role(self, stored: StoredObject) -> str:
        return stored.bucket_role

    @display(description="size")
    def readable_size(self, stored: StoredObject) -> str:
        return "not known yet" if stored.size is None else filesizeformat(stored.size)

    @display(description="belongs to")
    def belongs_to(self, stored: StoredObject) -> str:
        """The attachment or variant that points at it; nothing needs an object that has neither."""
        owner = (
            Attachment.objects.filter(original=stored).first() or Variant.objects.filter(stored_object=stored).first()
        )
        return "nothing" if owner is None else link_to(type(owner), owner.pk)


def link_to(model: type[Model], identity: object, *, text: str = "") -> str:
    """A link to a row's page, without fetching the row."""
    name = admin_urlname(model._meta, SafeString("change"))  # noqa: SLF001  (Django's public way to it)
    url = reverse(name, args=[identity])
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', url, text or identity)


def coloured(text: str, colours: Mapping[str, str]) -> str:
    """A word on its colour, as lists show it, for pages, where Unfold leaves labels plain."""
    return render_to_string("unfold/helpers/label.html", {"text": text, "type": colours.get(text, "default")})


def as_uuid(term: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(term)
    except ValueError:
        return None


def is_sha256(term: str) -> bool:
    return re.fullmatch(r"[0-9a-fA-F]{64}", term) is not None
