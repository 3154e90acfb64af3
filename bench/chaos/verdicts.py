"""What must hold of a run as its client sees it, by the API alone; `invariants` asks the rows."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.chaos.door import Door
from bench.chaos.load import Upload
from bench.chaos.soak import Soaked

#: So many ready attachments are fetched whole through the API.
FETCHED = 40
FETCH_SECONDS = 60.0


@dataclass(frozen=True)
class Verdict:
    """One invariant: of how many things it was asked, and which of them break it: what is named, and how."""

    name: str
    asked: int
    broken: dict[str, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return not self.broken


def by_the_api(soaked: Soaked, door: Door) -> list[Verdict]:
    """Every question that the API can answer, once the work has ended."""
    return [
        *(check(soaked) for check in CHECKS),
        bytes_come_back(soaked.uploads, door),
        deleted_are_gone(soaked.uploads, door),
    ]


def every_promise_to_the_client_was_kept(soaked: Soaked) -> Verdict:
    """Answered in the end, refused only for a lawful reason, one attachment for one key, a 202 that names the bytes."""
    complaints = {upload.name: "; ".join(upload.complaints) for upload in soaked.uploads if upload.complaints}
    return Verdict("every upload was answered lawfully", len(soaked.uploads), complaints)


def accepted_is_ready_or_failed(soaked: Soaked) -> Verdict:
    accepted = _accepted(soaked)
    lost = {upload.name: f"is {upload.state}" for upload in accepted if upload.is_open}
    return Verdict("accepted = ready + failed", len(accepted), lost)


def failures_are_lawful(soaked: Soaked) -> Verdict:
    """A bad file fails with its own code; a good one not at all, once what was lost with its workers was replayed."""
    accepted = _accepted(soaked)
    unlawful = {}
    for upload in accepted:
        if upload.state == "failed" and upload.error_code not in upload.sample.lawful:
            unlawful[upload.name] = f"{upload.sample.name} failed with {upload.error_code}"
        elif upload.state == "ready" and not upload.sample.is_good:
            unlawful[upload.name] = f"{upload.sample.name} is ready"
    return Verdict("failures have a lawful reason", len(accepted), unlawful)


def nothing_is_stuck(soaked: Soaked) -> Verdict:
    stuck = {upload.name: f"stands still as {upload.state}" for upload in soaked.stuck}
    return Verdict("nothing stands still after the last fault", len(_accepted(soaked)), stuck)


def everything_is_back(soaked: Soaked) -> Verdict:
    return Verdict("every process is back", 1, dict.fromkeys(soaked.missing, "is not back"))


def bytes_come_back(uploads: list[Upload], door: Door) -> Verdict:
    """Some ready attachments, fetched whole: the original is what was sent, variants are what the API says."""
    ready = [upload for upload in uploads if upload.state == "ready" and not upload.is_deleted]
    chosen = random.Random(0).sample(ready, min(FETCHED, len(ready)))
    wrong = {}
    for upload in chosen:
        assert upload.id is not None
        status = door.status(upload.id, until=time.monotonic() + FETCH_SECONDS)
        if status is None or status.status != 200:
            wrong[upload.name] = "has no status"
            continue
        files = {"original": status.body["original"], **status.body["variants"]}
        told = {name: (file["size"], file["sha256"]) for name, file in files.items()}
        until = time.monotonic() + FETCH_SECONDS
        bad = [name for name, file in files.items() if door.fetch(file["url"], until=until) != told[name]]
        if told["original"] != (upload.size, upload.sha256):
            bad.append("original, which is not what was sent")
        if len(files) == 1:
            bad.append("variants, of which there are none")
        if bad:
            wrong[upload.name] = f"wrong: {', '.join(bad)}"
    return Verdict("the API serves the right bytes", len(chosen), wrong)


def deleted_are_gone(uploads: list[Upload], door: Door) -> Verdict:
    deleted = [upload for upload in uploads if upload.is_deleted and upload.id]
    shown = {}
    for upload in deleted:
        answer = door.status(upload.id or "", until=time.monotonic() + FETCH_SECONDS)
        if answer is None or answer.status != 404:
            shown[upload.name] = f"is answered {answer.status if answer else 'not at all'}"
    return Verdict("what was deleted is gone", len(deleted), shown)


def _accepted(soaked: Soaked) -> list[Upload]:
    return [upload for upload in soaked.uploads if upload.id is not None and not upload.is_deleted]


CHECKS: tuple[Callable[[Soaked], Verdict], ...] = (
    every_promise_to_the_client_was_kept,
    accepted_is_ready_or_failed,
    failures_are_lawful,
    nothing_is_stuck,
    everything_is_back,
)
