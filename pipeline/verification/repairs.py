"""What can be mended: variants are made again from the original, and a lost message is written again."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from attachments.models import StoredObject
from pipeline import lifecycle
from pipeline.lifecycle import Gone, NotReady
from pipeline.registry import UnknownPipeline
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
    except UnknownPipeline as error:
        return [replace(finding, outcome=f"not repaired: only a newer release knows {error}") for finding in lost]
    outcome = f"attempt {reopened.after['attempt']} makes it again"
    return [replace(finding, outcome=outcome, is_repaired=True) for finding in lost]


def _sent_again(finding: Finding, job_id: uuid.UUID) -> Finding:
    was_lost = lifecycle.restore_message(job_id, actor=ACTOR)
    outcome = "its message is written again" if was_lost else "moved on meanwhile"
    return replace(finding, outcome=outcome, is_repaired=True)
