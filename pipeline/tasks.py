"""Celery's entry points: each makes one call. The rules are elsewhere."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Task, shared_task
from celery.exceptions import Reject
from django.db import InterfaceError, OperationalError, connection

from config.logging import bound_carrier
from pipeline import dispatcher, envelopes, executor, maintenance, replying, retention, shutdown
from pipeline.broker import BrokerUnavailable
from pipeline.claims import ShuttingDown
from pipeline.envelopes import InvalidEnvelope

UNDECIDED_PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


@shared_task(name="pipeline.process", bind=True)
def process(self: Task[Any, str], *args: Any, **kwargs: Any) -> str:
    """Work on one attempt. The database decides; then the message is acknowledged."""
    with deciding():
        envelope = envelopes.read(args, kwargs)
        with bound_carrier(envelope.carrier):
            return executor.execute(envelope, worker=f"{self.request.hostname}:{os.getpid()}")


@contextmanager
def deciding() -> Iterator[None]:
    """A message is acknowledged once it is decided on; what never could be is a dead letter, all else goes back."""
    try:
        yield
    except InvalidEnvelope as error:
        raise Reject(str(error), requeue=False) from error
    except ShuttingDown as error:
        raise Reject("shutting down", requeue=True) from error
    except Exception as error:
        # Nothing was decided, so nothing may be acknowledged; the queue's delivery limit bounds how often.
        logger.exception("undecided")
        shutdown.wait(UNDECIDED_PAUSE_SECONDS)
        raise Reject("undecided", requeue=True) from error


class Chore(Task[Any, int]):
    """A periodic task. It begins with a connection that works: an error of the last one may have broken it.

    An outage is no fault of its own, and not worth a traceback every few seconds: beat asks again.
    """

    throws = (OperationalError, InterfaceError, BrokerUnavailable)

    def before_start(self, *_: Any) -> None:
        connection.close_if_unusable_or_obsolete()


@shared_task(name="pipeline.drain_outbox", base=Chore)
def drain_outbox() -> int:
    return dispatcher.drain()


@shared_task(name="pipeline.recover", base=Chore)
def recover() -> int:
    return maintenance.recover()


@shared_task(name="pipeline.redispatch", base=Chore)
def redispatch() -> int:
    return maintenance.redispatch()


@shared_task(name="pipeline.sweep", base=Chore)
def sweep() -> int:
    return retention.sweep()


@shared_task(name="pipeline.reply", base=Chore)
def reply() -> int:
    return replying.sweep()
