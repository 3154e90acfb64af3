"""Does this installation hear? `python -m pipeline.speech.self_test` has the model write down a known recording.

A process of its own, for the worker's main process must never load the model. Exit status 0: the words are right.
The recording, sample.ogg (Opus, mono), is the end of John F. Kennedy's inaugural address, 1961, in the public domain.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from pipeline.speech import model
from pipeline.speech.samples import SAMPLE_RATE

SAMPLE = Path(__file__).resolve().parent / "sample.ogg"
WORDS = "and so my fellow americans ask not what your country can do for you ask what you can do for your country"
#: The smallest models mishear a word or two; a broken installation hears nothing, or anything.
FEWEST_RIGHT = 0.8


class Misheard(Exception):
    """The model does not hear what the known recording says; the message says how much of it."""


def run(options: model.Options) -> None:
    """Raises Misheard, and what `model.load` raises."""
    from faster_whisper import decode_audio

    model.load(options)
    samples = decode_audio(str(SAMPLE), sampling_rate=SAMPLE_RATE)
    window = model.transcribe(samples, start_ms=0, language=None, stop=_never, on_progress=_ignore)
    heard = re.findall(r"\w+", " ".join(each.text for each in window.segments).lower())
    right = _share(WORDS.split(), heard)
    if right < FEWEST_RIGHT:
        raise Misheard(f"{right:.0%} of the words of a known recording are right: is it the right model?")


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        run(model.Options.from_settings())
    except (Misheard, model.ModelUnavailable) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _share(expected: list[str], heard: list[str]) -> float:
    """How much of both is the longest common subsequence."""
    row = [0] * (len(heard) + 1)
    for word in expected:
        before, row = row, [0]
        for at, other in enumerate(heard):
            row.append(before[at] + 1 if word == other else max(row[at], before[at + 1]))
    return row[-1] / max(len(expected), len(heard))


def _never() -> bool:
    return False


def _ignore(_done_ms: int) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
