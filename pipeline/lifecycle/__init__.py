"""The only writer of a job's state: one function a move, each guarded by the state it expects and the lease token.

The row count is the answer. A worker that lost its lease changes nothing: it gets LeaseLost. The table of moves is
docs/states.md; every time is the database's. `moves` holds what workers do, `reopening` what only an operator asks for.
"""

from pipeline.lifecycle.moves import (
    DISPATCHER,
    Cancelled,
    Incomplete,
    accept,
    claim,
    complete,
    discard,
    fail,
    outage_seconds,
    record,
    recorded,
    recover,
    release,
    renew,
    request_cancel,
    retry_later,
)
from pipeline.lifecycle.reopening import (
    AlreadyThere,
    Gone,
    NotFailed,
    NotReady,
    Reopened,
    repair,
    replay,
    reprocess,
    restore_message,
)
from pipeline.lifecycle.rows import Lease, LeaseLost

__all__ = [
    "DISPATCHER",
    "AlreadyThere",
    "Cancelled",
    "Gone",
    "Incomplete",
    "Lease",
    "LeaseLost",
    "NotFailed",
    "NotReady",
    "Reopened",
    "accept",
    "claim",
    "complete",
    "discard",
    "fail",
    "outage_seconds",
    "record",
    "recorded",
    "recover",
    "release",
    "renew",
    "repair",
    "replay",
    "reprocess",
    "request_cancel",
    "restore_message",
    "retry_later",
]
