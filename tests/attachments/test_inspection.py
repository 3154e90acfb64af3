"""The type of a file comes from its bytes, and a picture that is too large is refused by its header."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import zlib

import pillow_heif
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from attachments.errors import EmptyFile, TooManyPixels
from attachments.inspection import (
    AAC,
    AVIF,
    FLAC,
    GIF,
    HEAD_BYTES,
    HEIC,
    HEIC_SEQUENCE,
    HEIF,
    HEIF_SEQUENCE,
    JPEG,
    M4A,
    MP3,
    MP4,
    PNG,
    QUICKTIME,
    SIGNATURES,
    TIFF,
    WEBP,
    Kind,
    check_image_size,
    check_pixels,
    detect,
)
from tests import recordings

pillow_heif.register_heif_opener()

WIDTH, HEIGHT = 96, 64
PIXELS = WIDTH * HEIGHT


def picture(name: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((WIDTH, HEIGHT), 40).convert("RGB").save(buffer, name, **options)
    return buffer.getvalue()


PICTURES: dict[str, tuple[Kind, bytes]] = {
    "jpeg": (JPEG, picture("JPEG")),
    "progressive jpeg": (JPEG, picture("JPEG", progressive=True)),
    "png": (PNG, picture("PNG")),
    "gif": (GIF, picture("GIF")),
    "lossy webp": (WEBP, picture("WEBP")),
    "lossless webp": (WEBP, picture("WEBP", lossless=True)),
    "webp with metadata": (WEBP, picture("WEBP", icc_profile=b"profile")),
    "tiff": (TIFF, picture("TIFF")),
    "bigtiff": (TIFF, picture("TIFF", big_tiff=True)),
    "avif": (AVIF, picture("AVIF")),
    "moving avif": (AVIF, picture("AVIF", save_all=True, append_images=[Image.new("RGB", (WIDTH, HEIGHT))])),
    "heic": (HEIC, picture("HEIF")),
}


def ftyp(major: bytes, *compatible: bytes) -> bytes:
    brands = b"".join(compatible)
    return struct.pack(">I4s4sI", 16 + len(brands), b"ftyp", major, 0) + brands + b"\0\0\0\x08free"


@pytest.mark.parametrize("name", PICTURES)
def test_a_real_picture_is_detected_from_its_first_bytes(name: str) -> None:
    kind, data = PICTURES[name]
    assert detect(data) == kind
    assert detect(data[:64]) == kind
    assert kind.family == "image"


@pytest.mark.parametrize("name", recordings.KINDS)
def test_a_real_recording_is_detected_from_its_first_bytes(name: str) -> None:
    data, content_type = recordings.of_kind(name)
    kind = detect(data[:HEAD_BYTES])
    assert kind is not None
    assert kind.content_type == content_type
    assert kind.family == content_type.partition("/")[0]


def test_frames_of_sound_are_known_behind_a_tag() -> None:
    tag = b"ID3\x03\0\0\0\0\x02\x10" + bytes(272)
    for name, kind in (("mp3 of frames alone", MP3), ("aac", AAC), ("flac", FLAC)):
        assert detect(tag + recordings.of_kind(name)[0]) == kind
    assert detect(tag) == MP3


def test_a_tag_larger_than_what_is_looked_at_is_taken_for_that_of_a_song() -> None:
    assert detect(b"ID3\x04\0\0\0\x20\0\0" + bytes(HEAD_BYTES - 10)) == MP3


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_above_the_limit_is_refused_by_its_header(name: str) -> None:
    kind, data = PICTURES[name]
    check_image_size(data, kind, max_pixels=PIXELS)
    with pytest.raises(TooManyPixels) as refusal:
        check_image_size(data, kind, max_pixels=PIXELS - 1)
    assert refusal.value.facts == {"width": WIDTH, "height": HEIGHT, "limit": PIXELS - 1}


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (ftyp(b"heic", b"mif1"), HEIC),
        (ftyp(b"heix", b"mif1"), HEIC),
        (ftyp(b"heim"), HEIC),
        (ftyp(b"heis"), HEIC),
        (ftyp(b"hevc", b"msf1"), HEIC_SEQUENCE),
        (ftyp(b"hevx"), HEIC_SEQUENCE),
        (ftyp(b"hevm"), HEIC_SEQUENCE),
        (ftyp(b"hevs"), HEIC_SEQUENCE),
        (ftyp(b"avif"), AVIF),
        (ftyp(b"avis", b"msf1"), AVIF),
        (ftyp(b"mif1", b"mif1", b"heic"), HEIC),
        (ftyp(b"mif1", b"mif1", b"avif", b"miaf"), AVIF),
        (ftyp(b"msf1", b"hevc"), HEIC_SEQUENCE),
        (ftyp(b"msf1", b"avis"), AVIF),
        (ftyp(b"mif1", b"miaf"), HEIF),
        (ftyp(b"mif1"), HEIF),
        (ftyp(b"mif2"), HEIF),
        (ftyp(b"msf1"), HEIF_SEQUENCE),
        (ftyp(b"heic", b"avif"), HEIC),
        (ftyp(b"isom", b"heic"), MP4),
        (ftyp(b"mp42", b"isom"), MP4),
        (ftyp(b"M4V ", b"M4A ", b"mp42"), MP4),
        (ftyp(b"3gp5", b"isom"), MP4),
        (ftyp(b"qt  "), QUICKTIME),
        (ftyp(b"M4A ", b"mp42"), M4A),
        (ftyp(b"crx ", b"isom"), None),
        (ftyp(b"mif1")[:16] + b"avif", HEIF),
    ],
)
def test_an_iso_container_is_what_its_brands_say(head: bytes, kind: Kind | None) -> None:
    assert detect(head) == kind


@pytest.mark.parametrize(
    "head",
    [
        b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
        b'<?xml version="1.0"?><svg/>',
        b"<!DOCTYPE html><script>",
        b"%PDF-1.7\n",
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"PK\x03\x04" + bytes(60),
        b"\x7fELF\x02\x01\x01",
        b"MZ\x90\0",
        b"#!/bin/sh\n",
        b"BM" + bytes(60),
        b"8BPS\0\x01",
        b"\0\0\x01\0\x01\0",
        b"\xff\x0a\xfa",
        b"\0\0\0\x0cJXL \r\n\x87\n",
        b"\0\0\0\x0cjP  \r\n\x87\n",
        b"MATLAB 5.0 MAT-file",
        b"SIMPLE  =                    T",
        b"P6 1 1 255\n",
        b"gimp xcf file",
        b"\x1f\x8b\x08",
        b"OggS and other songs",
        b"ID3 is what tags are called",
        b"#!AMR is no shell",
        b"The moov is full tonight",
        b"\x1aE\xdf\xa3" + bytes(60),
        "яя".encode("cp1251") * 64,
        b"\xff\xfe" + "two columns of text".encode("utf-16-le") * 9,
        b"\xff\xfb\x90\x00" + bytes(60),
        b"\xff\xf1\x50\x80" + bytes(60),
        b"RIFF\x24\0\0\0AVI LIST",
        b"push graphic-context\n",
        b"plain text",
        b"\0" * 64,
        b"\xff\xd8",
        b"GIF88a",
        b" \x89PNG\r\n\x1a\n",
    ],
)
def test_every_other_kind_of_file_is_unknown(head: bytes) -> None:
    assert detect(head) is None


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(EmptyFile):
        detect(b"")


def test_a_file_that_is_two_things_is_the_one_it_starts_as() -> None:
    _, jpeg = PICTURES["jpeg"]
    _, png = PICTURES["png"]
    assert detect(jpeg + png) == JPEG
    assert detect(png + b"PK\x03\x04<script>") == PNG
    assert detect(b"%PDF-1.7\n" + jpeg) is None


def test_signatures_exclude_each_other_so_their_order_hides_nothing() -> None:
    heads = {magic.ljust(16, b"\0") for _, rules in SIGNATURES for offset, magic in rules if offset == 0}
    for head in heads:
        fitting = [
            kind for kind, rules in SIGNATURES if all(head[at : at + len(magic)] == magic for at, magic in rules)
        ]
        assert len(fitting) <= 1


@given(data=st.binary(min_size=1, max_size=64))
def test_any_bytes_are_judged_without_a_surprise(data: bytes) -> None:
    kind = detect(data)
    if kind is not None:
        with contextlib.suppress(TooManyPixels):
            check_image_size(data, kind, max_pixels=2**70)


@given(name=st.sampled_from(sorted(PICTURES)), seed=st.integers(), share=st.floats(0, 1))
def test_damaged_headers_are_judged_without_a_surprise(name: str, seed: int, share: float) -> None:
    _, data = PICTURES[name]
    damaged = bytearray(data[: max(1, int(len(data) * share))])
    chance = random.Random(seed)
    for _ in range(8):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    kind = detect(bytes(damaged))
    if kind is not None:
        with contextlib.suppress(TooManyPixels):
            check_image_size(bytes(damaged), kind, max_pixels=2**70)


@pytest.mark.parametrize(("width", "height"), [(1, 65_536), (65_536, 1)])
def test_a_picture_as_thin_as_a_thread_is_refused(width: int, height: int) -> None:
    """A decoder may need minutes for a side of millions, however few pixels that makes."""
    with pytest.raises(TooManyPixels):
        check_pixels(width, height, max_pixels=90_000_000)
    check_pixels(65_535, 1, max_pixels=90_000_000)


def test_a_header_that_announces_fifty_gigapixels_is_refused() -> None:
    header = struct.pack(">II5B", 225_000, 225_000, 8, 6, 0, 0, 0)
    chunk = b"IHDR" + header
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    with pytest.raises(TooManyPixels, match="225000 × 225000"):
        check_image_size(png, PNG, max_pixels=90_000_000)


def test_the_widest_gif_is_counted_and_not_taken_for_negative() -> None:
    with pytest.raises(TooManyPixels, match="65535 × 40000"):
        check_image_size(b"GIF89a" + struct.pack("<HH", 65535, 40000) + bytes(3), GIF, max_pixels=90_000_000)
    check_image_size(b"GIF89a", GIF, max_pixels=1)


def test_a_jpeg_whose_size_stands_behind_much_metadata_is_still_refused() -> None:
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\0" + bytes(60_000)
    data = picture("JPEG", exif=exif, icc_profile=bytes(150_000))
    with pytest.raises(TooManyPixels):
        check_image_size(data[:HEAD_BYTES], JPEG, max_pixels=PIXELS - 1)


def test_a_header_beyond_the_head_is_left_to_the_decoder() -> None:
    data = picture("JPEG", icc_profile=bytes(HEAD_BYTES))
    check_image_size(data[:HEAD_BYTES], JPEG, max_pixels=1)
    with pytest.raises(TooManyPixels):
        check_image_size(data, JPEG, max_pixels=1)


def test_only_pictures_have_pixels() -> None:
    check_image_size(PICTURES["png"][1], Kind("audio/ogg", "speech"), max_pixels=1)
