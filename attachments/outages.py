"""What an error of the database asks of whoever met it: wait and ask again, try again at once, or look for a fault.

Told apart by SQLSTATE, because psycopg makes too many kinds an OperationalError. An error without one comes from the
client's side: no connection, or a broken one.
"""

from __future__ import annotations

from django.db import InterfaceError, OperationalError

#: Classes: connection, authorization (a password being changed), rollback, resources, operator's intervention, system.
#: With 57014, a statement that took too long: the server was slow, for what is asked here is short.
NOT_NOW_CLASSES = ("08", "28", "40", "53", "57", "58")
#: A transaction that others kept from going on, as a whole: begun anew, it succeeds. (Deadlock, lock timeout.)
CONFLICTS = ("40001", "40P01", "55P03")
#: Read-only after a failover; a session ended for idling in a transaction, or for the transaction's length.
NOT_NOW = (*CONFLICTS, "25006", "25P03", "25P04")


def is_database_away(error: BaseException) -> bool:
    """True when asking again later may be answered, and the asker is not at fault."""
    sqlstate = sqlstate_of(error)
    if not sqlstate:
        return isinstance(error, (OperationalError, InterfaceError))
    return sqlstate[:2] in NOT_NOW_CLASSES or sqlstate in NOT_NOW


def is_conflict(error: BaseException) -> bool:
    """True when the database is there, and the same transaction may succeed at once; nothing of it was done."""
    return sqlstate_of(error) in CONFLICTS


def is_refusal(error: BaseException) -> bool:
    """True when the server itself answered that it did nothing and lives on; so even a COMMIT's outcome is known."""
    diagnosis = getattr(error.__cause__, "diag", None)
    severity = getattr(diagnosis, "severity_nonlocalized", None)
    return severity == "ERROR" and sqlstate_of(error)[:2] != "08"


def sqlstate_of(error: BaseException) -> str:
    """PostgreSQL's code for the error; empty when the server gave none."""
    return getattr(error.__cause__, "sqlstate", None) or ""
