"""The database restarted, killed, cut, unreachable, silent and full: nothing is lost, and no chance is spent."""

from __future__ import annotations

import datetime
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
import requests
from django.db import connection
from django.db.models.functions import Now

from config.local.places import free_port
from config.local.postgres import wait_for_postgres
from pipeline import broker, outbox, shutdown
from pipeline.models import Job, JobEvent
from pipeline.states import State
from tests.crash.conftest import Client, assert_nothing_lost, until_all_ready
from tests.nodes import SupervisedContainer
from tests.pictures import jpeg
from tests.processes import Process, Stack, until_state
from tests.rabbit import drain_queue
from tests.tcp_proxy import Link, Proxy, deafen, in_front_of_database
from tests.waiting import end_other_sessions, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

UPLOADS = 40
#: Longer leases than the rest of the suite has: here a renewal that only a busy machine held up must not cost a chance.
STEADY = {"LEASE_SECONDS": "3", "RENEW_SECONDS": "0.6"}


class Postgres(SupervisedContainer):
    """The private PostgreSQL of the run; the test's own connection is opened anew after what befell it."""

    def __init__(self) -> None:
        super().__init__("postgres")

    def restart(self, timeout: float = 60) -> None:
        connection.close()
        super().restart(timeout)

    def crash(self) -> None:
        """SIGKILL; the supervisor starts it again."""
        connection.close()
        self.kill("KILL")
        self.ready()

    def ready(self, timeout: float = 60) -> bool:
        wait_for_postgres(os.environ["DATABASE_URL"], seconds=timeout)
        return True


def assert_nothing_was_spent() -> None:
    """Every job was done in its first attempt, and the broker gave up none of its deliveries."""
    assert list(Job.objects.exclude(attempt=1, failures=0).values_list("job_id", "attempt", "failures")) == []
    assert JobEvent.objects.filter(to_state=State.READY).count() == Job.objects.count()
    with broker.connect() as opened:
        dead = [message.headers["task"] for message in drain_queue(opened, broker.DEAD_QUEUE)]
    assert outbox.PROCESS not in dead


def cut_sessions_repeatedly() -> None:
    """A new wave as soon as the processes are connected again."""
    for _ in range(5):
        until(lambda: end_other_sessions() >= 4)


def test_restarts_kills_and_cut_sessions_under_load_cost_nothing(
    running: Stack, client_of: Callable[[int], Client]
) -> None:
    """Web, dispatcher, beat and workers go on by themselves."""
    port, postgres = free_port(), Postgres()
    running.web(port, **STEADY), running.beat(**STEADY), running.worker("control", concurrency=1, **STEADY)
    dispatcher, images = running.dispatcher(**STEADY), running.worker("images", concurrency=2, **STEADY)
    client = client_of(port)
    client.until_up(running)
    images.until_ready()

    uploading = threading.Thread(target=client.upload_many, args=(UPLOADS,))
    uploading.start()
    troubles = [postgres.restart, cut_sessions_repeatedly, postgres.crash]
    for number, trouble in enumerate(troubles, start=1):
        client.until_accepted(number * UPLOADS // (len(troubles) + 1), running)
        trouble()
    uploading.join()
    until_all_ready(client.accepted, running)
    # Beat and the control worker have come back as well: alone, they do the dispatcher's work.
    dispatcher.kill()
    client.upload(UPLOADS)
    until_all_ready(client.accepted, running)
    assert_nothing_lost(client.accepted)
    assert_nothing_was_spent()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """In front of the database for web and dispatcher; the test itself always sees it."""
    with in_front_of_database() as opened:
        yield opened


@pytest.fixture
def workers_proxy() -> Iterator[Proxy]:
    with in_front_of_database() as opened:
        yield opened


@pytest.fixture
def client(running: Stack, client_of: Callable[[int], Client], proxy: Proxy) -> Client:
    port = free_port()
    running.web(port, DATABASE_URL=proxy.database_url)
    client = client_of(port)
    client.until_up(running)
    return client


@pytest.fixture
def dispatcher(running: Stack, proxy: Proxy) -> Process:
    return running.dispatcher(DATABASE_URL=proxy.database_url, **STEADY)


@pytest.fixture
def busy(
    running: Stack, workers_proxy: Proxy, dispatcher: Process, queued: Callable[..., Job], tmp_path: Path
) -> Process:
    """A worker in the middle of a job: its first variant is stored, and it pauses."""
    once = tmp_path / "once"
    once.touch()
    queued(jpeg())
    armed = {"FAILPOINTS": f"after_store=sleep:2@{once}", "DATABASE_URL": workers_proxy.database_url}
    worker = running.worker("images", concurrency=2, **armed, **STEADY)
    assert dispatcher.is_running
    until(lambda: not once.exists(), seconds=60, say=running.logs)
    return worker


def until_lease_ran_out(running: Stack) -> None:
    until(lambda: Job.objects.filter(lease_until__lt=Now() - timedelta(seconds=1)).exists(), say=running.logs)


def until_done(running: Stack) -> None:
    until_state(State.READY, list(Job.objects.all()), running)


class Outage(NamedTuple):
    """How it begins and ends, seen from the processes behind the proxy."""

    begin: Callable[[Proxy], None]
    end: Callable[[Proxy], None]


REFUSING, SILENT = Outage(Proxy.refuse, Proxy.accept), Outage(Proxy.silence, Proxy.speak)


def until_dispatcher_looks(running: Stack, *, since: datetime.datetime) -> None:
    """Until it has asked for the time, or already for leases that ran out."""
    asked = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND query_start > %s AND (query LIKE '%%backend_start%%' OR query LIKE '%%lease_until%%FOR UPDATE%%')"
    )
    with connection.cursor() as cursor:
        until(lambda: cursor.execute(asked, [since]) or cursor.fetchone(), say=running.logs)


def database_time() -> datetime.datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime.datetime = cursor.fetchone()[0]
    return now


@pytest.mark.usefixtures("client", "busy")
@pytest.mark.parametrize("outage", [pytest.param(REFUSING, id="refusing"), pytest.param(SILENT, id="silent")])
def test_work_in_hand_outlasts_a_database_that_is_away_for_longer_than_a_lease(
    outage: Outage, running: Stack, client: Client, proxy: Proxy, workers_proxy: Proxy
) -> None:
    """Though the dispatcher is the first to see it again."""
    for each in (proxy, workers_proxy):
        outage.begin(each)
    uploading = threading.Thread(target=client.upload_many, args=(5,))
    uploading.start()
    until_lease_ran_out(running)
    assert requests.get(f"{client.url}/healthz", timeout=5).status_code == 200
    back_since = database_time()
    outage.end(proxy)
    until_dispatcher_looks(running, since=back_since)
    outage.end(workers_proxy)
    uploading.join()
    until_done(running)
    assert_nothing_was_spent()


@pytest.mark.usefixtures("busy")
def test_a_question_that_was_held_up_takes_no_living_workers_job(
    running: Stack, proxy: Proxy, workers_proxy: Proxy
) -> None:
    """The database falls silent just when expired leases are asked for, until the living worker's has run out too."""

    def fall_silent(_: Link) -> None:
        proxy.silence()
        workers_proxy.silence()

    trap = proxy.trap(b'ORDER BY "pipeline_job"."lease_until"', act=fall_silent)
    until(trap.has_sprung.is_set, say=running.logs)
    until_lease_ran_out(running)
    back_since = database_time()
    proxy.speak()
    until_dispatcher_looks(running, since=back_since)
    workers_proxy.speak()
    until_done(running)
    assert_nothing_was_spent()


@pytest.mark.parametrize("outage", [pytest.param(REFUSING, id="refusing"), pytest.param(SILENT, id="silent")])
def test_a_worker_that_dies_while_the_database_is_away_costs_no_chance(
    outage: Outage, running: Stack, busy: Process, proxy: Proxy
) -> None:
    """It may have been told to stop, and had no way to hand its work back."""
    outage.begin(proxy)
    busy.kill()
    until_lease_ran_out(running)
    outage.end(proxy)
    busy.start()
    until_done(running)
    job = Job.objects.get()
    assert (job.attempt, job.failures) == (2, 0)


def test_a_worker_told_to_stop_hands_back_once_the_database_answers_again(
    busy: Process, dispatcher: Process, workers_proxy: Proxy
) -> None:
    """The database is away from before the stop until after the time that work in hand is given."""
    dispatcher.kill()  # which sees the database, so that it would take the worker for dead
    workers_proxy.refuse()
    busy.send(signal.SIGTERM)
    told = time.monotonic()
    until(lambda: time.monotonic() - told > shutdown.GRACE_SECONDS + 1)
    assert busy.is_running
    workers_proxy.accept()
    assert busy.wait() == 0
    job = Job.objects.get()
    assert (job.state, job.attempt, job.failures) == (State.QUEUED, 2, 0)
    assert JobEvent.objects.filter(job=job).latest("id").reason == "shutdown"


@pytest.mark.parametrize(("befalls", "is_in"), [(deafen, True), (Link.cut, False)])
def test_a_commit_that_got_no_answer_is_unknown_until_its_key_is_sent_again(
    befalls: Callable[[Link], None], is_in: bool, client: Client, proxy: Proxy
) -> None:
    """Whether it was done or not: 503, nothing half-made is shown, and the repetition leads to one attachment."""
    proxy.trap(b'INSERT INTO "pipeline_outbox"', b"COMMIT", act=befalls)
    answer = client.post(1)
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert client.shown() == ([("queued", frozenset())] if is_in else [])

    answer = client.post(1)
    assert (answer.status_code, "Idempotent-Replayed" in answer.headers) == (202, is_in)
    assert client.shown() == [("queued", frozenset())]
    assert Job.objects.get().messages.count() == 1


#: What a worker commits, in order: table and condition; and what the server answers to it instead of committing.
REFUSED_COMMITS = {
    "claim": ("pipeline_job_event", "NEW.to_state = 'processing'", "53100"),
    "record": ("attachment_variant", "TRUE", "53200"),
    "complete": ("pipeline_job_event", "NEW.to_state = 'ready'", "25006"),
}


def test_a_full_database_costs_a_worker_nothing_but_time(running: Stack, queued: Callable[..., Job]) -> None:
    """The server refuses each COMMIT of an attempt for a while: no space, no memory, no writes."""
    queued(jpeg())
    with refused_commits() as allow:
        worker = running.worker("images").until_ready()
        running.dispatcher()
        for name, (_, _, sqlstate) in REFUSED_COMMITS.items():
            worker.until_says(sqlstate)
            allow(name)
        until_done(running)
    assert_nothing_was_spent()


@contextmanager
def refused_commits() -> Iterator[Callable[[str], None]]:
    """Deferred triggers, so that it is the real COMMIT that fails; the caller is given what takes one away."""
    with connection.cursor() as cursor:
        for name, (table, condition, sqlstate) in REFUSED_COMMITS.items():
            cursor.execute(
                f"CREATE FUNCTION refuse_{name}() RETURNS trigger LANGUAGE plpgsql AS"
                f" $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{sqlstate}'; END $$;"
                f"CREATE CONSTRAINT TRIGGER refuse_{name} AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED"
                f" FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse_{name}()"
            )
        try:
            yield lambda name: cursor.execute(f"DROP FUNCTION refuse_{name} CASCADE")
        finally:
            for name in REFUSED_COMMITS:
                cursor.execute(f"DROP FUNCTION IF EXISTS refuse_{name} CASCADE")
