"""A run that held: uploads as their client remembers them, and the rows, objects and history that they left."""

from __future__ import annotations

import hashlib
import itertools
import uuid
from datetime import timedelta

from django.contrib.auth.models import User

from bench.chaos.files import BAD, Sample
from bench.chaos.invariants import Evidence
from bench.chaos.load import Upload
from pipeline import intake, lifecycle, removal
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job
from pipeline.origins import Origin
from pipeline.states import Source
from tests.leases import finish
from tests.pictures import png

RUN = "chaos-test"
GOOD, DAMAGED = Sample("photo.png", png()), Sample("damaged.png", png(), BAD)
READY, RETRIED, FAILED, DELETED = range(4)

_numbers = itertools.count()


def send(owner: User, sample: Sample = GOOD) -> Upload:
    """Has a file accepted as the door would, and remembers it as its client would."""
    number = next(_numbers)
    data, key = sample.stamped(number), f"{RUN}-{number}"
    received = intake.receive([data], created_by="test")
    accepted = intake.accept(received, intake.Request(owner=owner, origin=Origin(Source.REST), idempotency_key=key))
    upload = Upload(number, key, sample, "once", len(data), hashlib.sha256(data).hexdigest())
    upload.id, upload.job_id, upload.state = str(accepted.attachment.id), str(accepted.job.job_id), "queued"
    return upload


def held(owner: User) -> Evidence:
    """READY; RETRIED once and ready; FAILED by its own fault; and DELETED after it was ready."""
    uploads = [send(owner), send(owner), send(owner, DAMAGED), send(owner)]
    lifecycle.release(lease_of(uploads[RETRIED]), reason="shutdown", pause=timedelta(0))
    for number in (READY, RETRIED, DELETED):
        finish(lease_of(uploads[number]))
        uploads[number].state = "ready"
    lifecycle.fail(lease_of(uploads[FAILED]), Failure(code="bad_file", sentence="It is damaged."))
    uploads[FAILED].state, uploads[FAILED].error_code = "failed", "bad_file"
    removal.remove(uuid.UUID(uploads[DELETED].id), actor="test")
    uploads[DELETED].is_deleted = True
    return Evidence(RUN, uploads)


def lease_of(upload: Upload) -> Lease:
    job = job_of(upload)
    lease = lifecycle.claim(job.job_id, attempt=job.attempt, worker="worker-a")
    assert lease is not None
    return lease


def job_of(upload: Upload) -> Job:
    return Job.objects.get(job_id=str(upload.job_id))
