"""What every test may use: a user, a picture, storage of its own, and queues emptied before and after.

PostgreSQL and RabbitMQ are real and come from the environment; `make test` starts private ones.
"""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import TransactionTestCase

from attachments import storage
from pipeline import broker, intake, lifecycle, registry
from pipeline.broker import Publisher
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job
from pipeline.origins import Origin
from pipeline.registry import Pipeline
from pipeline.states import Source
from tests.botapi import TOKEN, BotApi
from tests.pictures import png
from tests.processes import Stack, stack

pytest_plugins = ["tests.backends"]

if "DATABASE_URL" not in os.environ:
    pytest.exit('These tests need PostgreSQL and RabbitMQ: run `make test ARGS="..."`.', returncode=2)


def _empty_tables(_: TransactionTestCase) -> None:
    """What Django does after a test that committed, but for the rows of migrations, and only where there are others.

    It would empty every table and then make all permissions anew, which takes longer than most tests.
    """
    kept = {"django_migrations", "django_content_type", "auth_permission"}
    tables = sorted(set(connection.introspection.table_names()) - kept)
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM \"{name}\")" for name in tables))
        filled = ", ".join(f'"{name}"' for (name,) in cursor.fetchall())
        if filled:
            cursor.execute(f"TRUNCATE {filled} CASCADE")


TransactionTestCase._fixture_teardown = _empty_tables  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _quick_passwords(settings: Any) -> None:
    """One that is meant to be slow to check costs a second for each user who logs in."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def _own_storage(settings: Any, tmp_path: Path) -> None:
    settings.STORAGE_BACKEND = "local"
    settings.STORAGE_ROOT = str(tmp_path / "storage")
    storage.make_bucket(settings.STORAGE_BUCKET)


@pytest.fixture
def user(db: None) -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def queued(user: User) -> Callable[..., Job]:
    """Accepts a real picture as a door would, the REST door unless told; returns its queued job."""

    def accept(data: bytes | None = None, *, origin: Origin = Origin(Source.REST)) -> Job:  # noqa: B008  (frozen)
        received = intake.receive([png() if data is None else data], created_by="test")
        return intake.accept(received, intake.Request(owner=user, origin=origin, name="photo.png")).job

    return accept


@pytest.fixture
def leased(queued: Callable[..., Job]) -> Callable[..., Lease]:
    """A job in the hands of a worker."""

    def claim(job: Job | None = None, *, worker: str = "worker-a") -> Lease:
        job = job or queued()
        lease = lifecycle.claim(job.job_id, attempt=job.attempt, worker=worker)
        assert lease is not None
        return lease

    return claim


@pytest.fixture
def failed(leased: Callable[..., Lease]) -> Callable[..., Job]:
    """A job that failed, with its original kept."""

    def fail(job: Job | None = None, *, code: str = "bad_file", step: str = "image") -> Job:
        lease = leased(job)
        lifecycle.fail(lease, Failure(code=code, sentence="Damaged.", step=step))
        return Job.objects.get(job_id=lease.job_id)

    return fail


@pytest.fixture
def release_image_v2(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Pipeline]:
    """Registers a second version of the image pipeline, as an upgrade to a newer release does."""

    def release() -> Pipeline:
        newer = dataclasses.replace(registry.newest("image"), version=2)
        monkeypatch.setattr(registry, "PIPELINES", (*registry.PIPELINES, newer))
        return newer

    return release


@pytest.fixture
def rabbit() -> Iterator[kombu.Connection]:
    """A connection to the broker with our topology declared and every queue empty."""
    opened = broker.connect()
    broker.declare(opened)
    _purge(opened)
    yield opened
    opened.collect(socket_timeout=1)
    # The test may have ended the broker meanwhile, and the connection with it.
    with broker.connect() as another:
        _purge(another)


@pytest.fixture
def bot_api(settings: Any) -> Iterator[BotApi]:
    """A Bot API that this process takes for Telegram's."""
    with BotApi() as server:
        settings.TELEGRAM_BOT_TOKEN = TOKEN
        settings.TELEGRAM_API_URL = server.url
        yield server


@pytest.fixture
def publisher(rabbit: kombu.Connection) -> Iterator[Publisher]:
    opened = Publisher()
    yield opened
    opened.close()


@pytest.fixture
def running(tmp_path: Path, rabbit: kombu.Connection, transactional_db: None) -> Iterator[Stack]:
    """Starts the project's processes on demand, and ends them."""
    with stack(tmp_path) as started:
        yield started


def _purge(opened: kombu.Connection) -> None:
    for name in (*broker.QUEUE_NAMES, broker.DEAD_QUEUE):
        with opened.channel() as channel:
            channel.queue_purge(name)


def expire_lease(job_id: uuid.UUID) -> None:
    """Let a lease run out without waiting for the clock."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pipeline_job SET lease_until = now() - interval '1 second' WHERE job_id = %s", [job_id])
