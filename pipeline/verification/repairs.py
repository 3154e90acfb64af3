"""What can be mended: variants are made again from the original, and a lost message is written again."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from attachments.models import StoredObject
from pipeline import lifecycle, outbox
from pipeline.lifecycle import Gone, NotReady
from pipeline.lifecycle.rows import log
from pipeline.models import Job, OutboxMessage
from pipeline.states import State
from pipeline.verification.findings import Finding, Kind
from pipeline.verification.looks import Flaw, look

ACTOR = "verify"


def repaired(found: Iterable[Finding], *, original: StoredObject | None) -> list[Finding]:
    """One attachment's findings, with what became of them. Each repair leaves a line in its job's timeline."""
    lost: dict[uuid.UUID, list[Finding]] = defaultdict(list)
    told: list[Finding] = []
    for finding in found:
        if finding.job_id is not None and finding.variant:
            lost[finding.job_id].append(finding)
        elif finding.job_id is not None and finding.kind == Kind.MESSAGE_MISSING:
            told.append(_sent_again(finding, finding.job_id))
        else:
            told.append(finding)
    for job_id, variants in lost.items():
        told += _made_again(variants, job_id, original)
    return told


def _made_again(lost: list[Finding], job_id: uuid.UUID, original: StoredObject | None) -> list[Finding]:
    """Put the job back, unless there is nothing intact to make its variants from: then it would only fail."""
    flaw = Flaw.MISSING if original is None else look(original, digests=True)
    if flaw is not None:
        return [replace(finding, outcome=f"cannot be made again: the original is {flaw.value}") for finding in lost]
    detail = ", ".join(f"{finding.variant}: {finding.kind}" for finding in lost)
    try:
        reopened = lifecycle.repair(
            job_id, variants={finding.variant for finding in lost}, actor=ACTOR, detail=detail
        )  # fmt: skip
    except (NotReady, Gone) as error:
        return [replace(finding, outcome=f"not repaired: {error}") for finding in lost]
    outcome = f"attempt {reopened.after['attempt']} makes it again"
    return [replace(finding, outcome=outcome, is_repaired=True) for finding in lost]


def _sent_again(finding: Finding, job_id: uuid.UUID) -> Finding:
    """Write the message of the job's attempt, due when the job is. Under its lock the job cannot move on."""
    with transaction.atomic():
        queued = Job.objects.select_for_update().filter(job_id=job_id, state=State.QUEUED)
        job = queued.annotate(wait=F("due_at") - Now()).first()
        if job is None or OutboxMessage.objects.filter(job=job, attempt=job.attempt).exists():
            return replace(finding, outcome="moved on meanwhile", is_repaired=True)
        outbox.enqueue(job, pause=max(job.wait, timedelta(0)))
        log(
            job_id, State.QUEUED, State.QUEUED, attempt=job.attempt, reason="message_restored", actor=ACTOR
        )  # fmt: skip
    return replace(finding, outcome="its message is written again", is_repaired=True)
