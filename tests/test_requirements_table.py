"""docs/requirements.md names, for every requirement, tests that exist, or says which planned part will bring them."""

from __future__ import annotations

import ast
import re

import pytest

from config.env import BASE_DIR

TABLE = BASE_DIR / "docs" / "requirements.md"
SOURCES = {"attachments", "transcription", "exchange"}
PROOF = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`|planned: [\w ]+")


def rows() -> list[tuple[str, str, list[str]]]:
    """(source, requirement, proofs) of each row."""
    lines = TABLE.read_text().splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    return [(source.strip(), text.strip(), proof.strip().split("<br>")) for source, text, proof in cells[2:]]


@pytest.mark.parametrize(("source", "requirement", "proofs"), rows())
def test_a_requirement_names_its_source_and_tests_that_exist(source: str, requirement: str, proofs: list[str]) -> None:
    assert source in SOURCES
    assert requirement
    for proof in proofs:
        found = PROOF.fullmatch(proof)
        assert found, f"neither a test nor a plan: {proof!r}"
        if found[1]:
            assert found[2] in functions_of(found[1]), f"{proof} does not exist"


def test_every_source_has_its_rows_and_none_is_there_twice() -> None:
    listed = [(source, requirement) for source, requirement, _ in rows()]
    assert {source for source, _ in listed} == SOURCES
    assert len(set(listed)) == len(listed)


def test_every_test_that_the_documentation_names_exists() -> None:
    named = {
        found
        for page in (BASE_DIR / "docs").rglob("*.md")
        for found in re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", page.read_text())
    }
    assert len(named) > 50
    for path, test in named:
        assert (BASE_DIR / path).exists(), path
        assert not test or test in functions_of(path), f"{path}::{test} does not exist"


def functions_of(path: str) -> set[str]:
    tree = ast.parse((BASE_DIR / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
