"""`python -m config.compose_check`."""

from __future__ import annotations

import os
import sys

import django

from config.compose_check import problems


def main() -> int:
    """Print every problem; 1 when there is any."""
    # The settings are read, never used to reach anything.
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    os.environ.setdefault("SECRET_KEY", "compose-check")
    os.environ.setdefault("DATABASE_URL", "postgres://nowhere")
    os.environ.setdefault("CELERY_BROKER_URL", "amqp://nowhere")
    django.setup()
    found = problems()
    for problem in found:
        print(problem)  # noqa: T201  (what the command is for)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
