"""`manage.py` of a release whose image pipeline is one version newer: `python -m tests.release_v2 reprocess …`."""

from __future__ import annotations

import dataclasses
import sys

import django
from django.core.management import execute_from_command_line


def main() -> None:
    django.setup()
    # Not above: Django must be set up first.
    from pipeline import registry

    newer = dataclasses.replace(registry.newest("image"), version=2)
    registry.PIPELINES += (newer,)
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
