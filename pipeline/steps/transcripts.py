"""A transcript in the formats that people and players read, all from the one canonical record.

| variant | made                                                 |
|---------|------------------------------------------------------|
| `text`  | plain text, a paragraph a line                       |
| `srt`   | SubRip subtitles                                     |
| `vtt`   | WebVTT subtitles                                     |
| `json`  | segments and words, by the names of verbose_json     |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipeline.speech import writers
from pipeline.speech.transcript import Transcript
from pipeline.steps import Given, Produced, StepResult

#: (content type, writer) by variant.
FORMATS: dict[str, tuple[str, Callable[[Transcript], bytes]]] = {
    "text": ("text/plain; charset=utf-8", writers.text),
    "srt": ("application/x-subrip", writers.srt),
    "vtt": ("text/vtt; charset=utf-8", writers.vtt),
    "json": ("application/json", writers.verbose_json),
}


@dataclass(frozen=True)
class WriteStep:
    name: ClassVar[str] = "write"
    reads: ClassVar[str] = "transcript"
    is_internal: ClassVar[bool] = False
    makes: ClassVar[tuple[str, ...]] = tuple(FORMATS)

    def run(self, given: Given) -> StepResult:
        transcript = Transcript.from_json(given.path.read_bytes())
        return StepResult(
            produced=tuple(
                _written(variant, transcript, given.scratch) for variant in self.makes if variant in given.wanted
            )
        )

    def self_test(self, scratch: Path) -> None:
        """Nothing of it depends on the installation."""


def _written(variant: str, transcript: Transcript, scratch: Path) -> Produced:
    content_type, write = FORMATS[variant]
    path = scratch / f"transcript.{variant}"
    path.write_bytes(write(transcript))
    return Produced(variant=variant, path=path, content_type=content_type, facts={})
