"""The image step on real files: facts and pixels of what it makes."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageStat

from pipeline.steps import StepResult
from tests import corpus, profiles
from tests.pipeline.steps.conftest import Make

#: Where to look in a picture of four quarters.
QUARTERS = {(0.2, 0.2): corpus.RED, (0.8, 0.2): corpus.GREEN, (0.2, 0.8): corpus.BLUE, (0.8, 0.8): corpus.WHITE}

# --- what is made -----------------------------------------------------------------------------------


def test_only_the_wanted_variants_are_made(make: Make, tmp_path: Path) -> None:
    result = make(corpus.jpeg(), "image/jpeg", frozenset({"crop"}))
    assert [produced.variant for produced in result.produced] == ["crop"]
    assert [path.name for path in (tmp_path / "scratch" / "image").iterdir()] == ["crop.webp"]


def test_with_nothing_wanted_only_the_facts_are_found(make: Make) -> None:
    result = make(corpus.jpeg(), "image/jpeg", frozenset())
    assert result.produced == ()
    assert result.original_facts["width"] == 800


@pytest.mark.parametrize("content_type", corpus.BY_TYPE)
def test_each_format_gives_three_variants_with_the_same_picture(make: Make, content_type: str) -> None:
    result = make(corpus.BY_TYPE[content_type](corpus.quarters()), content_type)
    assert {name: picture.size for name, picture in _pictures(result).items()} == {
        "thumbnail": (320, 240),
        "crop": (400, 400),
        "optimized": (800, 600),
    }
    for name in ("thumbnail", "optimized"):
        _assert_quarters(_pictures(result)[name])


def test_facts_tell_the_size_of_each_variant_and_the_looks_of_the_original(make: Make) -> None:
    result = make(corpus.jpeg(Image.new("RGB", (640, 480), corpus.GREEN)), "image/jpeg")
    assert {produced.variant: produced.facts for produced in result.produced} == {
        "thumbnail": {"width": 320, "height": 240},
        "crop": {"width": 400, "height": 400},
        "optimized": {"width": 640, "height": 480},
    }
    assert {produced.content_type for produced in result.produced} == {"image/webp"}
    facts = dict(result.original_facts)
    assert _is_close(_rgb(facts.pop("dominant_colour")), corpus.GREEN)
    assert len(base64.b64decode(facts.pop("thumbhash"))) > 5
    assert facts == {"width": 640, "height": 480, "format": "jpeg", "frames": 1, "has_alpha": False}


@pytest.mark.parametrize(
    ("size", "sizes"),
    [
        ((5000, 2500), {"thumbnail": (320, 160), "crop": (400, 400), "optimized": (2048, 1024)}),
        ((4000, 500), {"thumbnail": (320, 40), "crop": (400, 400), "optimized": (2048, 256)}),
        ((500, 4000), {"thumbnail": (40, 320), "crop": (400, 400), "optimized": (256, 2048)}),
        ((300, 1000), {"thumbnail": (96, 320), "crop": (300, 300), "optimized": (300, 1000)}),
        ((50, 40), {"thumbnail": (50, 40), "crop": (40, 40), "optimized": (50, 40)}),
        ((1, 1), {"thumbnail": (1, 1), "crop": (1, 1), "optimized": (1, 1)}),
        ((6000, 1), {"thumbnail": (320, 1), "crop": (1, 1), "optimized": (2048, 1)}),
    ],
)
def test_variants_fit_their_box_and_are_never_enlarged(
    make: Make, size: tuple[int, int], sizes: dict[str, Any]
) -> None:
    result = make(corpus.jpeg(Image.new("RGB", size, corpus.BLUE)), "image/jpeg")
    assert {name: picture.size for name, picture in _pictures(result).items()} == sizes


def test_the_crop_does_not_depend_on_which_other_variants_are_wanted(make: Make) -> None:
    data = corpus.jpeg(corpus.letter_f(3000, 2000))
    alone = _pictures(make(data, "image/jpeg", frozenset({"crop"})))["crop"]
    together = _pictures(make(data, "image/jpeg"))["crop"]
    assert alone.size == together.size == (400, 400)
    assert _difference(alone, together) < 6


def test_running_it_again_makes_the_same_bytes(make: Make) -> None:
    first = {produced.variant: produced.path.read_bytes() for produced in make(corpus.jpeg(), "image/jpeg").produced}
    again = {produced.variant: produced.path.read_bytes() for produced in make(corpus.jpeg(), "image/jpeg").produced}
    assert first == again


# --- orientation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_comes_out_upright(make: Make, orientation: int) -> None:
    result = make(corpus.turned_jpeg(orientation), "image/jpeg")
    assert (result.original_facts["width"], result.original_facts["height"]) == (600, 800)
    pictures = _pictures(result)
    assert pictures["optimized"].size == (600, 800)
    assert _difference(pictures["optimized"], corpus.letter_f()) < 4
    assert _difference(pictures["thumbnail"], corpus.letter_f(240, 320)) < 6
    assert all("exif" not in picture.info for picture in pictures.values())


@pytest.mark.parametrize(("turn", "size"), [(0, (512, 384)), (1, (384, 512)), (2, (512, 384)), (3, (384, 512))])
def test_a_phones_tiled_heic_is_turned_once_though_it_says_so_twice(
    make: Make, turn: int, size: tuple[int, int]
) -> None:
    result = make(corpus.phone_heic(turn=turn, orientation=(1, 8, 3, 6)[turn]), "image/heic")
    assert (result.original_facts["width"], result.original_facts["height"]) == size
    picture = _pictures(result)["optimized"]
    assert picture.size == size
    _assert_quarters(picture.rotate(-90 * turn, expand=True))


# --- colour -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ADOBE_RGB", "DISPLAY_P3"])
@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("content_type", ["image/jpeg", "image/png", "image/heic"])
def test_a_profile_is_converted_to_srgb(make: Make, kind: str, version: int, content_type: str) -> None:
    profile = profiles.profile(getattr(profiles, kind), gamma=2.2, version=version)
    area = corpus.converted_from_srgb(Image.new("RGB", (64, 64), (200, 100, 50)), profile)
    assert area.getpixel((5, 5)) != (200, 100, 50)
    writers = {"image/jpeg": corpus.jpeg, "image/png": corpus.png, "image/heic": corpus.heic}
    result = make(writers[content_type](area, icc_profile=profile), content_type)
    _assert_plain(result, (200, 100, 50))


def test_cmyk_becomes_srgb(make: Make) -> None:
    _assert_plain(make(corpus.cmyk_jpeg(corpus.RED), "image/jpeg"), corpus.RED, tolerance=14)
    with_profile = corpus.cmyk_jpeg(corpus.RED, icc=corpus.cmyk_profile())
    _assert_plain(make(with_profile, "image/jpeg"), corpus.RED, tolerance=14)


@pytest.mark.parametrize(
    "profile", [profiles.profile(profiles.ADOBE_RGB, gamma=2.2), b"not a profile"], ids=["of_rgb", "of_nothing"]
)
def test_a_profile_that_does_not_fit_is_ignored(make: Make, profile: bytes) -> None:
    _assert_plain(make(corpus.cmyk_jpeg(corpus.RED, icc=profile), "image/jpeg"), corpus.RED, tolerance=14)


def test_a_broken_profile_of_an_rgb_picture_is_ignored(make: Make) -> None:
    data = corpus.jpeg(Image.new("RGB", (64, 64), corpus.RED), icc_profile=b"not a profile")
    _assert_plain(make(data, "image/jpeg"), corpus.RED)


@pytest.mark.parametrize(
    ("colour", "expected"),
    [
        ((0x8000,), (128, 128, 128)),
        ((0xC800, 0x6400, 0x3200), (200, 100, 50)),
    ],
)
def test_sixteen_bits_become_eight(make: Make, colour: tuple[int, ...], expected: tuple[int, int, int]) -> None:
    _assert_plain(make(corpus.deep_png(colour), "image/png"), expected)


def test_deep_grey_heic_becomes_eight_bits(make: Make) -> None:
    _assert_plain(make(corpus.deep_grey_heic(0x8000), "image/heic"), (128, 128, 128))


def test_sixteen_bits_with_alpha_keep_it(make: Make) -> None:
    picture = _pictures(make(corpus.deep_png((0xC800, 0x6400, 0x3200, 0x8000)), "image/png"))["thumbnail"]
    assert picture.mode == "RGBA"
    *colour, alpha = _pixel(picture, 20, 20)
    assert _is_close(colour, (200, 100, 50), tolerance=4)
    assert abs(alpha - 128) <= 2


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_any_mode_of_png_is_decoded(make: Make, mode: str) -> None:
    data = corpus.png(Image.new("L", (64, 48), 255).convert(mode))
    _assert_plain(make(data, "image/png"), (255, 255, 255))


@pytest.mark.parametrize(
    ("draw", "content_type"), [(corpus.palette_png, "image/png"), (corpus.transparent_gif, "image/gif")]
)
def test_transparent_places_stay_transparent(make: Make, draw: Callable[[], bytes], content_type: str) -> None:
    result = make(draw(), content_type)
    for picture in _pictures(result).values():
        assert picture.mode == "RGBA"
        assert _pixel(picture, 3, picture.height // 2)[3] == 0
    *colour, alpha = _pixel(_pictures(result)["optimized"], 60, 20)
    assert _is_close(colour, corpus.GREEN)
    assert alpha == 255
    assert result.original_facts["has_alpha"] is True
    assert _is_close(_rgb(result.original_facts["dominant_colour"]), corpus.GREEN)


def test_a_picture_without_a_visible_pixel_has_no_dominant_colour(make: Make) -> None:
    result = make(corpus.png(Image.new("RGBA", (20, 20), (0, 0, 0, 0))), "image/png")
    assert result.original_facts["dominant_colour"] is None


# --- privacy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "content_type"),
    [
        (corpus.jpeg_with_place, "image/jpeg"),
        (corpus.png_with_place, "image/png"),
        (corpus.heic_with_place, "image/heic"),
    ],
)
def test_no_metadata_reaches_a_variant(make: Make, draw: Callable[[], bytes], content_type: str) -> None:
    data = draw()
    assert b"Holdfast Camera" in data
    assert corpus.GPS_TEXT in data
    for produced in make(data, content_type).produced:
        written = produced.path.read_bytes()
        assert corpus.webp_chunks(written) <= {b"VP8 ", b"VP8L"}
        assert b"Holdfast Camera" not in written
        assert corpus.GPS_TEXT not in written
        assert profiles.PROFILE_TEXT not in written


# --- several frames ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "content_type", "frames"),
    [
        pytest.param(corpus.animated("GIF"), "image/gif", 3, id="gif"),
        pytest.param(corpus.animated("WEBP"), "image/webp", 3, id="webp"),
        pytest.param(corpus.animated("PNG"), "image/png", 1, id="apng"),
        pytest.param(corpus.two_page_tiff(), "image/tiff", 2, id="tiff"),
    ],
)
def test_the_first_frame_stands_for_all(make: Make, data: bytes, content_type: str, frames: int) -> None:
    result = make(data, content_type)
    assert result.original_facts["frames"] == frames
    assert result.original_facts["has_alpha"] is False
    _assert_plain(result, corpus.RED)


def test_many_frames_cost_no_more_than_one(make: Make, settings: Any) -> None:
    settings.MAX_IMAGE_PIXELS = 120 * 80
    assert make(corpus.animated("GIF", frames=200), "image/gif").original_facts["frames"] == 200


def test_bytes_after_the_end_do_no_harm(make: Make) -> None:
    _assert_quarters(_pictures(make(corpus.jpeg() + b"appended", "image/jpeg"))["optimized"])


# --- looking at pictures ----------------------------------------------------------------------------


def _pictures(result: StepResult) -> dict[str, Image.Image]:
    pictures: dict[str, Image.Image] = {}
    for produced in result.produced:
        picture = Image.open(io.BytesIO(produced.path.read_bytes()))
        assert picture.format == "WEBP"
        assert produced.facts == {"width": picture.width, "height": picture.height}
        pictures[produced.variant] = picture
    return pictures


def _assert_quarters(picture: Image.Image) -> None:
    for (x, y), colour in QUARTERS.items():
        seen = _pixel(picture.convert("RGB"), int(picture.width * x), int(picture.height * y))
        assert _is_close(seen, colour, tolerance=8), (x, y, seen)


def _assert_plain(result: StepResult, colour: tuple[int, int, int], *, tolerance: int = 6) -> None:
    for name, picture in _pictures(result).items():
        seen = _pixel(picture.convert("RGB"), picture.width // 2, picture.height // 2)
        assert _is_close(seen, colour, tolerance=tolerance), (name, seen)


def _pixel(picture: Image.Image, x: int, y: int) -> tuple[int, ...]:
    pixel = picture.getpixel((x, y))
    assert isinstance(pixel, tuple)
    return pixel


def _is_close(seen: Any, expected: Any, *, tolerance: int = 6) -> bool:
    return all(abs(a - b) <= tolerance for a, b in zip(seen, expected, strict=True))


def _rgb(text: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(text.removeprefix("#")))


def _difference(left: Image.Image, right: Image.Image) -> float:
    assert left.size == right.size
    return max(ImageStat.Stat(ImageChops.difference(left.convert("RGB"), right.convert("RGB"))).mean)
