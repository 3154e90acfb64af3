"""What must hold of a run in the database, the storage and the broker. Asked once the work has ended.

Bytes and dead letters are read here as `pipeline.verification` and `pipeline.dead_letters` read them, and not by them:
a judge that shares the code it judges would share its faults.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import kombu
from amqp.exceptions import NotFound
from django.conf import settings
from django.db.models import Count, F, Max, Q, QuerySet, Sum

from attachments import objects, storage
from attachments.errors import ObjectMissing
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from bench.chaos.load import Upload
from bench.chaos.verdicts import Verdict
from pipeline import maintenance, registry
from pipeline.broker import DEAD_QUEUE
from pipeline.lifecycle import DISPATCHER
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.states import MOVES, TERMINAL, State

LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Evidence:
    """What the client knows: its uploads, and the name that all its keys begin with.

    Objects and dead letters are looked at only where the storage and the broker can be reached from here.
    """

    run: str
    uploads: list[Upload]
    has_storage: bool = True
    has_broker: bool = True

    @property
    def ids(self) -> list[uuid.UUID]:
        return [uuid.UUID(upload.id) for upload in self.uploads if upload.id is not None]

    @property
    def jobs(self) -> QuerySet[Job]:
        return Job.objects.filter(attachment__in=self.ids)

    @property
    def events(self) -> QuerySet[JobEvent]:
        return JobEvent.objects.filter(job__attachment__in=self.ids)


def by_the_rows(evidence: Evidence) -> list[Verdict]:
    """Every question to the database and the storage."""
    return [check(evidence) for check in CHECKS]


def nothing_accepted_is_lost(evidence: Evidence) -> Verdict:
    """Every 202 has its attachment and a job."""
    ids = set(evidence.ids)
    there = set(Attachment.objects.filter(id__in=ids, jobs__isnull=False).values_list("id", flat=True))
    return Verdict(
        "every 202 has its rows", len(ids), {str(lost): "was accepted and is not there" for lost in ids - there}
    )


def nothing_is_there_untold(evidence: Evidence) -> Verdict:
    """An attachment whose client was never told of it, nor will be."""
    ours = Attachment.objects.filter(idempotency_key__startswith=f"{evidence.run}-")
    deleted = {upload.key for upload in evidence.uploads if upload.is_deleted}
    broken = {}
    for attachment in ours.exclude(id__in=evidence.ids):
        came_back = attachment.idempotency_key in deleted
        broken[str(attachment.id)] = "came after its deletion" if came_back else "is there, and its client was not told"
    return Verdict("no attachment is unknown to its client", ours.count(), broken)


def jobs_have_ended(evidence: Evidence) -> Verdict:
    """Those of deleted attachments too, which the API does not show: they have as long as the others had."""
    until = time.monotonic() + may_stand(evidence.uploads)
    while (waiting := evidence.jobs.exclude(state__in=TERMINAL)) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    return Verdict("every job has ended", evidence.jobs.count(), {str(job.job_id): job.state for job in waiting})


def effects_are_single(evidence: Evidence) -> Verdict:
    keys = Variant.objects.filter(attachment__in=evidence.ids).values("attachment", "pipeline_version", "variant")
    twice = keys.annotate(rows=Count("id")).filter(rows__gt=1)
    broken = {f"{one['attachment']} {one['variant']}": f"has {one['rows']} rows" for one in twice}
    return Verdict("one row per effect key", keys.count(), broken)


def ready_is_complete(evidence: Evidence) -> Verdict:
    """Every promised variant of the served version, and the original, is pointed at."""
    ready = Attachment.objects.filter(id__in=evidence.ids, served_version__isnull=False, deleted_at__isnull=True)
    broken = {}
    for attachment in ready.prefetch_related("variants", "jobs"):
        version = attachment.served_version or 0
        made = {one.variant for one in attachment.variants.all() if one.pipeline_version == version}
        served = [job for job in attachment.jobs.all() if job.pipeline_version == version]
        promised = {name for job in served for name in registry.get(job.pipeline, version).promised}
        if not served or promised - made or attachment.original_id is None:
            broken[str(attachment.id)] = f"is served without {sorted(promised - made) or 'its original or job'}"
    return Verdict("ready means complete", ready.count(), broken)


def pointers_have_their_bytes(evidence: Evidence) -> Verdict:
    """Every object that an original or a variant points at, of ready attachments and others, is read in full."""
    pointed = StoredObject.objects.filter(
        Q(attachment__in=evidence.ids) | Q(variant__attachment__in=evidence.ids)
    ).distinct()
    if not evidence.has_storage:
        pointed = pointed.none()
    broken = {}
    for stored in pointed:
        flaw = _flaw(stored)
        if flaw:
            broken[str(stored)] = flaw
    return Verdict("every pointer has its bytes", pointed.count(), broken)


def originals_are_what_was_sent(evidence: Evidence) -> Verdict:
    sent = {uuid.UUID(upload.id): (upload.size, upload.sha256) for upload in evidence.uploads if upload.id}
    kept = Attachment.objects.filter(id__in=sent)
    broken = {}
    for attachment in kept.select_related("original"):
        rows = {(attachment.size, attachment.sha256)}
        if attachment.original is not None:
            rows.add((attachment.original.size or 0, attachment.original.sha256 or ""))
        if rows != {sent[attachment.id]}:
            broken[str(attachment.id)] = "has another size or digest than the bytes sent"
    return Verdict("originals are what was sent", kept.count(), broken)


def deleted_objects_are_let_go(evidence: Evidence) -> Verdict:
    """Nothing points at what was deleted, and what was published of it waits for the sweep."""
    deleted = Attachment.objects.filter(id__in=evidence.ids, deleted_at__isnull=False)
    broken = {}
    for attachment in deleted.annotate(pointers=Count("variants")):
        kept = StoredObject.objects.filter(key__startswith=f"{objects.FOLDER}/{attachment.id}/").exclude(
            bucket_role__in=[BucketRole.STAGING, BucketRole.TRASH]
        )
        if attachment.pointers or attachment.original_id is not None or kept.exists():
            broken[str(attachment.id)] = "was deleted and is still pointed at"
    return Verdict("deleted bytes are let go", deleted.count(), broken)


def moves_are_lawful(evidence: Evidence) -> Verdict:
    """Each event is a lawful move from where the last one led, attempts only grow, and the row is where all led."""
    timelines: dict[Any, list[JobEvent]] = {}
    for event in evidence.events.order_by("job", "id"):
        timelines.setdefault(event.job_id, []).append(event)
    broken = {}
    for job in evidence.jobs:
        flaw = _unlawful(job, timelines.get(job.job_id, []))
        if flaw:
            broken[str(job.job_id)] = flaw
    return Verdict("no unlawful move in the event log", evidence.events.count(), broken)


def jobs_become_ready_once(evidence: Evidence) -> Verdict:
    often = evidence.events.filter(to_state=State.READY).values("job").annotate(times=Count("id")).filter(times__gt=1)
    broken = {str(one["job"]): f"became ready {one['times']} times" for one in often}
    return Verdict("no job became ready twice", evidence.jobs.filter(state=State.READY).count(), broken)


def dead_letters_are_explained(evidence: Evidence) -> Verdict:
    """A message of ours may end there by the delivery limit alone: each kill of a worker counts as a delivery."""
    jobs = {str(job_id) for job_id in evidence.jobs.values_list("job_id", flat=True)}
    ours, broken = 0, {}
    for message in _dead_letters() if evidence.has_broker else ():
        message_id = str(message.properties.get("message_id", ""))
        if message_id.partition(":")[0] in jobs:
            ours += 1
            reason = (message.headers or {}).get("x-first-death-reason", "no reason")
            if reason != "delivery_limit":
                broken[message_id] = f"is a dead letter: {reason}"
    return Verdict("no unexpected dead letter", ours, broken)


def may_stand(uploads: Iterable[Upload]) -> float:
    """For how many seconds these may stand still: a lease, a look, and the wait of `redispatch`, doubled each time."""
    ids = [uuid.UUID(upload.id) for upload in uploads if upload.id]
    waiting = OutboxMessage.objects.filter(
        job__attachment__in=ids, job__state=State.QUEUED, job__attempt=F("attempt"), sent_at__isnull=False
    )
    times = waiting.aggregate(most=Max("redispatches"))["most"] or 0
    patience = maintenance.patience_after(times).total_seconds()
    return float(settings.LEASE_SECONDS + patience + settings.REDISPATCH_EVERY_SECONDS)


def figures(evidence: Evidence) -> dict[str, Any]:
    """What the run came to: {retries, recovered, redispatched, slowest_seconds, slowest_job, reasons}."""
    reasons = Counter(evidence.events.filter(from_state=State.PROCESSING).values_list("reason", flat=True))
    again = evidence.events.filter(from_state=State.PROCESSING, to_state=State.QUEUED)
    sent = OutboxMessage.objects.filter(job__attachment__in=evidence.ids)
    ended = evidence.jobs.filter(finished_at__isnull=False).annotate(took=F("finished_at") - F("created_at"))
    slowest = ended.order_by("-took").first()
    return {
        "retries": again.count(),
        "recovered": again.filter(actor=DISPATCHER).count(),
        "redispatched": sent.aggregate(sum=Sum("redispatches"))["sum"] or 0,
        "slowest_seconds": round(slowest.took.total_seconds(), 1) if slowest else None,
        "slowest_job": str(slowest.job_id) if slowest else None,
        "reasons": dict(reasons),
    }


def timeline(name: str) -> list[str]:
    """The history of the job that an id names: the job's own, its attachment's, or one inside the name."""
    lines = []
    for part in name.replace("/", " ").replace(":", " ").split():
        try:
            one = uuid.UUID(part)
        except ValueError:
            continue
        for event in JobEvent.objects.filter(Q(job=one) | Q(job__attachment=one)).order_by("id"):
            move = f"{event.from_state or '-'} → {event.to_state}"
            words = f"attempt {event.attempt}, {event.reason}, by {event.actor}"
            lines.append(f"{event.at:%H:%M:%S.%f}  {move:<24} {words}")
    return lines


def _flaw(stored: StoredObject) -> str | None:
    digest, size = hashlib.sha256(), 0
    try:
        with storage.open_object(stored.bucket, stored.key) as stream:
            for chunk in stream:
                digest.update(chunk)
                size += len(chunk)
    except ObjectMissing:
        return "has no bytes"
    if (size, digest.hexdigest()) != (stored.size, stored.sha256):
        return f"has other bytes than its row says: {size} instead of {stored.size}, or another digest"
    return None


def _unlawful(job: Job, events: list[JobEvent]) -> str | None:
    state: State | None = None
    attempt = 0
    for event in events:
        before = State(event.from_state) if event.from_state else None
        after = State(event.to_state)
        move = f"{event.from_state or '-'} → {event.to_state} at attempt {event.attempt}"
        if before == after == state:
            continue  # a remark, such as that verify wrote a lost message again
        if (before, after) not in MOVES:
            return f"{move} is no lawful move"
        if before != state:
            return f"{move} does not follow from {state}"
        if event.attempt < attempt or (after == State.QUEUED and event.attempt == attempt):
            return f"{move} after attempt {attempt}"
        state, attempt = after, event.attempt
    if (job.state, job.attempt) != (state, attempt):
        return f"the row says {job.state} at attempt {job.attempt}, the log {state} at {attempt}"
    return None


def _dead_letters() -> list[Any]:
    """Every message of the dead-letter queue, which keeps them."""
    letters: list[Any] = []
    with kombu.Connection(settings.CELERY_BROKER_URL, connect_timeout=10) as opened, opened.channel() as channel:
        try:
            while (message := channel.basic_get(DEAD_QUEUE, no_ack=False)) is not None:
                letters.append(message)
        except NotFound:
            return []
    return letters


CHECKS: tuple[Callable[[Evidence], Verdict], ...] = (
    nothing_accepted_is_lost,
    nothing_is_there_untold,
    jobs_have_ended,
    effects_are_single,
    ready_is_complete,
    pointers_have_their_bytes,
    originals_are_what_was_sent,
    deleted_objects_are_let_go,
    moves_are_lawful,
    jobs_become_ready_once,
    dead_letters_are_explained,
)
