"""Recordings made ready for transcription: the first sound stream of a sound or video file.

| variant     | made                                                        |
|-------------|-------------------------------------------------------------|
| `converted` | RIFF/WAVE, PCM of 16 bits, 16,000 Hz, mono, no other chunks |

Times in it are the recording's own: pauses that a container skips are silence here. A file of which more than a second,
and more than 2 %, is missing or cannot be decoded is BadFile: the original is kept, and no transcript that stops early
passes for a whole one. A header that tells no length, or one that a recorder never came back to fill in, is no fault;
the formats without a header (AAC, AMR, MP3 as some encoders write it) cannot tell that their end is missing.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from django.conf import settings

from attachments.errors import AttachmentError
from pipeline import confined
from pipeline.steps import ORIGINAL, Given, Produced, SelfTestFailed, StepResult, wav

CHILD = "pipeline.steps.audio_decoding:convert"
SAMPLES = Path(__file__).resolve().parent / "samples" / "accepted"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConvertStep:
    """Original facts: format, codec, duration_ms, declared_ms, sample_rate, channels.

    `declared_ms` is what the file says of its length, None where it says nothing; `duration_ms` is that of `converted`.
    """

    name: ClassVar[str] = "convert"
    reads: ClassVar[str] = ORIGINAL
    is_internal: ClassVar[bool] = True
    makes: ClassVar[tuple[str, ...]] = ("converted",)

    def run(self, given: Given) -> StepResult:
        """Raises AudioTooLong, BadFile, EmptyAudio, EmptyFile, NoAudio, UnsupportedType, and ConfinedError."""
        # The child writes to a folder of its own: the original beside it stays read-only for it.
        folder = given.scratch / self.name
        folder.mkdir(exist_ok=True)
        output = folder / "converted.wav"
        request = {
            "original": str(given.path.resolve()),
            "content_type": given.content_type,
            "output": str(output.resolve()),
            "max_seconds": settings.MAX_AUDIO_SECONDS,
        }
        answer = confined.run(
            CHILD,
            request,
            scratch=folder,
            readable=(given.path,),
            seconds=settings.AUDIO_STEP_SECONDS,
            memory_bytes=settings.STEP_MEMORY_BYTES,
            stop=given.stop,
        )
        duration_ms = wav.milliseconds(_checked_samples(output))
        converted = Produced(
            variant="converted",
            path=output,
            content_type=wav.CONTENT_TYPE,
            facts={"duration_ms": duration_ms},
            is_internal=True,
        )
        return StepResult(
            produced=(converted,) if "converted" in given.wanted else (),
            original_facts={**answer["original"], "duration_ms": duration_ms},
        )

    def self_test(self, scratch: Path) -> None:
        """Convert a tiny file of every accepted type; else SelfTestFailed."""
        samples = [path for family in ("audio", "video") for path in sorted(SAMPLES.glob(f"{family}/*/*"))]
        if wrong := [path.name for path in samples if not _is_converted(path, scratch)]:
            raise SelfTestFailed(f"not as promised: {', '.join(wrong)}")


def _is_converted(sample: Path, scratch: Path) -> bool:
    content_type = "/".join(sample.parts[-3:-1])
    try:
        result = ConvertStep().run(Given(path=sample, content_type=content_type, wanted=frozenset(), scratch=scratch))
    except (AttachmentError, confined.ConfinedError):
        logger.exception("audio_self_test_failed", extra={"sample": sample.name})
        return False
    return bool(result.original_facts["duration_ms"] > 0)


def _checked_samples(path: Path) -> int:
    """How many samples there are. A child taken over by its input could leave a link, or other bytes for the model."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            head, size = file.read(wav.HEADER_BYTES), os.fstat(descriptor).st_size
    except OSError as error:
        raise confined.ChildFailed(f"{path.name} is not a file: {error.strerror}") from error
    samples = wav.samples(size)
    if samples < 1 or samples > settings.MAX_AUDIO_SECONDS * wav.RATE or head != wav.header(samples):
        raise confined.ChildFailed(f"{path.name} of {size} bytes is not the WAV that was asked for")
    return samples
