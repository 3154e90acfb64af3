"""The shapes of the REST door: what comes in, checked, and what goes out. docs/api.md explains them."""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.request import Request

from attachments.listing import Status
from attachments.models import StoredObject
from attachments.search import Match
from pipeline import registry, replays
from pipeline.intake import Accepted
from pipeline.replays import UnusableReason
from pipeline.states import State

WAIT_LIMIT_SECONDS = 30
PIPELINE_NAMES = sorted({pipeline.name for pipeline in registry.PIPELINES})


def one_of(names: list[str]) -> Any:
    """Keyword arguments of a ChoiceField that names what it allows."""
    return {"choices": names, "error_messages": {"invalid_choice": f"Choose one of: {', '.join(names)}."}}


class UploadFields(serializers.Serializer[Any]):
    """The fields of the form besides the file."""

    pipeline = serializers.RegexField(
        r"^[a-z][a-z0-9_-]{0,31}$",
        default="",
        help_text="Accept the file only if its real type leads to this pipeline.",
        error_messages={"invalid": "Give the name of a pipeline, like image."},
    )
    language = serializers.RegexField(
        r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$",
        max_length=16,
        default="",
        help_text="BCP 47 tag of the language spoken or written in the file.",
        error_messages={"invalid": "Give a language tag, like en or pt-BR."},
    )
    sha256 = serializers.RegexField(
        r"^[0-9a-fA-F]{64}$",
        default="",
        help_text="SHA-256 of the file in hex; other bytes are refused.",
        error_messages={"invalid": "Give 64 hexadecimal digits."},
    )

    def to_internal_value(self, data: Any) -> Any:
        wrong = {name[:64]: ["There is no such field."] for name in data if name not in self.fields}
        wrong |= {name: ["Send this field once."] for name in data if len(data.getlist(name)) > 1}
        if wrong:
            raise serializers.ValidationError(wrong)
        return super().to_internal_value(data)


@extend_schema_field(OpenApiTypes.BINARY)
class SentFile(serializers.FileField):
    """A file on its way in: the schema would otherwise call it a URI, and its page offer no file to choose."""


class UploadForm(UploadFields):
    file = SentFile(help_text="The one file, with its name.")


class ListParameters(serializers.Serializer[Any]):
    state = serializers.ChoiceField(**one_of(State.values), required=False)
    pipeline = serializers.ChoiceField(**one_of(PIPELINE_NAMES), required=False)
    name = serializers.CharField(max_length=255, required=False, help_text="Part of the file's name, in any case.")
    q = serializers.CharField(
        max_length=255,
        required=False,
        help_text='Words that are said in the recording: all of them, one "or" the other, "in this order", -without.',
    )
    dead = serializers.BooleanField(
        required=False,
        help_text="Only what failed for good after its last try (true), or only the rest (false).",
        error_messages={"invalid": "Choose true or false."},
    )
    cursor = serializers.CharField(max_length=64, required=False, help_text="As given in `next`.")


class WaitParameters(serializers.Serializer[Any]):
    wait = serializers.IntegerField(
        min_value=0,
        max_value=WAIT_LIMIT_SECONDS,
        default=0,
        help_text="Hold the answer until the state changes, for at most so many seconds.",
        error_messages={"invalid": f"Give a whole number of seconds from 0 to {WAIT_LIMIT_SECONDS}."},
    )


class ReplayBody(serializers.Serializer[Any]):
    reason = serializers.CharField(
        max_length=replays.REASON_LIMIT, help_text="Why, for those who read the history later."
    )

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and (strange := data.keys() - self.fields):
            raise serializers.ValidationError({name[:64]: ["There is no such field."] for name in strange})
        return super().to_internal_value(data)

    def validate_reason(self, reason: str) -> str:
        try:
            return replays.checked_reason(reason)
        except UnusableReason as error:
            raise serializers.ValidationError(str(error)) from error


class AcceptedSerializer(serializers.Serializer[Accepted]):
    """What was accepted, as it was then: the same key, bytes and parameters always give the same body."""

    id = serializers.UUIDField(source="attachment.id")
    job_id = serializers.UUIDField(source="job.job_id")
    state = serializers.SerializerMethodField()
    attempt = serializers.SerializerMethodField()
    pipeline = serializers.CharField(source="job.pipeline")
    pipeline_version = serializers.IntegerField(source="job.pipeline_version")
    filename = serializers.CharField(source="attachment.name")
    size = serializers.IntegerField(source="attachment.size")
    sha256 = serializers.CharField(source="attachment.sha256")
    content_type = serializers.CharField(source="attachment.content_type")
    created_at = serializers.DateTimeField(source="attachment.created_at")

    @extend_schema_field(serializers.ChoiceField(choices=[State.QUEUED.value]))
    def get_state(self, _: Accepted) -> str:
        return State.QUEUED

    def get_attempt(self, _: Accepted) -> int:
        return 1


@extend_schema_serializer(component_name="StoredFile")
class StoredFileSerializer(serializers.Serializer[Any]):
    """Where the bytes are and what they are; variants add their own facts, like width and height."""

    url = serializers.URLField()
    size = serializers.IntegerField(help_text="bytes")
    sha256 = serializers.CharField()
    content_type = serializers.CharField()


class MatchSerializer(serializers.Serializer[Match]):
    """The first moment where it is said, in milliseconds from the beginning, and the words around it."""

    start_ms = serializers.IntegerField(min_value=0)
    end_ms = serializers.IntegerField(min_value=0)
    text = serializers.CharField()


class StatusSerializer(serializers.Serializer[Status]):
    """An attachment as it is now. Errors say what to do next; variants appear when all of them are ready."""

    id = serializers.UUIDField(source="attachment.id")
    job_id = serializers.UUIDField(source="job.job_id")
    state = serializers.ChoiceField(choices=State.values)
    attempt = serializers.IntegerField(source="job.attempt")
    pipeline = serializers.CharField(source="job.pipeline")
    pipeline_version = serializers.IntegerField(source="job.pipeline_version")
    progress = serializers.FloatField(min_value=0, max_value=1)
    error_code = serializers.SerializerMethodField()
    error = serializers.SerializerMethodField()
    filename = serializers.CharField(source="attachment.name")
    size = serializers.IntegerField(source="attachment.size")
    sha256 = serializers.CharField(source="attachment.sha256")
    content_type = serializers.CharField(source="attachment.content_type")
    media = serializers.DictField(source="attachment.media", help_text="Facts of the original, like width and height.")
    created_at = serializers.DateTimeField(source="attachment.created_at")
    finished_at = serializers.DateTimeField(source="job.finished_at", allow_null=True)
    retry_at = serializers.DateTimeField(allow_null=True, help_text="When a job that was put off is tried again.")
    texts_expired_at = serializers.DateTimeField(
        source="attachment.texts_expired_at",
        allow_null=True,
        help_text="When transcript and texts were deleted because they are kept for a limited time.",
    )
    match = MatchSerializer(
        allow_null=True, help_text="The moment that `q` found; null where nothing was searched for."
    )
    original = serializers.SerializerMethodField()
    variants = serializers.SerializerMethodField()

    def get_error_code(self, status: Status) -> str | None:
        return status.job.error_code or None

    def get_error(self, status: Status) -> str | None:
        return status.job.error or None

    @extend_schema_field(StoredFileSerializer(allow_null=True))
    def get_original(self, status: Status) -> dict[str, Any] | None:
        if status.original is None:
            return None
        return self._file(status.original, "attachment-original", {"attachment_id": status.attachment.id})

    @extend_schema_field(serializers.DictField(child=StoredFileSerializer()))
    def get_variants(self, status: Status) -> dict[str, Any]:
        return {
            name: {
                **variant.facts,
                **self._file(
                    variant.stored_object,
                    "attachment-variant",
                    {"attachment_id": status.attachment.id, "name": name},
                ),
            }
            for name, variant in status.variants.items()
        }

    def _file(self, stored: StoredObject, view: str, address: dict[str, Any]) -> dict[str, Any]:
        request: Request = self.context["request"]
        return {
            "url": request.build_absolute_uri(reverse(view, kwargs=address)),
            "size": stored.size,
            "sha256": stored.sha256,
            "content_type": stored.content_type,
        }


class PageSerializer(serializers.Serializer[Any]):
    results = StatusSerializer(many=True)
    next = serializers.URLField(allow_null=True, help_text="The next page; null on the last one.")


class ProblemSerializer(serializers.Serializer[Any]):
    """RFC 9457. Tell problems apart by `code`; some carry further members, like `limit`."""

    type = serializers.CharField(help_text="A stable URI reference, one for each code.")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField(help_text="A sentence for a person: what is wrong and what to do next.")
    code = serializers.CharField()
    trace_id = serializers.CharField(help_text="Found in the log lines of every process that took part.")
    errors = serializers.DictField(  # type: ignore[assignment]
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text="Each field or parameter that cannot be used, with the reasons.",
    )
