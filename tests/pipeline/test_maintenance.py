"""What happens without anybody asking, and that it leaves living work alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import kombu
import pytest

from pipeline import lifecycle, maintenance
from pipeline.broker import Publisher
from pipeline.lifecycle import Lease
from pipeline.models import Job, OutboxMessage
from pipeline.relay import relay_batch
from tests.conftest import expire_lease
from tests.messages import sent_ago
from tests.rabbit import drain_queue
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
    until(trust.is_earned)
    trust._looked_at = time.monotonic() - 1.0
    assert not trust.is_earned()
    until(trust.is_earned)


def test_a_job_whose_message_was_lost_is_sent_again(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    job = queued()
    relay_batch(publisher)
    drain_queue(rabbit, "images")
    assert maintenance.redispatch(publisher) == 0
    sent_ago(job, 61)
    assert maintenance.redispatch(publisher) == 1
    relay_batch(publisher)
    assert len(drain_queue(rabbit, "images")) == 1


def test_each_redispatch_waits_twice_as_long(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    job = queued()
    OutboxMessage.objects.filter(job=job).update(redispatches=2)
    sent_ago(job, 239)
    assert maintenance.redispatch(publisher) == 0
    sent_ago(job, 241)
    assert maintenance.redispatch(publisher) == 1
    OutboxMessage.objects.filter(job=job).update(redispatches=40)
    sent_ago(job, 3590)
    assert maintenance.redispatch(publisher) == 0
    sent_ago(job, 3610)
    assert maintenance.redispatch(publisher) == 1


def test_a_plain_backlog_is_never_amplified(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    """Long waiting alone is no loss: the queue still holds the messages, and nothing sent later was claimed."""
    jobs = [queued() for _ in range(3)]
    relay_batch(publisher)
    for job in jobs:
        sent_ago(job, 3000)
    assert maintenance.redispatch(publisher) == 0


def test_a_message_overtaken_by_a_later_one_is_lost(
    queued: Callable[..., Job], publisher: Publisher, rabbit: kombu.Connection
) -> None:
    lost, later, waiting = queued(), queued(), queued()
    relay_batch(publisher)
    sent_ago(lost, 300)
    sent_ago(later, 100)
    sent_ago(waiting, 90)
    assert lifecycle.claim(later.job_id, attempt=1, worker="w") is not None
    assert maintenance.redispatch(publisher) == 1
    assert OutboxMessage.objects.get(sent_at=None).job_id == lost.job_id
