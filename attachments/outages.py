"""Whether the database is away: no answer, or one that means "not now"."""

from __future__ import annotations

from django.db import InterfaceError, OperationalError

#: SQLSTATE classes: connection, invalid transaction state (read-only after a failover), rollback, resources, operator.
NOT_NOW = ("08", "25", "40", "53", "57")


def is_database_away(error: BaseException) -> bool:
    """True when asking again later may be answered, and the asker is not at fault.

    Django makes OperationalError of most of these, but InternalError of a read-only transaction.
    """
    return isinstance(error, (OperationalError, InterfaceError)) or sqlstate_of(error)[:2] in NOT_NOW


def sqlstate_of(error: BaseException) -> str:
    """PostgreSQL's code for the error; empty when the server gave none."""
    return getattr(error.__cause__, "sqlstate", None) or ""
