"""The record that every format is written from: strict, ordered, and fit for JSON and PostgreSQL."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from pipeline.speech.transcript import NotATranscript, Transcript, Window, Word, merge
from tests.pipeline.speech.records import segment, transcript, window


def test_what_was_written_is_read_back_the_same() -> None:
    spoken = transcript(segment("Ask not what", 500, 2000), segment("“Привет”, мир 你好", 2000, 3100))
    assert Transcript.from_json(spoken.to_json()) == spoken
    part = window(300_000, 400_000, segment("Ask", 300_001, 300_500), language="en", probability=0.5)
    assert Window.from_json(part.to_json()) == part


def test_the_json_has_exactly_the_names_that_readers_know() -> None:
    document = json.loads(transcript(segment("Ask")).to_json())
    assert list(document) == [
        "schema_version",
        "language",
        "language_probability",
        "duration_ms",
        "no_speech",
        "model",
        "segments",
    ]
    assert sorted(document["segments"][0]) == sorted(
        ["start_ms", "end_ms", "text", "avg_logprob", "no_speech_prob", "compression_ratio", "temperature", "words"]
    )
    assert list(document["segments"][0]["words"][0]) == ["start_ms", "end_ms", "text", "probability"]


def test_neither_nan_nor_nul_nor_half_a_surrogate_is_written() -> None:
    word = Word(start_ms=0, end_ms=10, text="a\0b\ud800", probability=math.nan)
    odd = segment("a\0b\ud800\x1b\n c", avg_logprob=-math.inf, no_speech_prob=math.nan, words=(word,))
    written = transcript(odd).to_json()
    document = json.loads(written, parse_constant=pytest.fail)
    [said] = document["segments"]
    assert said["text"] == "a b c" and said["words"][0]["text"] == "a b"
    assert said["avg_logprob"] is said["no_speech_prob"] is said["words"][0]["probability"] is None
    assert b"\\u0000" not in written


def broken(**changes: Any) -> bytes:
    document = json.loads(transcript(segment("Ask not")).to_json()) | changes
    return json.dumps({name: value for name, value in document.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        broken(schema_version=2),
        broken(model=...),
        broken(model=None),
        broken(extra=1),
        broken(segments=[{"text": "secret"}]),
        broken(segments=None),
        broken(language=7),
        broken(duration_ms=999),
        broken(duration_ms=1000.5),
        broken(no_speech=True),
        broken(language_probability=math.nan),
    ],
)
def test_a_record_that_no_release_writes_is_refused_without_quoting_it(data: bytes) -> None:
    with pytest.raises(NotATranscript) as caught:
        Transcript.from_json(data)
    assert ("secret" not in str(caught.value) and caught.value.__cause__ is None) or b"secret" not in data


@pytest.mark.parametrize(
    "segments",
    [
        (segment("late", 2000, 3000), segment("early", 0, 1000)),
        (segment("one", 0, 2000), segment("overlapping", 1999, 3000)),
    ],
)
def test_times_out_of_order_are_no_transcript(segments: Any) -> None:
    with pytest.raises(NotATranscript, match="order"):
        transcript(*segments)
    with pytest.raises(NotATranscript, match="order"):
        replace(segment("Ask", 100, 200), start_ms=150)


def test_windows_become_one_transcript_with_the_language_that_was_spoken_longest() -> None:
    whole = merge(
        [
            window(0, 300_000, segment("hello", 0, 9_000), language="en", probability=0.5),
            window(300_000, 600_000, segment("hello again", 300_000, 303_000), language="en", probability=0.9),
            window(600_000, 900_000),
            window(900_000, 1_000_000, segment("привет", 900_000, 911_000), language="ru", probability=1.0),
        ],
        model="base",
    )
    assert [each.text for each in whole.segments] == ["hello", "hello again", "привет"]
    assert (whole.language, whole.language_probability, whole.duration_ms) == ("en", 0.6, 1_000_000)


def test_silent_windows_become_a_transcript_without_speech_and_language() -> None:
    whole = merge([window(0, 300_000), window(300_000, 300_007)], model="base")
    assert (whole.no_speech, whole.language, whole.language_probability) == (True, None, None)


@pytest.mark.parametrize(
    "windows", [[], [window(5, 10)], [window(0, 10), window(11, 20)], [window(0, 9), window(8, 20)]]
)
def test_windows_with_a_gap_or_an_overlap_are_no_transcript(windows: list[Window]) -> None:
    with pytest.raises(NotATranscript, match="gap"):
        merge(windows, model="base")
