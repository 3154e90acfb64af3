"""Sample files for the demo: pictures, drawn and encoded the same on every machine, and something that was said."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pyvips

from config.local.places import CHECKOUT, LOCAL

FOLDER = LOCAL / "samples"
RIGHT_TOP = 6  # EXIF: the camera was turned; show it rotated by 90° clockwise
GIF_FRAMES = 12


def sample_files(say: Callable[[str], None]) -> list[Path]:
    """The samples, drawn if they are not there yet or were drawn by another version of this file."""
    stamp = FOLDER / "drawn-by"
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != version:
        say("Drawing the sample pictures")
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, draw in SAMPLES.items():
            draw(FOLDER / name)
        stamp.write_text(version)
    return [FOLDER / name for name in SAMPLES]


def _turned_photo(file: Path) -> None:
    portrait = _grained(_rendered(_landscape(1800, 2400, hues=DUSK, seed=3, sun=(0.62, 0.36))))
    stored = portrait.rot270().copy()
    stored.set_type(pyvips.GValue.gint_type, "orientation", RIGHT_TOP)
    stored.jpegsave(str(file), Q=88)


def _transparent_balloon(file: Path) -> None:
    pyvips.Image.svgload_buffer(_balloon(1000, 1250).encode()).pngsave(str(file))


def _wide_webp(file: Path) -> None:
    _grained(_rendered(_landscape(2400, 1200, hues=DAWN, seed=11, sun=(0.25, 0.42)))).webpsave(
        str(file), Q=82, effort=2
    )


def _small_avif(file: Path) -> None:
    picture = _grained(_rendered(_landscape(1280, 853, hues=NOON, seed=23, sun=(0.78, 0.2))))
    picture.heifsave(str(file), compression="av1", Q=60, effort=1)


def _scanned_tiff(file: Path) -> None:
    picture = _rendered(_landscape(1600, 1100, hues=DUSK, seed=31, sun=(0.5, 0.5)))
    picture.tiffsave(str(file), compression="deflate", predictor="horizontal", xres=11.8, yres=11.8)


def _moving_gif(file: Path) -> None:
    frames = []
    for number in range(GIF_FRAMES):
        turn = number / GIF_FRAMES
        sun = (0.1 + 0.8 * turn, 0.5 - 0.35 * math.sin(math.pi * turn))
        frames.append(_rendered(_landscape(360, 240, hues=NOON, seed=5, sun=sun)))
    film = pyvips.Image.arrayjoin(frames, across=1).copy()
    film.set_type(pyvips.GValue.gint_type, "page-height", 240)
    film.set_type(pyvips.GValue.array_int_type, "delay", [90] * GIF_FRAMES)
    film.gifsave(str(file))


def _speech(file: Path) -> None:
    shutil.copy(CHECKOUT / "pipeline" / "speech" / "sample.ogg", file)


SAMPLES: dict[str, Callable[[Path], None]] = {
    "headland (turned).jpg": _turned_photo,
    "balloon.png": _transparent_balloon,
    "morning.webp": _wide_webp,
    "bay.avif": _small_avif,
    "evening.tiff": _scanned_tiff,
    "day.gif": _moving_gif,
    "inaugural address.ogg": _speech,
}

# Sky above, sky at the horizon, sun, water, then the hills from far to near.
DUSK = ("#1d2b53", "#f08a5d", "#ffd56b", "#6a3d5c", "#7a4b66", "#5a3554", "#3b2440", "#1f1428")
DAWN = ("#8fb8de", "#fbe3c5", "#fff6d8", "#a9c4cf", "#b3bfc9", "#8aa0a8", "#5f7d80", "#38565a")
NOON = ("#2f86d6", "#bfe4f7", "#fff9e0", "#2f9ab5", "#7fb69b", "#579a72", "#3a7a4f", "#1f5233")


def _rendered(svg: str) -> pyvips.Image:
    return pyvips.Image.svgload_buffer(svg.encode()).flatten(background=[255, 255, 255])


def _grained(picture: pyvips.Image) -> pyvips.Image:
    grain = pyvips.Image.gaussnoise(picture.width, picture.height, mean=0, sigma=5, seed=1)
    return (picture + grain).cast("uchar").copy(interpretation="srgb")


def _landscape(width: int, height: int, *, hues: tuple[str, ...], seed: int, sun: tuple[float, float]) -> str:
    """Sky, sun and its glow, four ridges, and water that mirrors the light; `sun` is its place in shares."""
    high, horizon, light, water, *ridges = hues
    x, y, radius = sun[0] * width, sun[1] * height, min(width, height) * 0.06
    shore = height * 0.78
    shapes = [
        f'<rect width="{width}" height="{height}" fill="url(#sky)"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius * 6:.1f}" fill="url(#glow)"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{light}"/>',
        *(
            f'<path d="{_ridge(width, height, top=0.48 + 0.09 * depth, seed=seed + 7 * depth)}" fill="{hue}"/>'
            for depth, hue in enumerate(ridges)
        ),
        f'<rect y="{shore:.1f}" width="{width}" height="{height - shore:.1f}" fill="{water}"/>',
        *_glitter(x, shore, height, light=light, width=width),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"><defs>'
        f'<linearGradient id="sky" x2="0" y2="1"><stop stop-color="{high}"/>'
        f'<stop offset=".75" stop-color="{horizon}"/></linearGradient>'
        f'<radialGradient id="glow"><stop stop-color="{light}" stop-opacity=".8"/>'
        f'<stop offset="1" stop-color="{light}" stop-opacity="0"/></radialGradient></defs>{"".join(shapes)}</svg>'
    )


def _ridge(width: int, height: int, *, top: float, seed: int) -> str:
    points = []
    for step in range(121):
        share = step / 120
        waves = sum(math.sin(share * rate * 6.3 + seed * rate) / rate for rate in (1.0, 2.3, 5.1, 11.7))
        points.append(f"{share * width:.1f},{height * (top + 0.05 * waves):.1f}")
    return f"M0,{height} L{' '.join(points)} L{width},{height}Z"


def _glitter(x: float, shore: float, height: int, *, light: str, width: int) -> list[str]:
    strokes = []
    for row in range(14):
        share = (row + 0.5) / 14
        half = width * (0.02 + 0.05 * share) * (1 + 0.5 * math.sin(row * 2.1))
        y = shore + share * (height - shore)
        thickness = height * 0.004
        strokes.append(
            f'<rect x="{x - half:.1f}" y="{y:.1f}" width="{2 * half:.1f}" height="{thickness:.1f}" '
            f'rx="{thickness / 2:.1f}" fill="{light}" opacity="{0.75 - 0.4 * share:.2f}"/>'
        )
    return strokes


def _balloon(width: int, height: int) -> str:
    """A striped balloon on a transparent ground."""
    stripes = ("#d1495b", "#edae49", "#00798c", "#edae49", "#d1495b")
    gores = []
    for number, hue in enumerate(stripes):
        left, right = (number / 5 - 0.5) * 2, ((number + 1) / 5 - 0.5) * 2
        gores.append(
            f'<path fill="{hue}" d="M0,-400 C{left * 560:.0f},-400 {left * 520:.0f},80 {left * 110:.0f},330 '
            f'L{right * 110:.0f},330 C{right * 520:.0f},80 {right * 560:.0f},-400 0,-400Z"/>'
        )
    basket = (
        '<path d="M-100,330 L-60,470 M100,330 L60,470 M0,330 L0,470" stroke="#5b4636" stroke-width="6"/>'
        '<rect x="-75" y="465" width="150" height="105" rx="16" fill="#8c6a4f"/>'
        '<path d="M-75,500 H75 M-75,535 H75" stroke="#5b4636" stroke-width="5"/>'
    )
    shade = '<ellipse cx="-120" cy="-170" rx="110" ry="190" fill="#fff" opacity=".18"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="-500 -480 1000 1250">{"".join(gores)}{shade}{basket}</svg>'
    )
