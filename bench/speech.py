"""What the speech pipeline adds to the model it runs: time, memory, and words, against a direct call in the same run.

`python -m bench.speech SECONDS|notes COUNT` is the part that needs a process of its own, to measure its memory.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from bench.figures import Figure

BEAM = "1"
LENGTHS = {"60 s": 60, "10 min": 600}
PAUSE_SECONDS = 1.5
#: Cut elsewhere, the same speech is written with other slips; of so many words they even out to this.
AS_GOOD_AS = 0.005
KINDS = (
    "old",
    "little",
    "green",
    "heavy",
    "broken",
    "famous",
    "quiet",
    "wooden",
    "frozen",
    "golden",
    "hungry",
    "empty",
)
THINGS = (
    "bridge",
    "doctor",
    "garden",
    "river",
    "engine",
    "teacher",
    "window",
    "mountain",
    "market",
    "kitchen",
    "horse",
)
ACTS = ("followed", "painted", "forgot", "carried", "repaired", "watched", "crossed", "remembered", "sold", "opened")
TIMES = ("in the morning", "after the storm", "on Thursday", "before dinner", "last winter", "at midnight", "every day")


def speech(folder: Path) -> list[Figure]:
    """Time and words against a direct call; memory of an hour against five minutes, and of a hundred short notes."""
    from django.conf import settings

    from attachments import storage

    storage.make_bucket(settings.STORAGE_BUCKET)
    figures = [figure for name, seconds in LENGTHS.items() for figure in _against_a_direct_call(folder, name, seconds)]
    short, long = (_alone(str(seconds))["peak"] for seconds in (300, 3600))
    growth = _alone("notes", "100")
    return [
        *figures,
        Figure(
            row="speech",
            what=f"peak memory over 1 h, against 5 min ({short / 2**20:.0f} MB)",
            shown=f"{long / short:.2f} ×",
            target="≤ 1.3 ×",
            is_met=long <= 1.3 * short,
        ),
        Figure(
            row="speech",
            what="memory of a worker after 100 short notes, against after 10",
            shown=f"{growth['last'] / growth['first'] - 1:+.1%}",
            target="< 10 %",
            is_met=growth["last"] < 1.1 * growth["first"],
        ),
    ]


def _against_a_direct_call(folder: Path, name: str, seconds: int) -> list[Figure]:
    path = folder / f"{seconds}.wav"
    recording, script = _recording(seconds)
    path.write_bytes(recording)
    _hear(_recording(10)[0])  # Loads the model and starts the confining server.
    began = time.perf_counter()
    direct = _directly(path)
    took_directly = time.perf_counter() - began
    began = time.perf_counter()
    ours = _hear(path.read_bytes())
    took = time.perf_counter() - began
    return [
        Figure(
            row="speech",
            what=f"{name} of speech, accepted file to all texts ({took:.1f} s), against a direct call",
            shown=f"{took / took_directly:.2f} ×",
            target="≤ 1.05 ×",
            is_met=took <= 1.05 * took_directly,
        ),
        Figure(
            row="speech",
            what=f"{name}: words wrong of {len(script)}, against {_wrong(direct, script):.1%} by the direct call",
            shown=f"{_wrong(ours, script):.1%}",
            target="no more than 0.5 points above",
            is_met=_wrong(ours, script) <= _wrong(direct, script) + AS_GOOD_AS,
        ),
    ]


def _directly(path: Path) -> list[str]:
    """By the library alone, with the settings of the pipeline."""
    from faster_whisper import decode_audio

    from pipeline.speech import model

    loaded: Any = model._loaded  # noqa: SLF001  (the very model that the pipeline uses)
    segments, _ = loaded.model.transcribe(
        decode_audio(str(path)),
        beam_size=loaded.options.beam,
        temperature=model.TEMPERATURES,
        condition_on_previous_text=False,
        word_timestamps=True,
        vad_filter=True,
    )
    return _words(" ".join(segment.text for segment in segments))


def _hear(data: bytes) -> list[str]:
    """The words of a recording that goes the whole way: intake, claim, conversion, model, storage, completion."""
    from django.contrib.auth.models import User

    from attachments import storage
    from attachments.models import Variant
    from pipeline import executor, intake
    from pipeline.envelopes import Envelope
    from pipeline.origins import Origin
    from pipeline.states import Source

    owner, _ = User.objects.get_or_create(username="bench")
    request = intake.Request(owner=owner, origin=Origin(Source.REST), name="bench.wav")
    job = intake.accept(intake.receive([data], created_by="bench"), request).job
    outcome = "sliced"
    while outcome == "sliced":
        outcome = executor.execute(Envelope(job_id=job.job_id, attempt=job.attempt, carrier={}), worker="bench")
        job.refresh_from_db()
    assert outcome == "ready", outcome
    text = Variant.objects.get(attachment=job.attachment_id, variant="text").stored_object
    with storage.open_object(text.bucket, text.key) as stream:
        return _words(b"".join(stream).decode())


def _recording(seconds: int) -> tuple[bytes, list[str]]:
    """As many sentences as fit, by a synthesiser, as WAV of 16 kHz, and their words.

    No two are alike: a repeated one would have the model loop.
    """
    import numpy as np

    from tests import recordings, speaking

    parts, script, lots = list[Any](), list[str](), random.Random(1)
    left = seconds * speaking.RATE
    while True:
        sentences = " ".join(_sentence(lots) for _ in range(3))
        said = [speaking.say(sentences), speaking.silence(PAUSE_SECONDS)]
        left -= sum(len(part) for part in said)
        if parts and left < 0:
            break
        parts += said
        script += _words(sentences)
    return recordings.wav(np.concatenate(parts), rate=speaking.RATE), script


def _sentence(lots: random.Random) -> str:
    first, second = (f"the {lots.choice(KINDS)} {lots.choice(THINGS)}" for _ in range(2))
    return f"{first.capitalize()} {lots.choice(ACTS)} {second} {lots.choice(TIMES)}."


def _words(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()


def _wrong(heard: list[str], script: list[str]) -> float:
    """The word error rate."""
    return _unlike(heard, script) / len(script)


def _unlike(one: list[str], other: list[str]) -> int:
    """How many words have to be put in, left out or replaced to make one of the other."""
    row = list(range(len(other) + 1))
    for at, word in enumerate(one, start=1):
        before, row = row, [at]
        for to, another in enumerate(other, start=1):
            row.append(min(before[to - 1] + (word != another), before[to] + 1, row[to - 1] + 1))
    return row[-1]


def _alone(*what: str) -> dict[str, int]:
    """Bytes, as a process of its own measured them."""
    environment = {**os.environ, "TRANSCRIPTION_BEAM": BEAM}
    command = [sys.executable, "-m", "bench.speech", *what]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _measure(what: str, count: str = "") -> dict[str, int]:
    if what != "notes":
        _hear(_recording(int(what))[0])
        return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    note, sizes = _recording(5)[0], list[int]()
    for _ in range(int(count)):
        _hear(note)
        sizes.append(psutil.Process().memory_info().rss)
    return {"first": sizes[9], "last": sizes[-1]}


if __name__ == "__main__":
    import django

    django.setup()
    sys.stdout.write(json.dumps(_measure(*sys.argv[1:])) + "\n")
