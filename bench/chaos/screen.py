"""How a run looks: one picture that lives while it runs, and plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bench.chaos.schedule import Fault

RECENT = 5
#: Between two plain lines of counts.
LINE_SECONDS = 15.0
SHOWN = ("accepted", "refused", "deleted", "queued", "processing", "ready", "failed")


class Screen:
    """`counts` tells of the uploads by state; the run lasts `seconds`, and the quiet after it as long as it takes."""

    def __init__(self, console: Console, *, seconds: float, counts: Callable[[], Counter[str]]) -> None:
        self._console = console
        self._seconds = seconds
        self._counts = counts
        self._began = time.monotonic()
        self._line_due = LINE_SECONDS
        self._done: Counter[str] = Counter()
        self._recent: deque[str] = deque(maxlen=RECENT)
        self._stage = "Uploading, and doing harm"
        self._live = Live(console=console, get_renderable=self._picture, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def begin(self, stage: str) -> None:
        """The next part of the run begins."""
        self._stage = stage
        if not self._console.is_terminal:
            self._console.print(f"{self._elapsed:7.1f} s  {escape(stage)}", highlight=False)

    def fault(self, fault: Fault, what: str) -> None:
        """A fault was done, or was not."""
        line = f"{self._elapsed:7.1f} s  {fault.number + 1:>3} {fault.kind}: {what}"
        self._recent.append(line)
        if not self._console.is_terminal:
            self._console.print(escape(line), highlight=False, soft_wrap=True)

    def tick(self, done: Counter[str]) -> None:
        """To be called often; `done` counts the faults by kind, empty once they are over."""
        self._done = done or self._done
        if self._console.is_terminal or self._elapsed < self._line_due:
            return
        self._line_due = self._elapsed + LINE_SECONDS
        self._console.print(f"{self._elapsed:7.1f} s  {self._summary()}", highlight=False, soft_wrap=True)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _summary(self) -> str:
        counts = self._counts()
        return ", ".join(f"{counts[name]} {name}" for name in SHOWN) + f"; {self._done.total()} faults"

    def _picture(self) -> RenderableType:
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self._seconds, completed=min(self._elapsed, self._seconds), width=30)
        head.add_row(self._stage, bar, f"{self._elapsed:.0f} of {self._seconds:.0f} s")
        faults = Table.grid(padding=(0, 2))
        ranked = [f"{kind} [bold]{count}[/]" for kind, count in self._done.most_common()]
        for at in range(0, len(ranked), 4):
            faults.add_row(*ranked[at : at + 4])
        recent = Text("\n".join(self._recent), style="dim", no_wrap=True, overflow="ellipsis")
        return Group(head, Text(self._summary(), style="bold"), faults, recent)
