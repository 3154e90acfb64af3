"""The process that relays and looks after the jobs: woken by NOTIFY after each commit, polling in case one is lost.

Any number may run. Beat's tasks call the same functions, so that either leg alone is enough.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from django.conf import settings
from django.db import connection

from attachments.outages import is_conflict, is_database_away, sqlstate_of
from pipeline import maintenance, outbox, replying, retention
from pipeline.broker import BrokerUnavailable, Publisher, WrongTopology
from pipeline.relay import Relay

BROKER_PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)
_relay = Relay()


def drain() -> int:
    """Relay everything that is due, once; what beat's `drain_outbox` calls. Returns how many were confirmed."""
    try:
        with maintenance.watching_for_silence():
            return _relay.run()
    except BrokerUnavailable as error:
        logger.warning("broker_unavailable", extra={"cause": str(error)})
        return 0


def run(stop: threading.Event) -> None:
    """Relay and maintain until `stop` is set; a batch in hand is finished first."""
    relay, publisher, listener = Relay(stop=stop), Publisher(), Listener()
    chores = [
        Chore("relay", 0.0, relay.run),
        Chore("recover", settings.RECOVER_EVERY_SECONDS, maintenance.recover),
        Chore("redispatch", settings.REDISPATCH_EVERY_SECONDS, lambda: maintenance.redispatch(publisher)),
    ]
    for slow in (
        Chore("sweep", settings.SWEEP_EVERY_SECONDS, retention.sweep),
        Chore("reply", settings.DISPATCHER_POLL_SECONDS, replying.sweep),
    ):
        threading.Thread(target=_keep_doing, args=(slow, stop), name=slow.name, daemon=True).start()
    logger.info("dispatcher_started")
    try:
        with maintenance.watching_for_silence():
            while not stop.is_set():
                for chore in chores:
                    chore.run_if_due()
                listener.wait(settings.DISPATCHER_POLL_SECONDS, stop)
    finally:
        relay.close()
        publisher.close()
        listener.close()
        logger.info("dispatcher_stopped")


def _keep_doing(chore: Chore, stop: threading.Event) -> None:
    """In a thread of its own: storage, or a Bot API, that does not answer must not hold up the relay."""
    while not stop.is_set():
        chore.run_if_due()
        stop.wait(settings.DISPATCHER_POLL_SECONDS)
    connection.close()


@dataclass
class Chore:
    """Something the dispatcher does every so often; a failure is logged and never reaches the other chores."""

    name: str
    every_seconds: float
    act: Callable[[], int]
    _due: float = field(default=0.0)

    def run_if_due(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self.every_seconds
        try:
            self.act()
        except Exception as error:  # noqa: BLE001  (told apart, and logged, there)
            self._put_off(error)

    def _put_off(self, error: Exception) -> None:
        self._due = time.monotonic() + max(BROKER_PAUSE_SECONDS, self.every_seconds)
        facts = {"chore": self.name, "sqlstate": sqlstate_of(error), "cause": f"{type(error).__name__}: {error}"}
        if is_conflict(error):
            # The connection is kept: `recover` trusts no young one.
            logger.info("database_conflict", extra=facts)
        elif is_database_away(error):
            connection.close()
            logger.warning("database_unavailable", extra=facts)
        elif isinstance(error, BrokerUnavailable):
            logger.warning("broker_unavailable", extra=facts)
        elif isinstance(error, WrongTopology):
            logger.error("wrong_topology", extra=facts)
        else:
            logger.error("chore_failed", extra=facts, exc_info=error)


class Listener:
    """LISTEN on a direct connection of its own; without one, waiting is just the poll."""

    def __init__(self) -> None:
        self._connection: psycopg.Connection | None = None

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return at the first notification, or after `seconds`.

        A fresh LISTEN returns at once, so that what was committed before it is polled for.
        """
        try:
            if self._connection is None:
                self._connection = self._listen()
                return
            for _ in self._connection.notifies(timeout=seconds, stop_after=1):
                pass
        except psycopg.Error as error:
            logger.warning("listen_failed", extra={"cause": type(error).__name__})
            self.close()
            stop.wait(seconds)

    def close(self) -> None:
        listening, self._connection = self._connection, None
        if listening is not None:
            listening.close()

    def _listen(self) -> psycopg.Connection:
        if settings.DATABASE_LISTEN_URL:
            listening = psycopg.connect(settings.DATABASE_LISTEN_URL, autocommit=True, connect_timeout=5)
        else:
            listening = psycopg.connect(**connection.get_connection_params(), autocommit=True)
        listening.execute(f"LISTEN {outbox.CHANNEL}")
        return listening
