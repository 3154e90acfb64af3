"""Pictures made to break image pipelines, as bytes. Made anew each time from fixed drawings; nothing is random."""

from __future__ import annotations

import io
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pillow_heif
import pyvips
from PIL import Image, ImageCms, ImageDraw, PngImagePlugin, TiffImagePlugin

from tests import profiles

pillow_heif.register_heif_opener()

RED, GREEN, BLUE, WHITE = (220, 40, 40), (40, 180, 60), (40, 60, 200), (255, 255, 255)
ORIENTATION_TAG = 0x0112
GPS_TEXT = b"57 deg 25.1"
#: How the picture must be turned to be stored such that the orientation tag, applied by a reader, makes it upright.
STORED_AS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}

# --- drawings ---------------------------------------------------------------------------------------


def letter_f(width: int = 600, height: int = 800) -> Image.Image:
    """A picture that differs from all its rotations and reflections: a dark F on white."""
    picture = Image.new("RGB", (width, height), WHITE)
    draw = ImageDraw.Draw(picture)
    for left, top, right, bottom in ((0.25, 0.1, 0.4, 0.9), (0.25, 0.1, 0.8, 0.25), (0.25, 0.4, 0.65, 0.55)):
        draw.rectangle((left * width, top * height, right * width, bottom * height), fill=BLUE)
    return picture


def quarters(width: int = 800, height: int = 600) -> Image.Image:
    """Red, green, blue and white, clockwise from the upper left but for the last two: blue is lower left."""
    picture = Image.new("RGB", (width, height), WHITE)
    picture.paste(RED, (0, 0, width // 2, height // 2))
    picture.paste(GREEN, (width // 2, 0, width, height // 2))
    picture.paste(BLUE, (0, height // 2, width // 2, height))
    return picture


def encoded(picture: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


# --- ordinary files, one of each format -------------------------------------------------------------


def jpeg(picture: Image.Image | None = None, **options: object) -> bytes:
    return encoded(picture or quarters(), "JPEG", **{"quality": 92, "subsampling": 0, **options})


def png(picture: Image.Image | None = None, **options: object) -> bytes:
    return encoded(picture or quarters(), "PNG", **options)


def webp(picture: Image.Image | None = None) -> bytes:
    return encoded(picture or quarters(), "WEBP", quality=90)


def gif(picture: Image.Image | None = None) -> bytes:
    return encoded(picture or quarters(), "GIF")


def tiff(picture: Image.Image | None = None) -> bytes:
    return encoded(picture or quarters(), "TIFF", compression="tiff_lzw")


def avif(picture: Image.Image | None = None) -> bytes:
    return encoded(picture or quarters(), "AVIF", quality=80)


def heic(picture: Image.Image | None = None, **options: object) -> bytes:
    return encoded(picture or quarters(), "HEIF", quality=80, **options)


#: A writer of each accepted type.
BY_TYPE: dict[str, Callable[[Image.Image], bytes]] = {
    "image/jpeg": jpeg,
    "image/png": png,
    "image/webp": webp,
    "image/gif": gif,
    "image/tiff": tiff,
    "image/avif": avif,
    "image/heic": heic,
}

# --- orientation and metadata -----------------------------------------------------------------------


def exif(orientation: int = 1, *, gps: bool = False) -> Image.Exif:
    tags = Image.Exif()
    tags[ORIENTATION_TAG] = orientation
    tags[0x010F] = "Holdfast Camera"
    if gps:
        tags.get_ifd(0x8825).update({1: "N", 2: (57.0, 25.1, 0.0), 3: "E", 4: (12.0, 5.0, 0.0), 29: "2026:01:02"})
    return tags


def turned_jpeg(orientation: int) -> bytes:
    upright = letter_f()
    stored = upright.transpose(STORED_AS[orientation]) if orientation in STORED_AS else upright
    return jpeg(stored, exif=exif(orientation))


def xmp() -> bytes:
    return (
        b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        b'<rdf:Description xmlns:exif="http://ns.adobe.com/exif/1.0/" exif:GPSLatitude="' + GPS_TEXT + b'"/>'
        b"</rdf:RDF></x:xmpmeta>"
    )


def jpeg_with_place() -> bytes:
    """GPS in EXIF and in XMP, a comment, and a profile with a telling name."""
    return jpeg(
        exif=exif(gps=True), xmp=xmp(), comment=GPS_TEXT, icc_profile=profiles.profile(profiles.ADOBE_RGB, gamma=2.2)
    )


def png_with_place() -> bytes:
    """GPS in PNG's eXIf chunk and in its XMP text."""
    texts = PngImagePlugin.PngInfo()
    texts.add_itxt("XML:com.adobe.xmp", xmp().decode())
    return png(exif=exif(gps=True), pnginfo=texts)


def heic_with_place() -> bytes:
    return heic(exif=exif(gps=True).tobytes(), xmp=xmp())


# --- colour -----------------------------------------------------------------------------------------


def converted_from_srgb(picture: Image.Image, icc: bytes) -> Image.Image:
    target = ImageCms.ImageCmsProfile(io.BytesIO(icc))
    converted = ImageCms.profileToProfile(picture, ImageCms.createProfile("sRGB"), target)
    assert converted is not None
    return converted


def cmyk_jpeg(colour: tuple[int, int, int] = RED, *, icc: bytes | None = None) -> bytes:
    """A plain area of an sRGB colour, separated by libvips' own CMYK profile; `icc` is the profile then written."""
    area = (pyvips.Image.black(64, 64, bands=3) + list(colour)).cast("uchar").copy(interpretation="srgb")
    separated = area.icc_transform("cmyk", input_profile="srgb").copy()
    separated.remove("icc-profile-data")
    if icc:
        separated.set_type(pyvips.GValue.blob_type, "icc-profile-data", icc)
    return bytes(separated.jpegsave_buffer(Q=95))


def cmyk_profile() -> bytes:
    return bytes(pyvips.Operation.call("profile_load", "cmyk"))


def deep_png(colour: tuple[int, ...]) -> bytes:
    """16 bits a band: one value for grey, three for RGB, four with alpha."""
    kind = "grey16" if len(colour) <= 2 else "rgb16"
    area = (pyvips.Image.black(64, 48, bands=len(colour)) + list(colour)).cast("ushort").copy(interpretation=kind)
    return bytes(area.pngsave_buffer(bitdepth=16))


def deep_grey_heic(value: int) -> bytes:
    """Ten bits a pixel; `value` is of sixteen."""
    return heic(Image.new("I;16", (64, 48), value))


def palette_png() -> bytes:
    """A palette whose first colour is transparent: the left half."""
    picture = Image.new("P", (64, 48), 1)
    picture.putpalette([255, 0, 255, *GREEN])
    picture.paste(0, (0, 0, 32, 48))
    return encoded(picture, "PNG", transparency=0)


def transparent_gif() -> bytes:
    picture = Image.new("P", (64, 48), 1)
    picture.putpalette([255, 0, 255, *GREEN])
    picture.paste(0, (0, 0, 32, 48))
    return encoded(picture, "GIF", transparency=0)


# --- several frames ---------------------------------------------------------------------------------


def animated(kind: str, frames: int = 3) -> bytes:
    """GIF, WEBP or PNG (APNG): a red frame, then frames that change a part of it."""
    first = Image.new("RGB", (120, 80), RED)
    rest = []
    for at in range(1, frames):
        frame = first.copy()
        frame.paste(BLUE, (at % 100, 0, at % 100 + 20, 80))
        rest.append(frame)
    return encoded(first, kind, save_all=True, append_images=rest, duration=50)


def two_page_tiff() -> bytes:
    return encoded(Image.new("RGB", (90, 60), RED), "TIFF", save_all=True, append_images=[letter_f(60, 80)])


# --- damaged, hostile, huge -------------------------------------------------------------------------


def cut(data: bytes, share: float) -> bytes:
    return data[: int(len(data) * share)]


def png_claiming(width: int, height: int) -> bytes:
    """A PNG that claims a size and has one small chunk of data."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(bytes(64))) + _chunk(b"IEND", b"")
    )


def flat_png(width: int, height: int) -> bytes:
    """A complete black picture, one bit a pixel: huge in memory and small on disk."""
    row = bytes(1 + (width + 7) // 8)
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def jpeg_claiming(width: int, height: int) -> bytes:
    """An intact small JPEG whose frame header claims another size."""
    data = jpeg(Image.new("RGB", (16, 16)))
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def gif_claiming(width: int, height: int) -> bytes:
    """Both the screen and its one frame claim the size: of a screen alone, readers make what they like."""
    data = gif(Image.new("RGB", (16, 16)))
    size = struct.pack("<HH", width, height)
    frame = data.index(b",\0\0\0\0\x10\0\x10\0") + 5
    return data[:6] + size + data[10:frame] + size + data[frame + 4 :]


def tiff_claiming(width: int, height: int) -> bytes:
    picture = Image.new("L", (16, 16))
    data = encoded(picture, "TIFF")
    directory = TiffImagePlugin.ImageFileDirectory_v2(data[:8])
    at = directory.next
    for entry in range(struct.unpack_from("<H", data, at)[0]):
        where = at + 2 + 12 * entry
        tag = struct.unpack_from("<H", data, where)[0]
        if tag in (256, 257):
            value = struct.pack("<HHII", tag, 4, 1, width if tag == 256 else height)
            data = data[:where] + value + data[where + 12 :]
    return data


def heic_claiming(width: int, height: int) -> bytes:
    """An intact small HEIC or AVIF whose property claims another size."""
    return _claiming(heic(Image.new("RGB", (64, 64))), width, height)


def avif_claiming(width: int, height: int) -> bytes:
    return _claiming(avif(Image.new("RGB", (64, 64))), width, height)


def _claiming(data: bytes, width: int, height: int) -> bytes:
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", width, height) + data[at + 8 :]


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"><rect width="10" height="10" fill="red"/></svg>'
PPM = b"P6 2 2 255\n" + bytes(12)
CSV = b"1,2\n3,4\n"
RADIANCE = b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 1 +X 1\n\x80\x80\x80\x80"
FITS = b"SIMPLE  =                    T".ljust(80) + b"BITPIX  =                    8".ljust(80) + b"END".ljust(2720)
PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
)


def libvips_file() -> bytes:
    """libvips' own format, whose reader trusts what it reads."""
    with tempfile.NamedTemporaryFile(suffix=".v") as file:
        pyvips.Image.black(2, 2).write_to_file(file.name)
        return Path(file.name).read_bytes()


def webp_chunks(data: bytes) -> set[bytes]:
    """The names of a WebP file's chunks, without the one that only tells which others there are."""
    names, at = set(), 12
    while at < len(data):
        names.add(data[at : at + 4])
        size = struct.unpack_from("<I", data, at + 4)[0]
        at += 8 + size + size % 2
    return names - {b"VP8X"}


# --- HEIC as phones write it ------------------------------------------------------------------------


def phone_heic(*, columns: int = 8, rows: int = 6, turn: int = 0, orientation: int = 1) -> bytes:
    """A picture of many tiles (quarters in colour, see `quarters`), with a rotation property of `turn` quarter turns
    anticlockwise and, as phones do, EXIF that tells its orientation once more."""
    side = 64
    tiles = [heic(Image.new("RGB", (side, side), colour), chroma=444) for colour in (RED, GREEN, BLUE, WHITE)]
    configuration = _find_box(tiles[0], b"hvcC")
    assert all(_find_box(tile, b"hvcC") == configuration for tile in tiles)
    payloads = [_box_body(_find_box(tile, b"mdat")) for tile in tiles]

    count = columns * rows
    grid = struct.pack(">BBBBHH", 0, 0, rows - 1, columns - 1, columns * side, rows * side)
    tags = struct.pack(">I", 6) + b"Exif\0\0" + exif(orientation).tobytes().removeprefix(b"Exif\0\0")
    quarter = [(row >= rows // 2) * 2 + (column >= columns // 2) for row in range(rows) for column in range(columns)]
    data = [grid, tags, *payloads]
    which = [0, 1, *(2 + at for at in quarter)]

    kinds = [b"grid", b"Exif", *([b"hvc1"] * count)]
    infos = b"".join(
        _full_box(b"infe", 2, 0, struct.pack(">HH", at, 0) + kind + b"\0") for at, kind in enumerate(kinds, 1)
    )
    references = _box(b"dimg", struct.pack(f">HH{count}H", 1, count, *range(3, 3 + count)))
    references += _box(b"cdsc", struct.pack(">HHH", 2, 1, 1))
    properties = [
        configuration,
        _full_box(b"ispe", 0, 0, struct.pack(">II", side, side)),
        _full_box(b"ispe", 0, 0, struct.pack(">II", columns * side, rows * side)),
        _box(b"irot", bytes([turn])),
    ]
    links = struct.pack(">HBBB", 1, 2, 3, 0x80 | 4)
    links += b"".join(struct.pack(">HBBB", 3 + at, 2, 0x80 | 1, 2) for at in range(count))

    def meta(start: int) -> bytes:
        offsets = [start + sum(map(len, data[:at])) for at in range(len(data))]
        places = b"".join(
            struct.pack(">HHHHII", item, 0, 0, 1, offsets[at], len(data[at])) for item, at in enumerate(which, 1)
        )
        return _full_box(
            b"meta",
            0,
            0,
            _full_box(b"hdlr", 0, 0, bytes(4) + b"pict" + bytes(13))
            + _full_box(b"pitm", 0, 0, struct.pack(">H", 1))
            + _full_box(b"iloc", 1, 0, struct.pack(">BBH", 0x44, 0, len(which)) + places)
            + _full_box(b"iinf", 0, 0, struct.pack(">H", len(kinds)) + infos)
            + _full_box(b"iref", 0, 0, references)
            + _box(
                b"iprp",
                _box(b"ipco", b"".join(properties)) + _full_box(b"ipma", 0, 0, struct.pack(">I", count + 1) + links),
            ),
        )

    head = _box(b"ftyp", b"heic" + bytes(4) + b"mif1heic")
    start = len(head) + len(meta(0)) + 8
    return head + meta(start) + _box(b"mdat", b"".join(data))


def _box(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", 8 + len(body)) + name + body


def _full_box(name: bytes, version: int, flags: int, body: bytes) -> bytes:
    return _box(name, struct.pack(">I", version << 24 | flags) + body)


def _find_box(data: bytes, name: bytes) -> bytes:
    at = data.index(name) - 4
    return data[at : at + struct.unpack_from(">I", data, at)[0]]


def _box_body(box: bytes) -> bytes:
    return box[8:]
