"""A transcript as plain text, as subtitles (SRT, WebVTT), and as JSON with the names of OpenAI's verbose_json.

Silence gives a valid file in each: no text, no cues, no segments.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.speech.transcript import Segment, Transcript, Word, clean, finite

#: A pause that ends a paragraph of the text.
PARAGRAPH_PAUSE_MS = 2_000

#: What is read with ease: two lines of this width, for so long; a pause within a segment parts cues.
LINE_LENGTH = 42
CUE_LENGTH = 2 * LINE_LENGTH
CUE_MS = 7_000
CUE_PAUSE_MS = 1_000

_SENTENCE_END = re.compile(r"[.!?…。！？]['\"”’»)]*$")
#: What players take for markup in SRT, which has no escapes: a tag's or an override's beginning.
_MARKUP = re.compile(r"<(?=[A-Za-z/])|\{(?=\\)")
#: Languages written without spaces between words.
_UNSPACED = frozenset({"zh", "yue", "ja", "th", "lo", "my", "km", "bo"})


@dataclass(frozen=True)
class Cue:
    """Text for the screen, from `start_ms` to `end_ms`."""

    start_ms: int
    end_ms: int
    text: str


def text(transcript: Transcript) -> bytes:
    """A paragraph on a line of its own, ended by a pause; nothing for silence."""
    space = "" if transcript.language in _UNSPACED else " "
    paragraphs = [space.join(clean(each.text) for each in part) for part in _paragraphs(transcript.segments)]
    return "".join(f"{paragraph}\n" for paragraph in paragraphs).encode()


def srt(transcript: Transcript) -> bytes:
    blocks = [
        f"{number}\n{_clock(cue.start_ms, ',')} --> {_clock(cue.end_ms, ',')}\n{_srt_lines(cue.text)}\n"
        for number, cue in enumerate(cues(transcript), start=1)
    ]
    return "\n".join(blocks).encode()


def vtt(transcript: Transcript) -> bytes:
    blocks = [
        f"{_clock(cue.start_ms, '.')} --> {_clock(cue.end_ms, '.')}\n{_vtt_lines(cue.text)}\n"
        for cue in cues(transcript)
    ]
    return "\n".join(["WEBVTT\n", *blocks]).encode()


def verbose_json(transcript: Transcript) -> bytes:
    """Times in seconds. `language` is a code such as "en", null for silence; no tokens are kept."""
    segments = [_verbose_segment(number, each) for number, each in enumerate(transcript.segments)]
    document = {
        "task": "transcribe",
        "language": transcript.language,
        "duration": transcript.duration_ms / 1000,
        "text": clean(text(transcript).decode()),
        "segments": segments,
        "words": [_verbose_word(word) for each in transcript.segments for word in each.words],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1).encode()


def cues(transcript: Transcript) -> list[Cue]:
    """The transcript in pieces of readable length, in order, each for at least a millisecond."""
    return [cue for segment in transcript.segments for cue in _split(segment)]


def _paragraphs(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    paragraph: list[Segment] = []
    for segment in segments:
        if paragraph and segment.start_ms - paragraph[-1].end_ms >= PARAGRAPH_PAUSE_MS:
            yield paragraph
            paragraph = []
        paragraph.append(segment)
    if paragraph:
        yield paragraph


def _split(segment: Segment) -> Iterator[Cue]:
    """Cut a segment between words, by their times; one whose words are not known stays whole."""
    pieces = list(_spelled(segment))
    if not pieces:
        yield _cue(segment.start_ms, segment.end_ms, segment.text)
    held: list[tuple[Word, str]] = []
    for piece in pieces:
        if held and _must_part(held, piece):
            yield _joined(held)
            held = []
        held.append(piece)
    if held:
        yield _joined(held)


def _spelled(segment: Segment) -> Iterator[tuple[Word, str]]:
    """Each word with all that stands before it since the word before, as the segment's text has it."""
    at = 0
    for number, word in enumerate(segment.words, start=1):
        found = segment.text.find(word.text, at)
        end = found + len(word.text) if found >= 0 else at
        if number == len(segment.words):
            end = len(segment.text)
        yield word, segment.text[at:end]
        at = end


def _must_part(held: list[tuple[Word, str]], following: tuple[Word, str]) -> bool:
    first, (last, _), (word, spelled) = held[0][0], held[-1], following
    length = sum(len(each) for _, each in held)
    return (
        length + len(spelled) > CUE_LENGTH
        or len(_wrap("".join(each for _, each in [*held, following]))) > 2
        or word.end_ms - first.start_ms > CUE_MS
        or word.start_ms - last.end_ms > CUE_PAUSE_MS
        or (length > LINE_LENGTH and bool(_SENTENCE_END.search(last.text)))
    )


def _joined(held: list[tuple[Word, str]]) -> Cue:
    return _cue(held[0][0].start_ms, held[-1][0].end_ms, "".join(spelled for _, spelled in held))


def _cue(start_ms: int, end_ms: int, text: str) -> Cue:
    return Cue(start_ms, max(end_ms, start_ms + 1), clean(text))


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, LINE_LENGTH, break_on_hyphens=False)


def _srt_lines(text: str) -> str:
    return _MARKUP.sub(r"\g<0> ", "\n".join(_wrap(text)).replace("-->", "→"))


def _vtt_lines(text: str) -> str:
    return "\n".join(_wrap(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clock(time_ms: int, mark: str) -> str:
    seconds, milliseconds = divmod(time_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{mark}{milliseconds:03}"


def _verbose_segment(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": number,
        # Hundredths of a second, the model's frames.
        "seek": segment.start_ms // 10,
        "start": segment.start_ms / 1000,
        "end": segment.end_ms / 1000,
        "text": clean(segment.text),
        "tokens": [],
        "temperature": finite(segment.temperature),
        "avg_logprob": finite(segment.avg_logprob),
        "compression_ratio": finite(segment.compression_ratio),
        "no_speech_prob": finite(segment.no_speech_prob),
    }


def _verbose_word(word: Word) -> dict[str, Any]:
    return {"word": clean(word.text), "start": word.start_ms / 1000, "end": word.end_ms / 1000}
