"""What a file really is, found from its first bytes while it streams in.

The detected type alone decides acceptance, pipeline, decoder, stored content type and extension; the
client's name and type are only kept for display. See docs/decisions/0001-types-from-bytes.md.

Size and SHA-256 come from `storage.Writer`, which counts and hashes exactly the bytes that the storage was
given; nothing is hashed here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
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

OGG = Kind("audio/ogg", "audio")
MP3 = Kind("audio/mpeg", "audio")
AAC = Kind("audio/aac", "audio")
WAV = Kind("audio/wav", "audio")
FLAC = Kind("audio/flac", "audio")
AIFF = Kind("audio/aiff", "audio")
AMR = Kind("audio/amr", "audio")
AMR_WB = Kind("audio/amr-wb", "audio")
M4A = Kind("audio/mp4", "audio")
MP4 = Kind("video/mp4", "video")
QUICKTIME = Kind("video/quicktime", "video")
# What a browser's recorder writes is one of these two, whether it holds pictures or only sound.
WEBM = Kind("video/webm", "video")
MATROSKA = Kind("video/x-matroska", "video")

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
    (OGG, [(0, b"OggS\0")]),
    (WAV, [(0, b"RIFF"), (8, b"WAVE")]),
    (WAV, [(0, b"RF64"), (8, b"WAVE")]),
    (FLAC, [(0, b"fLaC")]),
    (AIFF, [(0, b"FORM"), (8, b"AIFF")]),
    (AIFF, [(0, b"FORM"), (8, b"AIFC")]),
    (AMR, [(0, b"#!AMR\n")]),
    (AMR_WB, [(0, b"#!AMR-WB\n")]),
    # QuickTime from before it had brands.
    (QUICKTIME, [(0, b"\0"), (4, b"moov")]),
    (QUICKTIME, [(0, b"\0\0\0\x08wide")]),
]

#: Major brands of the ISO container that name a codec of pictures.
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

#: Major brands of sound and video.
MEDIA_BRANDS: dict[bytes, Kind] = {
    **dict.fromkeys((b"M4A ", b"M4B ", b"F4A ", b"F4B "), M4A),
    **dict.fromkeys((b"isom", b"iso2", b"iso3", b"iso4", b"iso5", b"iso6", b"iso7", b"iso8", b"iso9"), MP4),
    **dict.fromkeys((b"mp41", b"mp42", b"mp71", b"avc1", b"M4V ", b"F4V ", b"f4v ", b"dash", b"mmp4", b"MSNV"), MP4),
    b"qt  ": QUICKTIME,
}
#: Phones of the third generation: 3gp4, 3gp5, 3g2a and so on.
MEDIA_BRAND_PREFIXES = (b"3gp", b"3g2", b"3ge")


DOCUMENT_TYPE = re.compile(rb"\x42\x82[\x80-\xff](webm|matroska)")
FRAMES_IN_A_ROW = 3
#: Bit rates by their number in a frame's header, from 1.
MPEG_1_KILOBITS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
MPEG_2_KILOBITS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


class Frame(NamedTuple):
    """The header of one frame of sound: what all frames of a stream share, and how many bytes it announces."""

    kind: tuple[int, int]
    size: int


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
    if head[:4] == b"\x1aE\xdf\xa3":
        return _detect_by_document_type(head)
    return _detect_by_frames(head)


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


def id3_bytes(head: bytes) -> int:
    """The length of the ID3v2 tag at the start; 0 when there is none."""
    if len(head) < 10 or head[:3] != b"ID3" or not 2 <= head[3] <= 4 or head[4] == 0xFF or max(head[6:10]) >= 0x80:
        return 0
    size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
    return 10 + size + 10 * bool(head[5] & 0x10)


def _detect_by_brands(head: bytes) -> Kind | None:
    size, major = int.from_bytes(head[:4], "big"), head[8:12]
    if major in CODEC_BRANDS:
        return CODEC_BRANDS[major]
    if major in MEDIA_BRANDS or major.startswith(MEDIA_BRAND_PREFIXES):
        return MEDIA_BRANDS.get(major, MP4)
    if major not in PICTURE_BRANDS:
        return None
    compatible = (head[at : at + 4] for at in range(16, min(size, len(head)), 4))
    return next((CODEC_BRANDS[brand] for brand in compatible if brand in CODEC_BRANDS), PICTURE_BRANDS[major])


def _detect_by_document_type(head: bytes) -> Kind | None:
    """EBML's own header, of some 40 bytes, tells which of its children this is."""
    found = DOCUMENT_TYPE.search(head[:128])
    return {b"webm": WEBM, b"matroska": MATROSKA}[found[1]] if found else None


def _detect_by_frames(head: bytes) -> Kind | None:
    """Sound without a container, maybe behind an ID3 tag: frames that begin with a few set bits and follow each other.

    A tag that is larger than the head, as one with a cover picture is, hides them: then it is what tags were made for.
    """
    start = id3_bytes(head)
    if start and start >= len(head):
        return MP3
    if start and head[start : start + 4] == b"fLaC":
        return FLAC
    for kind, frame in ((MP3, _mp3_frame), (AAC, _aac_frame)):
        if _frames_follow_each_other(head, start, frame):
            return kind
    # Some taggers leave more room behind the tag than they say.
    return MP3 if start else None


def _frames_follow_each_other(head: bytes, start: int, frame: Callable[[bytes], Frame | None]) -> bool:
    """Whether frames of one kind stand one behind the other; a few in a row are no accident, and no text."""
    at, first = start, None
    for _ in range(FRAMES_IN_A_ROW):
        found = frame(head[at : at + 7])
        if found is None or found.kind != (first or found).kind:
            return False
        first, at = first or found, at + found.size
        if at == len(head):
            return True
    return True


def _mp3_frame(header: bytes) -> Frame | None:
    """MPEG 1, 2 and 2.5, layer III."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return None
    version, bit_rate, rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or bit_rate in (0, 15) or rate == 3:
        return None
    is_first = version == 3
    kilobits = (MPEG_1_KILOBITS if is_first else MPEG_2_KILOBITS)[bit_rate - 1]
    hertz = (44_100, 48_000, 32_000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
    size = (144_000 if is_first else 72_000) * kilobits // hertz + (header[2] >> 1 & 1)
    return Frame(kind=(version, rate), size=size)


def _aac_frame(header: bytes) -> Frame | None:
    """AAC in ADTS."""
    if len(header) < 7 or header[0] != 0xFF or header[1] & 0xF6 != 0xF0 or header[2] >> 2 & 15 > 12:
        return None
    size = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    return Frame(kind=(header[1] & 15, header[2] >> 2), size=size) if size >= 7 else None


def _image_size(head: bytes, kind: Kind) -> tuple[int, int]:
    if kind is GIF and len(head) >= 10:
        # imagesize reads these two as signed numbers.
        width, height = struct.unpack_from("<HH", head, 6)
        return width, height
    width, height = imagesize.get(BytesIO(head), exif_rotation=False)
    return width, height
