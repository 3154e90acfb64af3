"""Sweeps against live work, each on a connection of its own."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F

from attachments import storage
from attachments.errors import StorageUnavailable
from attachments.models import Attachment, StoredObject, Variant
from pipeline import intake, lifecycle
from pipeline.failures import Failure
from pipeline.lifecycle import Gone, Lease, LeaseLost
from pipeline.models import Job
from pipeline.origins import Origin
from pipeline.registry import Pipeline
from pipeline.retention import Sweeper
from pipeline.states import Source, State
from tests.leases import VARIANTS, record
from tests.pictures import png
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

UPLOADS = 24


def test_sweeps_that_keep_nothing_never_take_what_live_work_needs(
    user: User, settings: Any, release_image_v2: Callable[[], Pipeline]
) -> None:
    """Uploads, attempts, failures, replays and a second version, against sweeps as eager as they can be."""
    settings.STAGING_RETENTION_SECONDS = 0.5
    settings.SUPERSEDED_RETENTION_SECONDS = 0.0
    settings.FAILED_RETENTION_DAYS = 1e-9
    settings.LISTING_EVERY_SECONDS = 1e-9
    race = Race(user, newer=release_image_v2())
    with ThreadPoolExecutor(6) as threads:
        acts = [race.send, race.send, race.work, race.work, race.sweep, race.sweep]
        for act in [threads.submit(race.on_its_own_connection, act) for act in acts]:
            act.result()
    assert [attachment for attachment in Attachment.objects.all() if not is_well(attachment)] == []
    assert Attachment.objects.count() == UPLOADS
    assert Attachment.objects.filter(served_version=2).count() >= UPLOADS // 2
    Sweeper().run()
    assert not Variant.objects.exclude(pipeline_version=F("attachment__served_version")).exists()


class Race:
    """What goes on at the same time, until every upload has come to its end."""

    def __init__(self, user: User, *, newer: Pipeline) -> None:
        self._user = user
        self._newer = newer
        self._to_send = [png() + str(number).encode() for number in range(UPLOADS)]
        self._sending = self._working = 2
        self._never = threading.Event()

    def on_its_own_connection(self, act: Callable[[], None]) -> None:
        try:
            act()
        finally:
            connection.close()

    def send(self) -> None:
        try:
            while self._to_send:
                data = self._to_send.pop()
                until(partial(self._is_accepted, data))
        finally:
            self._sending -= 1

    def _is_accepted(self, data: bytes) -> bool:
        try:
            received = intake.receive([data], created_by="test")
            intake.accept(received, intake.Request(owner=self._user, origin=Origin(Source.REST)))
        except StorageUnavailable:  # so slow that its staging was swept; nobody was told of a 202
            return False
        return True

    def work(self) -> None:
        try:
            while self._sending or Job.objects.filter(finished_at=None).exists():
                job = Job.objects.filter(state=State.QUEUED).order_by("?").first()
                lease = job and lifecycle.claim(job.job_id, attempt=job.attempt, worker="worker-a")
                if lease:
                    self._attempt(lease)
                else:
                    self._never.wait(0.01)
        finally:
            self._working -= 1

    def _attempt(self, lease: Lease) -> None:
        if lease.attempt == 1 and lease.attachment_id.int % 4 == 0:
            lifecycle.fail(lease, Failure(code="bad_file", sentence="Damaged."))
            with suppress(Gone):
                lifecycle.replay(lease.job_id, attempt=1, actor="operator:ann", reason="again")
            return
        assert lease.original is not None
        assert is_intact(lease.original)
        try:
            for variant in sorted(lease.pipeline.promised - lifecycle.recorded(lease).keys()):
                record(lease, variant)
        except (LeaseLost, StorageUnavailable):  # so slow that its staging was swept
            lifecycle.release(lease, reason="swept", pause=timedelta(0))
            return
        lifecycle.complete(lease)
        if lease.pipeline != self._newer:
            lifecycle.reprocess(lease.attachment_id, pipeline=self._newer, actor="operator:ann")

    def sweep(self) -> None:
        while self._working:
            Sweeper().run()


def is_well(attachment: Attachment) -> bool:
    """Ready with all that was promised; or failed so long ago, by these clocks, that the original went first."""
    if attachment.served_version is None:
        return attachment.original is None and attachment.jobs.get().state == State.FAILED
    served = attachment.variants.filter(pipeline_version=attachment.served_version).select_related("stored_object")
    assert {variant.variant for variant in served} == set(VARIANTS)
    assert attachment.original is not None
    return all(is_intact(stored) for stored in (attachment.original, *(variant.stored_object for variant in served)))


def is_intact(stored: StoredObject) -> bool:
    with storage.open_object(stored.bucket, stored.key) as stream:
        body = b"".join(stream)
    return hashlib.sha256(body).hexdigest() == stored.sha256
