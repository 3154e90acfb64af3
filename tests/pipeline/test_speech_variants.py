"""What the speech pipeline promises, needs and may forget, by its steps alone."""

from __future__ import annotations

from pipeline import registry, texts

PROMISED = {"transcript", "text", "srt", "vtt", "json"}


def test_the_pipeline_knows_what_is_missing_and_what_that_reads() -> None:
    speech = registry.get("speech", 1)
    assert speech.promised == PROMISED
    assert speech.missing([]) == PROMISED | {"converted"}
    assert speech.missing(["converted"]) == PROMISED
    assert speech.missing(["transcript", "text", "vtt", "json"]) == {"srt"}
    assert speech.missing(PROMISED) == frozenset()
    assert speech.missing(PROMISED - {"transcript"}) == {"transcript", "converted"}


def test_the_retention_of_texts_knows_all_that_any_version_promises() -> None:
    for pipeline in registry.PIPELINES:
        if pipeline.name == texts.PIPELINE:
            assert pipeline.promised <= texts.VARIANTS
