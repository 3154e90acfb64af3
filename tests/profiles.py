"""ICC profiles of RGB spaces, made from their primaries."""

from __future__ import annotations

import struct
from collections.abc import Sequence

Chromaticities = Sequence[tuple[float, float]]
ADOBE_RGB: Chromaticities = ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06))
DISPLAY_P3: Chromaticities = ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060))
PROFILE_TEXT = b"Holdfast test profile"
#: From D65 to the D50 of profiles, after Bradford.
_TO_D50 = (
    (1.0478112, 0.0228866, -0.0501270),
    (0.0295424, 0.9904844, -0.0170491),
    (-0.0092345, 0.0150436, 0.7521316),
)
_D65 = (0.95047, 1.0, 1.08883)


def profile(primaries: Chromaticities, *, gamma: float, version: int = 2) -> bytes:
    """An ICC profile of an RGB space with a D65 white."""
    columns = [_to_d50(column) for column in _scaled_to_white(primaries)]
    text = _text_v2(PROFILE_TEXT) if version == 2 else _text_v4(PROFILE_TEXT)
    tags = [(b"desc", text), (b"cprt", _text_v4(b"none") if version == 4 else b"text\0\0\0\0none\0")]
    tags += [(b"wtpt", _xyz((0.9642, 1.0, 0.8249)))]
    tags += [(name, _xyz(column)) for name, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), columns, strict=True)]
    curve = b"curv" + struct.pack(">IIH", 0, 1, round(gamma * 256))
    tags += [(name, curve) for name in (b"rTRC", b"gTRC", b"bTRC")]
    return _profile_file(tags, version)


def _profile_file(tags: list[tuple[bytes, bytes]], version: int) -> bytes:
    body, table = b"", struct.pack(">I", len(tags))
    start = 128 + 4 + 12 * len(tags)
    for name, data in tags:
        table += name + struct.pack(">II", start + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    header = struct.pack(">I4sI4s4s4s", start + len(body), b"lcms", version << 24, b"mntr", b"RGB ", b"XYZ ")
    header += struct.pack(">6H", 2026, 1, 1, 0, 0, 0) + b"acsp" + bytes(28) + _fixed((0.9642, 1.0, 0.8249))
    return header.ljust(128, b"\0") + table + body


def _scaled_to_white(primaries: Chromaticities) -> list[tuple[float, ...]]:
    raw = [(x / y, 1.0, (1 - x - y) / y) for x, y in primaries]
    strengths = _solve(list(zip(*raw, strict=True)), _D65)
    return [tuple(value * strength for value in column) for column, strength in zip(raw, strengths, strict=True)]


def _solve(rows: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Three linear equations, by Cramer's rule."""
    whole = _determinant(rows)
    return [
        _determinant([[right[r] if c == at else rows[r][c] for c in range(3)] for r in range(3)]) / whole
        for at in range(3)
    ]


def _determinant(m: Sequence[Sequence[float]]) -> float:
    return sum(
        m[0][c] * (m[1][(c + 1) % 3] * m[2][(c + 2) % 3] - m[1][(c + 2) % 3] * m[2][(c + 1) % 3]) for c in range(3)
    )


def _to_d50(column: Sequence[float]) -> tuple[float, float, float]:
    x, y, z = (sum(a * b for a, b in zip(row, column, strict=True)) for row in _TO_D50)
    return x, y, z


def _fixed(values: Sequence[float]) -> bytes:
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))


def _xyz(values: Sequence[float]) -> bytes:
    return b"XYZ \0\0\0\0" + _fixed(values)


def _text_v2(text: bytes) -> bytes:
    return b"desc\0\0\0\0" + struct.pack(">I", len(text) + 1) + text + b"\0" + bytes(4 + 4 + 2 + 1 + 67)


def _text_v4(text: bytes) -> bytes:
    wide = text.decode().encode("utf-16-be")
    return b"mluc\0\0\0\0" + struct.pack(">II2s2sII", 1, 12, b"en", b"US", len(wide), 28) + wide
