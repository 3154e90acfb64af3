"""The product under the words of the model: every act is the real one, on PostgreSQL and local storage.

An act answers with the word that the model uses for what happened. What the database refuses, deadlocks among it, is no
word: it is raised.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection

from attachments import objects, storage
from attachments.errors import BadFile, StorageUnavailable
from attachments.models import Attachment
from attachments.storage import Written
from pipeline import claims, intake, lifecycle, maintenance, outcomes, registry, removal, retention
from pipeline.claims import Heartbeat, StopReason
from pipeline.confined import Interrupted
from pipeline.lifecycle import (
    AlreadyThere,
    Cancelled,
    Gone,
    Incomplete,
    Lease,
    LeaseLost,
    NotFailed,
    NotReady,
)
from pipeline.models import Job
from pipeline.origins import Origin
from pipeline.registry import Pipeline
from pipeline.states import Source
from pipeline.steps.image import ImageStep
from tests.pictures import png
from tests.pipeline.interleaving import LockOrder
from tests.pipeline.laws import Row, Snapshot
from tests.pipeline.model import MAX_FAILURES, PROMISED, Act, Key, View

REFUSALS = (AlreadyThere, Cancelled, Gone, Incomplete, LeaseLost, NotFailed, NotReady, StorageUnavailable)
ERRORS: dict[str, tuple[Exception, StopReason | None]] = {
    "bad_file": (BadFile("damaged"), None),
    "internal_error": (RuntimeError("nobody foresaw this"), None),
    "storage_away": (StorageUnavailable("no answer"), None),
    "shutdown": (Interrupted(), StopReason.SHUTDOWN),
    "time_limit": (Interrupted(), StopReason.DEADLINE),
    "cancelled": (Cancelled(), StopReason.CANCELLED),
    "lost": (Interrupted(), StopReason.LOST),
}
TABLES = (
    "pipeline_outbox, pipeline_job_event, pipeline_replayed_job, pipeline_replay, pipeline_job, attachment_variant, "
    "attachment_transcript, stored_file, s3_object"
)
PICTURE = png()
LONG = 3600.0
OUTAGE_ENDS = timedelta(days=1)


class SecondRelease(ImageStep):
    makes: ClassVar[tuple[str, ...]] = ("preview", "thumbnail")


class ThirdRelease(ImageStep):
    makes: ClassVar[tuple[str, ...]] = ("thumbnail",)


RELEASES = tuple(
    Pipeline(name="image", version=version, queue="images", steps=(step,))
    for version, step in enumerate((ImageStep(), SecondRelease(), ThirdRelease()), start=1)
)
assert {release.version: release.promised for release in RELEASES} == PROMISED


@dataclass(frozen=True)
class Bytes:
    """What a worker stored and may record: its row, and what was written."""

    lease: Lease
    variant: str
    object_id: int
    written: Written


class World:
    def __init__(self, owner: User, patch: pytest.MonkeyPatch) -> None:
        self._owner, self._patch = owner, patch
        self.files: dict[str, uuid.UUID] = {}
        self.originals: dict[str, int] = {}
        self.leases: dict[str, Lease] = {}
        self.stored: dict[str, Bytes] = {}
        settings.MAX_FAILURES, settings.LEASE_SECONDS = MAX_FAILURES, LONG
        settings.RETRY_PAUSE_CAP_SECONDS = LONG
        settings.OUTAGE_GIVE_UP_SECONDS = OUTAGE_ENDS.total_seconds()
        # Nothing may depend on being asked again: a deadlock is an error here.
        patch.setattr(claims, "is_database_away", lambda _: False)
        patch.setattr(outcomes, "OUTAGE_PAUSE", timedelta(seconds=LONG))
        self._release(1)
        self._empty()

    def do(self, act: Act) -> str:
        """Do it on this thread's connection, and mind the order of its locks."""
        with connection.execute_wrapper(LockOrder()):
            return act.on(self)

    def upgrade(self) -> str:
        self._release(registry.newest("image").version + 1)
        return "upgraded"

    def accept(self, file: str) -> str:
        received = intake.receive([PICTURE], created_by="test")
        accepted = intake.accept(
            received, intake.Request(owner=self._owner, origin=Origin(Source.REST), name=f"{file}.png")
        )
        self.files[file] = accepted.attachment.id
        self.originals[file] = received.stored.id
        return str(accepted.job.state)

    def take(self, key: Key, *, attempt: int, lease: str) -> str:
        taken = claims.take(self.job_id(key), attempt=attempt, worker=f"worker-{lease}")
        if not isinstance(taken, Lease):
            return taken.value
        self.leases[lease] = taken
        return "taken"

    def take_again(self, lease: str) -> str:
        """The commit of the claim got no answer, so it is asked again."""
        held = self.leases[lease]
        again = lifecycle.claim(held.job_id, attempt=held.attempt, worker=held.worker, token=held.token)
        assert again is None or (again.token, again.attempt) == (held.token, held.attempt)
        return "taken" if again else "nothing"

    def renew(self, lease: str) -> str:
        return said(lambda: lifecycle.renew(self.leases[lease]), "renewed")

    def store(self, name: str, *, lease: str, variant: str) -> str:
        held = self.leases[lease]
        key = objects.variant_key(
            held.attachment_id, version=held.pipeline.version, attempt=held.attempt, variant=f"{variant}-{name}"
        )
        stored = objects.register(key, content_type="image/webp", created_by=held.worker)
        with storage.writer(stored.bucket, stored.key, content_type="image/webp") as writer:
            writer.write(name.encode())
            self.stored[name] = Bytes(held, variant, stored.id, writer.finish())
        return "stored"

    def record(self, name: str) -> str:
        stored = self.stored[name]
        word = said(
            lambda: lifecycle.record(
                stored.lease,
                variant=stored.variant,
                object_id=stored.object_id,
                written=stored.written,
                facts={},
                original_facts={"learnt_with": name},
            ),
            "recorded",
        )
        if word != "recorded":
            objects.throw_away(stored.object_id)
        return word

    def work(self, lease: str, *, made: Iterable[tuple[str, str]]) -> str:
        for name, variant in made:
            self.store(name, lease=lease, variant=variant)
            self.record(name)
        return self.complete(lease)

    def complete(self, lease: str) -> str:
        return said(lambda: lifecycle.complete(self.leases[lease]), "ready")

    def settle(self, lease: str, *, error: str, is_patient: bool) -> str:
        settings.RETRY_PAUSE_SECONDS = LONG if is_patient else 0.0
        raised, reason = ERRORS[error]
        heartbeat = Heartbeat(self.leases[lease])
        heartbeat.stop_reason = reason
        return outcomes.settle(self.leases[lease], raised, heartbeat, step="image")

    def end_slice(self, lease: str) -> str:
        return said(
            lambda: lifecycle.release(self.leases[lease], reason="slice", pause=timedelta(0)),
            "released",
        )

    def recover(self) -> str:
        return str(lifecycle.recover())

    def cancel(self, file: str) -> str:
        return str(lifecycle.request_cancel(Attachment.objects.get(id=self.files[file])))

    def delete(self, file: str) -> str:
        return "deleted" if removal.remove(self.files[file], actor="test") else "nothing"

    def replay(self, key: Key, *, attempt: int) -> str:
        job_id = self.job_id(key)
        return said(lambda: lifecycle.replay(job_id, attempt=attempt, actor="operator", reason="again"), "queued")

    def repair(self, key: Key, *, variants: Collection[str]) -> str:
        job_id = self.job_id(key)
        return said(
            lambda: lifecycle.repair(job_id, variants=variants, actor="verify", detail="missing"),
            "queued",
        )

    def reprocess(self, file: str, *, version: int) -> str:
        pipeline = registry.get("image", version)
        return said(
            lambda: lifecycle.reprocess(self.files[file], pipeline=pipeline, actor="operator"),
            "queued",
        )

    def relay(self) -> str:
        """The broker confirmed all that is due, longer ago than `redispatch` has patience, and then lost it."""
        return str(
            execute(
                "UPDATE pipeline_outbox SET sent_at = now() - %s WHERE sent_at IS NULL AND due_at <= now()",
                2 * maintenance.REDISPATCH_CAP,
            )
        )

    def redispatch(self) -> str:
        """What `maintenance.redispatch` does once two looks have found that the queue got past them."""
        now = datetime.now(UTC)
        return str(maintenance._send_again("images", due_before=now, sent_before=now))

    def sweep(self) -> str:
        retention.Sweeper().run()
        return "swept"

    # Time, which the tests let pass.

    def wait(self, key: Key) -> str:
        job_id = self.job_id(key)
        for table in ("pipeline_job", "pipeline_outbox"):
            execute(f"UPDATE {table} SET due_at = now() WHERE job_id = %s AND due_at > now()", job_id)
        return "due"

    def expire(self, key: Key) -> str:
        execute(
            "UPDATE pipeline_job SET lease_until = now() - interval '1 second' WHERE job_id = %s"
            " AND state = 'processing'",
            self.job_id(key),
        )
        return "expired"

    def outlast(self, key: Key) -> str:
        execute(
            "UPDATE pipeline_job SET outage_since = outage_since - interval '2 days' WHERE job_id = %s",
            self.job_id(key),
        )
        return "outlasted"

    def age(self) -> str:
        """So long that all may go that retention looks at."""
        execute("UPDATE s3_object SET created_at = created_at - interval '1 year'")
        execute("UPDATE pipeline_outbox SET sent_at = sent_at - interval '1 year'")
        execute("UPDATE pipeline_job SET finished_at = finished_at - interval '1 year'")
        return "aged"

    def view(self, rows: Snapshot) -> View:
        """What the rows say, under the model's names."""
        names = {str(file_id): name for name, file_id in self.files.items()}
        keys = {job_id: (names[job["attachment_id"]], job["pipeline_version"]) for job_id, job in rows.jobs.items()}
        objects = {stored.object_id: name for name, stored in self.stored.items()}
        holders = {str(held.token): name for name, held in self.leases.items()}
        history = rows.history()
        return {
            "files": {
                names[file_id]: {
                    "original": self._role(rows, self.originals[names[file_id]]),
                    "served": file["served_version"],
                    "media": file["media"].get("learnt_with", ""),
                    "is_deleted": file["deleted_at"] is not None,
                }
                for file_id, file in rows.files.items()
            },
            "jobs": {
                keys[job_id]: _job(job, history[job_id], holders.get(job["lease_token"]), rows.now)
                for job_id, job in rows.jobs.items()
            },
            "variants": {
                (names[row["attachment_id"]], row["pipeline_version"], row["variant"]): objects[row["stored_object_id"]]
                for row in rows.variants
            },
            "roles": {name: self._role(rows, stored.object_id) for name, stored in self.stored.items()},
            "messages": {
                (keys[job_id], attempt): "sent"
                if row["sent_at"]
                else "due"
                if at(row["due_at"]) <= rows.now
                else "later"
                for (job_id, attempt), row in rows.messages.items()
            },
        }

    def _role(self, rows: Snapshot, object_id: int) -> str:
        """Trash is dead already, whether the sweep came for it or not."""
        row = rows.objects.get(object_id)
        return "dead" if row is None or row["bucket_role"] == "trash" else str(row["bucket_role"])

    def job_id(self, key: Key) -> uuid.UUID:
        return Job.objects.values_list("job_id", flat=True).get(attachment=self.files[key[0]], pipeline_version=key[1])

    def _release(self, newest: int) -> None:
        self._patch.setattr(registry, "PIPELINES", RELEASES[:newest])

    def _empty(self) -> None:
        """Events cannot be deleted, so all tables are truncated; and the storage with them."""
        execute(f"TRUNCATE {TABLES} RESTART IDENTITY CASCADE")
        folder = Path(settings.STORAGE_ROOT) / settings.STORAGE_BUCKET / objects.FOLDER
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)


def _job(row: Row, events: list[Row], holder: str | None, now: datetime) -> Row:
    outage = now - at(row["outage_since"]) if row["outage_since"] else None
    return {
        "state": row["state"],
        "attempt": row["attempt"],
        "failures": row["failures"],
        "holder": holder,
        "is_due": at(row["due_at"]) <= now,
        "is_expired": row["lease_until"] is not None and at(row["lease_until"]) < now,
        "is_cancelled": row["cancel_requested_at"] is not None,
        "outage": "" if outage is None else "old" if outage > OUTAGE_ENDS else "young",
        "error_code": row["error_code"],
        "media": row["media"].get("learnt_with", ""),
        "history": [(event["from_state"], event["to_state"], event["attempt"], event["reason"]) for event in events],
    }


def at(moment: str) -> datetime:
    return datetime.fromisoformat(moment)


def said(act: Callable[[], object], word: str) -> str:
    try:
        act()
    except REFUSALS as refusal:
        return type(refusal).__name__
    return word


def execute(statement: str, *parameters: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        count: int = cursor.rowcount
    return count
