"""Pictures that are taken for recordings, in which one sentence is said; `loud_app` works on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipeline.registry import Pipeline
from pipeline.steps import ORIGINAL, Given, Produced, StepResult

#: Nobody else says it, so wherever it is found it leaked.
SENTENCE = "The canary sleeps under the blue staircase."


@dataclass(frozen=True)
class HearStep:
    name: ClassVar[str] = "hear"
    reads: ClassVar[str] = ORIGINAL
    is_internal: ClassVar[bool] = False
    makes: ClassVar[tuple[str, ...]] = ("text", "srt")

    def run(self, given: Given) -> StepResult:
        return StepResult(produced=tuple(self._made(variant, given.scratch) for variant in sorted(given.wanted)))

    def self_test(self, scratch: Path) -> None: ...

    def _made(self, variant: str, scratch: Path) -> Produced:
        path = scratch / variant
        path.write_text(SENTENCE)
        return Produced(variant=variant, path=path, content_type="text/plain", facts={})


HEARD = Pipeline(name="speech", version=1, queue="images", steps=(HearStep(),))
BY_FAMILY = {"image": "speech"}
