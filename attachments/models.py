"""The tables of stored bytes: `s3_object`, `stored_file`, `attachment_variant`; and of what was said in them.

A row of `s3_object` is committed before the first byte is written, so nothing in the storage is unknown;
a pointer to it is committed only when it is durable and checked. See docs/architecture.md.
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.functions import RandomUUID
from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

SHA256 = r"^[0-9a-f]{64}$"


class BucketRole(models.TextChoices):
    """What an object is for; moving from one role to another moves no bytes."""

    STAGING = "staging"
    ORIGINALS = "originals"
    VARIANTS = "variants"
    RESULTS = "results"
    TRASH = "trash"


class StoredObject(models.Model):
    """One object of the storage. `size` (bytes) and `sha256` are known once its bytes are durable."""

    bucket_role = models.CharField(
        max_length=16,
        choices=BucketRole.choices,
        default=BucketRole.STAGING,
        db_default=BucketRole.STAGING,
    )
    bucket = models.CharField(max_length=63)
    key = models.CharField(max_length=512)
    size = models.BigIntegerField(null=True)
    sha256 = models.CharField(max_length=64, null=True)  # noqa: DJ001  (NULL = not known yet, '' would be a lie)
    content_type = models.CharField(max_length=127)
    created_by = models.CharField(max_length=64)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "s3_object"
        constraints = [
            models.CheckConstraint(
                name="s3_object_role_known",
                condition=Q(bucket_role__in=BucketRole.values),
            ),
            models.CheckConstraint(
                name="s3_object_published_is_measured",
                condition=Q(bucket_role__in=[BucketRole.STAGING, BucketRole.TRASH, BucketRole.RESULTS])
                | Q(size__isnull=False, sha256__isnull=False),
            ),
            models.CheckConstraint(
                name="s3_object_sha256_is_hex", condition=Q(sha256__isnull=True) | Q(sha256__regex=SHA256)
            ),
            models.CheckConstraint(name="s3_object_size_not_negative", condition=Q(size__isnull=True) | Q(size__gte=0)),
            # A service may reuse its key for a result, so results are left out.
            models.UniqueConstraint(
                name="s3_object_bucket_key_unique",
                fields=["bucket", "key"],
                condition=~Q(bucket_role=BucketRole.RESULTS),
            ),
        ]
        indexes = [
            # retention.sweep: what waits for deletion, and staging that nobody claimed, oldest first.
            models.Index(
                name="s3_object_to_sweep",
                fields=["bucket_role", "created_at"],
                condition=Q(bucket_role__in=[BucketRole.STAGING, BucketRole.TRASH]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"


class Attachment(models.Model):
    """A stored file and what was made of it.

    It has no state of its own: it is ready when `served_version` is set, else it is in its newest job's
    state. `served_version` only moves forward. Once `texts_expired_at` is set, nothing is made of it again.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, db_default=RandomUUID(), editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="attachments")
    name = models.CharField(max_length=255, blank=True)
    claimed_type = models.CharField(max_length=255, blank=True)
    content_type = models.CharField(max_length=127)
    size = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    original = models.OneToOneField(StoredObject, on_delete=models.PROTECT, null=True, related_name="attachment")
    media = models.JSONField(default=dict, db_default={})
    language = models.CharField(max_length=16, blank=True, default="", db_default="")
    served_version = models.PositiveIntegerField(null=True)
    needs_check = models.BooleanField(default=False, db_default=False)
    idempotency_key = models.CharField(max_length=255, null=True)  # noqa: DJ001  (NULL = none given; unique otherwise)
    requested_pipeline = models.CharField(max_length=32, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now())
    deleted_at = models.DateTimeField(null=True)
    texts_expired_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "stored_file"
        constraints = [
            models.CheckConstraint(name="stored_file_sha256_is_hex", condition=Q(sha256__regex=SHA256)),
            models.CheckConstraint(name="stored_file_is_not_empty", condition=Q(size__gt=0)),
            models.CheckConstraint(
                name="stored_file_deleted_is_cleared",
                condition=Q(deleted_at__isnull=True) | Q(name="", claimed_type="", original__isnull=True),
            ),
            models.UniqueConstraint(
                name="stored_file_idempotency_key_unique",
                fields=["owner", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
            ),
        ]
        indexes = [
            # admin: all attachments, newest first.
            models.Index(F("created_at").desc(), name="stored_file_newest"),
            # admin: search by digest.
            models.Index(name="stored_file_sha256", fields=["sha256"]),
            # api list: one owner's living attachments, newest first.
            models.Index(
                F("owner"),
                F("created_at").desc(),
                F("id").desc(),
                name="stored_file_owner_newest",
                condition=Q(deleted_at__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)


def original_kept(path: str = "") -> Q:
    """Of living attachments, found by `path` ("attachment__"), those whose original is there to work on.

    Once their texts have expired, it is kept for its owner alone.
    """
    living = Q(
        **{f"{path}deleted_at__isnull": True, f"{path}original__isnull": False, f"{path}texts_expired_at__isnull": True}
    )
    return living & ~Q(**{f"{path}original__bucket_role": BucketRole.TRASH})


class Variant(models.Model):
    """One derived object of an attachment, unique by the effect key (attachment, pipeline_version, variant)."""

    attachment = models.ForeignKey(Attachment, on_delete=models.PROTECT, related_name="variants")
    pipeline_version = models.PositiveIntegerField()
    variant = models.CharField(max_length=32)
    stored_object = models.OneToOneField(StoredObject, on_delete=models.PROTECT, related_name="variant")
    facts = models.JSONField(default=dict, db_default={})
    is_internal = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "attachment_variant"
        constraints = [
            models.UniqueConstraint(
                name="attachment_variant_effect_key", fields=["attachment", "pipeline_version", "variant"]
            ),
        ]

    def __str__(self) -> str:
        return f"{self.variant} v{self.pipeline_version}"


class Transcript(models.Model):
    """What was said in one version of an attachment, for the search alone (`attachments.search`).

    `segments` are [start_ms, end_ms, text] in their order. No CHECK and no column that must not be empty says anything
    of the text: the database's refusal would quote it, and errors are logged.
    """

    # Its unique constraint with the version begins with the attachment, so no index of its own.
    attachment = models.ForeignKey(Attachment, on_delete=models.PROTECT, related_name="transcripts", db_index=False)
    pipeline_version = models.PositiveIntegerField()
    language = models.CharField(max_length=16, null=True)  # noqa: DJ001  (NULL = nothing was said)
    segments = models.JSONField()
    words = SearchVectorField()

    class Meta:
        db_table = "attachment_transcript"
        constraints = [
            models.UniqueConstraint(
                name="attachment_transcript_one_per_version", fields=["attachment", "pipeline_version"]
            ),
        ]
        indexes = [
            # search.said: transcripts with these words.
            GinIndex(name="attachment_transcript_words", fields=["words"]),
        ]

    def __str__(self) -> str:
        return f"transcript v{self.pipeline_version}"
