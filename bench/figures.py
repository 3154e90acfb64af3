"""One measured figure and what it should be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Figure:
    """`is_met` is None where there is no target."""

    row: str
    what: str
    shown: str
    target: str = ""
    is_met: bool | None = None
