"""The worker's application, with pictures that may harm it; ATTEMPT_SECONDS and SILENCE_SECONDS bound the harm."""

from __future__ import annotations

import dataclasses
import os
from datetime import timedelta

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from pipeline import deadman, registry
from tests.crash.poison import PoisonableStep

deadman.SILENCE_SECONDS = float(os.environ.get("SILENCE_SECONDS", deadman.SILENCE_SECONDS))
_LIMIT = timedelta(seconds=float(os.environ.get("ATTEMPT_SECONDS", "600")))

registry.PIPELINES = tuple(
    dataclasses.replace(
        known, attempt_limit=_LIMIT, steps=(PoisonableStep(),) if known.name == "image" else known.steps
    )
    for known in registry.PIPELINES
)

from config.celery import app  # noqa: E402

__all__ = ["app"]
