"""Why a try failed, as the row keeps it; and the failures that are nobody's exception."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A stable code, a sentence for the owner, the cause for the operator, and the stage that it happened in.

    It counts towards dead unless it says not.
    """

    code: str
    sentence: str
    cause: str = ""
    step: str = ""
    counts: bool = True


WORKER_LOST = Failure(
    code="worker_lost",
    sentence="This file stopped the program that works on it several times. Send another version of it.",
)
CANCELLED = Failure(
    code="cancelled", sentence="The file was deleted before the work was done. Send it again.", counts=False
)
ORIGINAL_GONE = Failure(
    code="original_gone",
    sentence="The original is no longer kept. Send the file again.",
    cause="its object is trash",
    counts=False,
)
GAVE_UP = Failure(
    code="outage",
    sentence="The service could not reach its storage for a day. Send the file again.",
    counts=False,
)
