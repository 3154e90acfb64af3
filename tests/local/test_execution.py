"""`exec` runs a command with services of its own and leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from config.local.places import LOCAL
from config.local.runs import claimed_new
from tests.local.fronts import front, mark_of, until_gone

DESCRIBE = 'echo "$DATABASE_URL $CELERY_BROKER_URL"; echo "$HOLDFAST_PRIVATE_SERVICES"'


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A folder of its own that shares the unpacked RabbitMQ, if there is one."""
    folder = tmp_path / "local"
    folder.mkdir()
    if (LOCAL / "rabbitmq").exists():
        (folder / "rabbitmq").symlink_to(LOCAL / "rabbitmq")
    return folder


def described(process: subprocess.Popen[str]) -> tuple[str, str, dict[str, Any]]:
    """(database, broker, services) as a command run by `exec` with DESCRIBE sees them."""
    assert process.stdout is not None
    database_url, broker_url = process.stdout.readline().split()
    return database_url, broker_url, json.loads(process.stdout.readline())


def test_the_commands_exit_code_is_passed_on(local: Path) -> None:
    with front("exec", "--", "sh", "-c", "exit 7", local=local) as process:
        assert process.wait(timeout=60) == 7
    with front("exec", "--", "no-such-command", local=local) as process:
        assert process.wait(timeout=60) == 127
    assert [entry.name for entry in (local / "runs").iterdir()] == ["gate"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 5), (signal.SIGINT, 6)])
def test_a_signal_goes_to_the_command_which_decides(local: Path, number: signal.Signals, code: int) -> None:
    script = f"trap 'exit 5' TERM; trap 'exit 6' INT; {DESCRIBE}; while :; do sleep 0.1; done"
    with front("exec", "--", "bash", "-c", script, local=local) as process:
        _, _, services = described(process)
        mark = mark_of(services["processes"]["postgres"])
        process.send_signal(number)
        assert process.wait(timeout=60) == code
    until_gone(mark)


def test_two_at_once_do_not_disturb_one_another_even_when_one_is_killed(local: Path) -> None:
    command = ("exec", "--", "sh", "-c", f"{DESCRIBE}; exec sleep 600")
    private = {"CELERY_BROKER_URL": ""}
    with front(*command, local=local, **private) as one, front(*command, local=local, **private) as other:
        (database, broker, services), (other_database, other_broker, other_services) = described(one), described(other)
        assert database != other_database
        assert broker != other_broker
        mark, other_mark = (mark_of(each["processes"]["rabbitmq"]) for each in (services, other_services))
        one.kill()
        one.communicate()
        until_gone(mark)
        with psycopg.connect(other_database) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        other.terminate()
        assert other.wait(timeout=60) == 128 + signal.SIGTERM
        until_gone(other_mark)
    with claimed_new(local / "runs"):
        assert len(list((local / "runs").glob("run-*"))) == 1
