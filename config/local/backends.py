"""The private PostgreSQL and RabbitMQ that every command here begins with, and the settings that point at them."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from config.local.model import speech_model
from config.local.places import PYTHON
from config.local.postgres import Postgres, make_cluster, prepare_postgres, wait_for_postgres
from config.local.rabbitmq import RabbitMQ, prepare_rabbitmq, remember_data, wait_for_rabbitmq
from config.local.supervision import NotStarted, Program, Supervisor, log_tail

START_SECONDS = 90.0
GIVEN_SECONDS = 15.0

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Backends:
    """What is to run, and where it will answer. Without `rabbitmq` the broker is the one of CELERY_BROKER_URL."""

    postgres: Postgres
    rabbitmq: RabbitMQ | None
    broker_url: str

    @property
    def management_url(self) -> str:
        """RabbitMQ's HTTP API, where there is one."""
        return self.rabbitmq.management_url if self.rabbitmq else ""

    @property
    def programs(self) -> list[Program]:
        return [
            self.postgres.program,
            *(self.rabbitmq.programs if self.rabbitmq else []),
        ]


def prepare_backends(
    folder: Path, *, durable: bool, keep_data: bool, with_management: bool, say: Callable[[str], None]
) -> Backends:
    """Prepares both services with their data in `folder`. Raises RabbitMQUnavailable.

    PostgreSQL flushes to disk if `durable`; without `keep_data` nothing waits for RabbitMQ to end gently.
    """
    given = os.environ.get("CELERY_BROKER_URL", "")
    rabbitmq = None
    if not given:
        rabbitmq = prepare_rabbitmq(folder, keep_data=keep_data, with_management=with_management, say=say)
    postgres = prepare_postgres(folder, durable=durable)
    return Backends(postgres, rabbitmq, rabbitmq.url if rabbitmq else given)


def settings_environment(backends: Backends, *, storage_root: Path) -> dict[str, str]:
    """The environment of every process of ours: the caller's own, with the settings of the local stack."""
    storage_root.mkdir(parents=True, exist_ok=True)
    # Many processes start from the same sources; without their compiled form each would compile them again.
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **given,
        "PATH": os.pathsep.join([str(Path(PYTHON).parent), os.environ.get("PATH", "")]),
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "SECRET_KEY": secrets.token_urlsafe(48),
        "LOCAL_STACK": "true",
        "DEBUG": "false",
        "INSECURE_HTTP": "true",
        "ALLOWED_HOSTS": "localhost,127.0.0.1",
        "LOG_FORMAT": "console",
        "STORAGE_BACKEND": "local",
        "STORAGE_ROOT": str(storage_root),
        "DATABASE_URL": backends.postgres.url,
        "DATABASE_LISTEN_URL": "",
        "CELERY_BROKER_URL": backends.broker_url,
        "TRANSCRIPTION_MODEL": speech_model(),
    }


def start_backends(
    backends: Backends, supervisor: Supervisor, *, logs: Path, meanwhile: Callable[[], Answer]
) -> Answer:
    """Starts both; the answer is that of `meanwhile`, which runs when PostgreSQL answers and RabbitMQ still boots.

    Raises NotStarted.
    """
    # RabbitMQ first: it boots longer than PostgreSQL needs to make its files and start.
    for program in backends.rabbitmq.programs if backends.rabbitmq else []:
        supervisor.start(program.name)
    make_cluster(backends.postgres)
    supervisor.start(backends.postgres.program.name)
    with _explained_by(logs / "postgres.log"):
        wait_for_postgres(backends.postgres.url, seconds=START_SECONDS)
    answer = meanwhile()
    if backends.rabbitmq is None:
        wait_for_rabbitmq(backends.broker_url, name="The RabbitMQ of CELERY_BROKER_URL", seconds=GIVEN_SECONDS)
        return answer
    with _explained_by(logs / "rabbitmq.log"):
        wait_for_rabbitmq(backends.broker_url, name="RabbitMQ", seconds=START_SECONDS)
    remember_data(backends.rabbitmq)
    return answer


@contextlib.contextmanager
def _explained_by(log: Path) -> Iterator[None]:
    try:
        yield
    except NotStarted as error:
        raise NotStarted(f"{error}\nThe end of {log}:\n{log_tail(log)}") from error
