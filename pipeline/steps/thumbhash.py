"""ThumbHash: a picture's placeholder in about 25 bytes (https://evanw.github.io/thumbhash/).

Written out here because the packages of it fail on transparency or pull in a compiler; unlike the reference, the
cosine transform is taken by rows and then by columns, which is ten times less work.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from operator import mul

MAX_SIDE = 100

Rows = list[list[float]]


def encode(width: int, height: int, rgba: bytes) -> bytes:
    """The hash of a picture of at most 100 × 100 pixels, four bytes each, alpha not premultiplied."""
    if max(width, height) > MAX_SIDE:
        raise ValueError(f"{width} × {height} does not fit in {MAX_SIDE} × {MAX_SIDE}")
    pixels = [tuple(value / 255 for value in rgba[at : at + 4]) for at in range(0, len(rgba), 4)]
    has_alpha = any(alpha < 1 for *_, alpha in pixels)
    lightness, yellow_blue, red_green, alpha = _channels(width, pixels)

    most = 5 if has_alpha else 7
    across = max(1, _round(most * width / max(width, height)))
    down = max(1, _round(most * height / max(width, height)))
    l_mean, l_waves, l_scale = _transform(lightness, max(3, across), max(3, down))
    p_mean, p_waves, p_scale = _transform(yellow_blue, 3, 3)
    q_mean, q_waves, q_scale = _transform(red_green, 3, 3)
    a_mean, a_waves, a_scale = _transform(alpha, 5, 5) if has_alpha else (1.0, [], 1.0)

    is_landscape = width > height
    colour = _round(63 * l_mean) | _round(31.5 + 31.5 * p_mean) << 6 | _round(31.5 + 31.5 * q_mean) << 12
    colour |= _round(31 * l_scale) << 18 | has_alpha << 23
    shape = (down if is_landscape else across) | _round(63 * p_scale) << 3 | _round(63 * q_scale) << 9
    shape |= is_landscape << 15
    head = colour.to_bytes(3, "little") + shape.to_bytes(2, "little")
    if has_alpha:
        head += bytes([_round(15 * a_mean) | _round(15 * a_scale) << 4])
    return head + _nibbles([*l_waves, *p_waves, *q_waves, *a_waves])


def encode_base64(width: int, height: int, rgba: bytes) -> str:
    """The hash as text, the form in which its decoders for browsers take it."""
    return base64.b64encode(encode(width, height, rgba)).decode("ascii")


def _channels(width: int, pixels: list[tuple[float, ...]]) -> tuple[Rows, Rows, Rows, Rows]:
    """Lightness, yellow against blue, red against green, and alpha, over the picture's average colour."""
    weight = sum(alpha for *_, alpha in pixels)
    mean = [sum(pixel[band] * pixel[3] for pixel in pixels) / weight if weight else 0.0 for band in range(3)]
    lightness, yellow_blue, red_green, alphas = [], [], [], []
    for *colour, alpha in pixels:
        red, green, blue = (back * (1 - alpha) + value * alpha for back, value in zip(mean, colour, strict=True))
        lightness.append((red + green + blue) / 3)
        yellow_blue.append((red + green) / 2 - blue)
        red_green.append(red - green)
        alphas.append(alpha)
    return _rows(lightness, width), _rows(yellow_blue, width), _rows(red_green, width), _rows(alphas, width)


def _rows(values: list[float], width: int) -> Rows:
    return [values[at : at + width] for at in range(0, len(values), width)]


def _transform(rows: Rows, across: int, down: int) -> tuple[float, list[float], float]:
    """The mean, the triangle of low waves brought to 0…1, and the largest of them."""
    width, height = len(rows[0]), len(rows)
    by_wave = [[_dot(row, wave) for row in rows] for wave in _waves(width, across)]
    vertical = _waves(height, down)
    mean, *waves = [
        _dot(by_wave[x], vertical[y]) / (width * height)
        for y in range(down)
        for x in range(across)
        if x * down < across * (down - y)
    ]
    scale = max((abs(wave) for wave in waves), default=0.0)
    return mean, [0.5 + 0.5 / scale * wave for wave in waves] if scale else waves, scale


def _waves(length: int, count: int) -> list[list[float]]:
    return [[math.cos(math.pi / length * wave * (at + 0.5)) for at in range(length)] for wave in range(count)]


def _dot(left: Iterable[float], right: Iterable[float]) -> float:
    products: Iterable[float] = map(mul, left, right)
    return sum(products)


def _nibbles(waves: list[float]) -> bytes:
    nibbles = [_round(15 * wave) for wave in waves]
    nibbles += [0] * (len(nibbles) % 2)
    return bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True))


def _round(value: float) -> int:
    """Half upwards, as the reference does; Python rounds half to even."""
    return math.floor(value + 0.5)
