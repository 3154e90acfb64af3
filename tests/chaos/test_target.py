"""A deployment of one's own: what its file may say, and what its commands do."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.chaos.arena import NotNow
from bench.chaos.door import Door
from bench.chaos.schedule import Fault, Rule
from bench.chaos.target import InvalidTarget, TargetArena, read_target
from config.env import BASE_DIR

MINIMAL = 'url = "http://127.0.0.1:1"\ntoken = "t"\n[faults.kill]\ncommand = "true"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "chaos.toml"
    path.write_text(text)
    return path


def test_the_example_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    page = (BASE_DIR / "docs" / "chaos.md").read_text()
    target = read_target(written(tmp_path, page.split("```toml\n")[1].split("```")[0]))
    assert target.url.startswith("https://")
    assert {"kill worker", "freeze worker", "restart broker"} <= set(target.harms)
    assert target.harms["freeze worker"].rule.seconds[1] > 0
    assert target.harms["restart broker"].rule.limit == 6
    assert target.database_url and target.environment["STORAGE_BACKEND"] == "s3"


@pytest.mark.parametrize(
    ("environment", "has_storage"),
    [("", False), ('LEASE_SECONDS = "3"', False), ('STORAGE_ROOT = "/srv"', True), ('STORAGE_BACKEND = "s3"', True)],
)
def test_objects_are_looked_at_only_where_the_storage_is_told(
    environment: str, has_storage: bool, tmp_path: Path
) -> None:
    target = read_target(written(tmp_path, f"{MINIMAL}[environment]\n{environment}\n"))
    assert target.has_storage is has_storage


def test_a_token_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "from-outside")
    target = read_target(written(tmp_path, MINIMAL.replace('token = "t"\n', "")))
    assert (target.token, target.harms["kill"].rule) == ("from-outside", Rule(1.0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "no TOML"),
        (MINIMAL.replace("url", "uri"), "write `url`"),
        (MINIMAL.replace('token = "t"\n', ""), "write `token`, or set HOLDFAST_TOKEN"),
        (MINIMAL.replace('"t"', "5"), "`token` must be of type str"),
        (MINIMAL + "weigth = 3\n", "[faults.kill]: `weigth` is not known"),
        (MINIMAL.replace("command", "weight = 1\nundo"), "[faults.kill]: write `command`"),
        (MINIMAL + 'undo = "true"\n', "go together"),
        (MINIMAL + "seconds = [1, 2]\n", "go together"),
        (MINIMAL.partition("[")[0] + "[faults]\n", "a command at least"),
    ],
)
def test_what_is_wrong_with_the_file_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidTarget) as raised:
        read_target(written(tmp_path, text))
    assert words in str(raised.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidTarget, match="cannot be read"):
        read_target(tmp_path / "missing.toml")


def test_commands_run_as_they_are_written_and_are_undone(tmp_path: Path) -> None:
    mark = tmp_path / "it is frozen"
    text = MINIMAL.replace('"true"', f"\"touch '{mark}'\"") + f"undo = \"rm '{mark}'\"\nseconds = [1, 2]\n"
    target = read_target(written(tmp_path, text))
    arena = TargetArena(target, Door(target.url, target.token))
    injected = arena.inject(fault("kill"))
    assert mark.exists()
    assert injected.undo is not None
    injected.undo()
    assert not mark.exists()
    assert arena.missing() == ["http://127.0.0.1:1/readyz is not answered with 200"]


def test_a_command_that_fails_has_found_no_victim(tmp_path: Path) -> None:
    target = read_target(written(tmp_path, MINIMAL.replace('"true"', '"echo no such container >&2; exit 3"')))
    with pytest.raises(NotNow, match="ended with 3: no such container"):
        TargetArena(target, Door(target.url, target.token)).inject(fault("kill"))


def fault(kind: str) -> Fault:
    return Fault(0, 0.0, kind, (), 0.0, 0.0)
