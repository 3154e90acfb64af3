"""The faults of a run are a pure function of its seed, and keep their limits."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bench.chaos.__main__ import FAULTS_PER_MINUTE
from bench.chaos.faults import KINDS
from bench.chaos.schedule import Fault, Rule, schedule

RULES = {name: rule for name, (rule, _) in KINDS.items()}
SEEDS = st.integers(min_value=0, max_value=2**31)


def faults(seed: int, seconds: float = 300.0) -> tuple[Fault, ...]:
    return schedule(seed, seconds=seconds, rules=RULES, per_minute=FAULTS_PER_MINUTE)


@given(SEEDS)
def test_the_same_seed_gives_the_same_faults_and_another_one_others(seed: int) -> None:
    assert faults(seed) == faults(seed)
    assert faults(seed) != faults(seed + 1)


def test_a_seed_means_the_same_on_every_machine() -> None:
    rules = {"kill": Rule(3), "freeze": Rule(1, limit=1, seconds=(2.0, 4.0))}
    told = [(fault.kind, round(fault.at, 2)) for fault in schedule(7, seconds=60, rules=rules, per_minute=4)]
    assert told == [("kill", 4.86), ("kill", 15.56), ("kill", 39.41), ("freeze", 47.16)]


@given(SEEDS)
def test_a_run_of_five_minutes_has_its_150_faults_about_half_of_them_killed_processes(seed: int) -> None:
    """A tenth may find no victim."""
    kinds = Counter(fault.kind for fault in faults(seed))
    assert kinds.total() * 0.9 >= 150
    assert sum(count for kind, count in kinds.items() if kind.startswith("kill ")) > kinds.total() * 0.45


@given(SEEDS, st.sampled_from([10.0, 60.0, 300.0, 900.0]))
def test_limits_are_kept_and_scaled_with_the_length(seed: int, seconds: float) -> None:
    kinds = Counter(fault.kind for fault in faults(seed, seconds))
    assert kinds["restart broker"] <= max(1, 6 * seconds / 300)
    assert kinds["restart database"] <= max(1, 4 * seconds / 300)


@given(SEEDS, st.floats(min_value=1, max_value=600))
def test_faults_come_in_order_within_the_run_and_last_as_long_as_they_may(seed: int, seconds: float) -> None:
    told = faults(seed, seconds)
    moments = [fault.at for fault in told]
    assert moments == sorted(moments)
    assert moments[0] >= 0 and moments[-1] <= seconds
    for fault in told:
        shortest, longest = RULES[fault.kind].seconds
        assert shortest <= fault.seconds <= longest


def test_a_kind_that_has_reached_its_limit_leaves_its_place_to_the_others() -> None:
    rules = {"rare": Rule(1000, limit=2), "common": Rule(1)}
    kinds = Counter(fault.kind for fault in schedule(1, seconds=300, rules=rules, per_minute=10))
    assert kinds == {"rare": 2, "common": 48}
