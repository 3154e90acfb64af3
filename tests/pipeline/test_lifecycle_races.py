"""Two acts at the same time, from any state that a job can come to: whatever the order of their statements.

One act is stopped before any one of its statements, the other goes as far as it can meanwhile. Together they must come
to what one after the other would have come to, no deadlock may end either, and the laws must hold. Looked for much
longer with `make test ARGS="tests/pipeline/test_lifecycle_races.py --hypothesis-seed=1"`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from pipeline.states import State
from tests.pipeline import laws
from tests.pipeline.conftest import Extent
from tests.pipeline.interleaving import Pair
from tests.pipeline.model import Act, Model, View
from tests.pipeline.test_lifecycle_model import Life
from tests.pipeline.world import World

#: More than any act has statements and commits, but for a sweep with much to do.
STATEMENTS = 24
RACED = ["holders", "holders", "losers", "persons", "persons", "recovery", "retention"]


class Races(Life):
    """What workers, the dispatcher and people do, each against each."""

    def __init__(self, make_world: Callable[[], World], pair: Pair) -> None:
        super().__init__(make_world)
        self.pair = pair

    @rule(data=st.data(), stop_before=st.integers(1, STATEMENTS))
    def race(self, data: st.DataObject, stop_before: int) -> None:
        first, second = self.choose(data, RACED), self.choose(data, RACED)
        self._let_time_pass(first, second)
        words = self.pair.run(lambda: self.world.do(first), lambda: self.world.do(second), stop_before=stop_before)
        after = laws.read()
        laws.check(self.rows, after)
        self.model = self._explain(first, second, words, after)
        self.rows = after

    def raced(self, acts: list[Act]) -> list[Act]:
        """To work is many acts in a row, to store is none that could meet another, and an upgrade is no act of ours."""
        return [act for act in acts if act.name not in {"work", "store", "upgrade"}]

    def holders(self) -> list[Act]:
        return self.raced(self.workers())

    def losers(self) -> list[Act]:
        return self.raced(self.late_workers())

    def persons(self) -> list[Act]:
        return self.raced(self.people())

    def recovery(self) -> list[Act]:
        return [Act.do("recover"), Act.do("redispatch")]

    def retention(self) -> list[Act]:
        return [Act.do("sweep")]

    def _let_time_pass(self, *acts: Act) -> None:
        if Act.do("recover") in acts:
            for key, job in self.model.jobs.items():
                if job.state == State.PROCESSING:
                    self.both(Act.do("expire", key))
        if Act.do("sweep") in acts:
            self.both(Act.do("age"))

    def _explain(self, first: Act, second: Act, words: tuple[str, str], after: laws.Snapshot) -> Model:
        """The model after one of the two orders: the one that comes to what happened."""
        told = self.world.view(after)
        foreseen = []
        for order in (0, 1), (1, 0):
            model, said = copy.deepcopy(self.model), ["", ""]
            for number in order:
                said[number] = model.do((first, second)[number], told=told)
            if _surely(said) == _surely(words) and model.view() == told:
                return model
            foreseen.append((said, difference(told, model.view())))
        raise AssertionError((first, second, words, foreseen))


def _surely(words: Iterable[str]) -> list[str]:
    """Why nothing was taken is a hint, as of a moment later: the row may have moved on since."""
    return ["not taken" if word in {"leased", "finished", "stale", "not_due"} else word for word in words]


def difference(told: View, foreseen: View) -> View:
    return {
        part: {key: (told[part].get(key), row) for key, row in rows.items() if told[part].get(key) != row}
        for part, rows in foreseen.items()
    }


@pytest.fixture
def pair() -> Iterator[Pair]:
    threads = Pair()
    yield threads
    threads.close()


@pytest.mark.timeout(3600)
def test_of_two_acts_at_once_one_comes_first(make_world: Callable[[], World], pair: Pair, extent: Extent) -> None:
    """[attachments] конкурентные попытки; [transcription] неделимость захвата: on real connections."""

    class Here(Races):
        def __init__(self) -> None:
            super().__init__(make_world, pair)

    run_state_machine_as_test(Here, settings=extent(10, 20))
