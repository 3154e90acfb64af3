"""The running stack: services first, then the database's schema, then our processes, all kept running."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault

from amqp.exceptions import AMQPError
from kombu import Connection
from kombu.exceptions import OperationalError

from config.env import read
from config.local.backends import Backends, prepare_backends, settings_environment, start_backends
from config.local.client import answers
from config.local.places import CHECKOUT, LOCAL, PYTHON, remove_outside_folder, write_whole
from config.local.processes import Addresses, free_addresses, our_programs, queues_of
from config.local.runs import claimed
from config.local.supervision import NotStarted, Supervisor, log_tail, supervised

DESCRIPTION = LOCAL / "stack.json"
LOGS = LOCAL / "log"
READY_SECONDS = 90.0
WATCH_SECONDS = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True)
class Stack:
    """A running stack; `environment` holds its settings. `is_broken` is set when its supervisor is gone.

    Data that would be removed at the end is kept where `is_evidence` is set.
    """

    web_url: str
    flower_url: str
    management_url: str
    username: str
    password: str
    token: str
    environment: Mapping[str, str]
    supervisor: Supervisor
    queues: tuple[str, ...]
    is_broken: threading.Event = field(default_factory=threading.Event)
    is_evidence: threading.Event = field(default_factory=threading.Event)


def run_in_foreground(say: Say) -> int:
    """Runs the stack, with its data kept in `.local/up`, until a signal ends it. Raises AlreadyRunning, NotStarted."""
    with running_stack("up", keep_data=True, say=say) as stack:
        say(_welcome(stack))
        stack.is_broken.wait()
        say(f"The supervisor has ended; see {LOGS}/supervisord.log.")
        return 1


@contextlib.contextmanager
def running_stack(name: str, *, keep_data: bool, say: Say) -> Iterator[Stack]:
    """The whole stack with its data in `.local/<name>`, described in `.local/stack.json` as long as it runs."""
    with claimed(LOCAL / "stack") as run, contextlib.ExitStack() as on_exit:
        folder, is_evidence = LOCAL / name, threading.Event()
        if not keep_data:
            _remove_data(folder)
            on_exit.callback(_remove_data, folder, unless=is_evidence)
        for old in (LOGS, folder / "tmp"):
            shutil.rmtree(old, ignore_errors=True)
        DESCRIPTION.unlink(missing_ok=True)
        (folder / "tmp").mkdir(parents=True)
        backends = prepare_backends(folder, durable=True, keep_data=keep_data, with_management=True, say=say)
        addresses = free_addresses()
        environment = _environment(backends, addresses, folder) | run.environment()
        ours = our_programs(
            folder,
            addresses,
            management_url=backends.management_url,
            has_bot=bool(read("TELEGRAM_BOT_TOKEN")),
            has_webhook=bool(read("TELEGRAM_WEBHOOK_SECRET")),
        )
        programs = [*backends.programs, *ours]
        on_exit.callback(say, "Stopped")
        supervisor = on_exit.enter_context(supervised(run, programs, environment=environment, logs=LOGS))
        on_exit.callback(say, "Stopping everything")
        say("Starting PostgreSQL and RabbitMQ")
        prepare_data = partial(_prepare_data, environment, say=say)
        login = start_backends(backends, supervisor, logs=LOGS, meanwhile=prepare_data)
        say(f"Starting {', '.join(program.name for program in ours)}")
        for program in ours:
            supervisor.start(program.name)
        queues = queues_of(ours)
        _wait_until_ready(supervisor, addresses, backends.broker_url, queues=queues)
        urls = (addresses.web_url, addresses.flower_url, backends.management_url)
        stack = Stack(
            *urls,
            login["username"],
            login["password"],
            login["token"],
            environment=environment,
            supervisor=supervisor,
            queues=queues,
            is_evidence=is_evidence,
        )
        on_exit.enter_context(_described(stack))
        yield stack


def _remove_data(folder: Path, *, unless: threading.Event | None = None) -> None:
    if unless is not None and unless.is_set():
        return
    remove_outside_folder(folder / "outside")
    shutil.rmtree(folder, ignore_errors=True)


def _environment(backends: Backends, addresses: Addresses, folder: Path) -> dict[str, str]:
    environment = settings_environment(backends, storage_root=folder / "storage")
    # What a killed process leaves in its temporary folder must not gather in the system's.
    temporary = {"TMPDIR": str(folder / "tmp")}
    return {**environment, **temporary, "FLOWER_URL": addresses.flower_url, "PYTHONUNBUFFERED": "1"}


def _prepare_data(environment: dict[str, str], *, say: Say) -> dict[str, str]:
    say("Preparing the database and the storage")
    command = [PYTHON, "manage.py", "local_setup"]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotStarted(f"{' '.join(command)} failed:\n{done.stderr.rstrip()}")
    login: dict[str, str] = json.loads(done.stdout)
    return login


def _wait_until_ready(supervisor: Supervisor, addresses: Addresses, broker_url: str, *, queues: Iterable[str]) -> None:
    conditions = {"web": partial(answers, f"{addresses.web_url}/readyz")}
    conditions |= {f"worker-{queue}": partial(_has_consumer, broker_url, queue) for queue in queues}
    deadline = time.monotonic() + READY_SECONDS
    for name, is_ready in conditions.items():
        while not is_ready():
            if time.monotonic() > deadline or supervisor.states()[name] == "FATAL":
                log = LOGS / f"{name}.log"
                raise NotStarted(f"{name} does not become ready. The end of {log}:\n{log_tail(log)}")
            time.sleep(0.1)


def _has_consumer(broker_url: str, queue: str) -> bool:
    with Connection(broker_url, connect_timeout=5) as connection:
        try:
            channel: Any = connection.default_channel
            return bool(channel.queue_declare(queue, passive=True).consumer_count)
        except (OSError, AMQPError, OperationalError):
            return False


@contextlib.contextmanager
def _described(stack: Stack) -> Iterator[None]:
    """Keeps `.local/stack.json` true while the stack runs, and starts again what the supervisor has given up."""
    environment, supervisor = stack.environment, stack.supervisor
    facts: dict[str, Any] = {
        "web_url": stack.web_url,
        "flower_url": stack.flower_url,
        "management_url": stack.management_url,
        "username": stack.username,
        "password": stack.password,
        "token": stack.token,
        "database_url": environment["DATABASE_URL"],
        "broker_url": environment["CELERY_BROKER_URL"],
        "storage_root": environment["STORAGE_ROOT"],
        "supervisor": str(supervisor.socket),
        "logs": str(LOGS),
        "pid": os.getpid(),
    }
    write_whole(DESCRIPTION, json.dumps({**facts, "processes": supervisor.processes()}, indent=2))
    is_over = threading.Event()
    watch = threading.Thread(target=_watch, args=(stack, facts, is_over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()
        DESCRIPTION.unlink(missing_ok=True)


def _watch(stack: Stack, facts: dict[str, Any], is_over: threading.Event) -> None:
    described: dict[str, int] = {}
    try:
        while not is_over.wait(WATCH_SECONDS):
            stack.supervisor.revive()
            processes = stack.supervisor.processes()
            if processes != described:
                write_whole(DESCRIPTION, json.dumps({**facts, "processes": processes}, indent=2))
                described = processes
    except (OSError, HTTPException, Fault):
        stack.is_broken.set()


def _welcome(stack: Stack) -> str:
    lines = {
        "Holdfast": f"{stack.web_url}/admin/",
        "API": f"{stack.web_url}/api/v1/docs/",
        "Flower": stack.flower_url,
        "Login": f"{stack.username} / {stack.password}",
        "API token": stack.token,
        "Logs": str(LOGS),
        "For scripts": str(DESCRIPTION),
    }
    return "\n" + "".join(f"  {name + ':':<13}{value}\n" for name, value in lines.items()) + "\nCtrl-C stops it all."
