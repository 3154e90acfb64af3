"""How far a long command is, told to a person at a terminal or to a log."""

from __future__ import annotations

import io

import pytest

from pipeline.management.progress import Progress


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_with_count_total_rate_and_time_left() -> None:
    clock, out = Clock(), Terminal()
    with Progress("objects", total=4000, out=out, clock=clock) as progress:
        clock.now = 10.0
        progress.advance(1000)
        clock.now = 10.01
        progress.advance(1000)
        (line,) = out.getvalue().replace("\x1b[K", "").split("\r")[1:]
        assert line == "objects: [#####---------------] 1,000 of 4,000 (25%)  100/s  0:00:30 left"
    assert "2,000 of 4,000" in out.getvalue().splitlines()[-1]


def test_a_line_of_the_report_takes_the_place_of_the_bar_which_comes_back() -> None:
    clock, out = Clock(), Terminal()
    progress = Progress("objects", total=2, out=out, clock=clock)
    clock.now = 1.0
    progress.advance()
    with progress.aside():
        out.write("found\n")
    progress.advance(note="the queue is long")
    bar, report = out.getvalue().split("found\n")
    assert bar.endswith("\r\x1b[K")
    assert "2 of 2 (100%)" in report
    assert "(the queue is long)" in report


def test_without_a_terminal_there_is_a_line_now_and_then_and_one_at_the_end() -> None:
    clock, out = Clock(), io.StringIO()
    with Progress("listed", out=out, clock=clock) as progress:
        for second in range(1, 26):
            clock.now = float(second)
            progress.advance(3)
    assert out.getvalue().splitlines() == [
        "listed: 30  3.0/s",
        "listed: 60  3.0/s",
        "listed: 75  3.0/s",
    ]


def test_nothing_to_do_is_done() -> None:
    out = io.StringIO()
    with Progress("objects", total=0, out=out, clock=Clock()):
        pass
    assert out.getvalue() == "objects: 0 of 0 (100%)  0.0/s\n"
