"""Waiting on a condition, with a deadline, never for a time; and what to ask or do to the database's sessions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from django.db import connection

Answer = TypeVar("Answer")


def until(condition: Callable[[], Answer], *, seconds: float = 30.0, say: Callable[[], object] | None = None) -> Answer:
    """Ask until the answer is true; AssertionError with what `say` tells when it never is."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"did not happen in {seconds} s: {say() if say else condition}"
        time.sleep(0.02)


def end_other_sessions() -> int:
    """Cut every connection to the test's database but the test's own; how many."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


def somebody_waits_for_a_lock() -> bool:
    """Whether a session is held up by another one's row or table."""
    with connection.cursor() as cursor:
        # Not from pg_stat_activity, which shows one moment for as long as a transaction lasts.
        cursor.execute("SELECT 1 FROM pg_locks WHERE NOT granted LIMIT 1")
        return cursor.fetchone() is not None
