"""`make bench [ONLY=row]`: runs each row against private services and prints figures beside their targets."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import django
from django.core.management import call_command

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
os.environ["LOG_LEVEL"] = "WARNING"
django.setup()

from rich.console import Console  # noqa: E402  (Django first)
from rich.table import Table  # noqa: E402

from bench import memory, messages, pictures, speech  # noqa: E402
from bench.figures import Figure  # noqa: E402

ROWS: dict[str, Callable[[Path], list[Figure]]] = {
    "relay": messages.relay,
    "latency": messages.latency,
    "memory": memory.receiving_a_gigabyte,
    "image": pictures.photo_to_variants,
    "speech": speech.speech,
}


def main(only: list[str]) -> int:
    console = Console()
    unknown = set(only) - set(ROWS)
    if unknown:
        console.print(f"Unknown row {', '.join(sorted(unknown))}; rows: {', '.join(ROWS)}.")
        return 2
    call_command("migrate", verbosity=0)
    figures: list[Figure] = []
    for name, row in ROWS.items():
        if not only or name in only:
            with console.status(f"measuring {name} …"), tempfile.TemporaryDirectory() as folder:
                figures += row(Path(folder))
    _print(console, figures)
    return 0


def _print(console: Console, figures: list[Figure]) -> None:
    table = Table(title="Holdfast, measured on this machine")
    for heading in ("row", "what", "measured", "target", ""):
        table.add_column(heading)
    for figure in figures:
        verdict = "" if figure.is_met is None else "[green]met[/]" if figure.is_met else "[red]missed[/]"
        table.add_row(figure.row, figure.what, figure.shown, figure.target, verdict)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1:] if name]))
