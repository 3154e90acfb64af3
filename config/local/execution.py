"""Runs one command with a PostgreSQL and a RabbitMQ of its own, which end with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from config.local.backends import Backends, prepare_backends, settings_environment, start_backends
from config.local.places import CHECKOUT, LOCAL
from config.local.runs import claimed_new, die_with_parent
from config.local.stopping import SIGNALS
from config.local.supervision import Supervisor, supervised


def run_command(argv: list[str], *, durable: bool, with_management: bool, say: Callable[[str], None]) -> int:
    """Runs `argv` as a child and returns its exit code as a shell would; signals go to the child.

    The child finds the services by DATABASE_URL and CELERY_BROKER_URL, and by HOLDFAST_PRIVATE_SERVICES how to
    stop and start them: JSON {"supervisor": socket, "logs": folder, "processes": {name: pid}, "data": {name: folder}}.
    """
    with claimed_new(LOCAL / "runs") as run:
        backends = prepare_backends(
            run.folder, durable=durable, keep_data=False, with_management=with_management, say=say
        )
        environment = settings_environment(backends, storage_root=run.folder / "storage") | run.environment()
        logs = run.folder / "log"
        with supervised(run, backends.programs, environment=environment, logs=logs) as supervisor:
            start_backends(backends, supervisor, logs=logs, meanwhile=lambda: None)
            environment["HOLDFAST_PRIVATE_SERVICES"] = json.dumps(_description(backends, supervisor, logs=logs))
            return _run_child(argv, environment)


def _description(backends: Backends, supervisor: Supervisor, *, logs: Path) -> dict[str, object]:
    data = {"postgres": str(backends.postgres.data)}
    if backends.rabbitmq:
        data["rabbitmq"] = str(backends.rabbitmq.home / "data")
    return {
        "supervisor": str(supervisor.socket),
        "logs": str(logs),
        "processes": supervisor.processes(),
        "data": data,
        "management_url": backends.management_url,
    }


def _run_child(argv: list[str], environment: dict[str, str]) -> int:
    with _passing_signals() as pass_to:
        try:
            child = subprocess.Popen(
                argv,
                cwd=CHECKOUT,
                env=environment,
                preexec_fn=die_with_parent,  # noqa: PLW1509  (there are no threads)
            )
        except (FileNotFoundError, PermissionError) as error:
            # A folder of PATH that may not be searched gives EACCES, and then the name was found nowhere else.
            print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
            return 127
        pass_to(child)
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _passing_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Passes our signals on to a child, those too that come before it is there."""
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        if not children:
            early.append(number)
        # From a terminal, Ctrl-C has reached the child already.
        elif not (number == signal.SIGINT and _is_in_foreground()):
            children[0].send_signal(number)

    def pass_to(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            child.send_signal(number)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield pass_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
