"""The rules that each service keeps, and those between services."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from config import gunicorn
from config.compose_check.commands import command_problems, is_flower_option
from config.compose_check.service import Service, has_stray_dollar, interpolated, seconds
from config.env import REQUIRED, VARIABLES
from pipeline import shutdown
from pipeline.broker import QUEUE_NAMES

MARGIN_SECONDS = 5
#: `connect_timeout` of the database.
CONNECT_SECONDS = 5
STATEFUL_SECONDS = 30
#: The names that other images read, as far as they are used here.
IMAGE_VARIABLES = {
    "postgres": {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "POSTGRES_INITDB_ARGS"},
    "rabbitmq": {"RABBITMQ_DEFAULT_USER", "RABBITMQ_DEFAULT_PASS"},
    "rustfs/rustfs": {
        "RUSTFS_VOLUMES",
        "RUSTFS_ADDRESS",
        "RUSTFS_CONSOLE_ENABLE",
        "RUSTFS_ACCESS_KEY",
        "RUSTFS_SECRET_KEY",
        "RUSTFS_DURABILITY_MODE",
        "RUSTFS_NEW_BUCKET_DURABILITY_MODE",
        "RUSTFS_OBS_LOG_DIRECTORY",
    },
}


def service_problems(service: Service) -> Iterator[str]:
    """What is wrong with one service by itself."""
    yield from image_problems(service.body["image"])
    for rule in (_variables, _secrets, _health, _grace, _ports, _privileges):
        yield from rule(service)
    if service.is_ours:
        for rule in (_required_variables, _commands, _confinement):
            yield from rule(service)


def relation_problems(services: dict[str, Service], document: dict[str, Any]) -> Iterator[str]:
    """What is wrong between services, and between them and the rest of the file."""
    for service in services.values():
        for name, wanted in service.body.get("depends_on", {}).items():
            yield from _dependency(service, services.get(name), name, wanted["condition"])
        for network in service.body["networks"]:
            if network not in document["networks"]:
                yield f"{service.name}: the network {network} is not declared"
        for volume in service.body.get("volumes", []):
            if isinstance(volume, str) and volume.partition(":")[0] not in document["volumes"]:
                yield f"{service.name}: the volume {volume} is not declared"
    yield from _queues(services)


def image_problems(name: str) -> Iterator[str]:
    image = interpolated(name)
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first):
        yield f"the image {image} names a registry"
    if not re.search(r":(?!latest$)[\w.-]+$", image):
        yield f"the image {image} is not pinned to a version"


def _variables(service: Service) -> Iterator[str]:
    for name, value in service.environment.items():
        if not _is_read(service, name):
            yield f"nothing reads the variable {name}"
        if has_stray_dollar(value):
            yield f"{name} has a $ that is no interpolation"


def _is_read(service: Service, name: str) -> bool:
    if not service.is_ours:
        return name in IMAGE_VARIABLES.get(service.repository, set())
    return name in VARIABLES or ("flower" in service.kinds and is_flower_option(name))


def _required_variables(service: Service) -> Iterator[str]:
    for name, (_, default) in VARIABLES.items():
        if default is REQUIRED and name not in service.environment:
            yield f"the required variable {name} is not given"


def _secrets(service: Service) -> Iterator[str]:
    for name, value in service.environment.items():
        in_url = re.search(r"://[^/:@]+:(?P<password>.+)@", value)
        is_secret = re.search(r"SECRET|PASS|ACCESS_KEY|AUTH", name) is not None
        secret = in_url["password"] if in_url else value
        if (in_url or is_secret) and not re.fullmatch(r"\$\{[A-Z_]+:(\?[^}]+|-)\}", secret):
            yield f"the secret {name} must be asked for, as ${{NAME:?why}}, or be empty, as ${{NAME:-}}"


def _health(service: Service) -> Iterator[str]:
    if service.is_one_shot == ("healthcheck" in service.body):
        yield "a service has a health check, unless it is a one-shot"


def _grace(service: Service) -> Iterator[str]:
    needed, given = _needed_seconds(service), seconds(service.body.get("stop_grace_period", "10s"))
    if given < needed:
        yield f"stop_grace_period is {given} s, but stopping may take {needed:g} s"


def _needed_seconds(service: Service) -> float:
    """How long a process may take from SIGTERM to its end."""
    if service.is_one_shot:
        return 0
    if not service.is_ours:
        return STATEFUL_SECONDS
    confirm_seconds: float = VARIABLES["CONFIRM_SECONDS"][1]
    needed = {
        "gunicorn": gunicorn.graceful_timeout,
        "worker": shutdown.LAST_CALL_SECONDS + CONNECT_SECONDS,
        "dispatcher": confirm_seconds,
    }
    return MARGIN_SECONDS + max(needed.get(kind, 0.0) for kind in service.kinds)


def _ports(service: Service) -> Iterator[str]:
    for port in service.body.get("ports", []):
        if not interpolated(port).startswith("127.0.0.1:"):
            yield f"the port {port} is published beyond the host unless told otherwise"


def _privileges(service: Service) -> Iterator[str]:
    if "no-new-privileges:true" not in service.body.get("security_opt", []):
        yield "security_opt lacks no-new-privileges:true"


def _commands(service: Service) -> Iterator[str]:
    for words in service.commands + service.health_commands:
        yield from command_problems(words)


def _confinement(service: Service) -> Iterator[str]:
    for key, wanted in (("init", True), ("read_only", True), ("cap_drop", ["ALL"]), ("pull_policy", "never")):
        if service.body.get(key) != wanted:
            yield f"{key} must be {wanted}"
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", service.body.get("user", "")):
        yield "user must be a numeric user and group other than root"


def _dependency(service: Service, other: Service | None, name: str, condition: str) -> Iterator[str]:
    if other is None:
        yield f"{service.name}: depends on {name}, which is not there"
    elif other.is_one_shot != (condition == "service_completed_successfully"):
        yield f"{service.name}: {name} can never be {condition}"


def _queues(services: dict[str, Service]) -> Iterator[str]:
    served = {
        queue
        for service in services.values()
        for words in service.commands
        for word in words
        if service.is_ours and word.startswith("--queues=")
        for queue in word.removeprefix("--queues=").split(",")
    }
    yield from (f"no worker serves the queue {queue}" for queue in QUEUE_NAMES if queue not in served)
    yield from (f"a worker serves {queue}, which is no queue" for queue in sorted(served - set(QUEUE_NAMES)))
