"""Decodes one picture and makes variants of it. Imported and run only where a crash is harmless: in a confined child.

One decode serves all variants: the picture is read once, shrunk while reading to the largest size that any wanted
variant needs, and the others are made from that. libvips reads everything but HEIC, whose codec (HEVC) only
pillow-heif brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pillow_heif
import pyvips

from attachments.errors import BadFile, EmptyFile, TooManyPixels, UnsupportedType
from attachments.inspection import check_pixels
from pipeline.steps import palette, thumbhash

#: Detected type: the name of the format, and the one class of libvips loaders that may read it (None: pillow-heif).
#: Being listed here is what makes a type acceptable.
FORMATS: dict[str, tuple[str, str | None]] = {
    "image/jpeg": ("jpeg", "VipsForeignLoadJpeg"),
    "image/png": ("png", "VipsForeignLoadPng"),
    "image/webp": ("webp", "VipsForeignLoadWebp"),
    "image/gif": ("gif", "VipsForeignLoadNsgif"),
    "image/tiff": ("tiff", "VipsForeignLoadTiff"),
    "image/avif": ("avif", "VipsForeignLoadHeif"),
    "image/heic": ("heic", None),
    "image/heif": ("heic", None),
    "image/heic-sequence": ("heic", None),
    "image/heif-sequence": ("heic", None),
}

#: Truncated files and errors in the data fail; mere warnings, which many cameras' files provoke, do not.
FAIL_ON = "error"
THUMBNAIL_SIDE, CROP_SIDE, OPTIMIZED_SIDE = 320, 400, 2048
#: More effort than 2 takes twice the time for 3 % fewer bytes.
WEBP = {"Q": 80, "effort": 2, "keep": "none"}
PLACEHOLDER_SIDE = 48
#: How the libraries say it; each has words of its own.
OUT_OF_MEMORY = ("out of memory", "insufficient memory", "memory allocation", "allocate memory", "failed to allocate")


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A picture of which only the header was read. Width and height are those of the upright picture."""

    width: int
    height: int
    frames: int
    #: Decodes the first frame, upright, to fit within a square of this side, never enlarged, colours as in the file.
    shrink: Callable[[int], pyvips.Image]


def make(request: dict[str, Any]) -> dict[str, Any]:
    """{original, content_type, wanted: [variant, …], folder, max_pixels} → {made: {variant: facts}, original: facts}.

    Each variant is written to `<folder>/<variant>.webp`. Raises BadFile, EmptyFile, TooManyPixels, UnsupportedType.
    """
    path, content_type, wanted = Path(request["original"]), request["content_type"], request["wanted"]
    if content_type not in FORMATS:
        raise UnsupportedType(f"no loader is allowed for {content_type}")
    with _reading():
        opened = _open(path, content_type)
        # Only the first frame is ever decoded, so its pixels are what counts, however many frames there are.
        check_pixels(opened.width, opened.height, max_pixels=request["max_pixels"])
        picture = _normal(opened.shrink(_side_needed(opened, wanted))).copy_memory()
    made = {}
    for variant in wanted:
        result = MAKERS[variant](picture)
        result.webpsave(str(Path(request["folder"]) / f"{variant}.webp"), **WEBP)
        made[variant] = {"width": result.width, "height": result.height}
    return {"made": made, "original": _facts(opened, FORMATS[content_type][0], picture)}


def try_samples(request: dict[str, Any]) -> dict[str, Any]:
    """{accepted: {file: type}, blocked: [file, …]} → {wrong: [what, …]}: what is not as the service promises.

    Accepted files are decoded by the loader of their type; none opens while every loader is blocked.
    """
    flaws = [_flaw(Path(file), content_type) for file, content_type in request["accepted"].items()]
    _allow_loader(None)
    opened = [f"{file} opens though blocked" for file in request["blocked"] if _opens(file)]
    return {"wrong": [*filter(None, flaws), *opened]}


def _flaw(file: Path, content_type: str) -> str | None:
    try:
        with _reading():
            picture = _normal(_open(file, content_type).shrink(THUMBNAIL_SIDE)).copy_memory()
            _thumbnail(picture).webpsave_buffer(**WEBP)
    except Exception as error:  # noqa: BLE001  (whatever it is, the worker's log says it)
        return f"{file.name}: {type(error).__name__}: {error}"
    return None


def _open(path: Path, content_type: str) -> Opened:
    if path.stat().st_size == 0:
        raise EmptyFile
    loader = FORMATS[content_type][1]
    _allow_loader(loader)
    return _open_with_vips(path) if loader else _open_heic(path)


def _allow_loader(loader: str | None) -> None:
    """Block every loader of libvips but this class, and whatever its makers do not trust with strangers' files."""
    pyvips.cache_set_max(0)
    pyvips.operation_block_set("VipsForeignLoad", True)
    if loader:
        pyvips.operation_block_set(loader, False)
    pyvips.block_untrusted_set(True)


def _open_with_vips(path: Path) -> Opened:
    header = pyvips.Image.new_from_source(_source(path), "", access="sequential", fail_on=FAIL_ON)
    is_on_its_side = _field(header, "orientation", 1) >= 5
    width, height = (header.height, header.width) if is_on_its_side else (header.width, header.height)

    def shrink(side: int) -> pyvips.Image:
        # Not by its own fail_on: this operation does not hand that on to the loader (libvips 8.18).
        options = f"[fail_on={FAIL_ON}]"
        return pyvips.Image.thumbnail_source(_source(path), side, height=side, size="down", option_string=options)

    return Opened(width=width, height=height, frames=_field(header, "n-pages", 1), shrink=shrink)


def _source(path: Path) -> pyvips.Source:
    # By descriptor: a file name given to libvips may carry options in brackets.
    with path.open("rb") as file:
        return pyvips.Source.new_from_descriptor(file.fileno())


def _open_heic(path: Path) -> Opened:
    pillow_heif.options.DECODE_THREADS = 1
    pillow_heif.options.THUMBNAILS = pillow_heif.options.DEPTH_IMAGES = pillow_heif.options.AUX_IMAGES = False
    heic = pillow_heif.open_heif(path)
    width, height = heic.size

    def shrink(side: int) -> pyvips.Image:
        return _heic_pixels(heic).thumbnail_image(side, height=side, size="down")

    return Opened(width=width, height=height, frames=len(heic), shrink=shrink)


def _heic_pixels(heic: pillow_heif.HeifFile) -> pyvips.Image:
    """All pixels as libvips' image. The decoder has turned them upright; the EXIF orientation must not turn them again.

    Modes are Pillow's: one letter a band (but "I" for deep grey), and ";16" where a value has two bytes.
    """
    bands, _, depth = heic.mode.partition(";")
    number = "ushort" if depth else "uchar"
    image = pyvips.Image.new_from_memory(heic.data, *heic.size, len(bands), number)
    colour, grey = ("rgb16", "grey16") if depth else ("srgb", "b-w")
    image = image.copy(interpretation=colour if len(bands) >= 3 else grey)
    if profile := heic.info.get("icc_profile"):
        image.set_type(pyvips.GValue.blob_type, "icc-profile-data", profile)
    if heic.premultiplied_alpha:
        image = image.unpremultiply().cast(number)
    return image


def _side_needed(opened: Opened, wanted: list[str]) -> int:
    """The longer side of the smallest picture from which all wanted variants can be made."""
    longer, shorter = max(opened.width, opened.height), min(opened.width, opened.height)
    sides = {
        "thumbnail": THUMBNAIL_SIDE,
        "optimized": OPTIMIZED_SIDE,
        # The crop needs its side along the shorter side of the picture.
        "crop": -(-CROP_SIDE * longer // shorter),
    }
    return min(longer, max((sides[variant] for variant in wanted), default=PLACEHOLDER_SIDE))


def _normal(picture: pyvips.Image) -> pyvips.Image:
    """8-bit sRGB. After shrinking, for there are fewer pixels to convert."""
    if _has(picture, "icc-profile-data"):
        fallback = "cmyk" if picture.interpretation == "cmyk" else "srgb"
        picture = picture.icc_transform("srgb", embedded=True, input_profile=fallback, depth=8)
    return picture.colourspace("srgb").cast("uchar")


def _thumbnail(picture: pyvips.Image) -> pyvips.Image:
    return picture.thumbnail_image(THUMBNAIL_SIDE, height=THUMBNAIL_SIDE, size="down")


def _crop(picture: pyvips.Image) -> pyvips.Image:
    side = min(CROP_SIDE, picture.width, picture.height)
    return picture.thumbnail_image(side, height=side, size="down", crop="attention")


def _optimized(picture: pyvips.Image) -> pyvips.Image:
    return picture.thumbnail_image(OPTIMIZED_SIDE, height=OPTIMIZED_SIDE, size="down")


MAKERS: dict[str, Callable[[pyvips.Image], pyvips.Image]] = {
    "thumbnail": _thumbnail,
    "crop": _crop,
    "optimized": _optimized,
}


def _facts(opened: Opened, name: str, picture: pyvips.Image) -> dict[str, Any]:
    small = picture.thumbnail_image(PLACEHOLDER_SIDE, height=PLACEHOLDER_SIDE, size="down")
    if not small.hasalpha():
        small = small.bandjoin(255)
    rgba = bytes(small.write_to_memory())
    return {
        "width": opened.width,
        "height": opened.height,
        "format": name,
        "frames": opened.frames,
        "has_alpha": bool(picture.hasalpha() and picture[-1].min() < 255),
        "dominant_colour": palette.dominant(rgba),
        "thumbhash": thumbhash.encode_base64(small.width, small.height, rgba),
    }


def _opens(file: str) -> bool:
    try:
        pyvips.Image.new_from_file(file)
    except pyvips.Error:
        return False
    return True


@contextmanager
def _reading() -> Iterator[None]:
    """Errors of the decoders become ours. Only around reading: a full disk while writing is not the file's fault."""
    try:
        yield
    except (pyvips.Error, ValueError, RuntimeError, SyntaxError, EOFError) as error:
        message = str(error)
        if any(words in message.lower() for words in OUT_OF_MEMORY):
            raise MemoryError(message) from error
        if "security limit" in message.lower():
            raise TooManyPixels(message) from error
        if "has not been built in" in message or "unsupported codec" in message.lower():
            raise UnsupportedType(message) from error
        raise BadFile(message.strip()) from error


def _has(image: pyvips.Image, field: str) -> bool:
    return bool(image.get_typeof(field))


def _field(image: pyvips.Image, field: str, default: int) -> int:
    return int(image.get(field)) if _has(image, field) else default
