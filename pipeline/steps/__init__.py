"""Steps: one file per kind of file, each making one or more variants. How to add one: docs/adding-a-pipeline.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Produced:
    """One finished variant in a file of the scratch folder. `facts` are shown to the owner, e.g. width, height."""

    variant: str
    path: Path
    content_type: str
    facts: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step made, and what it learned about the original on the way."""

    produced: tuple[Produced, ...]
    original_facts: dict[str, Any]


class Step(Protocol):
    """Makes the variants named in `makes`, from the original alone."""

    @property
    def name(self) -> str: ...

    @property
    def makes(self) -> tuple[str, ...]: ...

    def run(
        self,
        original: Path,
        *,
        content_type: str,
        wanted: frozenset[str],
        scratch: Path,
        stop: Callable[[], bool] | None = None,
    ) -> StepResult:
        """Make exactly the `wanted` variants, as files in `scratch`; running it again makes the same.

        `content_type` is the type detected from the bytes. `stop` is asked often; the step then raises
        `confined.Interrupted`. Raises AttachmentError for what is wrong with the file and ConfinedError for
        work that ended without a result.
        """
        ...

    def self_test(self, scratch: Path) -> None:
        """Try at start that this installation can do what the step promises; raises an error that says what not."""
        ...
