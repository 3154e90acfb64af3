"""The states of a job. `docs/states.md`, the CHECK constraints and this enum say the same; a test compares them."""

from __future__ import annotations

from django.db import models


class State(models.TextChoices):
    QUEUED = "queued"
    PROCESSING = "processing"
    READY = "ready"
    FAILED = "failed"


#: Every lawful move, as (from, to); None is "not there yet".
MOVES: frozenset[tuple[State | None, State]] = frozenset(
    {
        (None, State.QUEUED),
        (State.QUEUED, State.PROCESSING),
        (State.PROCESSING, State.QUEUED),
        (State.PROCESSING, State.READY),
        (State.PROCESSING, State.FAILED),
        (State.FAILED, State.QUEUED),
        (State.READY, State.QUEUED),
    }
)

#: Where work ends. Only an operator leaves one of these: `replay` a failed job, `repair` a ready one.
TERMINAL = (State.READY, State.FAILED)


class Runner(models.TextChoices):
    """Who does the work of a pipeline: our workers, under lease, or an outside service."""

    WORKER = "worker"
    EXCHANGE = "exchange"


class Source(models.TextChoices):
    """The door an attachment came through."""

    REST = "rest"
    TELEGRAM = "telegram"


class Reply(models.TextChoices):
    """How far the answer to the sender has come; it goes out at most once for each end that the sender waits for."""

    NONE = "none"
    DUE = "due"
    SENDING = "sending"
    SENT = "sent"
    UNDELIVERED = "undelivered"
