"""Steps: one file per kind of file, each making one or more variants. How to add one: docs/adding-a-pipeline.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

#: What a step reads that starts from the file as it was sent.
ORIGINAL = "original"


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a step works from: `path` holds what it reads, `content_type` is that file's.

    `language` is the sender's hint, if any. `stop` is asked often; the step then raises `confined.Interrupted`.
    `kept` gives the file of an internal variant that an earlier attempt recorded, or None. `tell` takes how much of the
    step's work is done, from 0 to 1.
    """

    path: Path
    content_type: str
    wanted: frozenset[str]
    scratch: Path
    language: str = ""
    stop: Callable[[], bool] = lambda: False
    kept: Callable[[str], Path | None] = lambda _: None
    tell: Callable[[float], None] = lambda _: None


class SelfTestFailed(Exception):
    """This installation cannot do what the service promises; the message lists what."""


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """What the search is to find: (start_ms, end_ms, text) in order, in that language."""

    language: str | None
    segments: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, kw_only=True)
class Produced:
    """One finished variant in a file of the scratch folder. `facts` are shown to the owner, e.g. width, height.

    An internal one only serves later steps and attempts. What is `spoken` becomes searchable with it.
    """

    variant: str
    path: Path
    content_type: str
    facts: dict[str, Any]
    is_internal: bool = False
    spoken: Spoken | None = None


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step made, and what it learned about the original on the way.

    Each variant is recorded before the next is asked for: a step that works for long makes them one by one.
    """

    produced: Iterable[Produced]
    original_facts: dict[str, Any] = field(default_factory=dict)


class Step(Protocol):
    """Makes the variants named in `makes` from `reads` alone: the original, or a variant of a step before it.

    `is_internal`: its variants only serve later steps, and are not promised. Work that lasts may make other internal
    ones, which `makes` does not name, for `Given.kept` of the next attempt.
    """

    @property
    def name(self) -> str: ...

    @property
    def reads(self) -> str: ...

    @property
    def makes(self) -> tuple[str, ...]: ...

    @property
    def is_internal(self) -> bool: ...

    def run(self, given: Given) -> StepResult:
        """Make exactly the wanted variants, as files in the scratch folder; running it again makes the same.

        Raises AttachmentError for what is wrong with the file and ConfinedError for work that ended without a result;
        of a step that makes them one by one, reading `produced` raises them.
        """
        ...

    def self_test(self, scratch: Path) -> None:
        """Try at start that this installation can do what the step promises; raises an error that says what not."""
        ...
