"""`manage.py replay`: what it says before, while and after it replays, and what its exit codes tell a script."""

from __future__ import annotations

import io
import subprocess
import sys
import uuid
from collections.abc import Callable

import pytest
from django.core.management import CommandError, call_command

from attachments.models import BucketRole, StoredObject
from config.env import BASE_DIR
from pipeline.management.progress import Progress
from pipeline.models import Job, JobEvent, Replay
from pipeline.states import State
from tests.processes import environment

pytestmark = pytest.mark.django_db
WHY = ("--reason", "decoder updated", "--yes")


def run(*arguments: object) -> tuple[int, str]:
    """The exit code, and what was printed."""
    printed = io.StringIO()
    try:
        call_command("replay", *map(str, arguments), stdout=printed)
    except CommandError as error:
        return error.returncode, printed.getvalue() + str(error)
    return 0, printed.getvalue()


def queued_jobs() -> set[uuid.UUID]:
    return set(Job.objects.filter(state=State.QUEUED).values_list("job_id", flat=True))


def test_a_filter_replays_what_matches_and_tells_the_audit_of_it(failed: Callable[..., Job]) -> None:
    bad, slow = failed(), failed(code="time_limit")
    code, said = run("--error-code", "bad_file", "--pipeline-version", 1, "--failed-after", "2020-01-01", *WHY)
    assert (code, queued_jobs()) == (0, {bad.job_id})
    act = Replay.objects.get()
    assert (act.via, act.reason, act.matching) == ("command", "decoder updated", 1)
    assert act.chosen_by == {
        "error_code": "bad_file",
        "pipeline_version": 1,
        "failed_after": "2020-01-01T00:00:00+00:00",
    }
    assert act.actor.startswith("command:") and act.actor != "command:"
    assert f"1 replayed (audit: replay {act.pk})" in said
    assert JobEvent.objects.get(job=bad, reason="replay").actor == act.actor
    assert Job.objects.get(job_id=slow.job_id).state == State.FAILED


def test_run_again_it_finds_nothing_to_do(failed: Callable[..., Job]) -> None:
    failed()
    assert run("--pipeline", "image", *WHY)[0] == 0
    code, said = run("--pipeline", "image", *WHY)
    assert (code, Replay.objects.count()) == (0, 1)
    assert "0 replayed" in said


def test_named_jobs_are_replayed_and_a_code_tells_when_not_all_of_them_could_be(
    failed: Callable[..., Job], queued: Callable[..., Job]
) -> None:
    first, second, swept = failed(), failed(), failed()
    StoredObject.objects.filter(attachment=swept.attachment_id).update(bucket_role=BucketRole.TRASH)
    assert run(first.job_id, first.job_id, *WHY, "--by", "ann")[0] == 0
    act = Replay.objects.get()
    assert (act.actor, act.chosen_by) == ("command:ann", {"jobs": [str(first.job_id)]})
    code, said = run(first.job_id, second.job_id, swept.job_id, queued().job_id, uuid.uuid4(), *WHY)
    assert (code, second.job_id in queued_jobs()) == (4, True)
    assert "1 replayed, 1 without an original" in said
    assert "3  of the jobs named are unknown, or have not failed" in said


def test_the_limit_leaves_the_rest_for_the_next_run(failed: Callable[..., Job]) -> None:
    jobs = [failed().job_id for _ in range(3)]
    limited = ("--error-code", "bad_file", "--limit", 2, *WHY)
    code, said = run(*limited)
    assert (code, queued_jobs()) == (3, set(jobs[:2]))
    assert "More match: 1." in said
    assert run(*limited)[0] == 0
    assert queued_jobs() == set(jobs)


def test_a_dry_run_counts_by_code_and_step_and_changes_nothing(failed: Callable[..., Job]) -> None:
    failed(), failed(), failed(code="time_limit", step="")
    code, said = run("--pipeline", "image", "--dry-run")
    lines = [line.split() for line in said.splitlines()]
    assert code == 0
    assert [line[:3] for line in lines[:2]] == [["2", "bad_file", "image"], ["1", "time_limit", "-"]]
    assert lines[2][:2] == ["3", "failed"]
    assert (queued_jobs(), Replay.objects.count()) == (set(), 0)


@pytest.mark.parametrize(
    "arguments",
    [
        WHY,
        ("--error-code", "bad_file", "--yes"),
        ("--error-code", "bad_file", "--yes", "--reason", " \t"),
        ("--error-code", "bad_file", "--yes", "--reason", "x" * 501),
        ("--limit", "0", "--error-code", "bad_file", *WHY),
        ("--rate", "nan", "--error-code", "bad_file", *WHY),
        ("--rate", "0", "--error-code", "bad_file", *WHY),
        ("--rate", "1e-9", "--error-code", "bad_file", *WHY),
        ("--failed-after", "yesterday", *WHY),
        ("--pipeline-version", "one", *WHY),
        ("no-uuid", *WHY),
        (uuid.UUID(int=0), "--error-code", "bad_file", *WHY),
    ],
    ids=str,
)
def test_wrong_usage_is_refused_before_anything_moves(
    failed: Callable[..., Job], arguments: tuple[object, ...]
) -> None:
    failed()
    with pytest.raises(CommandError):
        call_command("replay", *map(str, arguments), stdout=io.StringIO())
    assert queued_jobs() == set()


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_it_asks_first(failed: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    failed()
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert run("--error-code", "bad_file", "--reason", "why")[0] == code
    assert len(queued_jobs()) == (1 if code == 0 else 0)


def test_whatever_breaks_it_off_it_says_what_was_done(
    failed: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(), failed()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "advance", interrupt)
    code, said = run("--error-code", "bad_file", *WHY)
    assert (code, len(queued_jobs())) == (130, 1)
    assert "1 replayed" in said
    assert Replay.objects.get().matching == 2


@pytest.mark.django_db(transaction=True)
def test_a_script_is_told_by_the_exit_code_and_the_bar_stays_out_of_its_way(failed: Callable[..., Job]) -> None:
    failed(), failed()
    command = [sys.executable, "manage.py", "replay", "--error-code", "bad_file", "--limit", "1", *WHY]
    codes = []
    for _ in range(2):
        done = subprocess.run(
            command, cwd=BASE_DIR, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        codes.append(done.returncode)
        assert (b"jobs: " in done.stderr, b"jobs: " in done.stdout) == (True, False), done.stderr
    assert codes == [3, 0]
    assert len(queued_jobs()) == 2
