"""Sound as the model takes it: 16,000 samples a second, mono, and where it is quiet."""

from __future__ import annotations

from typing import Any

import numpy as np

SAMPLE_RATE = 16_000
SAMPLES_PER_MS = SAMPLE_RATE // 1000

#: −1…1
Samples = np.ndarray[Any, np.dtype[np.float32]]

#: Loudness is measured in frames of this length.
FRAME_MS = 10
#: A place is quiet if it is so for all of these: between words, and in the middle of the longest pause.
QUIET_MS = (200, 500, 1_000, 2_000, 4_000)

_Loudness = np.ndarray[Any, np.dtype[np.float64]]


def quietest(samples: Samples) -> int:
    """The sample that is quiet and has quiet around it; always at the border of two frames."""
    length = FRAME_MS * SAMPLES_PER_MS
    frames = samples[: len(samples) // length * length].reshape(-1, length)
    # The deviation, for some recorders' silence is not at zero.
    loudness = frames.std(axis=1, dtype=np.float64)
    score = sum(_averaged(loudness, length_ms // FRAME_MS) for length_ms in QUIET_MS)
    return int(np.argmin(score)) * length


def _averaged(loudness: _Loudness, length: int) -> _Loudness:
    """The mean of `length` frames, at every border between frames; the first and last frame go on beyond the ends."""
    padded = np.concatenate([np.repeat(loudness[:1], length), loudness, np.repeat(loudness[-1:], length)])
    sums = np.concatenate([[0.0], np.cumsum(padded)])
    borders = np.arange(len(loudness) + 1) + length
    return np.asarray((sums[borders + length // 2] - sums[borders - length // 2]) / length)
