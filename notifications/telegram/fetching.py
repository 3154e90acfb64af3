"""From a message's row to an upload in the intake, with all its checks: what a worker does with one nudge.

A fetch that is killed after the COMMIT of its acceptance finds that acceptance again by its key, so that one message
makes one attachment whatever happens. Telegram being away spends none of its chances.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta

from django.conf import settings
from django.db import Error, connection

from attachments.errors import AttachmentError, OutcomeUnknown, StorageUnavailable
from attachments.models import Attachment
from attachments.outages import is_database_away
from notifications import fetches, replies
from notifications.models import TelegramUpdate
from notifications.telegram import files
from notifications.telegram.files import NotFetched
from notifications.telegram.outgoing import Address, CallFailed
from notifications.telegram.sentences import explained, told
from pipeline import claims, intake, metrics, outcomes, shutdown
from pipeline.failures import GAVE_UP
from pipeline.lifecycle import LeaseLost
from pipeline.origins import Origin
from pipeline.states import Source

CREATED_BY = "telegram"

logger = logging.getLogger(__name__)


class Stopping(Exception):
    """The worker has to go; the file is left to another."""


def fetch(update_id: int, *, attempt: int) -> str:
    """Fetch one message's file and have it accepted; returns a word for the log.

    1. Claim the row: a message that does not entitle to it is a success.
    2. What was accepted before, by a fetch that did not live to say so, is the answer.
    3. Refuse what Telegram would not hand out, before anything is fetched.
    4. Stream the file into the intake, renewing the lease between two pieces.
    5. End the row; then tell the sender where there is something to tell.
    """
    token = uuid.uuid4()
    update = claims.patiently(lambda: fetches.claim(update_id, attempt=attempt, token=token))
    if update is None:
        logger.debug("not_claimed", extra={"telegram_update": update_id, "attempt": attempt})
        return "not_claimed"
    try:
        attachment, is_new = _accept(update)
        claims.patiently(lambda: fetches.accept(update, attachment))
    except SystemExit:
        _hand_back(update)
        raise
    except claims.ShuttingDown:
        raise
    except Exception as error:  # noqa: BLE001  (what it means is decided there)
        return _settle(update, error)
    if is_new and settings.TELEGRAM_ACKNOWLEDGE:
        replies.say(told("received", update.language), _address(update))
    return _end(update, "accepted")


def _accept(update: TelegramUpdate) -> tuple[Attachment, bool]:
    key = f"telegram:{update.bot}:{update.chat_id}:{update.message_id}"
    earlier = claims.patiently(lambda: intake.find_accepted(update.owner, key))
    if earlier is not None:
        return earlier.attachment, False
    if update.failures >= settings.MAX_FAILURES:
        raise NotFetched("no chances left")
    files.check_size(update.file_size)
    received = intake.receive(_kept(update), created_by=CREATED_BY)
    accepted = intake.accept(
        received,
        intake.Request(
            owner=update.owner,
            origin=_origin(update),
            name=update.name,
            claimed_type=update.claimed_type,
            idempotency_key=key,
        ),
    )
    return accepted.attachment, not accepted.is_repeat


def _kept(update: TelegramUpdate) -> Iterator[bytes]:
    """The file's pieces, with the lease renewed while they come."""
    renewed = time.monotonic()
    for piece in files.download(update.file_id):
        if shutdown.is_overdue():
            raise Stopping
        if time.monotonic() - renewed > settings.RENEW_SECONDS:
            renewed = time.monotonic()
            _renew(update)
        yield piece


def _renew(update: TelegramUpdate) -> None:
    """An outage is no reason to break off: should the lease be lost meanwhile, the acceptance is found by its key."""
    try:
        fetches.renew(update)
    except Error as error:
        logger.warning("renewal_failed", extra={"telegram_update": update.pk, "cause": type(error).__name__})
        connection.close()


def _settle(update: TelegramUpdate, error: Exception) -> str:
    """End this try as its error demands."""
    try:
        outcome, code = claims.patiently(lambda: _decide(update, error))
    except LeaseLost:
        return _end(update, "lease_lost")
    if outcome in ("refused", "failed"):
        metrics.REFUSED.labels(code=code).inc()
        replies.say(explained(code, _sentence(error), update.language), _address(update))
    return _end(update, outcome, code=code)


def _decide(update: TelegramUpdate, error: Exception) -> tuple[str, str]:
    """The outcome and its code."""
    if isinstance(error, LeaseLost):
        raise error
    if isinstance(error, Stopping):
        fetches.release(update, code="shutdown", pause=timedelta(0))
        return "released", "shutdown"
    if isinstance(error, (CallFailed, StorageUnavailable, OutcomeUnknown)) or is_database_away(error):
        return _wait_out(update, error)
    code = error.code if isinstance(error, AttachmentError) else AttachmentError.code
    if isinstance(error, outcomes.PERMANENT):
        fetches.refuse(update, code=code)
        return "refused", code
    if not isinstance(error, AttachmentError):
        # The traceback names places and kinds; a message that a library made might quote more.
        logger.error("fetch_failed", extra={"telegram_update": update.pk, "cause": type(error).__name__})
    if update.failures + 1 >= settings.MAX_FAILURES:
        fetches.fail(update, code=code)
        return "failed", code
    fetches.retry_later(update, code=code, pause=outcomes.pause_after(update.failures + 1))
    return "retried", code


def _wait_out(update: TelegramUpdate, error: Exception) -> tuple[str, str]:
    if fetches.outage_seconds(update) > settings.OUTAGE_GIVE_UP_SECONDS:
        fetches.fail(update, code=GAVE_UP.code)
        return "failed", GAVE_UP.code
    code = error.reason.value if isinstance(error, CallFailed) else "outage"
    wait = timedelta(seconds=(error.retry_after or 0.0) if isinstance(error, CallFailed) else 0.0)
    spread = random.uniform(1, 1 + outcomes.JITTER)  # noqa: S311  (no secret)
    fetches.release(update, code=code, pause=max(outcomes.OUTAGE_PAUSE, wait) * spread, is_outage=True)
    return "released", code


def _hand_back(update: TelegramUpdate) -> None:
    """For a process that was itself told to end; it has one try."""
    connection.close()
    try:
        fetches.release(update, code="shutdown", pause=timedelta(0))
    except (Error, LeaseLost):
        return


def _end(update: TelegramUpdate, outcome: str, *, code: str = "") -> str:
    metrics.FETCHES.labels(outcome=outcome).inc()
    facts = {"telegram_update": update.pk, "attempt": update.attempt, "outcome": outcome, "error": code}
    logger.info("fetch_ended", extra=facts)
    return outcome


def _sentence(error: Exception) -> str:
    if isinstance(error, AttachmentError):
        return error.sentence
    return GAVE_UP.sentence if isinstance(error, CallFailed) else AttachmentError.sentence


def _address(update: TelegramUpdate) -> Address:
    return Address(
        chat_id=update.chat_id,
        message_id=update.message_id,
        thread_id=update.thread_id,
        business_id=update.business_id,
    )


def _origin(update: TelegramUpdate) -> Origin:
    return Origin(
        Source.TELEGRAM,
        chat_id=update.chat_id,
        message_id=update.message_id,
        thread_id=update.thread_id,
        business_id=update.business_id,
        language=update.language,
    )
