"""What of the model's output is kept. A model asked to write down noise writes something: these rules know it.

In order: what the model itself doubts twice, by the words and by the voice or the language, nobody said; a phrase that
it repeats without hearing it is kept once; text without a letter or digit is none, and neither are notes about sounds
in brackets; times are whole milliseconds in order. These are rules about any text: no list of phrases would know every
language.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from pipeline.speech.transcript import Segment, Word, clean, finite

#: The library's own thresholds: above the first it would try again, warmer; what is beyond both others it skips.
REPETITIVE_RATIO = 2.4
NO_SPEECH = 0.6
DOUBTFUL_LOGPROB = -1.0

#: The model hears at most so much at once, in what it was given: pauses are taken out before.
HEARD_SECONDS = 30.0
#: Nobody speaks so fast: an auctioneer reaches 25.
CHARACTERS_PER_SECOND = 25.0
#: A phrase so often in a row, in text that repeats itself as a whole, is a loop: a song says its line twice or thrice.
COPIES_IN_A_ROW = 4
#: As many words as tell a repetition from chance.
PHRASE_WORDS = 4

_NOTE = re.compile(r"\[[^\]]*\]|\([^)]*\)|\*[^*]*\*|（[^）]*）|【[^】]*】")


@dataclass(frozen=True, kw_only=True)
class Heard:
    """A word of the model: `text` with the space before it, times in seconds of the window."""

    start: float
    end: float
    text: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Said:
    """A segment of the model. Those of one `decode` were written in one go, and share its numbers."""

    decode: int
    start: float
    end: float
    text: str
    words: tuple[Heard, ...]
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float


def keep(said: Iterable[Said], *, start_ms: int, end_ms: int, is_language_sure: bool) -> tuple[Segment, ...]:
    """The segments that somebody said between `start_ms` and `end_ms`, in order, without overlap."""
    heard = (each for each in said if not _is_invented(each, is_language_sure=is_language_sure))
    kept = [
        each
        for _, decode in groupby(heard, key=lambda each: each.decode)
        for each in _without_loops(list(decode))
        if _is_text(each.text)
    ]
    return tuple(_timed(kept, start_ms, end_ms))


def _is_invented(said: Said, *, is_language_sure: bool) -> bool:
    return said.avg_logprob < DOUBTFUL_LOGPROB and (said.no_speech_prob > NO_SPEECH or not is_language_sure)


def _is_text(text: str) -> bool:
    return any(character.isalnum() for character in _NOTE.sub("", text))


def _without_loops(decode: list[Said]) -> Iterator[Said]:
    """The segments of one decode; of one that loops, without the words of phrases that it has written before."""
    if not is_loop(decode):
        yield from decode
        return
    words = [word for each in decode for word in each.words]
    fresh = iter(_is_fresh([_bare(word.text) for word in words]))
    for each in decode:
        left = tuple(word for word, is_fresh in zip(each.words, fresh, strict=False) if is_fresh)
        yield replace(each, words=left, text="".join(word.text for word in left))


def is_loop(decode: Sequence[Said]) -> bool:
    """Whether a decode repeats itself faster than anybody speaks, or too often in a row."""
    words = [word for each in decode for word in each.words]
    if not words or decode[0].compression_ratio <= REPETITIVE_RATIO:
        return False
    seconds = min(HEARD_SECONDS, words[-1].end - words[0].start)
    characters = sum(len(word.text) for word in words)
    bare = [_bare(word.text) for word in words]
    return characters > CHARACTERS_PER_SECOND * seconds or _copies_in_a_row(bare) >= COPIES_IN_A_ROW


def _copies_in_a_row(words: list[str]) -> int:
    """How often the phrase that is repeated most stands in a row."""
    most = 1
    for length in range(1, len(words) // COPIES_IN_A_ROW + 1):
        run = 0
        for at in range(length, len(words)):
            run = run + 1 if words[at] == words[at - length] else 0
            most = max(most, 1 + run // length)
    return most


def _is_fresh(words: list[str]) -> list[bool]:
    """For each word, whether it stands outside of every phrase that came before."""
    fresh = [True] * len(words)
    seen: set[tuple[str, ...]] = set()
    for at in range(len(words) - PHRASE_WORDS + 1):
        phrase = tuple(words[at : at + PHRASE_WORDS])
        if phrase in seen:
            fresh[at : at + PHRASE_WORDS] = [False] * PHRASE_WORDS
        seen.add(phrase)
    return fresh


def _bare(word: str) -> str:
    return "".join(character for character in word.casefold() if character.isalnum())


def _timed(said: Sequence[Said], start_ms: int, end_ms: int) -> Iterator[Segment]:
    at = start_ms
    for each in said:
        words = tuple(_words(each.words, at, start_ms, end_ms))
        begin = words[0].start_ms if words else _time(each.start, start_ms, at, end_ms)
        at = words[-1].end_ms if words else _time(each.end, start_ms, begin, end_ms)
        yield Segment(
            start_ms=begin,
            end_ms=at,
            text=clean(each.text),
            avg_logprob=_rounded(each.avg_logprob),
            no_speech_prob=_rounded(each.no_speech_prob),
            compression_ratio=_rounded(each.compression_ratio),
            temperature=_rounded(each.temperature),
            words=words,
        )


def _words(heard: Iterable[Heard], at: int, start_ms: int, end_ms: int) -> Iterator[Word]:
    for each in heard:
        begin = _time(each.start, start_ms, at, end_ms)
        at = _time(each.end, start_ms, begin, end_ms)
        if text := clean(each.text):
            yield Word(start_ms=begin, end_ms=at, text=text, probability=_rounded(each.probability))


def _time(seconds: float, start_ms: int, at_least: int, at_most: int) -> int:
    """A time of the window as one of the recording, kept within bounds; `at_least` where it is no number."""
    time_ms = start_ms + round(seconds * 1000) if math.isfinite(seconds) else at_least
    return min(max(at_least, time_ms), at_most)


def _rounded(value: float) -> float | None:
    number = finite(value)
    return None if number is None else round(number, 4)
