"""Recordings made for tests: speech by a synthesiser, silence, noise, tones and music. All are 16 kHz mono float32."""

from __future__ import annotations

import ctypes
import wave
from functools import cache
from pathlib import Path
from typing import Any

import espeakng_loader
import numpy as np
from faster_whisper import decode_audio

from pipeline.speech import self_test

RATE = 16_000

Samples = np.ndarray[Any, np.dtype[np.float32]]


def say(text: str, voice: str = "en", *, words_per_minute: int = 150) -> Samples:
    """The text spoken by espeak-ng in one of its voices ("en", "ru", "es", …)."""
    library, rate = _synthesiser()
    assert library.espeak_SetVoiceByName(voice.encode()) == 0, voice
    library.espeak_SetParameter(1, words_per_minute, 0)
    spoken: list[Any] = []

    def take(samples: Any, count: int, _events: Any) -> int:
        if samples and count:
            spoken.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    callback = _CALLBACK(take)
    library.espeak_SetSynthCallback(callback)
    data = text.encode()
    assert library.espeak_Synth(data, len(data) + 1, 0, 0, 0, 1, None, None) == 0
    library.espeak_Synchronize()
    return _resampled(np.concatenate(spoken) / 32768, rate)


def address(seconds: float = 11.0) -> Samples:
    """The beginning of a real recording, whose words are `self_test.WORDS`; 2.8 seconds are the first five."""
    samples: Samples = decode_audio(str(self_test.SAMPLE))[: round(seconds * RATE)]
    return samples


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE), np.float32)


def noise(seconds: float, decibel: float) -> Samples:
    """White noise, the same at every call; 0 dB is a mean amplitude of 1."""
    return (np.random.default_rng(1).standard_normal(round(seconds * RATE)) * 10 ** (decibel / 20)).astype(np.float32)


def chord(seconds: float, *frequencies: float) -> Samples:
    """Plucked strings: overtones that fade."""
    time = np.arange(round(seconds * RATE)) / RATE
    waves = sum(np.sin(2 * np.pi * each * over * time) / over for each in frequencies for over in range(1, 7))
    return np.asarray(waves * np.minimum(1, time / 0.02) * np.exp(-1.2 * time) * 0.08, np.float32)


def music(seconds: int) -> Samples:
    """A progression of chords, one a second."""
    progression = [(261.6, 329.6, 392.0), (220.0, 261.6, 329.6), (174.6, 220.0, 261.6), (196.0, 246.9, 293.7)]
    return np.concatenate([chord(1, *progression[at // 2 % 4]) for at in range(seconds)])


def converted(path: Path, *parts: Samples, rate: int = RATE) -> Path:
    """The parts one after another, in a file as the conversion makes it."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        for part in parts:
            file.writeframes((part * 32767).clip(-32768, 32767).astype("<i2").tobytes())
    return path


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@cache
def _synthesiser() -> tuple[ctypes.CDLL, int]:
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(2, 0, espeakng_loader.get_data_path().encode(), 0)
    assert rate > 0
    return library, rate


def _resampled(samples: Any, rate: int) -> Samples:
    count = len(samples) * RATE // rate
    waves = np.fft.rfft(samples)[: count // 2 + 1]
    return np.asarray(np.fft.irfft(waves, count) * count / len(samples), np.float32)
