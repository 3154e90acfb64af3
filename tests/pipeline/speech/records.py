"""Segments and transcripts made up for tests."""

from __future__ import annotations

from typing import Any

from pipeline.speech.transcript import Segment, Transcript, Window, Word


def segment(text: str, start_ms: int = 0, end_ms: int = 1000, **fields: Any) -> Segment:
    """A segment whose words share its time evenly."""
    spelled = text.split()
    share = (end_ms - start_ms) / max(1, len(spelled))
    words = tuple(
        Word(
            start_ms=round(start_ms + at * share),
            end_ms=round(start_ms + (at + 1) * share),
            text=word,
            probability=0.9,
        )
        for at, word in enumerate(spelled)
    )
    numbers = {"avg_logprob": -0.3, "no_speech_prob": 0.01, "compression_ratio": 1.2, "temperature": 0.0}
    return Segment(start_ms=start_ms, end_ms=end_ms, text=text, **{**numbers, "words": words, **fields})


def window(start_ms: int, end_ms: int, *segments: Segment, language: str | None = None, **fields: Any) -> Window:
    return Window(
        start_ms=start_ms,
        end_ms=end_ms,
        language=language,
        language_probability=fields.pop("probability", None),
        segments=segments,
    )


def transcript(*segments: Segment, language: str | None = "en") -> Transcript:
    return Transcript(
        language=language if segments else None,
        language_probability=0.98 if segments else None,
        duration_ms=segments[-1].end_ms if segments else 30_000,
        no_speech=not segments,
        model="base",
        segments=segments,
    )
