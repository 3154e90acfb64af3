"""A release with a pipeline `speech`: its variants are a few bytes, and its transcript is what a test says."""

from __future__ import annotations

from typing import Any

import pytest

from attachments import search
from attachments.models import Attachment, Variant
from pipeline import lifecycle, registry, texts
from pipeline.lifecycle import Lease
from pipeline.registry import Pipeline
from pipeline.speech.transcript import Segment, Transcript
from tests.leases import record
from tests.work import QuickStep

SENTENCES = ("Good morning.", "The harbour is frozen.")


def release_speech(monkeypatch: pytest.MonkeyPatch, *, versions: int = 1) -> None:
    """Whatever the test sends is speech from now on."""
    step = QuickStep(makes=tuple(sorted(texts.VARIANTS)))
    released = tuple(
        Pipeline(name=texts.PIPELINE, version=version, queue="images", steps=(step,))
        for version in range(1, versions + 1)
    )
    monkeypatch.setattr(registry, "PIPELINES", (*released, registry.get("image", 1)))
    monkeypatch.setattr(registry, "_BY_FAMILY", {"image": texts.PIPELINE})


def transcribe(lease: Lease, *sentences: str, language: str | None = "en") -> Attachment:
    """As the worker that holds the lease, from the transcript to the end."""
    spoken = [(1000 * second, 1000 * second + 900, text) for second, text in enumerate(sentences or SENTENCES)]
    record(lease, texts.TRANSCRIPT, transcript(spoken, language))
    search.index(lease.attachment_id, lease.pipeline.version, language, spoken)
    for variant in sorted(texts.VARIANTS - {texts.TRANSCRIPT}):
        record(lease, variant, " ".join(sentences).encode())
    lifecycle.complete(lease)
    return Attachment.objects.get(id=lease.attachment_id)


def transcript(spoken: list[tuple[int, int, str]], language: str | None = "en") -> bytes:
    unknown: dict[str, Any] = dict.fromkeys(("avg_logprob", "no_speech_prob", "compression_ratio", "temperature"))
    return Transcript(
        language=language,
        language_probability=None,
        duration_ms=spoken[-1][1],
        no_speech=False,
        model="none",
        segments=tuple(Segment(start_ms=a, end_ms=b, text=text, words=(), **unknown) for a, b, text in spoken),
    ).to_json()


def kept(attachment: Attachment) -> set[str]:
    return set(Variant.objects.filter(attachment=attachment).values_list("variant", flat=True))
