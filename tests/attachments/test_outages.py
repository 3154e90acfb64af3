"""What each of PostgreSQL's errors asks of whoever meets it; every one is raised by the real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from django.db import Error, connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from attachments.outages import is_conflict, is_database_away, is_refusal, sqlstate_of
from tests.waiting import until

CONFLICT, AWAY, FAULT = "try again at once", "wait", "look for a fault"
MEANINGS = {
    "40001": CONFLICT,  # serialization failure
    "40P01": CONFLICT,  # deadlock
    "55P03": CONFLICT,  # lock timeout
    "08006": AWAY,  # connection failure
    "25006": AWAY,  # read-only
    "25P03": AWAY,  # idle in a transaction for too long
    "28P01": AWAY,  # wrong password
    "40003": AWAY,  # nobody knows whether it was done
    "53100": AWAY,  # disk full
    "53200": AWAY,  # out of memory
    "53300": AWAY,  # too many connections
    "57014": AWAY,  # statement timeout
    "57P01": AWAY,  # shutting down
    "57P03": AWAY,  # starting up
    "58030": AWAY,  # I/O error
    "22001": FAULT,  # too long
    "22P05": FAULT,  # a character that cannot be stored
    "23505": FAULT,  # not unique
    "25P02": FAULT,  # an error in this transaction was ignored
    "42501": FAULT,  # not allowed
    "42P01": FAULT,  # no such table
    "54000": FAULT,  # beyond a limit of the server's
    "P0001": FAULT,  # a trigger of ours refuses
    "XX000": FAULT,  # an error within the server
}


@pytest.mark.django_db
@pytest.mark.parametrize("sqlstate", MEANINGS)
def test_each_answer_of_the_server_has_its_meaning(sqlstate: str) -> None:
    with pytest.raises(Error) as caught, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END $$")
    assert sqlstate_of(caught.value) == sqlstate
    assert meaning(caught.value) == MEANINGS[sqlstate]


def meaning(error: Error) -> str:
    if is_conflict(error):
        assert is_database_away(error), "whoever only waits may wait for this as well"
        return CONFLICT
    return AWAY if is_database_away(error) else FAULT


def terminate(session: BaseDatabaseWrapper) -> None:
    with session.cursor() as cursor, connection.cursor() as ours:
        cursor.execute("SELECT pg_backend_pid()")
        ours.execute("SELECT pg_terminate_backend(%s)", [cursor.fetchone()[0]])


def close(session: BaseDatabaseWrapper) -> None:
    session.ensure_connection()
    session.connection.close()


def idle_in_a_transaction(session: BaseDatabaseWrapper) -> None:
    with session.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
        cursor.execute("SET idle_in_transaction_session_timeout = '10ms'")
        cursor.execute("BEGIN")
    until(lambda: not is_there(pid))


def is_there(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone() is not None


def read_only(session: BaseDatabaseWrapper) -> None:
    with session.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")


def too_slow(session: BaseDatabaseWrapper) -> None:
    with session.cursor() as cursor:
        cursor.execute("SET statement_timeout = '1ms'")


def unreachable(session: BaseDatabaseWrapper) -> None:
    session.settings_dict["PORT"] = "1"


def full(session: BaseDatabaseWrapper) -> None:
    session.settings_dict |= {"USER": "test_crowd", "PASSWORD": "crowd"}


@contextmanager
def crowded_role() -> Iterator[None]:
    """A role that may have no connection, because the limits do not hold for ours."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE test_crowd LOGIN PASSWORD 'crowd' CONNECTION LIMIT 0")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP ROLE test_crowd")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("befalls", "is_answered"),
    [
        (terminate, False),
        (close, False),
        (idle_in_a_transaction, False),
        (unreachable, False),
        (full, False),
        (read_only, True),
        (too_slow, True),
    ],
)
def test_what_befalls_a_session_is_nobodys_fault(
    befalls: Callable[[BaseDatabaseWrapper], None], is_answered: bool
) -> None:
    """Only an answer from a server that lives on tells that a COMMIT did not happen."""
    with closing(connection.copy()) as session, crowded_role():
        befalls(session)
        with pytest.raises(Error) as caught, session.cursor() as cursor:
            cursor.execute("DO $$ BEGIN PERFORM pg_sleep(0.05); CREATE TABLE kept (); END $$")
    assert meaning(caught.value) == AWAY
    assert is_refusal(caught.value) == is_answered
