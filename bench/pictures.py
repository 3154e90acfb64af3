"""How long a phone's photo takes from file to its three variants, confinement included."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from PIL import Image

from bench.figures import Figure
from pipeline.steps import Given
from pipeline.steps.image import ImageStep

RUNS = 15


def photo_to_variants(folder: Path) -> list[Figure]:
    """Twelve megapixels of JPEG; the first run, which starts the confining server, is left out."""
    photo = folder / "photo.jpg"
    noise = Image.effect_noise((1000, 750), 60).resize((4000, 3000), Image.Resampling.BICUBIC)
    Image.merge("RGB", (noise, noise.transpose(Image.Transpose.ROTATE_180), noise)).save(photo, quality=90)
    step, took = ImageStep(), []
    for run in range(RUNS + 1):
        scratch = folder / str(run)
        scratch.mkdir()
        began = time.perf_counter()
        step.run(Given(path=photo, content_type="image/jpeg", wanted=frozenset(step.makes), scratch=scratch))
        took.append(time.perf_counter() - began)
    p50 = statistics.median(took[1:]) * 1000
    return [Figure(row="image", what="12 MP JPEG → thumbnail, crop, optimized, p50", shown=f"{p50:.0f} ms")]
