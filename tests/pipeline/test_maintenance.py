"""What happens without anybody asking, and that it leaves living work alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import kombu
import pytest
from django.contrib.auth.models import User
from django.db import Error, OperationalError, connection
from prometheus_client import REGISTRY

from config.env import VARIABLES
from pipeline import broker, lifecycle, maintenance
from pipeline.broker import BrokerUnavailable, Publisher
from pipeline.lifecycle import Lease
from pipeline.models import Job, OutboxMessage
from pipeline.relay import relay_batch
from pipeline.states import State
from tests.conftest import expire_lease
from tests.messages import sent_ago
from tests.rabbit import count, drain_queue, rabbitmqctl, until_count
from tests.waiting import until

pytestmark = pytest.mark.django_db


def test_a_young_connection_recovers_nothing(leased: Callable[..., Lease], settings: Any) -> None:
    """After an outage of the database the living workers need a moment to renew their leases."""
    lease = leased()
    expire_lease(lease.job_id)
    settings.LEASE_SECONDS = 1_000_000.0
    assert maintenance.recover() == 0
    settings.LEASE_SECONDS = 0.0
    assert maintenance.recover() == 1


def test_a_silence_of_the_database_recovers_nothing_for_a_lease(leased: Callable[..., Lease], settings: Any) -> None:
    """A database that stood still answered no renewal either, though its connections are old."""
    settings.LEASE_SECONDS, settings.RENEW_SECONDS = 0.6, 0.1
    trust = maintenance.Trust()
    until(trust.look)
    trust._answered_at = time.monotonic() - 1.0
    assert not trust.look()
    assert trust.outage_ended is None
    until(trust.look)


def begin_while_it_is_away(trust: maintenance.Trust) -> None:
    with suppress(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(Error):
        trust.look()
    connection.close()


def wait_for_its_answer_to_a_look(trust: maintenance.Trust) -> None:
    def slowly(execute: Callable[..., Any], *question: Any) -> Any:
        connection.connection.execute("SELECT pg_sleep(0.7)")
        return execute(*question)

    until(trust.look)
    with connection.execute_wrapper(slowly):
        assert trust.look() is None


def wait_for_its_answer_to_another_question(trust: maintenance.Trust) -> None:
    """Before the first look, by which the connection is old."""
    with trust.watching(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.7)")


def connect_anew(trust: maintenance.Trust) -> None:
    trust.look()
    connection.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "suffer",
    [
        begin_while_it_is_away,
        wait_for_its_answer_to_a_look,
        wait_for_its_answer_to_another_question,
        connect_anew,
    ],
)
def test_an_outage_of_the_database_is_noticed_whatever_is_seen_of_it(
    suffer: Callable[[maintenance.Trust], None], settings: Any
) -> None:
    """Each trace may be the only one, and what was lost in an outage must cost no chance."""
    settings.LEASE_SECONDS, settings.RENEW_SECONDS = 0.6, 0.1
    trust = maintenance.Trust()
    suffer(trust)
    assert trust.look() is None
    assert trust.outage_ended is not None


@pytest.fixture
def redispatch(publisher: Publisher, settings: Any) -> Callable[[], int]:
    """One look at the queues; each knows the one before."""
    settings.REDISPATCH_EVERY_SECONDS = 0.0
    looks = maintenance.Looks()
    return lambda: looks.take(publisher)


def test_a_job_whose_message_was_lost_is_sent_again(
    queued: Callable[..., Job], redispatch: Callable[[], int], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    job = queued()
    relay_batch(publisher)
    drain_queue(rabbit, "images")
    assert [redispatch(), redispatch()] == [0, 0]
    sent_ago(job, 61)
    assert redispatch() == 1
    relay_batch(publisher)
    assert len(drain_queue(rabbit, "images")) == 1


def test_each_redispatch_waits_twice_as_long(
    queued: Callable[..., Job], redispatch: Callable[[], int], publisher: Publisher
) -> None:
    job = queued()
    OutboxMessage.objects.filter(job=job).update(redispatches=2)
    sent_ago(job, 239)
    assert [redispatch(), redispatch()] == [0, 0]
    sent_ago(job, 241)
    assert redispatch() == 1
    OutboxMessage.objects.filter(job=job).update(redispatches=40)
    sent_ago(job, 3590)
    assert redispatch() == 0
    sent_ago(job, 3610)
    assert redispatch() == 1


@pytest.mark.parametrize(("after_seconds", "patience"), [(20.0, 2560), (60.0, 3600), (7200.0, 3600)])
def test_patience_ends_at_an_hour_whatever_it_begins_with(
    queued: Callable[..., Job], redispatch: Callable[[], int], settings: Any, after_seconds: float, patience: int
) -> None:
    settings.REDISPATCH_AFTER_SECONDS = after_seconds
    job = queued()
    OutboxMessage.objects.filter(job=job).update(redispatches=7)
    sent_ago(job, patience - 10)
    assert [redispatch(), redispatch()] == [0, 0]
    sent_ago(job, patience + 10)
    assert redispatch() == 1


def test_a_message_on_its_way_to_a_worker_is_not_sent_again(
    queued: Callable[..., Job], redispatch: Callable[[], int], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    """The queue is empty, the job old and unclaimed, and nothing is lost: the claim comes before the next look."""
    job = queued()
    relay_batch(publisher)
    sent_ago(job, 3000)
    with rabbit.channel() as worker:
        until(lambda: worker.basic_get("images"))
        assert redispatch() == 0
        assert lifecycle.claim(job.job_id, attempt=1, worker="w") is not None
        assert redispatch() == 0


def test_two_looks_close_together_are_one(
    queued: Callable[..., Job], redispatch: Callable[[], int], publisher: Publisher, settings: Any
) -> None:
    """Between them no worker had the time to claim what it was given."""
    sent_ago(queued(), 61)
    settings.REDISPATCH_EVERY_SECONDS = 600.0
    assert [redispatch(), redispatch()] == [0, 0]
    settings.REDISPATCH_EVERY_SECONDS = 0.0
    assert redispatch() == 1


def test_an_outage_begins_the_looking_anew(
    queued: Callable[..., Job], redispatch: Callable[[], int], publisher: Publisher, settings: Any
) -> None:
    """A broker that was away gives all that was on its way to workers back to its queues."""
    sent_ago(queued(), 61)
    assert redispatch() == 0
    publisher.close()
    url, settings.CELERY_BROKER_URL = settings.CELERY_BROKER_URL, "amqp://guest:guest@127.0.0.1:1//"
    with pytest.raises(BrokerUnavailable):
        redispatch()
    settings.CELERY_BROKER_URL = url
    assert [redispatch(), redispatch()] == [0, 1]


def test_a_message_overtaken_by_a_later_one_is_lost(
    queued: Callable[..., Job], redispatch: Callable[[], int], publisher: Publisher
) -> None:
    lost, waiting, later = queued(), queued(), queued()
    relay_batch(publisher)
    accepted_ago(lost, 3000)
    accepted_ago(waiting, 101)
    accepted_ago(later, 100)
    assert lifecycle.claim(later.job_id, attempt=1, worker="w") is not None
    assert [redispatch(), redispatch()] == [0, 1]
    assert OutboxMessage.objects.get(sent_at=None).job_id == lost.job_id


def test_a_job_whose_message_was_sent_late_or_again_proves_nothing_about_others(
    queued: Callable[..., Job], redispatch: Callable[[], int], publisher: Publisher
) -> None:
    """Its first copy may stand far ahead in the queue of what was sent before its confirm."""
    again, waiting = queued(), queued()
    relay_batch(publisher)
    accepted_ago(again, 600)
    accepted_ago(waiting, 300)
    sent_ago(again, 100)
    assert lifecycle.claim(again.job_id, attempt=1, worker="w") is not None
    assert [redispatch(), redispatch()] == [0, 0]


def test_a_broker_that_does_not_know_is_not_taken_for_one_whose_queue_is_empty(
    queued: Callable[..., Job], redispatch: Callable[[], int], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    """A queue whose leader is away or slow is reported as empty, without consumers: the whole backlog looks lost."""
    job = queued()
    relay_batch(publisher)
    sent_ago(job, 3000)
    assert redispatch() == 0
    with silent_leader("images"):
        assert count(rabbit, "images") == 0
        with pytest.raises(BrokerUnavailable):
            redispatch()
    assert [redispatch(), redispatch()] == [0, 0]
    until_count(rabbit, "images", 1)


@contextmanager
def silent_leader(queue: str) -> Iterator[None]:
    rabbitmqctl("eval", f"sys:suspend('%2F_{queue}').")
    try:
        yield
    finally:
        rabbitmqctl("eval", f"sys:resume('%2F_{queue}').")


def test_a_deleted_queue_is_declared_again_and_its_work_sent_again(
    queued: Callable[..., Job], redispatch: Callable[[], int], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    sent_ago(queued(), 61)
    assert redispatch() == 0
    with rabbit.channel() as channel:
        channel.queue_delete("images")
    assert [redispatch(), redispatch(), redispatch()] == [0, 0, 1]
    assert relay_batch(publisher).confirmed == 1


MANY = 10_000


@pytest.mark.timeout(300)
def test_a_backlog_of_ten_thousand_is_not_amplified_and_once_lost_sent_again_at_once(
    user: User, redispatch: Callable[[], int], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    """[attachments] at-least-once: waiting long is no loss; a loss is made good within two looks, once."""
    accept_many(user, MANY)
    while relay_batch(publisher).confirmed:
        pass
    let_time_pass(apart_seconds=0.3)
    with closing(worker(rabbit)) as claimed:
        for _ in range(5):
            for _ in range(20):
                next(claimed)
            assert redispatch() == 0
    left = Job.objects.filter(state=State.QUEUED).count()
    assert left == MANY - 100

    with rabbit.channel() as channel:
        channel.queue_purge("images")
    assert redispatch() == 0
    # A slow machine may need more than one turn, which gives the dispatcher's other chores theirs.
    assert sum(redispatch() for _ in range(4)) == left
    while relay_batch(publisher).confirmed:
        pass
    assert [redispatch(), redispatch()] == [0, 0]
    assert OutboxMessage.objects.filter(redispatches=1, sent_at__isnull=False).count() == left
    until_count(rabbit, "images", left)


def accept_many(user: User, many: int) -> None:
    """Jobs with a message each, whose originals nobody will ask for."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH attachment AS (
                INSERT INTO stored_file (id, owner_id, name, claimed_type, content_type, size, sha256)
                SELECT gen_random_uuid(), %s, '', '', 'image/png', 1, repeat('0', 64) FROM generate_series(1, %s)
                RETURNING id
            ), job AS (
                INSERT INTO pipeline_job (job_id, attachment_id, pipeline, pipeline_version, runner, queue, state,
                    attempt, failures, leased_by, error_code, error, carrier, source)
                SELECT id, id, 'store', 1, 'worker', 'images', 'queued', 1, 0, '', '', '', '{}', 'rest' FROM attachment
                RETURNING job_id
            )
            INSERT INTO pipeline_outbox (job_id, attempt, queue, task, message_id, headers, body, tries, redispatches,
                last_error)
            SELECT job_id, 1, 'images', 'pipeline.process', job_id || ':1', '{}', '[[], {}, {}]', 0, 0, '' FROM job
            """,
            [user.id, many],
        )
        cursor.execute("ANALYZE pipeline_job, pipeline_outbox")


def let_time_pass(*, apart_seconds: float) -> None:
    """As if they had come one after another, the newest of them half an hour ago."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH placed AS (SELECT id, job_id, now() - interval '30 minutes'"
            "  - make_interval(secs => (max(id) OVER () - id) * %s) AS moment FROM pipeline_outbox),"
            " sent AS (UPDATE pipeline_outbox SET created_at = moment, sent_at = moment + interval '0.1 s'"
            "  FROM placed WHERE placed.id = pipeline_outbox.id)"
            " UPDATE pipeline_job SET created_at = moment, due_at = moment FROM placed"
            " WHERE placed.job_id = pipeline_job.job_id",
            [apart_seconds],
        )


def worker(rabbit: kombu.Connection) -> Generator[None, None, None]:
    """Claims one job after another in the order that the broker gives them out, some on their way meanwhile."""
    given: list[Any] = []
    with rabbit.channel() as channel:
        channel.basic_qos(0, 4, a_global=False)
        channel.basic_consume("images", callback=given.append)
        while True:
            while not given:
                rabbit.drain_events(timeout=30)
            message = given.pop(0)
            job_id = message.properties["correlation_id"]
            assert lifecycle.claim(job_id, attempt=1, worker="w") is not None
            channel.basic_ack(message.delivery_tag)
            yield


def accepted_ago(job: Job, seconds: float) -> None:
    """Let a job have been accepted, and its messages sent, a while ago."""
    sent_ago(job, seconds)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pipeline_job SET (created_at, due_at) = (SELECT moment, moment FROM"
            " (VALUES (now() - make_interval(secs => %s))) AS past (moment)) WHERE job_id = %s",
            [seconds, job.job_id],
        )


def test_dead_letters_are_counted_by_who_looks_at_the_queues(publisher: Publisher, rabbit: kombu.Connection) -> None:
    """The web process never talks to the broker, so `/metrics` of the dispatcher tells."""
    maintenance.redispatch(publisher)
    assert letters_told() == 0
    for _ in range(2):
        with rabbit.channel() as channel:
            channel.basic_publish(channel.prepare_message(b"x"), broker.DEAD_EXCHANGE.name, broker.DEAD_QUEUE)
    until_count(rabbit, broker.DEAD_QUEUE, 2)
    maintenance.redispatch(publisher)
    assert letters_told() == 2


def letters_told() -> float | None:
    return REGISTRY.get_sample_value("holdfast_dead_letters", {"queue": broker.DEAD_QUEUE})


def test_by_default_a_dead_workers_job_is_claimed_within_25_seconds_and_a_lost_message_sent_again_within_90() -> None:
    """Each look may come one turn of the dispatcher late, and the relay takes one more."""
    seconds = {name: default for name, (_, default) in VARIABLES.items() if name.endswith("_SECONDS")}
    turn = seconds["DISPATCHER_POLL_SECONDS"]
    recovered = seconds["LEASE_SECONDS"] + seconds["RECOVER_EVERY_SECONDS"] + turn
    sent_again = seconds["REDISPATCH_AFTER_SECONDS"] + seconds["REDISPATCH_EVERY_SECONDS"] + turn
    assert recovered + turn <= 25
    assert sent_again + turn <= 90
    # The look before the one that sends again must have come after the loss.
    assert 2 * (seconds["REDISPATCH_EVERY_SECONDS"] + turn) <= seconds["REDISPATCH_AFTER_SECONDS"]
