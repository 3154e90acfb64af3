"""Where a long recording is cut into windows: each is transcribed by itself, so a cut through a word would lose it.

A recording is the `converted` variant: WAVE, 16 bits, 16,000 samples a second, mono. It is read piece by piece, so that
memory does not grow with its length. The same recording always gives the same windows: work goes on after a crash.
"""

from __future__ import annotations

import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.speech.samples import SAMPLE_RATE, SAMPLES_PER_MS, Samples, quietest

#: Long enough to detect the language in and to cost little at its borders, short enough to be done again.
WINDOW_MS = 300_000
#: The last part of a window, in which it may end.
SEARCH_MS = 60_000


class NotConverted(ValueError):
    """The file is not a recording as the conversion makes them."""


@dataclass(frozen=True)
class Span:
    """The samples from `start` to before `end`."""

    start: int
    end: int

    @property
    def start_ms(self) -> int:
        return self.start // SAMPLES_PER_MS

    @property
    def end_ms(self) -> int:
        return self.end // SAMPLES_PER_MS


def spans(recording: Path) -> list[Span]:
    """The windows of a recording, in order: each sample is in one of them. Raises NotConverted."""
    with _opened(recording) as file:
        return list(_cut(file))


def read(recording: Path, span: Span) -> Samples:
    """The samples of a window as the model takes them, −1…1. Raises NotConverted."""
    with _opened(recording) as file:
        return _samples(file, span.start, span.end)


def _opened(recording: Path) -> wave.Wave_read:
    try:
        file = wave.open(str(recording), "rb")  # noqa: SIM115
    except (wave.Error, EOFError) as error:
        raise NotConverted(str(error)) from error
    if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, SAMPLE_RATE):
        file.close()
        raise NotConverted("not mono, 16 bits, 16 kHz")
    return file


def _cut(file: wave.Wave_read) -> Iterator[Span]:
    start, total = 0, file.getnframes()
    while total - start > WINDOW_MS * SAMPLES_PER_MS:
        latest = start + WINDOW_MS * SAMPLES_PER_MS
        end = latest - SEARCH_MS * SAMPLES_PER_MS
        end += quietest(_samples(file, end, latest))
        yield Span(start, end)
        start = end
    yield Span(start, total)


def _samples(file: wave.Wave_read, start: int, end: int) -> Samples:
    file.setpos(start)
    data = file.readframes(end - start)
    if len(data) != 2 * (end - start):
        raise NotConverted("shorter than its header says")
    return np.frombuffer(data, "<i2") * np.float32(1 / 32768)
