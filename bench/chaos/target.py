"""A deployment of your own as the arena: its address, a token, and commands that do harm to it. See docs/chaos.md."""

from __future__ import annotations

import os
import secrets
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.chaos.arena import Injected, NotNow
from bench.chaos.door import Door
from bench.chaos.schedule import Fault, Rule

COMMAND_SECONDS = 60.0
FACTS: dict[str, type] = {
    "url": str,
    "token": str,
    "database_url": str,
    "broker_url": str,
    "environment": dict,
    "faults": dict,
}
PACE: dict[str, type] = {"faults_per_minute": float, "uploads_per_second": float}
FAULT: dict[str, type] = {"command": str, "undo": str, "weight": float, "limit": int, "seconds": list}


class InvalidTarget(Exception):
    """The file that describes the target cannot be used; the text says what to change."""


@dataclass(frozen=True)
class Harm:
    """One kind of fault: a shell command, and the one that undoes it."""

    rule: Rule
    command: str
    undo: str = ""


@dataclass(frozen=True)
class Target:
    """Where the deployment is, and what may be done to it. Without `database_url` only the API is asked."""

    url: str
    token: str
    harms: dict[str, Harm]
    database_url: str = ""
    broker_url: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    pace: dict[str, float] = field(default_factory=dict)

    @property
    def has_storage(self) -> bool:
        """Whether it says where the objects are, and not only what timings it has."""
        return not {"STORAGE_BACKEND", "STORAGE_ROOT"}.isdisjoint(self.environment)

    def settings_environment(self) -> dict[str, str]:
        """The settings under which the deployment's rows and objects are read from here."""
        return {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "SECRET_KEY": secrets.token_urlsafe(48),
            "DATABASE_URL": self.database_url,
            "CELERY_BROKER_URL": self.broker_url or "amqp://127.0.0.1//",
            **self.environment,
        }


def read_target(path: Path) -> Target:
    """The target that a TOML file describes. Raises InvalidTarget."""
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidTarget(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidTarget(f"{path} is no TOML file: {error}.") from error
    _check(facts, FACTS | PACE, needed=("url", "faults"), where=str(path))
    if not (token := facts.get("token") or os.environ.get("HOLDFAST_TOKEN", "")):
        raise InvalidTarget(f"{path}: write `token`, or set HOLDFAST_TOKEN.")
    harms = {name: _harm(name, one) for name, one in facts["faults"].items()}
    if not harms:
        raise InvalidTarget(f"{path}: there must be a table [faults.NAME] with a command at least.")
    return Target(
        url=facts["url"],
        token=token,
        harms=harms,
        database_url=facts.get("database_url", ""),
        broker_url=facts.get("broker_url", ""),
        environment={name: str(value) for name, value in facts.get("environment", {}).items()},
        pace={name: float(facts[name]) for name in PACE if name in facts},
    )


class TargetArena:
    """A deployment that is harmed by commands of its operator's."""

    def __init__(self, target: Target, door: Door) -> None:
        self._harms = target.harms
        self._door = door
        self.rules = {name: harm.rule for name, harm in target.harms.items()}

    def inject(self, fault: Fault) -> Injected:
        harm = self._harms[fault.kind]
        _run(harm.command)
        undo = partial(_run, harm.undo) if harm.undo else None
        return Injected(harm.command, undo)

    def missing(self) -> list[str]:
        return [] if self._door.is_ready() else [f"{self._door.url}/readyz is not answered with 200"]


def _harm(name: str, facts: Any) -> Harm:
    where = f"[faults.{name}]"
    if not isinstance(facts, dict):
        raise InvalidTarget(f"{where} must be a table.")
    _check(facts, FAULT, needed=("command",), where=where)
    match facts.get("undo", ""), facts.get("seconds", [0, 0]):
        case str(undo), [int() | float() as shortest, int() | float() as longest] if bool(undo) == (longest > 0):
            rule = Rule(float(facts.get("weight", 1)), facts.get("limit"), (float(shortest), float(longest)))
            return Harm(rule, facts["command"], undo)
    raise InvalidTarget(f"{where}: `undo` and `seconds = [from, to]` go together.")


def _check(facts: Mapping[str, Any], known: Mapping[str, type], *, needed: tuple[str, ...], where: str) -> None:
    if missing := [name for name in needed if name not in facts]:
        raise InvalidTarget(f"{where}: write `{missing[0]}`.")
    for name, value in facts.items():
        if name not in known:
            raise InvalidTarget(f"{where}: `{name}` is not known. Known: {', '.join(known)}.")
        allowed = (int, float) if known[name] is float else known[name]
        if not isinstance(value, allowed) or isinstance(value, bool):
            raise InvalidTarget(f"{where}: `{name}` must be of type {known[name].__name__}.")


def _run(command: str) -> None:
    """Through a shell, as it is written. NotNow when it fails or hangs."""
    try:
        done = subprocess.run(command, shell=True, check=False, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NotNow(f"`{command}` took longer than {COMMAND_SECONDS:.0f} s") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise NotNow(f"`{command}` ended with {done.returncode}: {words[-1] if words else ''}")
