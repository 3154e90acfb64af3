"""The dominant colour of a picture."""

from __future__ import annotations

from collections import Counter

#: Colours that share the upper three bits of each band count as one.
_SHADES = 0xE0


def dominant(rgba: bytes) -> str | None:
    """The mean of the most frequent kind of colour as "#rrggbb"; None where nothing is at least half opaque."""
    pixels = [rgba[at : at + 3] for at in range(0, len(rgba), 4) if rgba[at + 3] >= 128]
    if not pixels:
        return None
    kind, count = Counter(_kind(pixel) for pixel in pixels).most_common(1)[0]
    alike = [pixel for pixel in pixels if _kind(pixel) == kind]
    return "#" + "".join(f"{round(sum(band) / count):02x}" for band in zip(*alike, strict=True))


def _kind(pixel: bytes) -> tuple[int, int, int]:
    red, green, blue = pixel
    return red & _SHADES, green & _SHADES, blue & _SHADES
