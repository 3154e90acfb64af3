"""The tiny files that the self-tests of the steps try: `python -m tests.samples FOLDER` (pipeline/steps/samples)."""

from __future__ import annotations

import sys
from pathlib import Path

from tests import corpus, recordings


def pictures() -> dict[str, bytes]:
    """Of every accepted type, and of such as libvips would open if it were let."""
    small = corpus.quarters(16, 12)
    return {
        "accepted/image/jpeg/plain.jpg": corpus.jpeg(small),
        "accepted/image/png/plain.png": corpus.png(small),
        "accepted/image/webp/plain.webp": corpus.webp(small),
        "accepted/image/gif/plain.gif": corpus.gif(small),
        "accepted/image/tiff/plain.tif": corpus.tiff(small),
        "accepted/image/avif/plain.avif": corpus.avif(small),
        "accepted/image/heic/plain.heic": corpus.heic(small),
        "accepted/image/heic/48-tiles.heic": corpus.phone_heic(),
        "refused/drawing.svg": corpus.SVG,
        "refused/document.pdf": corpus.PDF,
        "refused/table.csv": corpus.CSV,
        "refused/plain.ppm": corpus.PPM,
        "refused/plain.hdr": corpus.RADIANCE,
        "refused/plain.fits": corpus.FITS,
        "refused/plain.v": corpus.libvips_file(),
    }


def sounds() -> dict[str, bytes]:
    """Of every accepted type of recording and video."""
    short, low = recordings.melody(0.3), recordings.melody(0.3, rate=8000)
    return {
        "accepted/audio/ogg/voice.ogg": recordings.telegram_voice(short),
        "accepted/audio/ogg/vorbis.ogg": recordings.vorbis(short),
        "accepted/audio/mpeg/plain.mp3": recordings.mp3(short),
        "accepted/audio/aac/plain.aac": recordings.recorded(short, container="adts", codec="aac"),
        "accepted/audio/wav/plain.wav": recordings.wav(low, rate=8000),
        "accepted/audio/flac/plain.flac": recordings.flac(low, rate=8000),
        "accepted/audio/aiff/plain.aiff": recordings.recorded(low, container="aiff", codec="pcm_s16be", rate=8000),
        "accepted/audio/amr/plain.amr": recordings.amr(low),
        "accepted/audio/amr-wb/plain.awb": recordings.wide_amr(15),
        "accepted/audio/mp4/plain.m4a": recordings.m4a(short),
        "accepted/video/mp4/plain.mp4": recordings.recorded(short, container="mp4", codec="aac", picture="libx264"),
        "accepted/video/quicktime/plain.mov": recordings.recorded(low, container="mov", codec="pcm_s16le", rate=8000),
        "accepted/video/webm/plain.webm": recordings.live_webm(short),
        "accepted/video/x-matroska/plain.mkv": recordings.recorded(short, container="matroska", codec="libopus"),
    }


def write(folder: Path, samples: dict[str, bytes]) -> None:
    for name, data in samples.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    write(Path(sys.argv[1]), {**pictures(), **sounds()})
