"""compose.yaml and the Dockerfile fit the code; and each rule of the check notices when they do not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.compose_check import problems
from config.compose_check.service import INTERPOLATION, interpolated, seconds
from config.env import BASE_DIR
from config.local import processes

Break = Callable[[dict[str, Any]], None]


def test_the_files_have_no_problems() -> None:
    assert problems() == []


def test_every_variable_of_compose_is_documented() -> None:
    asked_for = {found["name"] for found in INTERPOLATION.finditer((BASE_DIR / "compose.yaml").read_text())} - {None}
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", (BASE_DIR / "docs/deployment.md").read_text(), re.MULTILINE))
    assert asked_for <= documented


def test_the_speech_worker_is_recycled_by_jobs_and_by_memory_alike_everywhere() -> None:
    composed = yaml.safe_load((BASE_DIR / "compose.yaml").read_text())["services"]["worker-speech"]["command"]
    programs = processes.our_programs(Path(), processes.Addresses(web_port=1, flower_port=2), management_url="")
    (local,) = [program.argv for program in programs if program.name == "worker-speech"]
    recycled = [[flag for flag in command if flag.startswith("--max-")] for command in (composed, local)]
    assert recycled[0] == recycled[1]
    assert [flag.partition("=")[0] for flag in recycled[0]] == ["--max-tasks-per-child", "--max-memory-per-child"]


def put(service: str, key: str, value: Any) -> Break:
    """Set a key, or one inside it (`environment.LOG_LEVEL`), of a service."""

    def change(document: dict[str, Any]) -> None:
        *parents, last = key.split(".")
        target = document["services"][service]
        for name in parents:
            target = target[name]
        target[last] = value

    return change


def drop(service: str, key: str) -> Break:
    def change(document: dict[str, Any]) -> None:
        *parents, last = key.split(".")
        target = document["services"][service]
        for name in parents:
            target = target[name]
        del target[last]

    return change


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (put("web", "comand", ["x"]), "'comand' was unexpected"),
        (put("web", "stop_grace_period", "soon"), "'soon' does not match"),
        (put("web", "restart", "always"), "'always' is not one of"),
        (drop("web", "environment"), "'environment' is a required property"),
        (put("web", "environment.LOGLEVEL", "INFO"), "web: nothing reads the variable LOGLEVEL"),
        (put("web", "environment.FLOWER_BASIC_AUTH", "${A:?b}"), "web: nothing reads the variable FLOWER_BASIC_AUTH"),
        (put("flower", "environment.FLOWER_PORTS", "1"), "flower: nothing reads the variable FLOWER_PORTS"),
        (put("postgres", "environment.PGUSER", "x"), "postgres: nothing reads the variable PGUSER"),
        (put("web", "environment.LOG_LEVEL", "${log}"), "web: LOG_LEVEL has a $ that is no interpolation"),
        (drop("beat", "environment.DATABASE_URL"), "beat: the required variable DATABASE_URL is not given"),
        (put("web", "environment.SECRET_KEY", "abc"), "web: the secret SECRET_KEY must be asked for"),
        (put("web", "environment.SECRET_KEY", "${SECRET_KEY:-abc}"), "web: the secret SECRET_KEY must be asked for"),
        (put("web", "environment.DATABASE_URL", "postgres://a:b@c/d"), "web: the secret DATABASE_URL must be asked"),
        (put("storage", "environment.RUSTFS_SECRET_KEY", "abc"), "storage: the secret RUSTFS_SECRET_KEY must be asked"),
        (put("dispatcher", "command", ["python", "manage.py", "dispatch"]), "manage.py has no command dispatch"),
        (put("beat", "command", ["celery", "-A", "konfig", "beat"]), "there is no Celery app konfig"),
        (put("beat", "command", ["celery", "-A", "config", "beet"]), "celery has no command beet"),
        (put("beat", "command", ["celery", "-A", "config", "beat", "--scedule=x"]), "No such option '--scedule'"),
        (put("flower", "command", ["celery", "-A", "config", "flower", "--prot=1"]), "flower has no option --prot=1"),
        (put("web", "command", ["gunicorn", "config.wsgy", "--config", "config/gunicorn.py"]), "config/wsgy.py"),
        (put("web", "command", ["gunicorn", "config.wsgi", "--config", "gunicorn.py"]), "gunicorn.py, which is not"),
        (put("web", "command", ["uwsgi"]), "web: unknown command: uwsgi"),
        (put("web", "healthcheck.test", ["CMD", "python", "-c", "("]), "web: python -c: '(' was never closed"),
        (put("beat", "healthcheck.test", ["CMD-SHELL", "pgrep beat"]), "beat: unknown command: pgrep beat"),
        (drop("web", "healthcheck"), "web: a service has a health check, unless"),
        (drop("postgres", "healthcheck"), "postgres: a service has a health check, unless"),
        (put("web", "stop_grace_period", "30s"), "web: stop_grace_period is 30 s, but stopping may take 35 s"),
        (drop("worker-images", "stop_grace_period"), "worker-images: stop_grace_period is 10 s"),
        (put("dispatcher", "stop_grace_period", "12s"), "dispatcher: stop_grace_period is 12 s"),
        (drop("rabbitmq", "stop_grace_period"), "rabbitmq: stop_grace_period is 10 s, but stopping may take 30 s"),
        (put("web", "ports", ["8000:8000"]), "web: the port 8000:8000 is published beyond the host"),
        (put("web", "ports", ["${P:-0.0.0.0:80}:8000"]), "is published beyond the host"),
        (put("flower", "ports", ["5555:5555"]), "flower: the port 5555:5555 is published beyond the host"),
        (put("postgres", "security_opt", []), "postgres: security_opt lacks no-new-privileges:true"),
        (put("web", "read_only", False), "web: read_only must be True"),
        (put("web", "init", False), "web: init must be True"),
        (drop("web", "cap_drop"), "web: cap_drop must be ['ALL']"),
        (put("web", "user", "0:0"), "web: user must be a numeric user"),
        (put("postgres", "image", "postgres:latest"), "postgres: the image postgres:latest is not pinned"),
        (put("postgres", "image", "postgres"), "postgres: the image postgres is not pinned"),
        (put("postgres", "image", "a.example/postgres:18"), "the image a.example/postgres:18 names a registry"),
        (put("web", "depends_on", {"redis": {"condition": "service_healthy"}}), "web: depends on redis, which is not"),
        (put("web", "depends_on.migrate.condition", "service_healthy"), "web: migrate can never be service_healthy"),
        (put("beat", "networks", ["side"]), "beat: the network side is not declared"),
        (put("postgres", "volumes", ["pgdata:/var/lib/postgresql"]), "postgres: the volume pgdata:"),
        (put("worker-control", "command", ["celery", "-A", "config", "worker"]), "no worker serves the queue control"),
        (
            put("worker-control", "command", ["celery", "-A", "config", "worker", "--queues=control,imagse"]),
            "a worker serves imagse, which is no queue",
        ),
    ],
)
def test_a_broken_compose_file_is_reported(tmp_path: Path, break_it: Break, problem: str) -> None:
    copy_deployment(tmp_path)
    file = tmp_path / "compose.yaml"
    # Through JSON, so that services no longer share the parts that an anchor gave them.
    document = json.loads(json.dumps(yaml.safe_load(file.read_text())))
    break_it(document)
    file.write_text(yaml.dump(document))
    assert [one for one in problems(tmp_path) if problem in one]


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("Dockerfile", "COPY pipeline/ pipeline/\n", "", "does not copy the application pipeline/"),
        ("Dockerfile", "COPY schemas/ ", "COPY shapes/ ", "copies shapes/, which is not there"),
        ("Dockerfile", "--no-deps --only-binary :all: --require-hashes", "", "installs without --require-hashes"),
        ("Dockerfile", "-r /requirements/base.txt", "-r /requirements/dev.txt", "install requirements/base.txt"),
        ("Dockerfile", "build.txt requirements/base.txt /", "build.txt /", "does not install requirements/base.txt"),
        ("Dockerfile", "USER 10001:10001\n", "", "does not end as a numeric user other than root"),
        ("Dockerfile", "USER 10001:10001\n", "USER holdfast\n", "does not end as a numeric user other than root"),
        ("Dockerfile", "FROM python:3.13-slim\n", "FROM python\n", "the image python is not pinned"),
        (".dockerignore", "!schemas/\n", "", "copies schemas/, which .dockerignore leaves out"),
        (".dockerignore", "**/*.pyc", "pipeline/", "copies pipeline/, which .dockerignore leaves out"),
    ],
)
def test_a_broken_image_is_reported(tmp_path: Path, file: str, old: str, new: str, problem: str) -> None:
    copy_deployment(tmp_path)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    assert [one for one in problems(tmp_path) if problem in one]


def test_a_value_that_must_be_given_stands_for_a_word_and_a_default_for_itself() -> None:
    assert interpolated("${A:?why}-${B:-2}-${C:-}") == "given-2-"


def test_durations_are_read_as_seconds() -> None:
    assert [seconds("40s"), seconds("1m"), seconds("1h2m3s")] == [40, 60, 3723]


def copy_deployment(folder: Path) -> None:
    for name in ("compose.yaml", "Dockerfile", ".dockerignore"):
        shutil.copy(BASE_DIR / name, folder / name)
    for name in ("requirements", "schemas", "config", "attachments", "pipeline"):
        (folder / name).symlink_to(BASE_DIR / name)
    shutil.copy(BASE_DIR / "manage.py", folder / "manage.py")
