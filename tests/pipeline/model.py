"""The state machine of a job in plain Python: what docs/states.md promises, and nothing of how it is kept.

Every act answers with a word: what the product returns, or the name of what it raises. Files, leases and objects have
names, so that a copy of the model can be asked what another order of the same acts would have led to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from pipeline.states import State

MAX_FAILURES = 2
#: What each version of the pipeline promises.
PROMISED: dict[int, frozenset[str]] = {
    1: frozenset({"crop", "optimized", "thumbnail"}),
    2: frozenset({"preview", "thumbnail"}),
    3: frozenset({"thumbnail"}),
}

#: A job is known by its file and its pipeline version.
Key = tuple[str, int]
View = dict[str, dict[Any, Any]]


@dataclass(frozen=True)
class Act:
    """Something to be done, by the product or by the model."""

    name: str
    of: tuple[Any, ...]
    facts: tuple[tuple[str, Any], ...]

    @classmethod
    def do(cls, name: str, *of: Any, **facts: Any) -> Self:
        return cls(name, of, tuple(facts.items()))

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        facts = (f"{name}={fact!r}" for name, fact in self.facts)
        printer.text(f"{self.name}({', '.join([*map(repr, self.of), *facts])})")

    def on(self, whom: object) -> str:
        word: str = getattr(whom, self.name)(*self.of, **dict(self.facts))
        return word


@dataclass
class File:
    original: str = "staging"
    served: int | None = None
    media: str = ""
    is_deleted: bool = False


@dataclass
class Job:
    state: State = State.QUEUED
    attempt: int = 1
    failures: int = 0
    holder: str | None = None
    is_due: bool = True
    is_expired: bool = False
    is_cancelled: bool = False
    outage: str = ""
    error_code: str = ""
    media: str = ""
    history: list[tuple[str, str, int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Held:
    """A worker's lease: it stays in the worker's hands whatever becomes of the job."""

    key: Key
    attempt: int


@dataclass(frozen=True)
class Stored:
    """An object that a worker wrote for one variant."""

    lease: str
    variant: str


class Model:
    def __init__(self) -> None:
        self.newest = 1
        self.files: dict[str, File] = {}
        self.jobs: dict[Key, Job] = {}
        self.leases: dict[str, Held] = {}
        self.stored: dict[str, Stored] = {}
        self.roles: dict[str, str] = {}
        self.variants: dict[tuple[str, int, str], str] = {}
        self.messages: dict[tuple[Key, int], str] = {}
        self.completions: set[str] = set()

    def view(self) -> View:
        return {
            "files": {name: vars(file) for name, file in self.files.items()},
            "jobs": {key: vars(job) for key, job in self.jobs.items()},
            "variants": self.variants,
            "roles": self.roles,
            "messages": self.messages,
        }

    def do(self, act: Act, *, told: View) -> str:
        """What `act` answers. `told` is what it came to, which only the sweep may choose."""
        return self.follow(told) if act.name == "sweep" else act.on(self)

    def holds(self, lease: str) -> bool:
        return self._held(lease) is not None

    def upgrade(self) -> str:
        self.newest += 1
        return "upgraded"

    def accept(self, file: str) -> str:
        self.files[file] = File()
        self._begin((file, self.newest), "accepted")
        return "queued"

    def take(self, key: Key, *, attempt: int, lease: str) -> str:
        job = self.jobs[key]
        if job.state in (State.READY, State.FAILED):
            return "finished"
        if job.attempt != attempt:
            return "stale"
        if job.state == State.PROCESSING or not job.is_due:
            return "leased" if job.state == State.PROCESSING else "not_due"
        self._move(job, State.PROCESSING, "claimed")
        if job.is_cancelled:
            return self._end(job, State.FAILED, "cancelled")
        if self.files[key[0]].original == "dead":
            return self._end(job, State.FAILED, "original_gone")
        job.holder = lease
        self.leases[lease] = Held(key, attempt)
        return "taken"

    def take_again(self, lease: str) -> str:
        return "taken" if self._held(lease) else "nothing"

    def renew(self, lease: str) -> str:
        job = self._held(lease)
        if job is None:
            return "LeaseLost"
        job.is_expired = False
        return "Cancelled" if job.is_cancelled else "renewed"

    def store(self, name: str, *, lease: str, variant: str) -> str:
        self.stored[name] = Stored(lease, variant)
        self.roles[name] = "staging"
        return "stored"

    def record(self, name: str) -> str:
        """The product's worker throws away at once what it may not publish."""
        stored = self.stored[name]
        job = self._held(stored.lease)
        if job is None or job.is_cancelled or self.roles[name] == "dead":
            self._bury([name] if self.roles[name] == "staging" else [])
            if job is None:
                return "LeaseLost"
            return "Cancelled" if job.is_cancelled else "StorageUnavailable"
        file, version = self.leases[stored.lease].key
        earlier = self.variants.get((file, version, stored.variant), name)
        self.roles[earlier] = "dead"
        self.roles[name] = "variants"
        self.variants[file, version, stored.variant] = job.media = name
        return "recorded"

    def work(self, lease: str, *, made: Iterable[tuple[str, str]]) -> str:
        """All that is left to do, when nothing happens."""
        for name, variant in made:
            self.store(name, lease=lease, variant=variant)
            self.record(name)
        return self.complete(lease)

    def complete(self, lease: str) -> str:
        job = self._held(lease)
        if job is None:
            return "ready" if lease in self.completions else "LeaseLost"
        if job.is_cancelled:
            return "Cancelled"
        key = self.leases[lease].key
        if self.missing(key):
            return "Incomplete"
        self._end(job, State.READY, "completed")
        self.completions.add(lease)
        file, version = self.files[key[0]], key[1]
        if file.served is None or file.served <= version:
            file.served, file.media = version, job.media
        file.original = "originals"
        return "ready"

    def settle(self, lease: str, *, error: str, is_patient: bool) -> str:
        """An attempt ended with an error; the words of `error` are those of the world's ERRORS."""
        job = self._held(lease)
        if job is None or error == "lost":
            return "lease_lost"
        if error in {"bad_file", "cancelled"}:
            self._end(job, State.FAILED, error)
            return "cancelled" if error == "cancelled" else "failed"
        if error == "shutdown" or (error == "storage_away" and job.outage != "old"):
            is_outage = error == "storage_away"
            self._requeue(job, "outage" if is_outage else error, outage="young" if is_outage else "", wait=is_outage)
            return "released"
        if error == "storage_away":
            self._end(job, State.FAILED, "outage")
            return "gave_up"
        if job.failures + 1 >= MAX_FAILURES:
            self._end(job, State.FAILED, error)
            return "dead"
        self._requeue(job, error, failures=job.failures + 1, wait=is_patient)
        return "retried"

    def end_slice(self, lease: str) -> str:
        job = self._held(lease)
        if job is None:
            return "LeaseLost"
        self._requeue(job, "slice")
        return "released"

    def recover(self) -> str:
        expired = [job for job in self.jobs.values() if job.state == State.PROCESSING and job.is_expired]
        for job in expired:
            if job.failures + 1 >= MAX_FAILURES:
                self._end(job, State.FAILED, "worker_lost")
            else:
                self._requeue(job, "lease_expired", failures=job.failures + 1)
        return str(len(expired))

    def cancel(self, file: str) -> str:
        asked = [
            job
            for (of, _), job in self.jobs.items()
            if of == file and job.state in (State.QUEUED, State.PROCESSING) and not job.is_cancelled
        ]
        for job in asked:
            job.is_cancelled = True
        return str(len(asked))

    def delete(self, file: str) -> str:
        if self.files[file].is_deleted:
            return "nothing"
        self.cancel(file)
        self._forget(key for key in self.variants if key[0] == file)
        for (of, _), job in self.jobs.items():
            job.media = job.media if of != file else ""
        self.files[file] = File(original="dead", served=self.files[file].served, is_deleted=True)
        return "deleted"

    def replay(self, key: Key, *, attempt: int) -> str:
        job = self.jobs[key]
        if self.files[key[0]].original == "dead":
            return "Gone"
        if job.state != State.FAILED or job.attempt != attempt:
            return "NotFailed"
        job.is_cancelled = False
        self._requeue(job, "replay", failures=0)
        return "queued"

    def repair(self, key: Key, *, variants: Collection[str]) -> str:
        job = self.jobs[key]
        if self.files[key[0]].original == "dead":
            return "Gone"
        damaged = [(*key, variant) for variant in variants if (*key, variant) in self.variants]
        if job.state != State.READY or not damaged:
            return "NotReady"
        self._forget(damaged)
        self._requeue(job, "repair", failures=0)
        return "queued"

    def reprocess(self, file: str, *, version: int) -> str:
        if self.files[file].original == "dead":
            return "Gone"
        if (file, version) in self.jobs:
            return "AlreadyThere"
        self._begin((file, version), "reprocess")
        return "queued"

    def relay(self) -> str:
        due = [(key, attempt) for (key, attempt), state in self.messages.items() if state == "due"]
        self.messages.update(dict.fromkeys(due, "sent"))
        return str(len(due))

    def redispatch(self) -> str:
        """Every message in the broker was lost a while ago."""
        lost = [
            (key, attempt)
            for (key, attempt), state in self.messages.items()
            if state == "sent" and self._waits_for(key, attempt)
        ]
        self.messages.update(dict.fromkeys(lost, "due"))
        return str(len(lost))

    def follow(self, told: View) -> str:
        """The sweep may take what it likes of what nothing needs: take what it took, and no more than it may."""
        self._bury(name for name, role in self.roles.items() if role == "staging" and told["roles"][name] == "dead")
        self._forget(
            key
            for key, name in self.variants.items()
            if told["roles"][name] == "dead" and self._is_outdated((key[0], key[1]))
        )
        for name, file in self.files.items():
            if told["files"][name]["original"] == "dead" and self._is_failed(name):
                file.original = "dead"
        for key, attempt in self.messages.keys() - told["messages"].keys():
            if self.messages[key, attempt] == "sent" and not self._waits_for(key, attempt):
                del self.messages[key, attempt]
        return "swept"

    # Time, which the tests let pass.

    def wait(self, key: Key) -> str:
        job = self.jobs[key]
        job.is_due = True
        if self.messages.get((key, job.attempt)) == "later":
            self.messages[key, job.attempt] = "due"
        return "due"

    def age(self) -> str:
        return "aged"

    def expire(self, key: Key) -> str:
        self.jobs[key].is_expired = self.jobs[key].state == State.PROCESSING
        return "expired"

    def outlast(self, key: Key) -> str:
        self.jobs[key].outage = "old" if self.jobs[key].outage else ""
        return "outlasted"

    def missing(self, key: Key) -> frozenset[str]:
        return frozenset(variant for variant in PROMISED[key[1]] if (*key, variant) not in self.variants)

    def _held(self, lease: str) -> Job | None:
        job = self.jobs[self.leases[lease].key]
        return job if job.holder == lease else None

    def _begin(self, key: Key, reason: str) -> None:
        self.jobs[key] = Job(history=[("", "queued", 1, reason)])
        self.messages[key, 1] = "due"

    def _requeue(
        self, job: Job, reason: str, *, failures: int | None = None, outage: str = "", wait: bool = False
    ) -> None:
        job.attempt += 1
        job.failures = job.failures if failures is None else failures
        job.is_due, job.error_code = not wait, ""
        job.outage = job.outage if job.outage and outage else outage
        self._move(job, State.QUEUED, reason)
        key = next(key for key, each in self.jobs.items() if each is job)
        self.messages[key, job.attempt] = "later" if wait else "due"

    def _end(self, job: Job, state: State, reason: str) -> str:
        counts = state == State.FAILED and reason not in {"cancelled", "original_gone", "outage"}
        job.failures += counts
        job.outage, job.error_code = "", reason if state == State.FAILED else ""
        self._move(job, state, reason)
        return reason

    def _move(self, job: Job, after: State, reason: str) -> None:
        job.history.append((job.state, after, job.attempt, reason))
        job.state, job.holder, job.is_expired = after, None, False

    def _forget(self, keys: Iterable[tuple[str, int, str]]) -> None:
        for key in list(keys):
            self._bury([self.variants.pop(key)])

    def _bury(self, names: Iterable[str]) -> None:
        self.roles.update(dict.fromkeys(list(names), "dead"))

    def _waits_for(self, key: Key, attempt: int) -> bool:
        return self.jobs[key].state == State.QUEUED and self.jobs[key].attempt == attempt

    def _is_outdated(self, key: Key) -> bool:
        """Whether nobody works on the version any more, and something newer is served or it failed unserved."""
        state, served = self.jobs[key].state, self.files[key[0]].served
        if state == State.FAILED:
            return key[1] != served
        return state == State.READY and served is not None and key[1] < served

    def _is_failed(self, file: str) -> bool:
        jobs = [job for (of, _), job in self.jobs.items() if of == file]
        return self.files[file].served is None and all(job.state == State.FAILED for job in jobs)
