"""Pictures, pipeline version 1.

| variant     | made                                                                                     |
|-------------|------------------------------------------------------------------------------------------|
| `thumbnail` | fits within 320 × 320                                                                    |
| `crop`      | a square of 400, placed where the picture draws the eye (libvips' attention, repeatable) |
| `optimized` | fits within 2048 × 2048                                                                  |

Never enlarged: a smaller picture gives a smaller variant (the crop a smaller square). All are WebP of quality 80:
half the bytes of a JPEG, keeps transparency, and every browser shows it. Upright, 8-bit sRGB, without any metadata:
no EXIF, GPS, XMP, comments or profile. Of an animation or a document of several pages, the first one.

A file that cannot be decoded completely (truncated, damaged) is BadFile: the original is kept, no variant with grey
gaps is made. PNG's gAMA and cHRM and the colour primaries that HEIC and AVIF tell without a profile are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from django.conf import settings

from pipeline import confined
from pipeline.steps import ORIGINAL, Given, Produced, SelfTestFailed, StepResult

CONTENT_TYPE = "image/webp"
CHILD = "pipeline.steps.image_decoding"
SAMPLES = Path(__file__).resolve().parent / "samples"


@dataclass(frozen=True)
class ImageStep:
    """Original facts: width, height, format, frames, has_alpha, dominant_colour ("#rrggbb" or None), thumbhash."""

    name: ClassVar[str] = "image"
    reads: ClassVar[str] = ORIGINAL
    is_internal: ClassVar[bool] = False
    makes: ClassVar[tuple[str, ...]] = ("thumbnail", "crop", "optimized")

    def run(self, given: Given) -> StepResult:
        """Raises BadFile, EmptyFile, TooManyPixels, UnsupportedType, and ConfinedError."""
        # The child writes to a folder of its own: the original beside it stays read-only for it.
        folder = given.scratch / self.name
        folder.mkdir(exist_ok=True)
        request = {
            "original": str(given.path.resolve()),
            "content_type": given.content_type,
            "wanted": [variant for variant in self.makes if variant in given.wanted],
            "folder": str(folder.resolve()),
            "max_pixels": settings.MAX_IMAGE_PIXELS,
        }
        answer = _in_child("make", request, reads=given.path, scratch=folder, stop=given.stop)
        produced = tuple(_produced(variant, folder, answer) for variant in request["wanted"])
        return StepResult(produced=produced, original_facts=answer["original"])

    def self_test(self, scratch: Path) -> None:
        """Decode a tiny file of every accepted type, and have all be refused when blocked; else SelfTestFailed.

        Block lists of decoders ignore a misspelt name silently, so the promise is worth a try at every start.
        """
        request = {
            "accepted": {str(path): "/".join(path.parts[-3:-1]) for path in SAMPLES.glob("accepted/image/*/*")},
            "blocked": [str(path) for path in SAMPLES.rglob("*") if path.is_file()],
        }
        wrong = _in_child("try_samples", request, reads=SAMPLES, scratch=scratch)["wrong"]
        if wrong:
            raise SelfTestFailed(f"not as promised: {', '.join(wrong)}")


def _in_child(
    function: str,
    request: dict[str, Any],
    *,
    reads: Path,
    scratch: Path,
    stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    return confined.run(
        f"{CHILD}:{function}",
        request,
        scratch=scratch,
        readable=(reads,),
        seconds=settings.IMAGE_STEP_SECONDS,
        memory_bytes=settings.STEP_MEMORY_BYTES,
        stop=stop,
    )


def _produced(variant: str, folder: Path, answer: dict[str, Any]) -> Produced:
    path = folder / f"{variant}.webp"
    _check_output(path)
    facts = answer["made"][variant]
    return Produced(
        variant=variant,
        path=path,
        content_type=CONTENT_TYPE,
        facts={"width": int(facts["width"]), "height": int(facts["height"])},
    )


def _check_output(path: Path) -> None:
    """A child taken over by its input could leave a link to a file that only the worker may read."""
    if path.is_symlink() or not path.is_file():
        raise confined.ChildFailed(f"{path.name} is not a file")
    with path.open("rb") as file:
        head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WEBP":
        raise confined.ChildFailed(f"{path.name} is not WebP")
