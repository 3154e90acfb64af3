"""The broker as a node of pytest-celery: the private RabbitMQ of a test run, killed, frozen and started again."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from xmlrpc.client import Fault

import pytest
from django.conf import settings
from pytest_celery import RabbitMQTestBroker  # type: ignore[import-untyped]

from config.local.rabbitmq import wait_for_rabbitmq
from config.local.supervision import Supervisor, log_tail

START_SECONDS = 90.0


class SupervisedContainer:
    """What a node asks of its container, answered by a program that the run's supervisor keeps."""

    def __init__(self, name: str) -> None:
        if "HOLDFAST_PRIVATE_SERVICES" not in os.environ:
            # Somebody else's PostgreSQL or RabbitMQ is not to be killed; `make test` brings its own.
            pytest.skip("the services of this run are not its own")
        services = json.loads(os.environ["HOLDFAST_PRIVATE_SERVICES"])
        self.name = name
        self.log = Path(services["logs"], f"{name}.log")
        self._supervisor = Supervisor(Path(services["supervisor"]))
        if name not in self._supervisor.states():
            # Given from outside, as CELERY_BROKER_URL does: the same reason.
            pytest.skip(f"this run has no {name} of its own")

    @property
    def celeryconfig(self) -> dict[str, str]:
        return {"url": settings.CELERY_BROKER_URL, "host_url": settings.CELERY_BROKER_URL}

    @property
    def status(self) -> str:
        return "running" if self.name in self._supervisor.processes() else "exited"

    @property
    def id(self) -> str:
        return str(self._supervisor.processes()[self.name])

    def start(self) -> None:
        with suppress(Fault):  # It runs already.
            self._supervisor.start(self.name)

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """SIGKILL, after which it stays down until it is started; any other signal reaches its main process."""
        if signal == "SIGKILL":
            self._supervisor.stop(self.name)
        else:
            self._supervisor.signal(self.name, str(signal).removeprefix("SIG"))

    def restart(self, timeout: float = START_SECONDS) -> None:
        if self.status == "running":
            self.kill()
        self.start()
        self.ready(timeout=timeout)

    def reload(self) -> None:
        """Nothing is remembered that would have to be read again."""

    def ready(self, timeout: float = START_SECONDS) -> bool:
        wait_for_rabbitmq(settings.CELERY_BROKER_URL, name="RabbitMQ", seconds=timeout)
        return True

    def teardown(self) -> None:
        if self.status == "running":
            self.kill("SIGCONT")
        else:
            self.start()
        self.ready()

    def logs(self) -> str:
        return log_tail(self.log, lines=200)


class Broker(RabbitMQTestBroker):  # type: ignore[misc]
    """RabbitMQ as the tests may treat it; at the end of a test it runs and answers again."""

    container: SupervisedContainer

    def __init__(self) -> None:
        super().__init__(SupervisedContainer("rabbitmq"))

    def start(self) -> None:
        """Start it after a kill, and wait until a client can log in."""
        self.container.start()
        self.ready()

    def freeze(self) -> None:
        """Its connections stay open, and it answers nobody."""
        self.kill("SIGSTOP")

    def thaw(self) -> None:
        self.kill("SIGCONT")
