"""What the real model makes of sound without words, of noise, of repetition, of borders, and of other languages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.speech import cutting
from pipeline.speech.transcript import merge
from tests.pipeline.speech.conftest import Hear, words
from tests.speaking import RATE, Samples, chord, converted, music, noise, say, silence

SOUNDS = {
    "silence": silence(30),
    "noise": noise(30, -20),
    "a hiss of five minutes": noise(300, -60),
    "a tone": chord(30, 440.0) * 3,
    "music": music(60),
}

#: The second word of each is in no other.
SENTENCES = (
    "The captain sailed across the ocean in winter.",
    "My grandmother bakes bread every morning.",
    "A black horse was standing near the river.",
    "The doctor opened the window and looked outside.",
    "Seven children played football in the garden.",
    "The train to London leaves at midnight.",
    "We drank coffee in a small kitchen.",
    "Her sister bought a yellow umbrella.",
)
RUSSIAN = (
    "Здравствуйте. Меня зовут Анна, и сегодня я расскажу вам о погоде. "
    "Утром шёл дождь, а вечером светило солнце. Мы пошли гулять в парк вместе с друзьями."
)


@pytest.mark.parametrize("sound", SOUNDS.values(), ids=SOUNDS)
def test_nothing_is_said_in_sound_without_words(hear: Hear, sound: Samples) -> None:
    window = hear(sound)
    assert (window.segments, window.language, window.language_probability) == ((), None, None)
    assert merge([window], model="base").no_speech


def test_speech_of_a_second_is_heard_in_noise_and_nothing_else(hear: Hear, clip: Samples) -> None:
    sound = noise(20, -45)
    sound[10 * RATE : 12 * RATE] += clip[: 2 * RATE]
    window = hear(sound)
    assert words(window)[:4] == ["and", "so", "my", "fellow"] and len(words(window)) <= 6
    assert window.segments[0].start_ms >= 9_500 and window.segments[-1].end_ms <= 12_500


def test_nothing_of_one_recording_is_heard_in_the_next(hear: Hear, clip: Samples) -> None:
    assert words(hear(clip))
    assert hear(silence(30)).segments == hear(noise(5, -30)).segments == ()


def test_what_is_said_again_and_again_is_written_as_often(hear: Hear, clip: Samples) -> None:
    """The model loops over such a recording: eight times become a hundred, or one."""
    heard = words(hear(np.tile(np.concatenate([clip[131_200:], silence(2.5)]), 8), language="en"))
    assert 7 <= heard.count("country") <= 8
    assert set(heard) == {"ask", "what", "you", "can", "do", "for", "your", "country"}


def test_every_sentence_is_heard_once_over_the_borders_of_windows(
    hear: Hear, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "WINDOW_MS", 15_000)
    monkeypatch.setattr(cutting, "SEARCH_MS", 6_000)
    spoken = [say(sentence) for sentence in SENTENCES]
    path = converted(tmp_path / "long.wav", *[part for each in spoken for part in (each, silence(0.8))])
    spans = cutting.spans(path)
    windows = [hear(cutting.read(path, span), start_ms=span.start_ms, language="en") for span in spans]
    assert len(windows) >= 3
    heard = [word for segment in merge(windows, model="base").segments for word in segment.words]
    at = 0.0
    for sentence, sound in zip(SENTENCES, spoken, strict=True):
        key = sentence.split()[1].lower()
        [once] = [word for word in heard if word.text.lower().strip(".,") == key]
        assert at - 0.3 <= once.start_ms / 1000 <= once.end_ms / 1000 <= at + len(sound) / RATE
        at += len(sound) / RATE + 0.8
    assert len(heard) == len(" ".join(SENTENCES).split())


def test_a_language_is_heard_and_a_hint_helps_where_it_is_not(hear: Hear) -> None:
    spanish = hear(say("Buenos días. Me llamo Ana y hoy les hablaré del tiempo. Por la mañana llovía.", "es"))
    assert spanish.language == "es" and {"buenos", "mañana"} <= set(words(spanish))
    russian = hear(say(RUSSIAN, "ru"), language="ru")
    assert russian.language == "ru" and {"здравствуйте", "меня", "зовут", "анна", "сегодня"} <= set(words(russian))


def test_an_unsure_detection_gives_way_to_the_language_of_the_window_before(hear: Hear) -> None:
    window = hear(say(RUSSIAN, "ru"), likely="ru")
    assert (window.language, window.language_probability) == ("ru", None)
    assert "сегодня" in words(window)
