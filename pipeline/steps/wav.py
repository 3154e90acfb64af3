"""The one shape in which recordings go on: RIFF/WAVE, PCM of 16 bits, 16,000 Hz, one channel, no other chunks."""

from __future__ import annotations

import struct

CONTENT_TYPE = "audio/wav"
RATE = 16_000
SAMPLE_BYTES = 2
HEADER_BYTES = 44


def header(samples: int) -> bytes:
    """The 44 bytes in front of that many samples."""
    size = samples * SAMPLE_BYTES
    shape = struct.pack("<HHIIHH", 1, 1, RATE, RATE * SAMPLE_BYTES, SAMPLE_BYTES, 8 * SAMPLE_BYTES)
    return struct.pack("<4sI4s4sI16s4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, shape, b"data", size)


def samples(file_bytes: int) -> int:
    """How many samples a whole file of that size holds."""
    return (file_bytes - HEADER_BYTES) // SAMPLE_BYTES


def milliseconds(samples: int) -> int:
    return samples * 1000 // RATE
