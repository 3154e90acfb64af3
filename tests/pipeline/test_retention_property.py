"""Whatever happened before, a sweep takes what the retention says, and nothing that anybody needs."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.postgres.search import SearchVector
from django.db import connection
from django.db.models import F, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Now
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from attachments import listing, objects, storage
from attachments.models import Attachment, BucketRole, StoredObject, Transcript, Variant
from pipeline import removal
from pipeline.models import Job
from pipeline.retention import Sweeper
from pipeline.states import Source, State

pytestmark = pytest.mark.django_db

HOUR = 3600.0
#: Seconds since something happened: on either side of a day, and of 30 days.
FRESH, OLD, ANCIENT = HOUR, 48 * HOUR, 40 * 24 * HOUR
AGES = st.sampled_from([FRESH, OLD, ANCIENT])


@dataclass(frozen=True)
class Version:
    """One job of an attachment: how it stands, how long ago it ended, and what it has recorded.

    One that was ready once is served even where it has been put back to be repaired, or failed at that.
    """

    state: State
    age: float
    was_ready_once: bool
    recorded: frozenset[str]

    @property
    def was_ready(self) -> bool:
        return self.was_ready_once or self.state == State.READY

    @property
    def is_unfinished(self) -> bool:
        return self.state in (State.QUEUED, State.PROCESSING)

    @property
    def is_lost_cause(self) -> bool:
        return self.state == State.FAILED and self.age == ANCIENT


@dataclass(frozen=True)
class History:
    """One attachment; its versions count from 1."""

    versions: tuple[Version, ...]
    is_deleted: bool
    pipeline: str

    @property
    def served(self) -> int | None:
        return max((number for number, one in enumerate(self.versions, 1) if one.was_ready), default=None)

    def keeps_original(self) -> bool:
        is_lost_cause = self.served is None and all(one.is_lost_cause for one in self.versions)
        return not self.is_deleted and not is_lost_cause

    def keeps_texts(self) -> bool:
        is_old = all(not one.is_unfinished and one.age == ANCIENT for one in self.versions)
        return not self.is_deleted and not (self.pipeline == "speech" and is_old)

    def keeps(self, number: int, variant: str) -> bool:
        own = self.versions[number - 1]
        if variant == "transcript" and not self.keeps_texts():
            return False
        if self.is_deleted or own.is_unfinished:
            return not self.is_deleted
        if variant == "internal" and own.age >= OLD:
            return False
        if self.served and number < self.served:
            newer = self.versions[self.served - 1]
            if newer.state == State.READY and newer.age >= OLD:
                return False
        return number == self.served or not own.is_lost_cause


HISTORIES = st.builds(
    History,
    versions=st.lists(
        st.builds(
            Version,
            state=st.sampled_from(State),
            age=AGES,
            was_ready_once=st.booleans(),
            recorded=st.frozensets(st.sampled_from(["thumbnail", "transcript", "internal"])),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    is_deleted=st.sampled_from([False] * 4 + [True]),
    pipeline=st.sampled_from(["image", "speech"]),
)
LITTER = ("forgotten", "trash", "unknown", "unfinished", "foreign")


@dataclass
class World:
    """Rows and files with the ages that they should have, and the keys of those that must stay."""

    owner: User
    bucket: Path
    kept_files: set[str] = field(default_factory=set)
    kept_rows: set[str] = field(default_factory=set)
    kept_transcripts: set[tuple[uuid.UUID, int]] = field(default_factory=set)
    expired: set[uuid.UUID] = field(default_factory=set)
    _objects: list[StoredObject] = field(default_factory=list)
    _attachments: list[Attachment] = field(default_factory=list)
    _jobs: list[Job] = field(default_factory=list)
    _variants: list[Variant] = field(default_factory=list)
    _transcripts: list[Transcript] = field(default_factory=list)

    def make(self, past: Sequence[History], litter: Sequence[tuple[str, float]]) -> None:
        self._clear()
        attachments = [self._add(history) for history in past]
        for kind, age in litter:
            self._litter(kind, age)
        StoredObject.objects.bulk_create(self._objects)
        Attachment.objects.bulk_create(self._attachments)
        Job.objects.bulk_create(self._jobs)
        Variant.objects.bulk_create(self._variants)
        Transcript.objects.bulk_create(self._transcripts)
        for attachment, history in zip(attachments, past, strict=True):
            if history.is_deleted:
                removal.remove(attachment.id, actor="test")

    def files(self) -> set[str]:
        return {str(path.relative_to(self.bucket)) for path in self.bucket.rglob("*") if path.is_file()}

    def has_expired(self, key: str) -> bool:
        return key.endswith("/transcript") and uuid.UUID(key.split("/")[1]) in self.expired

    def _clear(self) -> None:
        """Examples share one test's database and folder."""
        with connection.cursor() as cursor:
            for table in ("pipeline_job", "attachment_variant", "attachment_transcript", "stored_file", "s3_object"):
                cursor.execute(f"DELETE FROM {table}")
        for folder in self.bucket.iterdir():
            shutil.rmtree(folder)

    def _add(self, history: History) -> Attachment:
        attachment = Attachment(
            owner=self.owner, content_type="image/png", size=1, sha256="0" * 64, served_version=history.served
        )
        self._attachments.append(attachment)
        attachment.original = self._put(
            objects.original_key(attachment.id),
            role=BucketRole.STAGING if history.served is None else BucketRole.ORIGINALS,
            age=max(one.age for one in history.versions) + HOUR,
            is_kept=history.keeps_original(),
        )
        for number, version in enumerate(history.versions, 1):
            self._jobs.append(job_of(attachment, number, version, history.pipeline))
            for variant in sorted(version.recorded):
                stored = self._put(
                    objects.variant_key(attachment.id, version=number, attempt=1, variant=variant),
                    role=BucketRole.VARIANTS,
                    age=version.age,
                    is_kept=history.keeps(number, variant),
                )
                self._variants.append(
                    Variant(
                        attachment=attachment,
                        pipeline_version=number,
                        variant=variant,
                        stored_object=stored,
                        is_internal=variant == "internal",
                    )
                )
                if variant == "transcript":
                    self._transcribe(attachment, number, is_kept=history.keeps(number, variant))
                    if history.served and not history.is_deleted and not history.keeps_texts():
                        self.expired.add(attachment.id)
        return attachment

    def _transcribe(self, attachment: Attachment, number: int, *, is_kept: bool) -> None:
        self._transcripts.append(
            Transcript(attachment=attachment, pipeline_version=number, segments=[], words=SearchVector(Value("word")))
        )
        if is_kept:
            self.kept_transcripts.add((attachment.id, number))

    def _litter(self, kind: str, age: float) -> None:
        """What uploads, attempts and strangers leave behind."""
        key, is_kept = objects.original_key(uuid.uuid4()), age == FRESH
        match kind:
            case "forgotten":
                self._put(key, role=BucketRole.STAGING, age=age, is_kept=is_kept)
            case "trash":
                self._put(key, role=BucketRole.TRASH, age=age, is_kept=False)
            case "unknown":
                self._write(key, age=age, is_kept=is_kept)
            case "unfinished":
                self._write(key.replace("/original", "/.original.part"), age=age, is_kept=is_kept)
            case "foreign":
                self._write(f"elsewhere/{key}", age=age, is_kept=True)

    def _put(self, key: str, *, role: BucketRole, age: float, is_kept: bool) -> StoredObject:
        self._write(key, age=age, is_kept=is_kept)
        if is_kept:
            self.kept_rows.add(key)
        stored = StoredObject(
            bucket=self.bucket.name,
            key=key,
            bucket_role=role,
            size=len(key),
            sha256="0" * 64,
            content_type="image/png",
            created_by="test",
            created_at=ago(age),
        )
        self._objects.append(stored)
        return stored

    def _write(self, key: str, *, age: float, is_kept: bool) -> None:
        path = self.bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(key)
        os.utime(path, (time.time() - age,) * 2)
        if is_kept:
            self.kept_files.add(key)


def job_of(attachment: Attachment, number: int, version: Version, pipeline: str) -> Job:
    is_held = version.state == State.PROCESSING
    return Job(
        attachment=attachment,
        pipeline=pipeline,
        pipeline_version=number,
        queue="images",
        source=Source.REST,
        state=version.state,
        finished_at=None if version.is_unfinished else ago(version.age),
        error_code="bad_file" if version.state == State.FAILED else "",
        lease_token=uuid.uuid4() if is_held else None,
        lease_until=Now() if is_held else None,
        leased_by="worker-a" if is_held else "",
    )


def ago(seconds: float) -> Combinable:
    return Now() - timedelta(seconds=seconds)


@given(
    past=st.lists(HISTORIES, min_size=4, max_size=10),
    litter=st.lists(st.tuples(st.sampled_from(LITTER), AGES), max_size=6),
)
@example_settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_sweep_takes_what_the_retention_says_and_nothing_else(
    user: User, tmp_path: Path, settings: Any, past: list[History], litter: list[tuple[str, float]]
) -> None:
    """[attachments] неуспешные/непривязанные исходники имеют retention и cleanup; он не удаляет текущую работу."""
    world = World(user, tmp_path / "storage" / "holdfast")
    # Known objects enough, so that those which nobody knows are few.
    world.make(past, [*litter, *[("forgotten", FRESH)] * 10])
    settings.TRANSCRIPT_RETENTION_DAYS = 30
    needed = in_use(user)
    Sweeper().run()
    assert in_use(user) == {(key, data) for key, data in needed if not world.has_expired(key)}
    assert set(Transcript.objects.values_list("attachment", "pipeline_version")) == world.kept_transcripts
    told = Attachment.objects.filter(texts_expired_at__isnull=False)
    assert set(told.values_list("id", flat=True)) == world.expired
    assert world.files() == world.kept_files
    assert set(StoredObject.objects.values_list("key", flat=True)) == world.kept_rows
    assert not StoredObject.objects.filter(bucket_role=BucketRole.TRASH).exists()
    assert Sweeper().run() == 0


def in_use(owner: User) -> set[tuple[str, bytes]]:
    """Key and bytes of every object that the API shows, or that an unfinished job may read or has made."""
    statuses = listing.statuses(listing.living(owner))
    shown = [variant.stored_object for status in statuses for variant in status.variants.values()]
    unfinished = Job.objects.filter(finished_at=None, attachment__deleted_at=None)
    worked_on = StoredObject.objects.filter(
        variant__attachment__jobs__in=unfinished,
        variant__pipeline_version=F("variant__attachment__jobs__pipeline_version"),
    )
    originals = StoredObject.objects.filter(attachment__jobs__in=unfinished) | StoredObject.objects.filter(
        attachment__served_version__isnull=False
    )
    return {(stored.key, read(stored)) for stored in (*shown, *worked_on, *originals)}


def read(stored: StoredObject) -> bytes:
    with storage.open_object(stored.bucket, stored.key) as stream:
        return b"".join(stream)
