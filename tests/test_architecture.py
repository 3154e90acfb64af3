"""Rules about the whole tree that no single module can keep."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from config.env import BASE_DIR
from config.local import processes
from pipeline import registry
from pipeline.broker import QUEUE_NAMES
from pipeline.models import Job
from pipeline.states import MOVES, TERMINAL, State

PACKAGES = ("attachments", "pipeline", "config", "schemas", "notifications")
WRITES = {"update", "create", "bulk_create", "bulk_update", "get_or_create", "update_or_create", "save"}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((BASE_DIR / package).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path.relative_to(BASE_DIR), ast.parse(path.read_text())


def test_only_lifecycle_writes_a_jobs_state_and_only_fetches_that_of_a_fetch() -> None:
    """Every status write names the expected state and the lease token; that holds only if there is one writer."""
    offenders = [
        f"{path}:{ast.unparse(node)}"
        for path, tree in modules()
        # Wiring holds no jobs.
        if path.parts[:2] not in {("pipeline", "lifecycle"), ("notifications", "fetches.py")}
        and path.parts[0] != "config"
        for node in ast.walk(tree)
        if _writes_a_state(node)
    ]
    assert offenders == []


def _writes_a_state(node: ast.AST) -> bool:
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(target, ast.Attribute) and target.attr in _GUARDED for target in targets)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
        return any(keyword.arg in _GUARDED for keyword in node.keywords)
    return False


_GUARDED = {"state", "lease_token", "lease_until", "leased_by", "served_version"}


def test_who_writes_the_state_of_fetches_knows_no_jobs() -> None:
    tree = ast.parse((BASE_DIR / "notifications" / "fetches.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert "Job" not in names
    assert "models" not in names


def test_the_rule_about_state_writes_can_see_one() -> None:
    assert _writes_a_state(ast.parse("job.state = 'ready'").body[0])
    assert _writes_a_state(ast.parse("Job.objects.filter(x=1).update(state='ready')", mode="eval").body)


def test_only_broker_publishes() -> None:
    offenders = [
        f"{path}:{node.lineno}"
        for path, tree in modules()
        if str(path) != "pipeline/broker.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"basic_publish", "apply_async", "delay", "send_task"}
    ]
    assert offenders == []


def test_nothing_asks_the_broker_to_wait() -> None:
    """No ETA and no countdown anywhere: waiting is a due time in a row."""
    offenders = [
        f"{path}:{node.value.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg in {"eta", "countdown", "max_retries"}
    ]
    assert offenders == []


@pytest.mark.django_db
def test_enum_constraint_and_documentation_agree_on_the_states() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'pipeline_job_state_known'")
        (definition,) = cursor.fetchone()
    assert set(re.findall(r"'(\w+)'", definition)) == set(State.values)
    assert Job._meta.get_field("state").choices == State.choices
    assert documented_moves() == MOVES


def documented_moves() -> set[tuple[State | None, State]]:
    moves = set()
    for line in (BASE_DIR / "docs" / "states.md").read_text().splitlines():
        cell = line.strip("| ").split("|")[0].strip() if line.startswith("|") else ""
        if "→" in cell:
            before, after = (side.strip(" `") for side in cell.split("→"))
            targets = [State(word.strip(" `")) for word in after.split("/")]
            moves |= {(None if before in {"–", "-"} else State(before), target) for target in targets}
    return moves


def test_only_an_operator_leaves_a_terminal_state() -> None:
    """[attachments] failed → queued: явный операторский replay; a worker's move never begins at the end."""
    assert {move for move in MOVES if move[0] in TERMINAL} == {(state, State.QUEUED) for state in TERMINAL}
    workers = ast.parse((BASE_DIR / "pipeline" / "lifecycle" / "moves.py").read_text())
    expected = {
        ast.unparse(keyword.value)
        for node in ast.walk(workers)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("objects.filter")
        for keyword in node.keywords
        if keyword.arg == "state"
    }
    assert expected == {"State.QUEUED", "State.PROCESSING"}


def test_every_pipeline_names_a_queue_that_is_declared() -> None:
    assert {pipeline.queue for pipeline in registry.PIPELINES} <= set(QUEUE_NAMES)


def test_the_local_stack_works_on_every_queue() -> None:
    assert set(processes.QUEUES) == set(QUEUE_NAMES)
    addresses = processes.Addresses(web_port=1, flower_port=2)
    programs = processes.our_programs(Path(), addresses, management_url="", has_bot=True)
    served = {
        argument.removeprefix("--queues=")
        for program in programs
        for argument in program.argv
        if "--queues=" in argument
    }
    assert served == set(QUEUE_NAMES)


def test_every_partial_index_says_which_query_it_serves() -> None:
    for path in ("attachments/models.py", "notifications/models.py", "pipeline/models.py"):
        lines = (BASE_DIR / path).read_text().splitlines()
        for number, line in enumerate(lines):
            if "models.Index(" in line:
                assert lines[number - 1].strip().startswith("#"), f"{path}:{number + 1}"


def test_no_path_of_a_machine_and_no_registry_is_committed() -> None:
    pattern = re.compile(r"(^|[\s\"'`=(:])/(home|root|Users)/[a-z]", re.MULTILINE)
    code = [BASE_DIR / path for path, _ in modules()]
    prose = [*BASE_DIR.glob("*.md"), *(BASE_DIR / "docs").rglob("*.*")]
    deployment = [BASE_DIR / name for name in ("Makefile", "compose.yaml", "Dockerfile", "pyproject.toml", ".ci/run")]
    for path in [*code, *prose, *deployment]:
        assert not pattern.search(path.read_text()), path
    for lock in (BASE_DIR / "requirements").glob("*.txt"):
        assert "://" not in lock.read_text(), lock
