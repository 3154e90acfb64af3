"""What is said in a converted recording, window by window, by the model in this very process.

| variant       | made                                                                  |
|---------------|-----------------------------------------------------------------------|
| `window-NNNN` | internal: what is said in one window, recorded as soon as it is known |
| `transcript`  | the canonical record of all windows (pipeline.speech.transcript)      |

The one step outside of a confined child: a model is loaded once and kept, and reads nothing but the WAV that the
conversion made and the worker checked. It runs under lease and deadline; `deadman` ends a process that does not return.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from django.conf import settings

from pipeline.speech.transcript import NotATranscript, Transcript, Window, merge
from pipeline.steps import Given, Produced, SelfTestFailed, Spoken, StepResult

if TYPE_CHECKING:
    from pipeline.speech.cutting import Span

CONTENT_TYPE = "application/json"
#: What the names of windows begin with: they hold words of a recording, as its other texts do.
WINDOW_PREFIX = "window-"
SELF_TEST_SECONDS = 120


@dataclass(frozen=True)
class TranscribeStep:
    """The model and its settings are those of TRANSCRIPTION_*."""

    name: ClassVar[str] = "transcribe"
    reads: ClassVar[str] = "converted"
    is_internal: ClassVar[bool] = False
    makes: ClassVar[tuple[str, ...]] = ("transcript",)

    def run(self, given: Given) -> StepResult:
        """The work is done while `produced` is read; that raises Interrupted, ModelUnavailable and NotConverted."""
        return StepResult(produced=_transcribed(given))

    def self_test(self, scratch: Path) -> None:
        """In a process of its own: a model that this one loads would hang in those that it forks."""
        command = [sys.executable, "-m", "pipeline.speech.self_test"]
        environment = {**os.environ, "TMPDIR": str(scratch)}
        try:
            subprocess.run(  # noqa: S603  (nothing in it is a stranger's)
                command,
                cwd=settings.BASE_DIR,
                env=environment,
                timeout=SELF_TEST_SECONDS,
                check=True,
                capture_output=True,
                text=True,
            )
        except subprocess.CalledProcessError as error:
            raise SelfTestFailed(f"{error.stdout}{error.stderr}".strip()[-1000:]) from None
        except subprocess.TimeoutExpired:
            raise SelfTestFailed(f"no answer within {SELF_TEST_SECONDS} s") from None


def _transcribed(given: Given) -> Iterator[Produced]:
    # Here, so that no process but this one loads native code.
    from pipeline.speech import cutting, model

    options = model.Options.from_settings()
    spans = cutting.spans(given.path)
    windows: list[Window] = []
    for number, span in enumerate(spans, start=1):
        variant = f"{WINDOW_PREFIX}{number:04}"
        window = _kept(given, variant, span)
        if window is None:
            model.load(options)
            window = _heard(given, span, whole=spans[-1].end_ms, before=windows)
            if span is not spans[-1]:
                yield _window(given, variant, window)
        windows.append(window)
    yield _transcript(given, merge(windows, model=options.name))


def _kept(given: Given, variant: str, span: Span) -> Window | None:
    """The window that an earlier attempt recorded, if it is of the same part of the recording."""
    if (file := given.kept(variant)) is None:
        return None
    try:
        window = Window.from_json(file.read_bytes())
    except NotATranscript:
        return None
    return window if (window.start_ms, window.end_ms) == (span.start_ms, span.end_ms) else None


def _heard(given: Given, span: Span, *, whole: int, before: list[Window]) -> Window:
    from pipeline.speech import cutting, model

    return model.transcribe(
        cutting.read(given.path, span),
        start_ms=span.start_ms,
        language=given.language or None,
        likely=next((window.language for window in reversed(before) if window.language), None),
        stop=given.stop,
        # A recording of a few samples lasts no whole millisecond.
        on_progress=lambda done: given.tell((span.start_ms + done) / max(1, whole)),
    )


def _window(given: Given, variant: str, window: Window) -> Produced:
    path = given.scratch / f"{variant}.json"
    path.write_bytes(window.to_json())
    return Produced(variant=variant, path=path, content_type=CONTENT_TYPE, facts={}, is_internal=True)


def _transcript(given: Given, transcript: Transcript) -> Produced:
    path = given.scratch / "transcript.json"
    path.write_bytes(transcript.to_json())
    facts = {
        "language": transcript.language,
        "duration_ms": transcript.duration_ms,
        "no_speech": transcript.no_speech,
        "model": transcript.model,
    }
    return Produced(
        variant="transcript",
        path=path,
        content_type=CONTENT_TYPE,
        facts=facts,
        spoken=Spoken(language=transcript.language, segments=transcript.said()),
    )
