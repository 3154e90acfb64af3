"""The worker's application, with windows so short that a few seconds of speech have several."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from pipeline.speech import cutting

cutting.WINDOW_MS, cutting.SEARCH_MS = 4_600, 2_000

from config.celery import app  # noqa: E402

__all__ = ["app"]
