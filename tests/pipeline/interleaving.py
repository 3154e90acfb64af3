"""Two acts at once on real connections, in an order that is chosen and not left to chance; and the order of locks."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from django.db import connection

from tests.waiting import somebody_waits_for_a_lock, until

Act = Callable[[], str]
SECONDS = 60.0

#: The one order in which rows are locked (pipeline/models.py).
ORDER = ("stored_file", "s3_object", "pipeline_job", "pipeline_outbox")
LOCKS = re.compile(r'(?:UPDATE|INSERT INTO|DELETE FROM) "?(\w+)|SELECT .*? FROM "(\w+)".* FOR UPDATE', re.DOTALL)


class Pair:
    """Two threads, each with a connection of its own."""

    def __init__(self) -> None:
        self._first, self._second = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    def run(self, first: Act, second: Act, *, stop_before: int) -> tuple[str, str]:
        """Stop `first` before its n-th statement or commit, let `second` go as far as it can, then let both go on."""
        gate = Gate(stop_before)
        one = self._first.submit(gate.run, first)
        gate.wait()
        two = self._second.submit(second)
        until(lambda: two.done() or somebody_waits_for_a_lock(), seconds=SECONDS)
        gate.open()
        return one.result(SECONDS), two.result(SECONDS)

    def close(self) -> None:
        for executor in (self._first, self._second):
            executor.submit(_close).result()
            executor.shutdown()


class Gate:
    def __init__(self, stop_before: int) -> None:
        self._left = stop_before
        self._reached, self._opened = threading.Event(), threading.Event()

    def run(self, act: Act) -> str:
        try:
            with connection.execute_wrapper(self._before_statement), self._before_commits():
                return act()
        finally:
            self._reached.set()

    def wait(self) -> None:
        """Until the act stands here, or has ended without coming so far."""
        assert self._reached.wait(SECONDS)

    def open(self) -> None:
        self._opened.set()

    def _before_statement(self, execute: Callable[..., Any], *statement: Any) -> Any:
        self._pass()
        return execute(*statement)

    @contextmanager
    def _before_commits(self) -> Iterator[None]:
        commit = connection.commit

        def pass_and_commit() -> None:
            self._pass()
            commit()

        connection.commit = pass_and_commit  # type: ignore[method-assign]
        try:
            yield
        finally:
            connection.commit = commit  # type: ignore[method-assign]

    def _pass(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._reached.set()
            assert self._opened.wait(SECONDS)


class LockOrder:
    """Watches the statements of one act: within a transaction no table may be locked after one that comes later.

    A table that was locked before may be written again. The rows of variants belong to their attachment's lock.
    """

    def __init__(self) -> None:
        self._transaction: object = None
        self._locked: list[str] = []

    def __call__(self, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if match := LOCKS.match(sql):
            self._lock(match[1] or match[2])
        return execute(sql, *rest)

    def _lock(self, table: str) -> None:
        transaction = connection.atomic_blocks[0] if connection.in_atomic_block else object()
        if transaction is not self._transaction:
            self._transaction, self._locked = transaction, []
        if table in ORDER and table not in self._locked:
            assert all(ORDER.index(held) < ORDER.index(table) for held in self._locked), [*self._locked, table]
            self._locked.append(table)
        assert table != "attachment_variant" or "stored_file" in self._locked


def _close() -> None:
    """The connection of the thread that this is called in."""
    connection.close()
