"""How far a long command is: a bar on a terminal, else a line now and then; on stderr, so that stdout is a report."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Self, TextIO

BAR = 20
DRAW_EVERY_SECONDS = 0.1
SAY_EVERY_SECONDS = 10.0


class Progress:
    """Counts up to `total`; use it in a with-block. Without a total there is neither bar nor time left."""

    def __init__(
        self,
        what: str,
        *,
        total: int | None = None,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._total = total
        self._out = out or sys.stderr
        self._clock = clock
        self._is_terminal = self._out.isatty()
        self._every = DRAW_EVERY_SECONDS if self._is_terminal else SAY_EVERY_SECONDS
        self._began = self._shown_at = clock()
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._show()
        if self._is_terminal:
            self._out.write("\n")

    def advance(self, count: int = 1, *, note: str = "") -> None:
        """Count on, and show it if it was not shown just now; `note` says why it goes slowly."""
        self._done += count
        if self._clock() - self._shown_at >= self._every:
            self._show(note)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Room for something else on the terminal: the bar goes, and comes back with the next count."""
        if self._is_terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()
        yield
        self._shown_at = float("-inf")

    def _show(self, note: str = "") -> None:
        self._shown_at = self._clock()
        line = self._line() + (f"  ({note})" if note else "")
        if self._is_terminal:
            self._out.write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K")
        else:
            self._out.write(f"{line}\n")
        self._out.flush()

    def _line(self) -> str:
        seconds = self._clock() - self._began
        rate = self._done / seconds if seconds > 0 else 0.0
        if self._total is None:
            return f"{self._what}: {self._done:,}  {_rate(rate)}"
        total = max(self._total, self._done)
        part = self._done / total if total else 1.0
        bar = f"[{'#' * int(part * BAR):-<{BAR}}] " if self._is_terminal else ""
        left = f"  {_duration((total - self._done) / rate)} left" if rate else ""
        return f"{self._what}: {bar}{self._done:,} of {total:,} ({part:.0%})  {_rate(rate)}{left}"


def _rate(per_second: float) -> str:
    return f"{per_second:,.1f}/s" if per_second < 10 else f"{per_second:,.0f}/s"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
