"""The canonical record of what was said, from which every format is written, and the records of its windows.

Times are whole milliseconds from the start of the recording. What is in memory is always in order and within its
bounds; what is written is always JSON that PostgreSQL takes: no NaN, no infinity, no control characters.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

SCHEMA_VERSION = 1

#: Control characters (NUL among them) and halves of surrogate pairs: no text is made of them.
_NOT_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


class NotATranscript(ValueError):
    """The record is not one that this release writes; the message names the rule, never the text."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """`text` without the spaces around it; `probability` 0…1, None where the model gave no number."""

    start_ms: int
    end_ms: int
    text: str
    probability: float | None


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A sentence or a piece of one, with the numbers by which the model judges it (None where it gave none)."""

    start_ms: int
    end_ms: int
    text: str
    avg_logprob: float | None
    no_speech_prob: float | None
    compression_ratio: float | None
    temperature: float | None
    words: tuple[Word, ...]

    def __post_init__(self) -> None:
        _check_order(self.words, self.start_ms, self.end_ms)


@dataclass(frozen=True, kw_only=True)
class Window:
    """What was said in a part of a recording. `language` is None where nothing was; `language_probability` is None
    there too, and where the language was not detected but given."""

    start_ms: int
    end_ms: int
    language: str | None
    language_probability: float | None
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        _check_order(self.segments, self.start_ms, self.end_ms)

    def to_json(self) -> bytes:
        return _dump(asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> Window:
        """Raises NotATranscript."""
        return _build(cls, _load(data))


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """What was said in a whole recording; `model` names what heard it, `no_speech` says that nothing was said."""

    language: str | None
    language_probability: float | None
    duration_ms: int
    no_speech: bool
    model: str
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        _check_order(self.segments, 0, self.duration_ms)
        if self.no_speech != (not self.segments) or (self.no_speech and self.language is not None):
            raise NotATranscript("silence has neither segments nor a language, and speech has segments")

    def to_json(self) -> bytes:
        return _dump(asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> Transcript:
        """Raises NotATranscript."""
        return _build(cls, _load(data))

    def said(self) -> tuple[tuple[int, int, str], ...]:
        """(start_ms, end_ms, text) of each segment."""
        return tuple((each.start_ms, each.end_ms, each.text) for each in self.segments)


Record = TypeVar("Record", Window, Transcript)

_NUMBER = float | int | None
#: All other fields are numbers.
_TYPES: dict[str, Any] = {"text": str, "model": str, "language": str | None, "no_speech": bool}


def merge(windows: Sequence[Window], *, model: str) -> Transcript:
    """The transcript of a recording from all its windows, in order and without a gap; else NotATranscript.

    Its language is the one spoken longest, its probability that of the windows in it, weighed by time.
    """
    borders = [0, *(window.end_ms for window in windows)]
    if not windows or borders[:-1] != [window.start_ms for window in windows]:
        raise NotATranscript("the windows do not cover the recording from its start without a gap")
    segments = tuple(segment for window in windows for segment in window.segments)
    language = _longest_spoken(windows) if segments else None
    return Transcript(
        language=language,
        language_probability=_mean_probability([one for one in windows if one.language == language and one.segments]),
        duration_ms=borders[-1],
        no_speech=not segments,
        model=model,
        segments=segments,
    )


def clean(text: str) -> str:
    """The text on one line, without control characters, half surrogates, or spaces at its ends."""
    return " ".join(_NOT_TEXT.sub(" ", text).split())


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _check_order(parts: Sequence[Word | Segment], start_ms: int, end_ms: int) -> None:
    times = [start_ms, *(time for part in parts for time in (part.start_ms, part.end_ms)), end_ms]
    if not all(type(time) is int for time in times):
        raise NotATranscript("times are whole milliseconds")
    if times[0] < 0 or any(before > after for before, after in pairwise(times)):
        raise NotATranscript("times are out of order or out of bounds")


def _longest_spoken(windows: Sequence[Window]) -> str | None:
    spoken: dict[str | None, int] = defaultdict(int)
    for window in windows:
        spoken[window.language] += _spoken_ms(window)
    return max(spoken, key=lambda language: spoken[language])


def _mean_probability(windows: Sequence[Window]) -> float | None:
    known = [
        (one.language_probability, _spoken_ms(one) or 1) for one in windows if one.language_probability is not None
    ]
    weight = sum(spoken for _, spoken in known)
    return round(sum(probability * spoken for probability, spoken in known) / weight, 4) if weight else None


def _spoken_ms(window: Window) -> int:
    return sum(segment.end_ms - segment.start_ms for segment in window.segments)


def _dump(record: dict[str, Any]) -> bytes:
    document = _written({"schema_version": SCHEMA_VERSION, **record})
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _written(value: Any) -> Any:
    match value:
        case dict():
            return {key: _written(each) for key, each in value.items()}
        case list() | tuple():
            return [_written(each) for each in value]
        case float():
            return finite(value)
        case str():
            return clean(value)
    return value


def _load(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data, parse_constant=_refuse_constant)
    except ValueError:
        # Without its cause, which holds the record, here and below.
        raise NotATranscript("the record is not JSON") from None
    if not isinstance(document, dict) or document.pop("schema_version", None) != SCHEMA_VERSION:
        raise NotATranscript(f"the record is not of schema version {SCHEMA_VERSION}")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _build(kind: type[Record], document: dict[str, Any]) -> Record:
    try:
        segments = tuple(_segment(each) for each in document.pop("segments"))
        return kind(segments=segments, **_typed(document))
    except NotATranscript:
        raise
    except (AttributeError, KeyError, TypeError):
        raise NotATranscript("the record lacks a field, has one too many, or one of another type") from None


def _segment(document: dict[str, Any]) -> Segment:
    words = tuple(Word(**_typed(each)) for each in document.pop("words"))
    return Segment(words=words, **_typed(document))


def _typed(document: dict[str, Any]) -> dict[str, Any]:
    for name, value in document.items():
        if not isinstance(value, _TYPES.get(name, _NUMBER)):
            raise TypeError(name)
    return document
