"""How the demo looks: live progress while it runs, a table at its end; plain lines where there is no terminal."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from config.local.supervision import log_tail

if TYPE_CHECKING:
    from config.local.demo import Outcome

STYLES = {"ready": "green", "sending": "cyan", "checking": "cyan", "queued": "yellow", "processing": "yellow"}
DIGEST_DIGITS = 8
#: From so many columns on, the table has room for its long heading.
WIDE = 100


class Progress:
    """A line for each file; may be told of changes by any thread."""

    def __init__(self, names: list[str], *, console: Console) -> None:
        self._console = console
        self._names = names
        self._states = [""] * len(names)
        self._lock = threading.Lock()
        self._bars = Bars(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._rows = [self._bars.add_task(escape(name), total=1.0, state="waiting", start=False) for name in names]

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, row: int, state: str, share: float) -> None:
        """The state of a file, and how much of it is done."""
        with self._lock:
            if not self._states[row]:
                self._bars.start_task(self._rows[row])
            is_new, self._states[row] = state != self._states[row], state
            self._bars.update(self._rows[row], completed=share, state=_styled(state))
            if is_new and not self._console.is_terminal:
                self._console.print(f"         {escape(self._names[row])}: {state}", highlight=False)


def print_table(outcomes: list[Outcome], *, console: Console) -> None:
    """Each file with its state, and under it every variant with its size and checksum."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    heading = "file, and what was made of it" if console.width >= WIDE else "file"
    table.add_column(heading, overflow="fold", ratio=1)
    table.add_column("state", no_wrap=True)
    for number in ("ms", "pixels", "bytes"):
        table.add_column(number, justify="right", no_wrap=True)
    table.add_column("sha256", no_wrap=True)
    for outcome in outcomes:
        size = f"{outcome.file.stat().st_size:,}"
        table.add_row(f"[bold]{escape(outcome.file.name)}[/]", _styled(outcome.state), str(outcome.ms), "", size, "")
        for name, variant in outcome.variants.items():
            kind = variant["content_type"].partition(";")[0].rpartition("/")[2]
            table.add_row(f"  {escape(name)} [dim]{escape(kind)}[/]", "", "", *_facts(variant))
        table.add_section()
    console.print(table)
    ready = [outcome for outcome in outcomes if outcome.is_ready]
    variants = sum(len(outcome.variants) for outcome in ready)
    console.print(f"{len(ready)} of {len(outcomes)} files ready, {variants} variants fetched and checked.")


def print_texts(outcomes: list[Outcome], *, console: Console) -> None:
    """What is said in each recording."""
    for outcome in outcomes:
        if (text := outcome.variants.get("text", {}).get("text")) is not None:
            console.print(f"\n[bold]{escape(outcome.file.name)}[/] says:", highlight=False)
            console.print(text.strip() or "(nothing is said)", markup=False, highlight=False, style="italic")


def print_failures(outcomes: list[Outcome], *, console: Console) -> None:
    """Why each file that is not ready is not, and the end of the log where it tells more."""
    failed = [outcome for outcome in outcomes if not outcome.is_ready]
    for outcome in failed:
        name, reason = escape(outcome.file.name), escape(outcome.error or "")
        console.print(f"[red]{name}[/]: {outcome.state}, {outcome.error_code}. {reason}", highlight=False)
    for log in sorted({outcome.log for outcome in failed if outcome.log}):
        console.print(f"\nRead {log}; it ends:", highlight=False)
        console.print(log_tail(log), markup=False, highlight=False, style="dim")


def _facts(variant: dict[str, Any]) -> tuple[str, str, str]:
    pixels = f"{variant['width']} x {variant['height']}" if variant.get("width") else ""
    return pixels, f"{variant['size']:,}", f"{variant['sha256'][:DIGEST_DIGITS]}… [green]✓[/]"


def _styled(state: str) -> str:
    return f"[{STYLES.get(state, 'red')}]{state}[/]"
