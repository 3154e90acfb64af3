"""The running stack: what it says of itself is true, it mends itself, and it takes files as the demo sends them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from config.local.client import Client
from config.local.demo import Outcome, send, send_all, write_report
from config.local.places import remove_outside_folder
from config.local.runs import claimed
from config.local.show import print_failures, print_table, print_texts
from pipeline.speech import self_test
from tests.local.fronts import front, mark_of, until_gone
from tests.pictures import png
from tests.waiting import until

START_SECONDS = 90


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """One stack for all tests here, as `make up` runs it, with the broker of the test run: (its front, its folder)."""
    local = tmp_path_factory.mktemp("stack")
    with front("up", local=local) as process:
        until(
            lambda: (local / "stack.json").exists() or process.poll() is not None,
            seconds=START_SECONDS,
            say=lambda: "the stack is not up",
        )
        assert process.poll() is None, process.communicate()[0]
        yield process, local
    with claimed(local / "stack"):
        for record in ("up/outside", "postgres-binaries"):
            remove_outside_folder(local / record)


def description(local: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((local / "stack.json").read_text())
    return facts


def test_files_come_back_checked_or_with_a_reason(running: tuple[subprocess.Popen[str], Path], tmp_path: Path) -> None:
    facts = description(running[1])
    good, damaged, unknown = tmp_path / "gut & schön.png", tmp_path / "damaged.png", tmp_path / "notes.xyz"
    good.write_bytes(png())
    damaged.write_bytes(png()[:60])
    unknown.write_bytes(b"\x01 neither picture nor sound")
    paper = io.StringIO()
    screen = Console(file=paper, width=80)
    files = [good, damaged, unknown, self_test.SAMPLE]
    outcomes = send_all(files, Client(facts["web_url"], facts["token"]), console=screen)
    print_table(outcomes, console=screen)
    print_texts(outcomes, console=screen)
    print_failures(outcomes, console=screen)
    write_report(tmp_path / "report.json", outcomes)

    ready, failed, refused, spoken = json.loads((tmp_path / "report.json").read_text())
    assert (ready["file"], ready["state"], ready["attempt"], ready["error_code"]) == (str(good), "ready", 1, None)
    assert ready["ms"] > 0
    assert {"thumbnail", "optimized", "crop"} <= set(ready["variants"])
    assert all(set(variant) >= {"url", "size", "sha256", "content_type"} for variant in ready["variants"].values())
    assert failed["state"] in ("failed", "refused")
    assert failed["error_code"] == "bad_file"
    assert (refused["state"], refused["error_code"], refused["variants"]) == ("refused", "unsupported_type", {})
    assert (spoken["state"], spoken["variants"]["text"]["content_type"]) == ("ready", "text/plain; charset=utf-8")
    shown = paper.getvalue()
    assert "2 of 4 files ready" in shown
    assert f"{self_test.SAMPLE.name} says:" in shown and "my fellow Americans" in shown
    assert "notes.xyz: refused, unsupported_type." in shown
    assert "it ends:" not in shown


def test_only_a_failure_of_ours_shows_a_log(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    log.write_text("what happened")
    paper = io.StringIO()
    unanswered = Outcome(tmp_path / "photo.png", "unanswered", "no_answer", "ConnectionError: refused", log=log)
    print_failures([unanswered], console=Console(file=paper, width=200))
    assert "it ends:\nwhat happened" in paper.getvalue()


@pytest.mark.parametrize(("code", "has_log"), [("crashed", True), ("outage", True), ("bad_file", False)])
def test_a_failed_file_names_a_log_where_it_tells_more(tmp_path: Path, code: str, *, has_log: bool) -> None:
    class Failing(Client):
        def upload(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {"id": "1"}

        def status(self, *_: Any, **__: Any) -> dict[str, Any]:
            failed = {"state": "failed", "attempt": 1, "pipeline": "image", "variants": {}}
            return {**failed, "error_code": code, "error": "It failed."}

    outcome = Outcome(tmp_path / "photo.png")
    send(outcome, Failing("", ""), show=lambda *_: None)
    assert (outcome.state, outcome.error_code, bool(outcome.log)) == ("failed", code, has_log)


def test_a_killed_process_comes_back_and_the_description_follows(
    running: tuple[subprocess.Popen[str], Path],
) -> None:
    _, local = running
    before = description(local)["processes"]
    assert {
        "web",
        "dispatcher",
        "beat",
        "worker-images",
        "worker-speech",
        "worker-control",
        "flower",
        "postgres",
    } <= set(before)
    os.kill(before["dispatcher"], signal.SIGKILL)
    until(lambda: description(local)["processes"].get("dispatcher") not in (None, before["dispatcher"]))


def test_a_second_start_says_that_one_is_running(running: tuple[subprocess.Popen[str], Path]) -> None:
    first, local = running
    with front("up", local=local) as second:
        told, _ = second.communicate(timeout=60)
        assert second.returncode == 1
    assert f"already running as process {first.pid}" in told
    assert first.poll() is None


def test_a_killed_front_takes_everything_with_it(running: tuple[subprocess.Popen[str], Path]) -> None:
    first, local = running
    mark = mark_of(description(local)["processes"]["web"])
    first.kill()
    first.communicate()
    until_gone(mark)
