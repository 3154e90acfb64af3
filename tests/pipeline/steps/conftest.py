"""The steps on given bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import confined
from pipeline.steps import Given, StepResult
from pipeline.steps.audio import ConvertStep
from pipeline.steps.image import ImageStep

ALL = frozenset(ImageStep.makes)

Make = Callable[..., StepResult]


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    yield
    confined.shut_down()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Runs the step on bytes of a type."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(data: bytes, content_type: str, wanted: frozenset[str] = ALL, **options: Any) -> StepResult:
        original = scratch / "original"
        original.write_bytes(data)
        given = Given(path=original, content_type=content_type, wanted=wanted, scratch=scratch, **options)
        return ImageStep().run(given)

    return run


@pytest.fixture
def convert(tmp_path: Path) -> Make:
    """Runs the conversion of recordings on bytes of a type."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(data: bytes, content_type: str, **options: Any) -> StepResult:
        original = scratch / "original"
        original.write_bytes(data)
        options.setdefault("wanted", frozenset(ConvertStep.makes))
        return ConvertStep().run(Given(path=original, content_type=content_type, scratch=scratch, **options))

    return run
