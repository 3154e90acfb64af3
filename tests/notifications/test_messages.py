"""Texts in parts that Telegram takes, and sentences in the languages that the bot speaks."""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Iterator
from typing import TypeVar
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attachments.errors import AttachmentError
from notifications.telegram import (
    files,  # noqa: F401  (its errors count as well)
    messages,
)
from notifications.telegram.sentences import ENGLISH, ERRORS, RUSSIAN, SAYINGS, explained
from pipeline import failures
from pipeline.confined import ConfinedError
from pipeline.failures import Failure

FAMILY = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"
#: Signs that together are one to the eye, and signs of all widths.
PIECES = st.sampled_from(
    [FAMILY, "\U0001f44d\U0001f3fd", "e\N{COMBINING ACUTE ACCENT}", "a", "ж", "漢", ". ", " ", "\n"]
)

Error = TypeVar("Error")


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PIECES, st.integers(1, 2500)), max_size=8))
def test_parts_fit_and_together_are_the_text(runs: list[tuple[str, int]]) -> None:
    text = "".join(piece * times for piece, times in runs)
    parts = messages.cut(text)
    assert "".join("".join(parts).split()) == "".join(text.split())
    for part in parts:
        assert part == part.strip()
        assert units(part) <= 4000
        assert len(urlencode({"text": part})) < 32_000
        # No part begins within what is one sign to the eye.
        assert not unicodedata.combining(part[0])
        assert part[0] not in "\N{ZERO WIDTH JOINER}\U0001f3fd"
        assert part[-1] != "\N{ZERO WIDTH JOINER}"


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("", []),
        (" \n", []),
        ("x" * 4000, [4000]),
        ("\U0001f600" * 5000, [2000, 2000, 1000]),
        ("漢" * 9000, [3333, 3333, 2334]),
    ],
)
def test_long_texts_of_other_scripts_are_cut_where_they_must(text: str, lengths: list[int]) -> None:
    assert [len(part) for part in messages.cut(text)] == lengths


def test_a_part_ends_with_a_sentence_or_else_a_word() -> None:
    sentence = "This is said in one breath. "
    assert all(part.endswith("breath.") for part in messages.cut(sentence * 400))
    assert all(part.endswith("word") for part in messages.cut("word " * 2000))
    assert all(part.endswith("。") for part in messages.cut("これは一文です。" * 600))


def test_what_takes_more_than_three_messages_is_one_and_two_files() -> None:
    three = messages.of_transcript("x" * 12_000, b"", language="en")
    assert [message.method for message in three] == ["sendMessage"] * 3
    more = messages.of_transcript("x" * 12_001, b"1\n", language="en")
    assert [message.method for message in more] == ["sendMessage", "sendDocument", "sendDocument"]


def test_where_nothing_was_said_the_answer_says_so() -> None:
    (answer,) = messages.of_transcript("\n", b"", language="ru")
    assert answer.parameters["text"] == SAYINGS["no_speech"][RUSSIAN]


def codes() -> Iterator[str]:
    yield from (error.code for error in below(AttachmentError))
    yield from (error.code for error in below(ConfinedError))
    yield from (failure.code for _, failure in inspect.getmembers(failures) if isinstance(failure, Failure))


def below(base: type[Error]) -> Iterator[type[Error]]:
    """It, and all that derive from it."""
    yield base
    for one in base.__subclasses__():
        yield from below(one)


def test_every_error_that_a_sender_may_meet_has_a_russian_sentence() -> None:
    assert {code for code in codes() if RUSSIAN not in ERRORS.get(code, {})} == set()
    assert all(set(saying) == {ENGLISH, RUSSIAN} for saying in SAYINGS.values())


def test_a_language_that_the_bot_does_not_speak_gets_english() -> None:
    assert explained("crashed", "It died.", "de") == "It died."
    assert explained("pipeline_unavailable", "Leave `pipeline` out.", "") == ERRORS["pipeline_unavailable"][ENGLISH]
    assert explained("of a later release", "It broke.", "ru") == "It broke."
