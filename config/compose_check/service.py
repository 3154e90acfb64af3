"""One service of compose.yaml, and what its texts mean once interpolated."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

OUR_IMAGE = "holdfast"
INTERPOLATION = re.compile(r"\$\$|\$\{(?P<name>[A-Z_]+)(?::(?P<operator>[-?])(?P<rest>[^}]*))?\}")


@dataclass(frozen=True)
class Service:
    """A service as written: `body` is not interpolated."""

    name: str
    body: dict[str, Any]

    @property
    def repository(self) -> str:
        """The image without its tag."""
        return str(self.body["image"]).partition(":")[0]

    @property
    def is_ours(self) -> bool:
        return self.repository == OUR_IMAGE

    @property
    def is_one_shot(self) -> bool:
        return bool(self.body["restart"] == "no")

    @property
    def environment(self) -> dict[str, str]:
        return dict(self.body["environment"])

    @property
    def commands(self) -> list[list[str]]:
        """What the container runs, as words: several where a shell joins them by `&&`."""
        return _split([interpolated(word) for word in self.body.get("command", [])])

    @property
    def health_commands(self) -> list[list[str]]:
        """What its health check runs, as words."""
        match self.body.get("healthcheck", {}).get("test", []):
            case ["CMD-SHELL", text]:
                return _split(["sh", "-c", text])
            case ["CMD", *words]:
                return [words]
            case _:
                return []

    @property
    def kinds(self) -> set[str]:
        """The words that tell what a service of ours is: gunicorn, dispatcher, worker, beat, flower, …"""
        return {word for words in self.commands for word in (words[0], *words[2:4])}


def interpolated(text: str) -> str:
    """The text with its defaults put in, and a word wherever a value must be given."""
    return INTERPOLATION.sub(lambda found: (found["rest"] or "") if found["operator"] == "-" else "given", text)


def has_stray_dollar(text: str) -> bool:
    return "$" in INTERPOLATION.sub("", text)


def seconds(duration: str) -> int:
    """`1m30s` as seconds."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", duration))


def _split(command: list[str]) -> list[list[str]]:
    if command[:2] == ["sh", "-c"]:
        return [shlex.split(part) for part in command[2].split("&&")]
    return [command] if command else []
