"""What lies in the dead-letter queue, explained by the database.

A letter is evidence, never work: a job whose message died is queued still, and `redispatch` sends it again. Looking
puts every letter back, and dropping one costs nothing.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import schemas
from pipeline import broker
from pipeline.models import Job
from pipeline.wire import UNREADABLE

PREVIEW_BYTES = 60
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Letter:
    """One message of the dead-letter queue; every text is safe to print.

    `id` is the message id or, where there is none, `sha256:` and the beginning of the body's digest; `job_id` is what
    it claims. `queue` and `died_at` tell of the last death, `reason` of all; `preview` begins a body that is not ours.
    """

    id: str
    job_id: uuid.UUID | None
    queue: str
    reason: str
    died_at: datetime.datetime | None
    preview: str


def read(*, limit: int | None = None) -> tuple[list[Letter], int]:
    """The oldest letters, which stay, and how many more there are. Raises BrokerUnavailable."""
    letters: list[Letter] = []

    def keep(message: Any) -> bool:
        letters.append(_letter(message))
        return True

    return letters, broker.each_dead_letter(keep, limit=limit)


def drop(ids: Collection[str] | None = None) -> list[str]:
    """Delete the letters of these ids (None: every one); returns the ids of what went. Raises BrokerUnavailable."""
    dropped: list[str] = []

    def keep(message: Any) -> bool:
        letter_id = _letter(message).id
        is_wanted = ids is not None and letter_id not in ids
        if not is_wanted:
            dropped.append(letter_id)
        return is_wanted

    broker.each_dead_letter(keep)
    return dropped


def states_of(letters: Collection[Letter]) -> dict[uuid.UUID, str]:
    """Where the jobs that the letters name are now: {job id: "ready", "queued, attempt 2", …}; no key without a job."""
    jobs = Job.objects.filter(job_id__in={letter.job_id for letter in letters if letter.job_id})
    return {job.job_id: f"{job.state}, attempt {job.attempt}" for job in jobs}


def _letter(message: Any) -> Letter:
    headers = message.properties.get("application_headers") or {}
    body = message.body if isinstance(message.body, bytes) else str(message.body).encode("utf-8", "replace")
    message_id = _escaped(message.properties.get("message_id") or "")
    deaths = _deaths(headers)
    return Letter(
        id=message_id or f"sha256:{hashlib.sha256(body).hexdigest()[:16]}",
        job_id=_job_id(message_id),
        queue=_escaped(str(deaths[0].get("queue", UNKNOWN))) if deaths else UNKNOWN,
        reason=_reason(headers, deaths),
        died_at=_died_at(deaths),
        preview="" if _is_ours(body) else _escaped(body[:PREVIEW_BYTES].decode("utf-8", "backslashreplace")),
    )


def _job_id(message_id: str) -> uuid.UUID | None:
    """Ours is <job id>:<attempt>."""
    try:
        return uuid.UUID(message_id.partition(":")[0])
    except ValueError:
        return None


def _deaths(headers: dict[str, Any]) -> list[dict[str, Any]]:
    """RabbitMQ's `x-death`, newest first; whatever else a stranger put there is left out."""
    found = headers.get("x-death")
    return [death for death in found if isinstance(death, dict)] if isinstance(found, list) else []


def _reason(headers: dict[str, Any], deaths: list[dict[str, Any]]) -> str:
    if UNREADABLE in headers:
        return f"unreadable: {headers[UNREADABLE]}"
    told = [f"{death.get('reason', UNKNOWN)} ×{death.get('count', '?')}" for death in deaths]
    return _escaped(", ".join(told)) or UNKNOWN


def _died_at(deaths: list[dict[str, Any]]) -> datetime.datetime | None:
    moment = deaths[0].get("time") if deaths else None
    return moment.replace(tzinfo=datetime.UTC) if isinstance(moment, datetime.datetime) else None


def _is_ours(body: bytes) -> bool:
    try:
        [envelope], kwargs, embed = json.loads(body)
        schemas.validate("jobs", envelope)
    except (ValueError, TypeError, RecursionError, schemas.InvalidShape):
        return False
    return (kwargs, embed) == ({}, {})


def _escaped(text: str) -> str:
    """Without what could steer a terminal or turn the text around."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
