"""Whether the Dockerfile builds from what is there, and as it should."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from django.conf import settings

from config.compose_check.rules import image_problems
from config.env import BASE_DIR

LOCKS = ("requirements/build.txt", "requirements/base.txt")


def dockerfile_problems(folder: Path) -> Iterator[str]:
    """What is wrong with `folder`'s Dockerfile and .dockerignore."""
    instructions = _instructions((folder / "Dockerfile").read_text())
    sources = [
        source
        for copied in instructions.get("COPY", [])
        if not copied.startswith("--from=")
        for source in copied.split()[:-1]
    ]
    yield from _sources(folder, sources)
    yield from _installs(instructions.get("RUN", []), sources)
    for base in instructions.get("FROM", []):
        yield from image_problems(base.partition(" ")[0])
    users = instructions.get("USER", [""])
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        yield "does not end as a numeric user other than root"


def _instructions(text: str) -> dict[str, list[str]]:
    """The rest of each line by its first word, continued lines joined."""
    found: dict[str, list[str]] = {}
    without_comments = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    for line in without_comments.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            found.setdefault(word, []).append(rest.strip())
    return found


def _sources(folder: Path, sources: list[str]) -> Iterator[str]:
    patterns = (folder / ".dockerignore").read_text()
    for source in sources:
        if not (folder / source).exists():
            yield f"copies {source}, which is not there"
        if _is_ignored(source, patterns):
            yield f"copies {source}, which .dockerignore leaves out"
    for app in settings.INSTALLED_APPS:
        package = app.partition(".")[0]
        if (BASE_DIR / package).is_dir() and f"{package}/" not in sources:
            yield f"does not copy the application {package}/"


def _is_ignored(source: str, patterns: str) -> bool:
    is_ignored = False
    for line in patterns.splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#") and _matches(source, pattern.lstrip("!").rstrip("/")):
            is_ignored = not pattern.startswith("!")
    return is_ignored


def _matches(source: str, pattern: str) -> bool:
    """Whether a pattern names the source or a folder that it lies in."""
    parts = source.rstrip("/").split("/")
    return any(fnmatch("/".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def _installs(runs: list[str], sources: list[str]) -> Iterator[str]:
    installs = [part for run in runs for part in run.split("&&") if "pip install" in part]
    for lock in LOCKS:
        if lock not in sources or not any(f"/{lock}" in install for install in installs):
            yield f"does not install {lock}"
    for install in installs:
        if "--require-hashes" not in install:
            yield f"installs without --require-hashes: {' '.join(install.split())}"
