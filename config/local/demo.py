"""`make demo`: files go through the real stack by its REST API, and every byte that comes back is checked."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from config.local.client import Client, Download, Refusal
from config.local.samples import sample_files
from config.local.show import Progress, print_failures, print_table, print_texts
from config.local.stack import LOGS, running_stack

AT_ONCE = 4
WAIT_SECONDS = 20
FILE_SECONDS = 900.0
ENDS = ("ready", "failed")
#: Failures that are not the file's own: the log tells more than the sentence.
OURS = ("crashed", "internal_error", "worker_lost", "outage")
#: The queue, and so the worker, of a pipeline; the others are done by that of pictures.
QUEUE_OF = {"speech": "speech"}


@dataclass
class Outcome:
    """What became of a file. `state` is the API's own, or `refused`, `unanswered`, `corrupt` where it has none."""

    file: Path
    state: str = "waiting"
    error_code: str | None = None
    error: str | None = None
    ms: int = 0
    attempt: int = 0
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The log that tells more about a failure, where one does.
    log: Path | None = None

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"


def run_demo(files: list[Path], *, report: Path | None, console: Console) -> int:
    """Starts a stack of its own, sends `files` (or samples) and shows what came of them; 0 if all is ready."""
    missing = [file for file in files if not file.is_file()]
    if missing:
        console.print(f"There is no file {', '.join(map(str, missing))}.", style="red", highlight=False)
        return 2
    if report and not report.absolute().parent.is_dir():
        console.print(f"There is no folder {report.parent} to write {report.name} in.", style="red", highlight=False)
        return 2
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.1f} s[/]  {escape(line)}", highlight=False)

    with running_stack("demo", keep_data=False, say=say) as stack:
        files = files or sample_files(say)
        say(f"Sending {len(files)} files to {stack.web_url}/api/v1/attachments/")
        outcomes = send_all(files, Client(stack.web_url, stack.token), console=console)
        print_table(outcomes, console=console)
        print_texts(outcomes, console=console)
        print_failures(outcomes, console=console)
        if report:
            write_report(report, outcomes)
            say(f"Wrote {report}")
    return 0 if all(outcome.is_ready for outcome in outcomes) else 1


def send_all(files: list[Path], client: Client, *, console: Console) -> list[Outcome]:
    """Sends files, some at a time, and waits for what comes of each; progress is shown as it comes."""
    outcomes = [Outcome(file) for file in files]
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for row in range(len(outcomes)):
        waiting.put(row)
    with Progress([file.name for file in files], console=console) as progress:

        def work() -> None:
            while True:
                try:
                    row = waiting.get_nowait()
                except queue.Empty:
                    return
                send(outcomes[row], client, show=partial(progress.show, row))

        # Daemons: a signal must not wait for an answer that may take long.
        senders = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(files)))]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    return outcomes


def send(outcome: Outcome, client: Client, *, show: Callable[[str, float], None]) -> None:
    """Sends one file, waits for its end, and fetches what was made of it; everything is written into `outcome`."""
    began = time.monotonic()
    try:
        accepted = client.upload(outcome.file, on_sent=lambda share: show("sending", share))
        status = _followed(accepted["id"], client, deadline=began + FILE_SECONDS, show=show)
        outcome.ms = round((time.monotonic() - began) * 1000)
        _take_over(outcome, status)
        if outcome.is_ready:
            show("checking", 1.0)
            _fetch_everything(outcome, status, client)
    except Refusal as refusal:
        outcome.state, outcome.error_code, outcome.error = "refused", refusal.code, str(refusal)
        if refusal.status >= 500:
            outcome.state, outcome.log = "unanswered", LOGS / "web.log"
    except (OSError, HTTPException, TimeoutError) as error:
        outcome.state, outcome.error_code, outcome.error = "unanswered", "no_answer", f"{type(error).__name__}: {error}"
        outcome.log = LOGS / "web.log"
    outcome.ms = outcome.ms or round((time.monotonic() - began) * 1000)
    show(outcome.state, 1.0)


def write_report(report: Path, outcomes: list[Outcome]) -> None:
    """[{file, state, error_code, ms, attempt, variants: {name: {url, size, sha256, content_type, text?}}}]."""
    facts = ("file", "state", "error_code", "ms", "attempt", "variants")
    rows = [{name: getattr(outcome, name) for name in facts} for outcome in outcomes]
    report.write_text(json.dumps(rows, indent=2, default=str, ensure_ascii=False) + "\n", encoding="utf-8")


def _followed(
    attachment_id: str, client: Client, *, deadline: float, show: Callable[[str, float], None]
) -> dict[str, Any]:
    while True:
        status = client.status(attachment_id, wait_seconds=WAIT_SECONDS)
        if status["state"] in ENDS:
            return status
        show(status["state"], status["progress"])
        if time.monotonic() > deadline:
            raise TimeoutError(f"still {status['state']} after {FILE_SECONDS:.0f} s")


def _take_over(outcome: Outcome, status: dict[str, Any]) -> None:
    outcome.state, outcome.attempt = status["state"], status["attempt"]
    outcome.error_code, outcome.error = status["error_code"], status["error"]
    if outcome.error_code in OURS:
        outcome.log = LOGS / f"worker-{QUEUE_OF.get(status['pipeline'], 'images')}.log"


def _fetch_everything(outcome: Outcome, status: dict[str, Any], client: Client) -> None:
    promised = {"original": status["original"], **status["variants"]}
    for name, variant in promised.items():
        fetched = client.download(variant["url"])
        if (fetched.size, fetched.sha256) != (variant["size"], variant["sha256"]):
            outcome.state, outcome.error_code = "corrupt", "digest_mismatch"
            outcome.error = f"The bytes of {name} are not those the API names."
            outcome.log = LOGS / "web.log"
        if name != "original":
            outcome.variants[name] = {**variant, **_text(variant, fetched)}


def _text(variant: dict[str, Any], fetched: Download) -> dict[str, str]:
    is_text = variant["content_type"].startswith("text/")
    return {"text": fetched.content.decode("utf-8", errors="replace")} if is_text else {}
