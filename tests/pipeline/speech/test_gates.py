"""What of the model's output is kept, on outputs written by hand; see test_quality.py for the model's own."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipeline.speech import gates
from pipeline.speech.gates import Heard, Said
from pipeline.speech.transcript import Segment

RATIO = 2 * gates.REPETITIVE_RATIO


def said(text: str, start: float = 0.0, end: float = 2.0, **fields: Any) -> Said:
    """A segment as the model gives it: each word with the space before it, their times shared evenly."""
    spelled = [f" {word}" for word in text.split()]
    share = (end - start) / max(1, len(spelled))
    words = tuple(
        Heard(start=start + at * share, end=start + (at + 1) * share, text=word, probability=0.9)
        for at, word in enumerate(spelled)
    )
    usual = {"decode": 0, "avg_logprob": -0.3, "no_speech_prob": 0.1, "compression_ratio": 1.2, "temperature": 0.0}
    return Said(start=start, end=end, text=f" {text}", **{**usual, "words": words, **fields})


def keep(*segments: Said, start_ms: int = 0, end_ms: int = 300_000, is_language_sure: bool = True) -> list[Segment]:
    return list(gates.keep(segments, start_ms=start_ms, end_ms=end_ms, is_language_sure=is_language_sure))


def texts(*segments: Said, is_language_sure: bool = True) -> list[str]:
    return [each.text for each in keep(*segments, is_language_sure=is_language_sure)]


@pytest.mark.parametrize(
    "text", ["", " ", "...", "?!", "♪ ♪", "[Music]", "(applause)", "*sighs* ...", "[BLANK_AUDIO] (wind)", "【音楽】"]
)
def test_punctuation_and_notes_about_sounds_are_nothing_said(text: str) -> None:
    assert texts(said(text), said("Yes.", 2.0, 3.0)) == ["Yes."]


@pytest.mark.parametrize("text", ["Hi.", "42", "да", "是", "[laughs] Stop it."])
def test_any_letter_or_digit_outside_of_a_note_is_something_said(text: str) -> None:
    assert texts(said(text)) == [text]


def test_speech_that_the_model_doubts_twice_is_dropped_and_once_is_kept() -> None:
    silent, doubtful = {"no_speech_prob": 0.7}, {"avg_logprob": -1.1}
    assert texts(said("Thanks for watching.", **silent, **doubtful)) == []
    assert texts(said("Murmured.", **doubtful)) == ["Murmured."]
    assert texts(said("Quiet.", **silent)) == ["Quiet."]
    assert texts(said("Foreign.", **doubtful), is_language_sure=False) == []
    assert texts(said("Foreign."), is_language_sure=False) == ["Foreign."]


def test_identical_segments_in_a_row_are_said_once() -> None:
    again = {"decode": 1, "compression_ratio": RATIO}
    loop = [said("Thank you very much.", at * 3.0, at * 3.0 + 2, **again) for at in range(1, 9)]
    assert texts(said("Before it."), *loop) == ["Before it.", "Thank you very much."]


def test_a_loop_within_a_segment_is_cut_and_what_stands_around_it_kept() -> None:
    stuck = said("I went to the " + "the " * 60 + "market then.", 0.0, 25.0, compression_ratio=RATIO)
    [kept] = keep(stuck)
    assert kept.text.startswith("I went to the") and kept.text.endswith("market then.") and len(kept.words) < 12
    assert " ".join(word.text for word in kept.words) == kept.text


def test_repeated_speech_is_cut_where_nobody_could_speak_so_fast_and_kept_where_somebody_did() -> None:
    phrase = "ask what you can do for your country, and so my fellow Americans "
    fast, slow = (said(phrase * 3, 0.0, seconds, compression_ratio=2.6) for seconds in (4.0, 15.0))
    assert texts(fast) == [phrase.strip()]
    assert texts(slow) == [(phrase * 3).strip()]


def test_the_same_words_in_text_that_does_not_repeat_itself_are_kept() -> None:
    assert texts(said("No no no no no no, not that.")) == ["No no no no no no, not that."]
    once = [said("I agree.", at * 40.0, at * 40.0 + 1, decode=at) for at in range(5)]
    assert len(texts(*once)) == 5


def test_times_are_put_in_order_and_kept_within_the_window() -> None:
    odd = [
        said("early", -1.0, 0.5),
        said("overlaps", 0.2, 1.0),
        said("backwards", 0.9, 0.1),
        said("lost", math.nan, math.nan),
        said("late", 8.0, 99.0),
    ]
    kept = keep(*odd, start_ms=300_000, end_ms=310_000)
    assert [(each.start_ms, each.end_ms) for each in kept] == [
        (300_000, 300_500),
        (300_500, 301_000),
        (301_000, 301_000),
        (301_000, 301_000),
        (308_000, 310_000),
    ]
    assert all((word.start_ms, word.end_ms) == (each.start_ms, each.end_ms) for each in kept for word in each.words)


def test_numbers_that_are_none_become_null_and_segments_without_words_keep_their_times() -> None:
    [kept] = keep(said("Hm.", 1.0, 2.0, avg_logprob=math.nan, compression_ratio=math.inf, words=()))
    assert (kept.avg_logprob, kept.compression_ratio, kept.start_ms, kept.end_ms) == (None, None, 1000, 2000)
