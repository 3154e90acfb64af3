"""A running stack that faults are done to: the local one, or a deployment of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from bench.chaos.schedule import Fault, Rule


class NotNow(Exception):
    """There is nothing to do this fault to at the moment; the text says what is missing."""


@dataclass(frozen=True)
class Injected:
    """A fault that was done: to what, and how to undo it after its time, where it lasts."""

    what: str
    undo: Callable[[], object] | None = None


class Arena(Protocol):
    @property
    def rules(self) -> Mapping[str, Rule]:
        """The kinds of faults that can be done here."""

    def inject(self, fault: Fault) -> Injected:
        """Do one; NotNow when it cannot be done."""

    def missing(self) -> list[str]:
        """What of the stack does not work at the moment, in words; empty when all does."""
