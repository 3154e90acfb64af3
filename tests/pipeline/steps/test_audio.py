"""Recordings of every kind become the same WAV, with the same sound at the same time."""

from __future__ import annotations

import struct
import wave
from pathlib import Path
from typing import Any

import pytest

from pipeline.steps import StepResult
from tests import recordings
from tests.pipeline.steps.conftest import Make
from tests.recordings import SCALE, melody, tones

# --- what is made -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recordings.KINDS)
def test_each_kind_of_recording_keeps_its_sound_and_its_times(convert: Make, name: str) -> None:
    result = convert(*recordings.of_kind(name))
    assert tones(_path(result)) == list(SCALE)
    assert result.original_facts["duration_ms"] == pytest.approx(6000, abs=80)
    assert result.original_facts["declared_ms"] in (None, pytest.approx(6000, abs=80))


def test_what_is_made_is_sixteen_kilohertz_mono_without_anything_else_in_it(convert: Make) -> None:
    result = convert(recordings.mp3(melody(), metadata={"title": "A private title"}), "audio/mpeg")
    (converted,) = result.produced
    data = converted.path.read_bytes()
    assert converted.content_type == "audio/wav"
    assert converted.facts == {"duration_ms": 6000}
    assert data[:36] == b"RIFF" + struct.pack("<I", len(data) - 8) + b"WAVEfmt " + struct.pack(
        "<IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16
    )
    assert data[36:44] == b"data" + struct.pack("<I", len(data) - 44)
    assert len(data) == 44 + 6 * 32_000


def test_facts_tell_of_the_original(convert: Make) -> None:
    data = recordings.wav(melody(2, rate=44_100), "pcm_s24le", rate=44_100, channels=2)
    assert convert(data, "audio/wav").original_facts == {
        "format": "wav",
        "codec": "pcm_s24le",
        "duration_ms": 2000,
        "declared_ms": 2000,
        "sample_rate": 44_100,
        "channels": 2,
    }


def test_converting_again_makes_the_same_bytes(convert: Make) -> None:
    data = recordings.telegram_voice(melody())
    first = _path(convert(data, "audio/ogg")).read_bytes()
    assert _path(convert(data, "audio/ogg")).read_bytes() == first


def test_with_nothing_wanted_only_the_facts_are_found(convert: Make) -> None:
    result = convert(recordings.telegram_voice(melody(1)), "audio/ogg", wanted=frozenset())
    assert result.produced == ()
    assert result.original_facts["duration_ms"] == 1000


def test_a_recording_that_changes_its_rate_on_the_way_is_kept_whole(convert: Make) -> None:
    result = convert(recordings.joined_mp3(), "audio/mpeg")
    assert tones(_path(result)) == list(SCALE)


def test_two_voice_notes_in_one_file_are_both_kept(convert: Make) -> None:
    """Ogg allows it, and the length that its last page tells is that of the second alone."""
    data = recordings.telegram_voice(melody(4)) + recordings.telegram_voice(melody(2, first=4))
    assert tones(_path(convert(data, "audio/ogg"))) == list(SCALE)


def test_a_pause_that_was_not_stored_is_silence(convert: Make) -> None:
    result = convert(recordings.webm_with_a_pause(), "video/webm")
    assert tones(_path(result)) == [*SCALE[:3], 0, 0, 0, 0, 0, SCALE[3], SCALE[4]]


def test_of_several_sound_tracks_the_first_is_taken(convert: Make) -> None:
    result = convert(recordings.two_tracks(melody(3), melody(3, first=3)), "video/x-matroska")
    assert tones(_path(result)) == list(SCALE[:3])


def test_names_that_are_no_text_do_no_harm(convert: Make) -> None:
    """Tags are often written in a codepage of their time."""
    data = recordings.wav(melody(1, rate=8000), rate=8000, metadata={"title": "PLACEHOLDER"})
    named = data.replace(b"PLACEHOLDER", b"\xcf\xf0\xe8\xe2\xe5\xf2\xff\xff\xff\xff\xff")
    assert named != data and tones(_path(convert(named, "audio/wav"))) == [SCALE[0]]


# --- lengths that a header does not tell, or tells wrong ---------------------------------------------


@pytest.mark.parametrize("announced", [0, 0xFFFFFFFF, 0x7FFFF000, 0x7FFFFFDB])
def test_a_wav_whose_writer_did_not_know_its_size_is_taken_as_it_is(convert: Make, announced: int) -> None:
    data = recordings.wav_announcing(announced, samples=melody(2, rate=16_000))
    result = convert(data, "audio/wav")
    assert (result.original_facts["duration_ms"], result.original_facts["declared_ms"]) == (2000, None)


def test_a_wav_that_is_wrong_about_its_byte_rate_is_no_damage(convert: Make) -> None:
    data = recordings.wav(melody(3, rate=16_000), rate=16_000)
    wrong = data.replace(struct.pack("<II", 16_000, 32_000), struct.pack("<II", 16_000, 8_000))
    assert convert(wrong, "audio/wav").original_facts["declared_ms"] == 3000


def test_a_length_that_was_only_guessed_is_not_held_against_an_mp3(convert: Make) -> None:
    result = convert(recordings.mp3_of_two_bit_rates(), "audio/mpeg")
    assert tones(_path(result)) == list(SCALE)
    assert result.original_facts["declared_ms"] is None


def test_what_stands_behind_an_oggs_last_page_is_no_damage(convert: Make) -> None:
    data, content_type = recordings.of_kind("voice note")
    assert tones(_path(convert(data + bytes(500), content_type))) == list(SCALE)


def test_a_flac_that_was_streamed_tells_no_length(convert: Make) -> None:
    data = recordings.flac_announcing(0, recordings.flac(melody(2, rate=16_000), rate=16_000))
    result = convert(data, "audio/flac")
    assert (result.original_facts["duration_ms"], result.original_facts["declared_ms"]) == (2000, None)


def test_a_length_below_nothing_says_nothing(convert: Make) -> None:
    data = recordings.webm(melody(1))
    at = data.index(b"\x44\x89\x88") + 3
    data = data[:at] + struct.pack(">d", -60_000) + data[at + 8 :]
    assert convert(data, "video/webm").original_facts["declared_ms"] is None


def test_a_recording_may_be_longer_than_it_says(convert: Make) -> None:
    data = recordings.flac_announcing(8000, recordings.flac(melody(2, rate=16_000), rate=16_000))
    assert convert(data, "audio/flac").original_facts["duration_ms"] == 2000


def test_a_little_less_than_announced_is_no_damage(convert: Make) -> None:
    data = recordings.wav(melody(rate=16_000), rate=16_000)
    assert convert(data[: -32_000 + 320], "audio/wav").original_facts["duration_ms"] == 5010


@pytest.mark.parametrize("name", ["wav by the telephone's law", "wav of floating point", "rf64"])
def test_nor_is_it_where_the_header_counts_the_samples(convert: Make, name: str) -> None:
    """Of a file that was cut, libav tells that count."""
    data, content_type = recordings.of_kind(name)
    facts = convert(data[: len(data) * 9 // 10], content_type).original_facts
    assert (facts["duration_ms"], facts["declared_ms"]) == (pytest.approx(5400, abs=10), 6000)


def test_sound_may_end_before_the_pictures_do(convert: Make) -> None:
    """The length in such a file's header is that of its longest track."""
    data = recordings.webm(melody(0.5), picture="libvpx", pictures=40)
    assert convert(data, "video/webm").original_facts["duration_ms"] == pytest.approx(500, abs=30)


# --- length -----------------------------------------------------------------------------------------


def test_memory_stays_flat_over_hours(convert: Make, settings: Any) -> None:
    """Three hours and a half are 400 MB of samples; this is less, for libraries and all."""
    settings.STEP_MEMORY_BYTES = 384 * 1024**2
    result = convert(recordings.endless_wav(12_600), "audio/wav")
    assert result.original_facts["duration_ms"] == 12_600_000
    with wave.open(str(_path(result))) as file:
        assert file.getnframes() == 12_600 * 16_000


def _path(result: StepResult) -> Path:
    (converted,) = result.produced
    return converted.path
