"""Text, subtitles and JSON from one record: readable, escaped, and valid for silence too."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise

import pytest

from pipeline.speech import writers
from tests.pipeline.speech.records import segment, transcript

SILENCE = transcript()
CLOCK = r"(\d\d):(\d\d):(\d\d)[.,](\d{3})"


def test_silence_gives_a_valid_empty_file_in_every_format() -> None:
    assert writers.text(SILENCE) == b""
    assert writers.srt(SILENCE) == b""
    assert writers.vtt(SILENCE) == b"WEBVTT\n"
    assert json.loads(writers.verbose_json(SILENCE)) == {
        "task": "transcribe",
        "language": None,
        "duration": 30.0,
        "text": "",
        "segments": [],
        "words": [],
    }


def test_text_is_written_in_paragraphs_parted_by_pauses() -> None:
    said = [segment("One.", 0, 1000), segment("Two.", 2999, 4000), segment("Three.", 6000, 7000)]
    assert writers.text(transcript(*said)) == b"One. Two.\nThree.\n"
    assert writers.text(transcript(*said, language="ja")) == b"One.Two.\nThree.\n"


def test_subtitles_are_numbered_and_timed_as_their_formats_ask() -> None:
    said = transcript(segment("One.", 0, 1000), segment("Two.", 3_723_004, 3_725_000))
    assert writers.srt(said).decode() == (
        "1\n00:00:00,000 --> 00:00:01,000\nOne.\n\n2\n01:02:03,004 --> 01:02:05,000\nTwo.\n"
    )
    assert writers.vtt(said).decode() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nOne.\n\n01:02:03.004 --> 01:02:05.000\nTwo.\n"
    )


@pytest.mark.parametrize(
    ("spoken", "in_srt", "in_vtt"),
    [
        ("a --> b", "a → b", "a --&gt; b"),
        ("R&D <b>is</b> 1 < 2", "R&D < b>is< /b> 1 < 2", "R&amp;D &lt;b&gt;is&lt;/b&gt; 1 &lt; 2"),
        (r"{\an8} up", r"{ \an8} up", r"{\an8} up"),
        ("one\r\n\r\n2\ntwo\0", "one 2 two", "one 2 two"),
    ],
)
def test_speech_is_never_taken_for_markup_or_for_another_cue(spoken: str, in_srt: str, in_vtt: str) -> None:
    said = transcript(segment(spoken, words=()))
    assert writers.srt(said).decode().split("\n", 2)[2] == f"{in_srt}\n"
    assert writers.vtt(said).decode().split("\n", 3)[3] == f"{in_vtt}\n"


def test_a_long_segment_becomes_cues_of_readable_length_in_order_that_lose_nothing() -> None:
    spoken = " ".join(f"Well-spoken words, number {number}, make a sentence." for number in range(40))
    whole = transcript(segment(spoken, 1_000, 121_000))
    cues = writers.cues(whole)
    assert " ".join(cue.text for cue in cues) == spoken
    assert all(len(cue.text) <= writers.CUE_LENGTH and cue.end_ms - cue.start_ms <= writers.CUE_MS for cue in cues)
    assert all(before.end_ms <= after.start_ms for before, after in pairwise(cues))
    on_screen = [block.strip().split("\n")[2:] for block in writers.srt(whole).decode().split("\n\n")]
    assert all(len(lines) <= 2 and max(map(len, lines)) <= writers.LINE_LENGTH for lines in on_screen)
    assert len(re.findall(f"{CLOCK} --> {CLOCK}", writers.vtt(whole).decode())) == len(cues)


def test_a_pause_parts_cues_and_words_without_spaces_stay_so() -> None:
    first, second = segment("你好", 0, 900).words[0], segment("世界。", 2_000, 2_900).words[0]
    [*cues] = writers.cues(transcript(segment("你好世界。", 0, 2_900, words=(first, second))))
    assert [(cue.start_ms, cue.end_ms, cue.text) for cue in cues] == [(0, 900, "你好"), (2_000, 2_900, "世界。")]


def test_a_cue_lasts_even_where_the_word_took_no_time() -> None:
    [cue] = writers.cues(transcript(segment("Oh.", 700, 700)))
    assert cue.end_ms > cue.start_ms


def test_the_json_has_openais_names_and_seconds() -> None:
    document = json.loads(writers.verbose_json(transcript(segment("Ask not", 1_240, 2_240, avg_logprob=math.nan))))
    assert document["language"] == "en" and document["duration"] == 2.24 and document["text"] == "Ask not"
    assert document["segments"] == [
        {
            "id": 0,
            "seek": 124,
            "start": 1.24,
            "end": 2.24,
            "text": "Ask not",
            "tokens": [],
            "temperature": 0.0,
            "avg_logprob": None,
            "compression_ratio": 1.2,
            "no_speech_prob": 0.01,
        }
    ]
    assert document["words"] == [
        {"word": "Ask", "start": 1.24, "end": 1.74},
        {"word": "not", "start": 1.74, "end": 2.24},
    ]
