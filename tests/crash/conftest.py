"""A whole stack of real processes, uploads through its front door, and the questions asked at the end."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token

from attachments import storage
from attachments.models import Attachment, StoredObject, Variant
from pipeline.models import Job, JobEvent
from pipeline.states import MOVES, State
from tests.pictures import jpeg
from tests.processes import Stack
from tests.waiting import until


class Client:
    """Sends pictures as a person's program would; remembers which of them were answered with 202."""

    def __init__(self, user: User, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.accepted: list[uuid.UUID] = []
        self._headers = {"Authorization": f"Token {Token.objects.create(user=user).key}"}
        self._picture = jpeg()
        self._lock = threading.Lock()

    def until_up(self, running: Stack) -> None:
        until(self._answers, seconds=60, say=running.logs)

    def until_accepted(self, count: int, running: Stack) -> None:
        until(lambda: len(self.accepted) >= count, seconds=120, say=running.logs)

    def upload(self, number: int) -> None:
        """One upload, sent again under its key until it is answered with 202, as a careful client does."""
        until(lambda: self._send(number), seconds=60)

    def _send(self, number: int) -> bool:
        try:
            answer = requests.post(
                f"{self.url}/api/v1/attachments/",
                headers={**self._headers, "Idempotency-Key": f"upload-{number}"},
                files={"file": (f"{number}.jpg", self._picture + str(number).encode())},
                timeout=30,
            )
        except requests.RequestException:
            return False
        if answer.status_code != 202:
            return False
        with self._lock:
            self.accepted.append(uuid.UUID(answer.json()["id"]))
        return True

    def upload_many(self, count: int, *, threads: int = 4) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self.upload, range(count)))

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except requests.RequestException:
            return False


@pytest.fixture
def client_of(user: User) -> Callable[[int], Client]:
    return lambda port: Client(user, port)


def until_all_ready(accepted: list[uuid.UUID], running: Stack, *, seconds: float = 120) -> None:
    def unready() -> int:
        return len(accepted) - Attachment.objects.filter(id__in=accepted, served_version=1).count()

    until(lambda: unready() == 0, seconds=seconds, say=lambda: f"{unready()} not ready\n{running.logs()}")


def assert_nothing_lost(accepted: list[uuid.UUID]) -> None:
    """Every accepted upload is ready with all its variants, every object is there with its bytes."""
    assert Job.objects.filter(attachment__in=accepted).exclude(state=State.READY).count() == 0
    assert Variant.objects.filter(attachment__in=accepted).count() == 3 * len(accepted)
    assert Attachment.objects.count() == len(accepted)
    objects = StoredObject.objects.filter(variant__attachment__in=accepted) | StoredObject.objects.filter(
        attachment__in=accepted
    )
    for stored in objects:
        assert storage.size_of(stored.bucket, stored.key) == stored.size, stored.key
    moves = {
        (State(before) if before else None, State(after))
        for before, after in JobEvent.objects.values_list("from_state", "to_state").distinct()
    }
    assert moves <= MOVES
