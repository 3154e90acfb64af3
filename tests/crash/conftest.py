"""A whole stack of real processes, uploads through its front door, and the questions asked at the end."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q
from django.test import override_settings
from rest_framework.authtoken.models import Token

from attachments import storage
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from pipeline import retention
from pipeline.models import Job, JobEvent
from pipeline.states import MOVES, State
from tests.pictures import jpeg
from tests.processes import Stack, until_state
from tests.waiting import until

VARIANTS = frozenset({"crop", "optimized", "thumbnail"})


class Client:
    """Sends pictures as a person's program would; remembers which of them were answered with 202."""

    def __init__(self, user: User, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.accepted: list[uuid.UUID] = []
        self._headers = {"Authorization": f"Token {Token.objects.create(user=user).key}"}
        self._picture = jpeg(64, 48)
        self._lock = threading.Lock()

    def until_up(self, running: Stack) -> None:
        until(self._answers, seconds=60, say=running.logs)

    def until_accepted(self, count: int, running: Stack) -> None:
        until(lambda: len(self.accepted) >= count, seconds=120, say=running.logs)

    def upload(self, number: int) -> None:
        """One upload, sent again under its key until it is answered with 202, as a careful client does."""
        until(lambda: self.send(number), seconds=60)

    def send(self, number: int) -> bool:
        """One try of an upload; whether it was answered with 202."""
        try:
            answer = self.post(number)
        except requests.RequestException:
            return False
        if answer.status_code != 202:
            return False
        accepted = uuid.UUID(answer.json()["id"])
        with self._lock:
            # The same key leads to the same attachment.
            self.accepted += [] if accepted in self.accepted else [accepted]
        return True

    def post(self, number: int) -> requests.Response:
        """What the service answers to one try."""
        return requests.post(
            f"{self.url}/api/v1/attachments/",
            headers={**self._headers, "Idempotency-Key": f"upload-{number}"},
            files={"file": (f"{number}.jpg", self._picture + str(number).encode())},
            timeout=30,
        )

    def upload_many(self, count: int, *, threads: int = 4) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self.upload, range(count)))

    def shown(self) -> list[tuple[str, frozenset[str]]]:
        """What the API shows of this user's attachments: the state and the names of the variants of each."""
        url = f"{self.url}/api/v1/attachments/"
        listed = requests.get(url, headers=self._headers, timeout=30).json()["results"]
        each = [requests.get(f"{url}{one['id']}/", headers=self._headers, timeout=30).json() for one in listed]
        return [(one["state"], frozenset(one["variants"])) for one in each]

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except requests.RequestException:
            return False


@pytest.fixture
def client_of(user: User) -> Callable[[int], Client]:
    return lambda port: Client(user, port)


def until_all_ready(accepted: list[uuid.UUID], running: Stack, *, seconds: float = 60) -> None:
    jobs = list(Job.objects.filter(attachment__in=accepted))
    assert len(jobs) == len(accepted)
    until_state(State.READY, jobs, running, seconds=seconds)


def assert_nothing_lost(accepted: list[uuid.UUID]) -> None:
    """Every accepted upload is ready once, with all its variants, and every object is there with its bytes."""
    assert len(set(accepted)) == len(accepted) == Attachment.objects.count()
    assert Job.objects.filter(attachment__in=accepted).exclude(state=State.READY).count() == 0
    assert JobEvent.objects.filter(to_state=State.READY).count() == len(accepted)
    assert Attachment.objects.filter(id__in=accepted, served_version=1).count() == len(accepted)
    kept = Variant.objects.filter(attachment__in=accepted).values_list("attachment", "pipeline_version", "variant")
    assert sorted(kept) == sorted((one, 1, name) for one in accepted for name in VARIANTS)
    for stored in StoredObject.objects.filter(Q(variant__isnull=False) | Q(attachment__isnull=False)):
        assert digest(stored) == stored.sha256, stored.key
    moves = {
        (State(before) if before else None, State(after))
        for before, after in JobEvent.objects.values_list("from_state", "to_state").distinct()
    }
    assert moves <= MOVES


def assert_originals_are_kept() -> None:
    """[attachments]: staging is kept until publication, whatever died."""
    for attachment in Attachment.objects.select_related("original"):
        assert attachment.original is not None
        published = attachment.served_version is not None
        assert attachment.original.bucket_role == (BucketRole.ORIGINALS if published else BucketRole.STAGING)
        assert digest(attachment.original) == attachment.sha256


def assert_nothing_unknown_is_stored() -> None:
    """Every file has its row; after a sweep what nothing points at is gone, rows and bytes."""
    assert stored_keys() <= set(StoredObject.objects.values_list("key", flat=True))
    with override_settings(STAGING_RETENTION_SECONDS=0):
        retention.sweep()
    needed = StoredObject.objects.filter(Q(variant__isnull=False) | Q(attachment__isnull=False))
    assert StoredObject.objects.count() == needed.count() == 4 * Attachment.objects.count()
    assert stored_keys() == set(needed.values_list("key", flat=True))


def stored_keys() -> set[str]:
    bucket = Path(settings.STORAGE_ROOT, settings.STORAGE_BUCKET)
    return {str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file()}


def digest(stored: StoredObject) -> str:
    with storage.open_object(stored.bucket, stored.key) as stream:
        return hashlib.sha256(b"".join(stream)).hexdigest()
