"""What a run came to, for people and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.chaos.soak import Soaked
from bench.chaos.verdicts import Verdict

#: Of one broken invariant, so many are shown with their history; the JSON has them all.
SHOWN = 5


@dataclass
class Report:
    """Everything that is told at the end. `figures` are those of `invariants`, where the rows could be asked."""

    seed: int
    seconds: float
    soaked: Soaked
    verdicts: list[Verdict]
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def all_hold(self) -> bool:
        return all(verdict.holds for verdict in self.verdicts)

    def counts(self) -> dict[str, Any]:
        """{uploads, answers, accepted, ready, failed, refused: {code: n}, deleted, replayed, quiet_seconds}."""
        uploads = self.soaked.uploads
        kept = [upload for upload in uploads if upload.id is not None and not upload.is_deleted]
        return {
            "uploads": len(uploads),
            "answers": dict(sorted(self.soaked.answers.items())),
            "accepted": sum(upload.id is not None for upload in uploads),
            "ready": sum(upload.state == "ready" for upload in kept),
            "failed": dict(Counter(upload.error_code for upload in kept if upload.state == "failed")),
            "refused": dict(Counter(upload.refused for upload in uploads if upload.refused)),
            "deleted": sum(upload.is_deleted for upload in uploads),
            "replayed": sum(upload.was_replayed for upload in uploads),
            "quiet_seconds": self.soaked.quiet_seconds,
        }


def print_report(report: Report, *, console: Console, timeline: Callable[[str], list[str]]) -> None:
    """The tables, and the history of everything that breaks an invariant."""
    _print_figures(report, console)
    _print_faults(report, console)
    _print_verdicts(report, console)
    for verdict in report.verdicts:
        if not verdict.holds:
            _print_broken(verdict, console, timeline)
    held = sum(verdict.holds for verdict in report.verdicts)
    console.print(
        f"{held} of {len(report.verdicts)} held" + ("." if report.all_hold else "; see above for the others.")
    )


def write_report(path: Path, report: Report) -> None:
    """The same as JSON: the counts and figures, {faults, missed: {kind: n}}, and every verdict."""
    injections = report.soaked.injections
    facts = {
        "seed": report.seed,
        "seconds": report.seconds,
        **report.counts(),
        **report.figures,
        "faults": dict(injections.done),
        "missed": dict(injections.missed),
        "all_hold": report.all_hold,
        "verdicts": [{**asdict(verdict), "holds": verdict.holds} for verdict in report.verdicts],
    }
    path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _print_figures(report: Report, console: Console) -> None:
    table = Table(title=f"Chaos, seed {report.seed}", box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in {**report.counts(), **report.figures}.items():
        table.add_row(name.replace("_", " "), _shown(value))
    console.print(table)


def _print_faults(report: Report, console: Console) -> None:
    injections = report.soaked.injections
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault")
    table.add_column("done", justify="right")
    table.add_column("no victim", justify="right")
    for kind in sorted({*injections.done, *injections.missed}):
        table.add_row(escape(kind), str(injections.done[kind]), str(injections.missed[kind] or ""))
    table.add_row("[bold]all[/]", f"[bold]{injections.done.total()}[/]", str(injections.missed.total() or ""))
    console.print(table)


def _print_verdicts(report: Report, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what must hold")
    table.add_column("asked", justify="right")
    table.add_column("")
    for verdict in report.verdicts:
        word = "[green]holds[/]" if verdict.holds else f"[red]broken by {len(verdict.broken)}[/]"
        table.add_row(verdict.name, str(verdict.asked), word)
    console.print(table)


def _print_broken(verdict: Verdict, console: Console, timeline: Callable[[str], list[str]]) -> None:
    console.print(f"\n[red]{escape(verdict.name)}[/]", highlight=False)
    for name, flaw in list(verdict.broken.items())[:SHOWN]:
        console.print(f"  {escape(name)}: {escape(flaw)}", highlight=False, soft_wrap=True)
        for line in timeline(name):
            console.print(f"    {escape(line)}", highlight=False, style="dim", soft_wrap=True)
    if len(verdict.broken) > SHOWN:
        console.print(f"  and {len(verdict.broken) - SHOWN} more", highlight=False)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {count}" for name, count in value.items()) or "–"
    return "–" if value is None else str(value)
