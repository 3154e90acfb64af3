"""The life of jobs in any order of claims, crashes, late workers, replays, versions and sweeps, against a model.

After every act the product's answer and all rows must be what the model says, and the laws must hold. Looked for much
longer with `make test ARGS="tests/pipeline/test_lifecycle_model.py --hypothesis-seed=1"`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from pipeline.states import State
from tests.pipeline import laws
from tests.pipeline.conftest import Extent
from tests.pipeline.model import PROMISED, Act, Key, Model
from tests.pipeline.world import ERRORS, World

#: How often each kind of act is tried.
MIX = [*["workers"] * 5, "late_workers", *["people"] * 2, "dispatchers", "time"]
FILES = 3
#: So many of the newest leases and objects of late workers are still in somebody's hands.
LATE = 3


class Life(RuleBasedStateMachine):
    """Whatever can happen to a few files. The model knows what may come next, useful or not."""

    def __init__(self, make_world: Callable[[], World]) -> None:
        super().__init__()
        self.world, self.model, self.rows = make_world(), Model(), laws.read()
        self._names = itertools.count(1)

    @initialize()
    def accept(self) -> None:
        self.both(Act.do("accept", self.new("file")))

    @rule(data=st.data())
    def happen(self, data: st.DataObject) -> None:
        self.both(self.choose(data, MIX))

    def choose(self, data: st.DataObject, mix: Sequence[str]) -> Act:
        """One of the acts of one kind that the model knows to be possible now."""
        acts = {kind: getattr(self, kind)() for kind in sorted(set(mix))}
        kind = data.draw(st.sampled_from([kind for kind in mix if acts[kind]]))
        act: Act = data.draw(st.sampled_from(acts[kind]))
        return act

    def workers(self) -> list[Act]:
        """A message of a job that waits; all that the holder of a lease does, and all that can befall it."""
        waiting = [key for key, job in self.model.jobs.items() if job.state == State.QUEUED]
        held = [job.holder for job in self.model.jobs.values() if job.holder]
        return [*(self.take(key) for key in waiting), *(act for lease in held for act in self.with_lease(lease))]

    def late_workers(self) -> list[Act]:
        """Duplicates of messages, old and new, and workers who never heard that their lease ran out."""
        lost = [lease for lease in self.model.leases if not self.model.holds(lease)][-LATE:]
        return [
            *(self.take(key, off=off) for key in self.model.jobs for off in (-1, 0, 1)),
            *(act for lease in lost for act in self.with_lease(lease)),
        ]

    def with_lease(self, lease: str) -> list[Act]:
        key = self.model.leases[lease].key
        missing, promised = sorted(self.model.missing(key)), sorted(PROMISED[key[1]])
        mine = [name for name, stored in self.model.stored.items() if stored.lease == lease]
        return [
            *(Act.do("record", name) for name in mine[-LATE:]),
            *(Act.do("store", self.new("object"), lease=lease, variant=variant) for variant in promised),
            *[Act.do("work", lease, made=tuple((self.new("object"), variant) for variant in missing))] * 4,
            *(Act.do(act, lease) for act in ("complete", "renew", "end_slice", "take_again")),
            *(Act.do("settle", lease, error=error, is_patient=False) for error in ERRORS),
            *[Act.do("settle", lease, error="storage_away", is_patient=False)]
            * (3 if self.model.jobs[key].outage else 1),
            Act.do("settle", lease, error="internal_error", is_patient=True),
        ]

    def people(self) -> list[Act]:
        jobs, files = self.model.jobs, self.model.files
        return [
            *(Act.do("replay", key, attempt=job.attempt) for key, job in jobs.items()),
            *(Act.do("replay", key, attempt=job.attempt) for key, job in jobs.items() if job.state == State.FAILED),
            *(Act.do("replay", key, attempt=job.attempt - 1) for key, job in jobs.items() if job.state == State.FAILED),
            *(Act.do("repair", key, variants=("crop", "preview")) for key in jobs),
            *(Act.do("repair", key, variants=tuple(sorted(PROMISED[key[1]]))) for key in jobs),
            *(Act.do("reprocess", file, version=version + 1) for file in files for version in range(self.model.newest)),
            *(Act.do(act, file) for act in ("cancel", "delete") for file in files),
            *[Act.do("accept", self.new("file"))] * (len(files) < FILES),
            *[Act.do("upgrade")] * (self.model.newest < max(PROMISED)),
        ]

    def dispatchers(self) -> list[Act]:
        is_expired = any(job.is_expired for job in self.model.jobs.values())
        acts = ("age", "sweep", "relay", "redispatch", "recover", *["recover"] * 3 * is_expired)
        return [Act.do(act) for act in acts]

    def time(self) -> list[Act]:
        jobs = self.model.jobs.items()
        return [
            *(Act.do("expire", key) for key, job in jobs if job.state == State.PROCESSING),
            *(Act.do("wait", key) for key, job in jobs if not job.is_due),
            *(Act.do("outlast", key) for key, job in jobs if job.outage == "young"),
        ]

    def take(self, key: Key, *, off: int = 0) -> Act:
        attempt = max(1, self.model.jobs[key].attempt + off)
        return Act.do("take", key, attempt=attempt, lease=self.new("lease"))

    def new(self, what: str) -> str:
        return f"{what}{next(self._names)}"

    def both(self, act: Act) -> None:
        """Do it, and ask the model: both must say the same and come to the same."""
        word = self.world.do(act)
        after = laws.read()
        laws.check(self.rows, after)
        told = self.world.view(after)
        assert word == self.model.do(act, told=told)
        assert told == self.model.view()
        self.rows = after


@pytest.mark.timeout(3600)
def test_whatever_happens_to_a_job_the_model_foresaw(make_world: Callable[[], World], extent: Extent) -> None:
    """[attachments] каждый переход; [transcription] захват, истечение, попытки, «мертва», только держатель пишет."""

    class Here(Life):
        def __init__(self) -> None:
            super().__init__(make_world)

    run_state_machine_as_test(Here, settings=extent(20, 30))
