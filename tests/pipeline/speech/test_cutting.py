"""Windows of long recordings: whole, repeatable, and not through a word where there is a pause."""

from __future__ import annotations

import tracemalloc
import wave
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pipeline.speech import cutting
from pipeline.speech.cutting import NotConverted
from tests.speaking import RATE, converted, noise, silence

SPEECH_DB, ROOM_DB = -20, -60


def seconds(path: Path) -> list[tuple[float, float]]:
    return [(span.start / RATE, span.end / RATE) for span in cutting.spans(path)]


def test_a_recording_of_at_most_a_windows_length_is_one_window(tmp_path: Path) -> None:
    assert seconds(converted(tmp_path / "short.wav", silence(300))) == [(0, 300)]
    assert seconds(converted(tmp_path / "empty.wav", silence(0))) == [(0, 0)]


def test_a_recording_is_cut_in_the_middle_of_the_longest_pause(tmp_path: Path) -> None:
    loud, room = noise(252, SPEECH_DB), noise(2, ROOM_DB)
    path = converted(tmp_path / "a.wav", loud, room, loud[: 20 * RATE], room[: RATE // 2], loud)
    (start, cut), rest = seconds(path)
    assert start == 0 and 252.5 < cut < 253.5
    assert rest == (cut, 526.5)


def test_the_cut_is_between_words_where_there_is_no_pause(tmp_path: Path) -> None:
    loud = noise(280, SPEECH_DB)
    path = converted(tmp_path / "a.wav", loud, noise(0.2, ROOM_DB), loud)
    assert 280 < seconds(path)[0][1] < 280.2


def test_a_long_recording_is_covered_by_windows_without_a_gap_and_alike_each_time(tmp_path: Path) -> None:
    path = converted(tmp_path / "long.wav", *[noise(17, SPEECH_DB), noise(1, ROOM_DB)] * 60, silence(0.00125))
    spans = cutting.spans(path)
    assert spans == cutting.spans(path)
    assert (spans[0].start, spans[-1].end) == (0, 60 * 18 * RATE + 20)
    assert all(before.end == after.start and before.end_ms == after.start_ms for before, after in pairwise(spans))
    assert all(before.end % 16 == 0 and 240_000 <= before.end_ms - before.start_ms <= 300_000 for before in spans[:-1])
    with wave.open(str(path)) as file:
        whole = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    read = np.concatenate([cutting.read(path, span) for span in spans])
    assert read.dtype == np.float32 and (np.round(read * 32768) == whole).all()


def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    peaks = []
    for minutes in (10, 60):
        path = converted(tmp_path / f"{minutes}.wav", *[noise(60, SPEECH_DB)] * minutes)
        tracemalloc.start()
        cutting.spans(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_what_the_conversion_does_not_make_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_bytes(b"hello")
    whole = converted(tmp_path / "whole.wav", noise(400, SPEECH_DB)).read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[:9_000_000])
    converted(tmp_path / "fast.wav", silence(1), rate=48_000)
    for name in ("text.wav", "cut.wav", "fast.wav"):
        with pytest.raises(NotConverted):
            cutting.read(tmp_path / name, cutting.spans(tmp_path / name)[-1])
