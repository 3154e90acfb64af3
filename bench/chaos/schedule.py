"""Which fault comes when: a pure function of the seed, so that a run can be repeated."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

#: Limits are told for a run of this length, and scaled to the actual one.
LIMIT_SECONDS = 300.0
#: So many kinds are tried in the place of one that finds no victim.
STANDINS = 4


@dataclass(frozen=True)
class Rule:
    """How often a kind of fault comes: its share by `weight`, at most `limit` times in five minutes; and for how long
    it lasts, from and to `seconds`, where it is one that ends."""

    weight: float
    limit: int | None = None
    seconds: tuple[float, float] = (0.0, 0.0)

    def limit_in(self, seconds: float) -> float:
        """The limit in a run of so many seconds: at least one, however short it is."""
        return float("inf") if self.limit is None else max(1, int(self.limit * seconds / LIMIT_SECONDS))


@dataclass(frozen=True)
class Fault:
    """One fault: seconds from the start, its kind, a number in [0, 1) that chooses its victim, and its length.

    Where it finds no victim, the kinds of `otherwise` are tried in its place.
    """

    number: int
    at: float
    kind: str
    otherwise: tuple[str, ...]
    draw: float
    seconds: float


def schedule(seed: int, *, seconds: float, rules: Mapping[str, Rule], per_minute: float) -> tuple[Fault, ...]:
    """The faults of a run in their order, spread evenly over it; the same for the same arguments."""
    chance = random.Random(seed)
    count = max(1, round(per_minute * seconds / 60))
    step = seconds / count
    # What lasts, or may not come often, takes nobody's place.
    quick = {name: rule for name, rule in rules.items() if rule.limit is None and not rule.seconds[1]}
    used: Counter[str] = Counter()
    faults = []
    for number in range(count):
        # Every number is drawn for every fault, so that one rule more or less moves no other fault in time.
        moment, draw, share, which, *others = (chance.random() for _ in range(4 + STANDINS))
        kind = _choose(which, {name: rule for name, rule in rules.items() if used[name] < rule.limit_in(seconds)})
        if kind is None:
            break
        used[kind] += 1
        shortest, longest = rules[kind].seconds
        lasts = shortest + share * (longest - shortest)
        otherwise = tuple(_choose(other, quick) or kind for other in others)
        faults.append(Fault(number, (number + moment) * step, kind, otherwise, draw, lasts))
    return tuple(faults)


def _choose(which: float, rules: Mapping[str, Rule]) -> str | None:
    place = which * sum(rule.weight for rule in rules.values())
    for name, rule in rules.items():
        place -= rule.weight
        if place < 0:
            return name
    return None
