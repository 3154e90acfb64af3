"""The world that a model of the product is held against, how long to look for a difference, a superseded version."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import HealthCheck
from hypothesis import settings as bounds

from attachments.models import Attachment
from pipeline import lifecycle
from pipeline.lifecycle import Lease
from pipeline.models import Job
from pipeline.registry import Pipeline
from tests.leases import finish
from tests.pipeline.world import World

Extent = Callable[[int, int], bounds]


@pytest.fixture
def extent(request: pytest.FixtureRequest) -> Extent:
    """So many examples of so many steps, always the same ones; with a seed of one's own many more, and others."""
    has_seed = request.config.getoption("--hypothesis-seed") is not None

    def choose(examples: int, steps: int) -> bounds:
        return bounds(
            max_examples=500 if has_seed else examples,
            stateful_step_count=60 if has_seed else steps,
            derandomize=not has_seed,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )

    return choose


@pytest.fixture
def make_world(transactional_db: None, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Callable[[], World]]:
    owner = User.objects.create_user("ann")
    logging.disable(logging.CRITICAL)
    yield lambda: World(owner, monkeypatch)
    logging.disable(logging.NOTSET)


@pytest.fixture
def superseded(
    leased: Callable[..., Lease], release_image_v2: Callable[[], Pipeline]
) -> Callable[[], tuple[Attachment, Job]]:
    """An attachment whose second version is served since just now, and its job of the first."""

    def reprocess() -> tuple[Attachment, Job]:
        first = leased()
        finish(first)
        second = lifecycle.reprocess(first.attachment_id, pipeline=release_image_v2(), actor="operator:ann")
        finish(leased(second))
        return Attachment.objects.get(id=first.attachment_id), Job.objects.get(job_id=first.job_id)

    return reprocess
