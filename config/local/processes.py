"""The processes of Holdfast itself, as the stack runs them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from config.local.places import CHECKOUT, PYTHON, free_port
from config.local.supervision import Program

ORDER = 200
QUEUES = ("images", "speech", "control", "telegram")
MOST_IMAGE_WORKERS = 4
#: The model's libraries need not give back all that they take; in jobs and in KiB, as in compose.yaml.
RECYCLED = ("--max-tasks-per-child=100", "--max-memory-per-child=3000000")


@dataclass(frozen=True)
class Addresses:
    """Where the processes answer to a browser."""

    web_port: int
    flower_port: int

    @property
    def web_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def flower_url(self) -> str:
        return f"http://127.0.0.1:{self.flower_port}"


def free_addresses() -> Addresses:
    """Addresses that nobody holds at this moment."""
    return Addresses(web_port=free_port(), flower_port=free_port())


def our_programs(
    folder: Path, addresses: Addresses, *, management_url: str, has_bot: bool = False, has_webhook: bool = False
) -> list[Program]:
    """Web, dispatcher, beat, a worker for each queue, and Flower; beat keeps its schedule in `folder`.

    What serves Telegram is among them only where there is a bot, and a poller only without a webhook.
    """
    image_workers = min(os.cpu_count() or 1, MOST_IMAGE_WORKERS)
    schedule = f"--schedule={folder}/beat-schedule"
    bind = {"WEB_BIND": f"127.0.0.1:{addresses.web_port}"}
    broker_api = {"FLOWER_BROKER_API": f"{management_url}/api/"} if management_url else {}
    gunicorn = ("gunicorn", "config.wsgi", "--config", "config/gunicorn.py")
    flower = ("flower", "--address=127.0.0.1", f"--port={addresses.flower_port}")
    return [
        # At once: a client that holds its request open for news must not hold up the end.
        replace(_program("web", "-m", *gunicorn, environment=bind), stop_signal="QUIT"),
        _program("dispatcher", "manage.py", "dispatcher"),
        _celery("beat", "beat", schedule, "--pidfile="),
        _celery("worker-images", *_worker("images", concurrency=image_workers)),
        _celery("worker-speech", *_worker("speech", concurrency=1), *RECYCLED),
        _celery("worker-control", *_worker("control", concurrency=2)),
        # It keeps nothing, and ignores signals while it starts.
        replace(_celery("flower", *flower, environment=broker_api), stop_seconds=2),
        *([_celery("worker-telegram", *_worker("telegram", concurrency=4))] if has_bot else []),
        *([_program("telegram", "manage.py", "telegram")] if has_bot and not has_webhook else []),
    ]


def queues_of(programs: Iterable[Program]) -> tuple[str, ...]:
    """The queues that have a worker among these."""
    names = {program.name for program in programs}
    return tuple(queue for queue in QUEUES if f"worker-{queue}" in names)


def _worker(queue: str, *, concurrency: int) -> tuple[str, ...]:
    return ("worker", f"--queues={queue}", f"--hostname={queue}@%h", f"--concurrency={concurrency}")


def _celery(name: str, *arguments: str, environment: dict[str, str] | None = None) -> Program:
    return _program(name, "-m", "celery", "-A", "config", *arguments, environment=environment)


def _program(name: str, *arguments: str, environment: dict[str, str] | None = None) -> Program:
    return Program(
        name=name,
        argv=(PYTHON, *arguments),
        directory=CHECKOUT,
        order=ORDER,
        environment={"METRICS_PORT": str(free_port()), **(environment or {})},
        # Time for work in hand to be finished or handed back.
        stop_seconds=30,
    )
