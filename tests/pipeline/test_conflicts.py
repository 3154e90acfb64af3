"""Deadlocks and serialization failures, both real: whoever becomes the victim begins its transaction anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

from attachments import objects, storage
from attachments.models import Attachment, Variant
from pipeline import claims, intake, lifecycle
from pipeline.dispatcher import Chore
from pipeline.lifecycle import Lease
from pipeline.models import Job
from pipeline.origins import Origin
from pipeline.states import Source, State
from tests.attachments.conftest import Door, assert_problem
from tests.leases import VARIANTS, record
from tests.pictures import png
from tests.waiting import somebody_waits_for_a_lock, until

pytestmark = pytest.mark.django_db(transaction=True)

ATTACHMENT, OBJECT, JOB = "stored_file", "s3_object", "pipeline_job"
Act = Callable[[], object]


class Rival:
    """Another session, which gets in the way of an act: it holds rows of a table that the act needs."""

    def __init__(self, session: BaseDatabaseWrapper) -> None:
        self._session = session
        # Whoever finds the deadlock is its victim, and that shall be the other one.
        self._execute("SET deadlock_timeout = '60s'")
        session.set_autocommit(False)

    def deadlocks(self, act: Act, *, holding: str, wanting: str) -> Any:
        """Hold what the act needs last, and want what it took first."""
        self._execute(f"SELECT 1 FROM {holding} FOR UPDATE")

        def want() -> None:
            self._execute(wanting if " " in wanting else f"SELECT 1 FROM {wanting} FOR UPDATE")
            self._session.rollback()

        return self._meanwhile(act, want)

    def overtakes(self, act: Act, *, changing: str) -> Any:
        """Change a row that the act waits for, in a transaction that sees the database as it was before."""
        self._execute(f"UPDATE {changing} SET created_at = created_at")
        return self._meanwhile(act, self._session.commit, isolation="REPEATABLE READ")

    def _meanwhile(self, act: Act, interfere: Act, *, isolation: str = "READ COMMITTED") -> Any:
        with ThreadPoolExecutor(1) as other:
            acting = other.submit(_perform, act, isolation)
            until(lambda: acting.done() or somebody_waits_for_a_lock())
            assert not acting.done(), f"nothing was in the way of {acting}"
            interfere()
            return acting.result(timeout=60)

    def _execute(self, sql: str) -> None:
        with self._session.cursor() as cursor:
            cursor.execute(sql)


def _perform(act: Act, isolation: str) -> object:
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {isolation}")
        return act()


@pytest.fixture
def rival() -> Iterator[Rival]:
    with closing(connection.copy()) as session:
        yield Rival(session)


@pytest.fixture
def conflicts(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The SQLSTATEs of the conflicts that were met."""
    caplog.set_level("INFO")
    return lambda: [vars(record)["sqlstate"] for record in caplog.records if record.message == "database_conflict"]


def claiming(lease: Lease) -> Act:
    lifecycle.release(lease, reason="shutdown", pause=lease.pipeline.attempt_limit * 0)
    return lambda: claims.take(lease.job_id, attempt=2, worker="w")


def recording(lease: Lease) -> Act:
    stored = objects.register("crop", content_type="image/webp", created_by=lease.worker)
    with storage.writer(stored.bucket, stored.key, content_type="image/webp") as writer:
        writer.write(b"bytes")
        written = writer.finish()

    def publish() -> None:
        lifecycle.record(
            lease, variant="crop", object_id=stored.id, written=written, facts={"width": 1}, original_facts={}
        )

    return lambda: claims.patiently(publish)


def completing(lease: Lease) -> Act:
    for variant in VARIANTS:
        record(lease, variant)
    return lambda: claims.patiently(lambda: lifecycle.complete(lease))


def has_claimed() -> bool:
    return Job.objects.filter(state=State.PROCESSING, attempt=2, leased_by="w").count() == 1


def has_recorded() -> bool:
    return Variant.objects.filter(variant="crop").count() == 1


def has_completed() -> bool:
    return Job.objects.filter(state=State.READY, attachment__served_version=1).count() == 1


class Work(NamedTuple):
    """An act of a worker's, made ready by `prepared`; it locks `takes_first`, and the job last."""

    prepared: Callable[[Lease], Act]
    is_done: Callable[[], bool]
    takes_first: str


WORK = [
    pytest.param(Work(claiming, has_claimed, OBJECT), id="claim"),
    pytest.param(Work(recording, has_recorded, ATTACHMENT), id="record"),
    pytest.param(Work(completing, has_completed, ATTACHMENT), id="complete"),
]


@pytest.mark.parametrize("work", WORK)
def test_a_worker_that_is_the_victim_of_a_deadlock_tries_again(
    work: Work, leased: Callable[..., Lease], rival: Rival, conflicts: Callable[[], list[str]]
) -> None:
    rival.deadlocks(work.prepared(leased()), holding=JOB, wanting=work.takes_first)
    assert conflicts() == ["40P01"]
    assert work.is_done()
    assert Job.objects.get().failures == 0


@pytest.mark.parametrize("work", WORK)
def test_a_worker_whose_view_of_the_rows_is_outdated_tries_again(
    work: Work, leased: Callable[..., Lease], rival: Rival, conflicts: Callable[[], list[str]]
) -> None:
    rival.overtakes(work.prepared(leased()), changing=work.takes_first)
    assert conflicts() == ["40001"]
    assert work.is_done()
    assert Job.objects.get().failures == 0


#: Another attachment of the same original, which is refused or waits for the first one's end.
SAME_ORIGINAL = f"""
INSERT INTO stored_file (owner_id, name, claimed_type, content_type, size, sha256, original_id)
SELECT auth_user.id, '', '', '', 1, '{"0" * 64}', s3_object.id FROM auth_user, s3_object
"""


@pytest.mark.parametrize("sqlstate", ["40P01", "40001"])
def test_an_acceptance_that_met_a_conflict_begins_anew(
    sqlstate: str, user: User, rival: Rival, conflicts: Callable[[], list[str]]
) -> None:
    received = intake.receive([png()], created_by="test")

    def accept() -> intake.Accepted:
        return intake.accept(received, intake.Request(owner=user, origin=Origin(Source.REST)))

    if sqlstate == "40P01":
        rival.deadlocks(accept, holding=OBJECT, wanting=SAME_ORIGINAL)
    else:
        rival.overtakes(accept, changing=OBJECT)
    assert conflicts() == [sqlstate]
    assert Attachment.objects.get().jobs.get().state == State.QUEUED


def test_a_deletion_that_met_a_conflict_changes_nothing_and_may_be_repeated_at_once(
    user: User, rival: Rival, settings: Any, tmp_path: Path
) -> None:
    settings.STATIC_ROOT = str(tmp_path)
    door = Door(user)
    attachment_id = door.send().json()["id"]
    answer = rival.deadlocks(lambda: door.delete(attachment_id), holding=JOB, wanting=ATTACHMENT)
    assert_problem(answer, 503, "database_unavailable")
    assert answer.headers["Retry-After"] == "1"
    assert door.get(f"{attachment_id}/").json()["state"] == "queued"
    assert door.delete(attachment_id).status_code == 204


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_a_chore_that_met_a_conflict_keeps_its_connection(sqlstate: str, conflicts: Callable[[], list[str]]) -> None:
    """`recover` trusts no connection younger than a lease: among many conflicts it would never get to work."""

    def act() -> int:
        with connection.cursor() as cursor:
            cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END $$")
        return 0

    before = backend()
    Chore("recover", 0.0, act).run_if_due()
    assert conflicts() == [sqlstate]
    assert backend() == before


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])
