"""The real model, loaded once for all tests of a process."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pipeline.speech import model
from pipeline.speech.transcript import Window
from tests.speaking import Samples, address

Hear = Callable[..., Window]


@pytest.fixture
def hear() -> Hear:
    """What the model says was said, with nothing asked of it unless the test does."""
    model.load(model.Options.from_settings())

    def run(
        samples: Samples,
        *,
        start_ms: int = 0,
        language: str | None = None,
        likely: str | None = None,
        stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[[int], None] = lambda _done: None,
    ) -> Window:
        return model.transcribe(
            samples, start_ms=start_ms, language=language, likely=likely, stop=stop, on_progress=on_progress
        )

    return run


@pytest.fixture(scope="session")
def clip() -> Samples:
    """11 seconds of speech, whose words are `self_test.WORDS`."""
    return address()


def words(window: Window) -> list[str]:
    """Without case and punctuation."""
    return re.findall(r"\w+", " ".join(each.text for each in window.segments).lower())
