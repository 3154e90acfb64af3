"""Small real pictures for tests that do not care which."""

from __future__ import annotations

import io

from PIL import Image


def png(width: int = 64, height: int = 48, colour: tuple[int, int, int] = (200, 30, 60)) -> bytes:
    return _encoded(width, height, colour, "PNG")


def jpeg(width: int = 640, height: int = 480, colour: tuple[int, int, int] = (20, 130, 60)) -> bytes:
    return _encoded(width, height, colour, "JPEG")


def _encoded(width: int, height: int, colour: tuple[int, int, int], name: str) -> bytes:
    buffer = io.BytesIO()
    gradient = Image.linear_gradient("L").resize((width, height))
    Image.composite(
        Image.new("RGB", (width, height), colour), Image.new("RGB", (width, height), "white"), gradient
    ).save(buffer, name)
    return buffer.getvalue()
