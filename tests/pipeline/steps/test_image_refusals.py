"""What the image step refuses, how it ends when it must, and its self-test."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from attachments import inspection
from attachments.errors import BadFile, EmptyFile, TooManyPixels, UnsupportedType
from pipeline import confined
from pipeline.steps import SelfTestFailed, image
from pipeline.steps.image import ImageStep
from tests import corpus
from tests.pipeline.steps.conftest import Make
from tests.samples import pictures, write

# --- damage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", corpus.BY_TYPE)
@pytest.mark.parametrize("share", [0.02, 0.6])
def test_a_truncated_file_is_a_bad_file(make: Make, content_type: str, share: float) -> None:
    data = corpus.BY_TYPE[content_type](corpus.letter_f(1200, 1600))
    with pytest.raises(BadFile):
        make(corpus.cut(data, share), content_type)


def test_a_jpeg_without_its_last_bytes_is_a_bad_file(make: Make) -> None:
    data = corpus.jpeg()
    with pytest.raises(BadFile):
        make(data[:-17], "image/jpeg")


def test_an_empty_file_is_told_apart(make: Make) -> None:
    with pytest.raises(EmptyFile):
        make(b"", "image/jpeg")


@pytest.mark.parametrize("content_type", corpus.BY_TYPE)
def test_random_bytes_are_a_bad_file(make: Make, content_type: str) -> None:
    with pytest.raises(BadFile):
        make(bytes(range(256)) * 20, content_type)


@pytest.mark.parametrize(("real", "claimed"), list(itertools.permutations(corpus.BY_TYPE, 2)))
def test_only_the_loader_of_the_detected_type_is_tried(make: Make, real: str, claimed: str) -> None:
    # HEIC and AVIF share a container, so their readers get as far as missing the codec.
    with pytest.raises((BadFile, UnsupportedType)):
        make(corpus.BY_TYPE[real](corpus.quarters(64, 48)), claimed)


@pytest.mark.parametrize("content_type", ["image/svg+xml", "application/pdf", "application/octet-stream", ""])
def test_other_types_are_unsupported_whatever_the_bytes(make: Make, content_type: str) -> None:
    for data in (corpus.SVG, corpus.jpeg()):
        with pytest.raises(UnsupportedType):
            make(data, content_type)


@pytest.mark.parametrize("sample", sorted(path.name for path in (image.SAMPLES / "refused").iterdir()))
@pytest.mark.parametrize("content_type", ["image/png", "image/tiff"])
def test_active_and_exotic_content_under_a_false_name_is_a_bad_file(make: Make, sample: str, content_type: str) -> None:
    with pytest.raises(BadFile):
        make((image.SAMPLES / "refused" / sample).read_bytes(), content_type)


# --- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "side", "content_type"),
    [
        (corpus.png_claiming, 225_000, "image/png"),
        (corpus.flat_png, 19_000, "image/png"),
        (corpus.jpeg_claiming, 65_500, "image/jpeg"),
        (corpus.gif_claiming, 65_535, "image/gif"),
        (corpus.tiff_claiming, 100_000, "image/tiff"),
        (corpus.heic_claiming, 16_000, "image/heic"),
        (corpus.heic_claiming, 100_000, "image/heic"),
        (corpus.avif_claiming, 16_000, "image/avif"),
        (corpus.avif_claiming, 100_000, "image/avif"),
    ],
)
def test_a_pixel_bomb_is_refused_from_its_header(
    make: Make, settings: Any, draw: Callable[[int, int], bytes], side: int, content_type: str
) -> None:
    settings.STEP_MEMORY_BYTES = 512 * 1024**2
    with pytest.raises(TooManyPixels):
        make(draw(side, side), content_type)


def test_the_pixel_limit_is_the_settings(make: Make, settings: Any) -> None:
    settings.MAX_IMAGE_PIXELS = 800 * 600
    make(corpus.jpeg(), "image/jpeg")
    settings.MAX_IMAGE_PIXELS -= 1
    with pytest.raises(TooManyPixels) as raised:
        make(corpus.jpeg(), "image/jpeg")
    assert raised.value.facts == {"width": 800, "height": 600, "limit": 800 * 600 - 1}


def test_a_picture_that_needs_more_memory_than_allowed_ends_as_that(make: Make, settings: Any) -> None:
    settings.STEP_MEMORY_BYTES = 512 * 1024**2
    with pytest.raises(confined.MemoryLimit):
        # Progressive, so all coefficients are held at once: 6 bytes a pixel.
        make(corpus.jpeg(Image.new("RGB", (9000, 9000)), progressive=True), "image/jpeg")


def test_a_step_that_takes_too_long_ends_as_that(make: Make, settings: Any) -> None:
    settings.IMAGE_STEP_SECONDS = 0.001
    with pytest.raises(confined.TimeLimit):
        make(corpus.jpeg(corpus.letter_f(3000, 4000)), "image/jpeg")


def test_a_step_that_is_told_to_stop_does(make: Make, settings: Any) -> None:
    with pytest.raises(confined.Interrupted):
        make(corpus.jpeg(corpus.letter_f(8000, 8000)), "image/jpeg", stop=lambda: True)


# --- trust ------------------------------------------------------------------------------------------


def test_a_link_or_another_format_in_place_of_a_variant_is_not_handed_on(tmp_path: Path) -> None:
    secret, variant = tmp_path / "secret", tmp_path / "crop.webp"
    secret.write_bytes(b"RIFF\0\0\0\0WEBP")
    variant.symlink_to(secret)
    answer = {"made": {"crop": {"width": 1, "height": 1}}}
    with pytest.raises(confined.ChildFailed):
        image._produced("crop", tmp_path, answer)
    variant.unlink()
    variant.write_bytes(b"<script>")
    with pytest.raises(confined.ChildFailed):
        image._produced("crop", tmp_path, answer)


def test_the_worker_itself_never_loads_a_decoder(tmp_path: Path) -> None:
    program = "import sys; import pipeline.steps.image; print({'pyvips', 'pillow_heif', 'PIL'} & set(sys.modules))"
    root = Path(__file__).resolve().parents[3]
    ran = subprocess.run([sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "set()"


def test_the_self_test_passes_here(tmp_path: Path) -> None:
    ImageStep().self_test(tmp_path)


def test_the_self_test_notices_a_type_that_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = tmp_path / "samples"
    write(samples, pictures())
    (samples / "accepted/image/png/plain.png").write_bytes(corpus.SVG)
    monkeypatch.setattr(image, "SAMPLES", samples)
    with pytest.raises(SelfTestFailed, match=r"plain\.png"):
        ImageStep().self_test(tmp_path)


def test_the_samples_of_the_self_test_cover_every_accepted_type() -> None:
    from pipeline.steps.image_decoding import FORMATS

    sampled = {"/".join(path.parts[-3:-1]) for path in image.SAMPLES.glob("accepted/image/*/*")}
    assert {FORMATS[content_type] for content_type in sampled} == set(FORMATS.values())


def test_every_picture_type_that_is_accepted_at_the_door_is_decoded_here() -> None:
    from pipeline.steps.image_decoding import FORMATS

    kinds = [kind for kind in vars(inspection).values() if isinstance(kind, inspection.Kind)]
    assert {kind.content_type for kind in kinds if kind.family == "image"} == set(FORMATS)


@pytest.mark.parametrize("sample", ["drawing.svg", "table.csv", "plain.v"])
def test_the_refused_samples_are_such_as_libvips_would_open(sample: str) -> None:
    import pyvips

    assert pyvips.Image.new_from_file(str(image.SAMPLES / "refused" / sample)).width > 0
