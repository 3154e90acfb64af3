"""What a file really is, found from its first bytes while it streams in.

The detected type alone decides acceptance, pipeline, decoder, stored content type and extension; the
client's name and type are only kept for display. See docs/decisions/0001-types-from-bytes.md.

Size and SHA-256 come from `storage.Writer`, which counts and hashes exactly the bytes that the storage was
given; nothing is hashed here.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import NamedTuple

import imagesize

from attachments.errors import EmptyFile, TooManyPixels

# Holds the header of a JPEG behind a full Exif segment and a few of a colour profile, 64 KiB each.
HEAD_BYTES = 256 * 1024
#: As far as JPEG can count; a longer side is nobody's photo.
MAX_SIDE = 65_535


class Kind(NamedTuple):
    """A detected type: the media type to store and serve, and the family that chooses the pipeline."""

    content_type: str
    family: str


JPEG = Kind("image/jpeg", "image")
PNG = Kind("image/png", "image")
GIF = Kind("image/gif", "image")
WEBP = Kind("image/webp", "image")
TIFF = Kind("image/tiff", "image")
AVIF = Kind("image/avif", "image")
HEIC = Kind("image/heic", "image")
HEIC_SEQUENCE = Kind("image/heic-sequence", "image")
HEIF = Kind("image/heif", "image")
HEIF_SEQUENCE = Kind("image/heif-sequence", "image")

#: The first rule whose every (offset, bytes) matches decides, so a file that is two things at once is the first.
SIGNATURES: list[tuple[Kind, list[tuple[int, bytes]]]] = [
    (JPEG, [(0, b"\xff\xd8\xff")]),
    (PNG, [(0, b"\x89PNG\r\n\x1a\n")]),
    (GIF, [(0, b"GIF87a")]),
    (GIF, [(0, b"GIF89a")]),
    (WEBP, [(0, b"RIFF"), (8, b"WEBPVP8")]),
    (TIFF, [(0, b"II*\0")]),
    (TIFF, [(0, b"MM\0*")]),
    (TIFF, [(0, b"II+\0\x08\0\0\0")]),  # BigTIFF
    (TIFF, [(0, b"MM\0+\0\x08\0\0")]),
]

#: Brands of the ISO container that name a codec.
CODEC_BRANDS: dict[bytes, Kind] = {
    b"avif": AVIF,
    b"avis": AVIF,
    b"heic": HEIC,
    b"heix": HEIC,
    b"heim": HEIC,
    b"heis": HEIC,
    b"hevc": HEIC_SEQUENCE,
    b"hevx": HEIC_SEQUENCE,
    b"hevm": HEIC_SEQUENCE,
    b"hevs": HEIC_SEQUENCE,
}

#: Major brands that say only "a picture"; a compatible brand may then name the codec.
PICTURE_BRANDS: dict[bytes, Kind] = {
    b"mif1": HEIF,
    b"mif2": HEIF,
    b"miaf": HEIF,
    b"msf1": HEIF_SEQUENCE,
}


def detect(head: bytes) -> Kind | None:
    """The type of a file that starts with `head` (all of it, or HEAD_BYTES); None when it is not known here.

    EmptyFile when there is not a single byte.
    """
    if not head:
        raise EmptyFile
    for kind, rules in SIGNATURES:
        if all(head[offset : offset + len(magic)] == magic for offset, magic in rules):
            return kind
    if head[4:8] == b"ftyp":
        return _detect_by_brands(head)
    return None


def check_image_size(head: bytes, kind: Kind, *, max_pixels: int) -> None:
    """TooManyPixels when the head of a picture already says so.

    A header that is not within the head, or not understood here, passes: the decoder looks again before it
    decodes, and that check is the fence.
    """
    if kind.family != "image":
        return
    width, height = _image_size(head, kind)
    if width > 0 and height > 0:
        check_pixels(width, height, max_pixels=max_pixels)


def check_pixels(width: int, height: int, *, max_pixels: int) -> None:
    """TooManyPixels for a picture with too many, or so thin and long that decoding it takes minutes for nothing."""
    if width * height > max_pixels or max(width, height) > MAX_SIDE:
        raise TooManyPixels(
            f"{width} × {height} is over {max_pixels} pixels, or over {MAX_SIDE} on a side.",
            width=width,
            height=height,
            limit=max_pixels,
        )


def _detect_by_brands(head: bytes) -> Kind | None:
    size, major = int.from_bytes(head[:4], "big"), head[8:12]
    if major in CODEC_BRANDS:
        return CODEC_BRANDS[major]
    if major not in PICTURE_BRANDS:
        return None
    compatible = (head[at : at + 4] for at in range(16, min(size, len(head)), 4))
    return next((CODEC_BRANDS[brand] for brand in compatible if brand in CODEC_BRANDS), PICTURE_BRANDS[major])


def _image_size(head: bytes, kind: Kind) -> tuple[int, int]:
    if kind is GIF and len(head) >= 10:
        # imagesize reads these two as signed numbers.
        width, height = struct.unpack_from("<HH", head, 6)
        return width, height
    width, height = imagesize.get(BytesIO(head), exif_rotation=False)
    return width, height
