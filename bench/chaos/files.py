"""What is sent: good pictures of every accepted type, and everything that people send by mistake or malice.

Each upload gets bytes of its own, so that the result of one in the place of another would be noticed.
"""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from config.local.samples import sample_files
from tests import corpus

#: Portrait, so that a turned result would have other sides. HEIC and AVIF are slow to write.
SMALL, MIDDLE, LARGE = (240, 320), (900, 1200), (2400, 3200)
QUICK = ("image/jpeg", "image/png", "image/webp", "image/tiff")
BRANDED = ("avif", "heic")

BAD = frozenset({"bad_file"})
EMPTY = frozenset({"empty_file"})
WRONG_TYPE = frozenset({"unsupported_type"})
BOMB = frozenset({"too_many_pixels"})
OTHER_DIGEST = frozenset({"digest_mismatch"})


@dataclass(frozen=True)
class Sample:
    """A file and the codes it may end with, at the door or as a failed job; none means that it must become ready."""

    name: str
    data: bytes
    lawful: frozenset[str] = frozenset()

    @property
    def is_good(self) -> bool:
        return not self.lawful

    def stamped(self, number: int) -> bytes:
        """The bytes of upload `number`: as good or bad as the sample's, and no other upload's."""
        if self.lawful == EMPTY:
            return b""
        mark = f"upload {number:08}".encode()
        is_branded = self.name.rpartition(".")[2] in BRANDED
        return self.data + (struct.pack(">I", 8 + len(mark)) + b"free" + mark if is_branded else mark)


@dataclass(frozen=True)
class Order:
    """What one upload is, and the manner of sending it: `once`, `twice` at the same time under one key, `deleted` after
    `pause` seconds, or with its key `reused` for other bytes."""

    sample: Sample
    manner: str
    pause: float


class Mix:
    """A run's uploads, each a pure function of the seed and its number."""

    def __init__(self, seed: int, say: Callable[[str], None]) -> None:
        self._seed = seed
        drawn = [Sample(path.name, path.read_bytes()) for path in sample_files(say)]
        self._samples: list[tuple[float, list[Sample]]] = [(1.0, drawn), *_made()]

    def order(self, number: int) -> Order:
        chance = random.Random(f"{self._seed}:{number}")
        (samples,) = chance.choices([one for _, one in self._samples], [weight for weight, _ in self._samples])
        sample = chance.choice(samples)
        (manner,) = chance.choices(("once", "twice", "deleted", "reused"), (80, 8, 8, 4))
        pause = chance.random() * 1.5
        return Order(sample, manner if sample.is_good else "once", pause)


@functools.cache
def _made() -> list[tuple[float, list[Sample]]]:
    """(weight, samples of about that kind)."""
    pictures = {kind: write(corpus.letter_f(*MIDDLE)) for kind, write in corpus.BY_TYPE.items()}
    small = [_picture(kind, write(corpus.letter_f(*SMALL))) for kind, write in corpus.BY_TYPE.items()]
    large = [_picture(kind, corpus.BY_TYPE[kind](corpus.letter_f(*LARGE))) for kind in QUICK]
    return [
        (5.0, small),
        (4.0, [_picture(kind, data) for kind, data in pictures.items()]),
        (1.5, large),
        (0.8, [_damaged(kind, data) for kind, data in pictures.items()]),
        (0.4, [Sample("empty.jpg", b"", EMPTY)]),
        (0.7, [Sample(name, data, WRONG_TYPE) for name, data in _strangers().items()]),
        (0.6, [Sample(f"bomb.{name}", data, BOMB) for name, data in _bombs().items()]),
        (0.2, [Sample("announced.png", corpus.png(), OTHER_DIGEST)]),
    ]


def _picture(content_type: str, data: bytes) -> Sample:
    return Sample(f"picture.{content_type.removeprefix('image/')}", data)


def _damaged(content_type: str, data: bytes) -> Sample:
    return Sample(f"damaged.{content_type.removeprefix('image/')}", corpus.cut(data, 0.6), BAD)


def _strangers() -> dict[str, bytes]:
    """Of no type that is taken, whatever their names say."""
    return {"picture.svg": corpus.SVG, "letter.pdf": corpus.PDF, "table.csv": corpus.CSV, "photo.jpg": b"MZ" * 2000}


def _bombs() -> dict[str, bytes]:
    """Small on disk and huge in memory; the last one shows its size only behind more than the door looks at."""
    long = corpus.jpeg_claiming(65_500, 65_500)
    comment = b"\xff\xfe" + struct.pack(">H", 65_000) + bytes(64_998)
    return {
        "png": corpus.flat_png(19_000, 19_000),
        "gif": corpus.gif_claiming(65_535, 65_535),
        "heic": corpus.heic_claiming(100_000, 100_000),
        "jpg": long[:2] + comment * 6 + long[2:],
    }
