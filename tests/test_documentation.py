"""What the documentation names is there: settings, error codes, links, commands, targets, failpoints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands
from rest_framework import exceptions

from attachments import problems
from attachments.errors import AttachmentError
from config.env import BASE_DIR, REQUIRED, VARIABLES
from pipeline import failpoints
from pipeline.claims import Unclaimable

DOCS = BASE_DIR / "docs"
PAGES = sorted([BASE_DIR / "README.md", *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]*)(?:#[\w-]+)?\)")
#: Errors that no client sees as a problem: a base class, one that the intake's fresh keys rule out, and those that
#: only the work on a file finds, or the fetching of one from Telegram.
NOT_ANSWERED = {
    *("error", "key_taken", "bad_file", "no_audio_stream", "empty_audio", "audio_too_long"),
    *("too_large_for_bot", "not_fetched"),
}
#: REST framework's errors: all but broken JSON, which nothing here parses, throttling, which is not used, and
#: ValidationError, which is answered as `invalid`.
NOT_RAISED = {exceptions.ParseError, exceptions.Throttled, exceptions.ValidationError}
FRAMEWORK = {
    error for error in exceptions.APIException.__subclasses__() if error.__module__ == exceptions.__name__
} - NOT_RAISED


def test_every_environment_variable_is_described_with_its_default() -> None:
    rows = re.findall(r"^\| `([A-Z_0-9]+)` \| (.*?) \| (.+) \|$", (DOCS / "deployment.md").read_text(), re.MULTILINE)
    section = (DOCS / "deployment.md").read_text().split("## Environment variables")[1]
    described = {name: default.strip("`") for name, default, _ in rows if f"| `{name}` |" in section}
    assert described == {name: shown(default) for name, (_, default) in VARIABLES.items()}


def shown(default: Any) -> str:
    if default is REQUIRED:
        return "required"
    if default in ("", []) and not isinstance(default, bool | int):
        return "–"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:.0f}" if isinstance(default, float) else str(default)


def test_every_error_code_of_the_api_is_described_with_its_status() -> None:
    described = {
        (code, int(status))
        for codes, status in re.findall(r"^\| (`[^|]+`) \| (\d{3}) \|", (DOCS / "api.md").read_text(), re.MULTILINE)
        for code in re.findall(r"`(\w+)`", codes)
    }
    assert described == set(answered())


def answered() -> Iterator[tuple[str, int]]:
    """(code, status) of every error class, of every Problem that the door writes out, and of the frameworks' errors."""
    yield from ((code, status) for _, status, code, _ in problems.FOREIGN)
    yield from ((code, status) for status, code, _ in (problems.DATABASE_AWAY, problems.UNEXPECTED))
    yield from ((error.default_code, error.status_code) for error in FRAMEWORK)
    for error in subclasses(AttachmentError):
        if error.code not in NOT_ANSWERED and error.__module__ != "pipeline.confined":
            yield error.code, error.status
    for path in sorted((BASE_DIR / "attachments").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem":
                match node.args[:2]:
                    case [ast.Constant(value=int(status)), ast.Constant(value=str(code))]:
                        yield code, status


def subclasses(base: type[AttachmentError]) -> Iterator[type[AttachmentError]]:
    for one in base.__subclasses__():
        yield one
        yield from subclasses(one)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(BASE_DIR)))
def test_links_lead_to_files_that_exist(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if target and "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(BASE_DIR)))
def test_files_commands_and_targets_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    makefile = (BASE_DIR / "Makefile").read_text()
    files = re.findall(r"`((?:pipeline|attachments|config|tests|schemas|docs|requirements)/[\w./-]+\.\w+)`", text)
    assert [file for file in files if not (BASE_DIR / file).exists()] == []
    assert [name for name in re.findall(r"manage\.py (\w+)", text) if name not in get_commands()] == []
    assert [
        name for name in re.findall(r"`make (\w+)", text) if not re.search(f"^{name}:", makefile, re.MULTILINE)
    ] == []


def test_the_contract_lists_every_failpoint_and_every_reason_not_to_work() -> None:
    contract = (DOCS / "contract.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", contract, re.MULTILINE))
    assert rows >= set(failpoints.NAMES)
    assert {reason for reason in Unclaimable if f"| `{reason.value}` |" not in contract} == set()
