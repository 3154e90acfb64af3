"""From a message with a file to an accepted upload: the only writer of a `telegram_update`'s state.

Every write names the expected state and the lease token; the row count is the answer. What names the file is cleared
where the fetching ends: the attachment has it by then, or nobody needs it any more.
"""

from __future__ import annotations

import datetime
import uuid
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Expression, F, QuerySet
from django.db.models.functions import Coalesce, Now

from attachments.models import Attachment
from notifications.models import FetchState, TelegramUpdate
from pipeline import outbox
from pipeline.lifecycle import LeaseLost

UNIQUE = ("telegram_update_once", "telegram_update_one_per_message")
RECOVER_LIMIT = 100


def bot_id() -> int:
    """The bot's own number, which its token begins with."""
    return int(settings.TELEGRAM_BOT_TOKEN.partition(":")[0])


def begin(update: TelegramUpdate) -> bool:
    """Nothing to waiting, with the nudge in the same transaction; False when this update or message came before."""
    try:
        with transaction.atomic():
            update.save(force_insert=True)
            outbox.enqueue_fetch(update)
    except IntegrityError as error:
        if getattr(getattr(error.__cause__, "diag", None), "constraint_name", None) not in UNIQUE:
            raise
        return False
    return True


def claim(update_id: int, *, attempt: int, token: uuid.UUID) -> TelegramUpdate | None:
    """Waiting to fetching; None when the message does not entitle to it.

    Asked again with the same token, because the first COMMIT got no answer, it finds what it already took.
    """
    TelegramUpdate.objects.filter(id=update_id, state=FetchState.WAITING, attempt=attempt, due_at__lte=Now()).update(
        state=FetchState.FETCHING, lease_token=token, lease_until=_lease_end()
    )
    claimed = TelegramUpdate.objects.filter(id=update_id, state=FetchState.FETCHING, lease_token=token)
    return claimed.select_related("owner").first()


def renew(update: TelegramUpdate) -> None:
    """Push the lease's end away from now; LeaseLost when somebody else fetches the file by now."""
    if not _held(update).update(lease_until=_lease_end()):
        raise LeaseLost


def accept(update: TelegramUpdate, attachment: Attachment) -> None:
    """Fetching to accepted: the file is an attachment, and its job's answer goes to the chat."""
    _end(update, FetchState.ACCEPTED, attachment=attachment)


def refuse(update: TelegramUpdate, *, code: str) -> None:
    """Fetching to refused: the file cannot be accepted as it is."""
    _end(update, FetchState.REFUSED, error_code=code)


def fail(update: TelegramUpdate, *, code: str) -> None:
    """Fetching to failed: it cannot be had, however often it is tried."""
    _end(update, FetchState.FAILED, error_code=code)


def retry_later(update: TelegramUpdate, *, code: str, pause: timedelta) -> None:
    """Fetching to waiting: a failure that counts, with chances left."""
    _put_back(_held(update), pause=pause, failures=F("failures") + 1, error_code=code, outage_since=None)


def release(update: TelegramUpdate, *, code: str, pause: timedelta, is_outage: bool = False) -> None:
    """Fetching to waiting through no fault of the file: Telegram or the storage is away, or the worker stops."""
    outage = Coalesce(F("outage_since"), Now()) if is_outage else None
    _put_back(_held(update), pause=pause, failures=F("failures"), error_code=code, outage_since=outage)


def recover(*, looked_at: datetime.datetime | None = None, outage_ended: datetime.datetime | None = None) -> int:
    """Fetching to waiting where the lease had run out by `looked_at`; returns how many.

    It counts as a failure, unless the lease was not renewed since the database came back at `outage_ended`. Those
    without chances left are ended by the worker that takes them next, which tells the sender.
    """
    expired = TelegramUpdate.objects.filter(state=FetchState.FETCHING, lease_until__lt=looked_at or Now())
    return sum(
        _take_back(update, outage_ended=outage_ended) for update in expired.order_by("lease_until")[:RECOVER_LIMIT]
    )


def outage_seconds(update: TelegramUpdate) -> float:
    """For how long an unbroken outage has kept this file waiting; 0 when there is none."""
    lasting = _held(update).values_list(Now() - F("outage_since"), flat=True).first()
    return float(lasting.total_seconds()) if lasting else 0.0


def _take_back(update: TelegramUpdate, *, outage_ended: datetime.datetime | None) -> bool:
    assert update.lease_until is not None
    renewed_at = update.lease_until - timedelta(seconds=settings.LEASE_SECONDS)
    counts = outage_ended is None or renewed_at > outage_ended
    # Whoever renews meanwhile, lives.
    expired = _held(update).filter(lease_until=update.lease_until)
    try:
        _put_back(expired, pause=timedelta(0), failures=F("failures") + int(counts), error_code="worker_lost")
    except LeaseLost:
        return False
    return True


def _held(update: TelegramUpdate) -> QuerySet[TelegramUpdate]:
    return TelegramUpdate.objects.filter(id=update.pk, state=FetchState.FETCHING, lease_token=update.lease_token)


def _end(update: TelegramUpdate, state: FetchState, **columns: Any) -> None:
    """LeaseLost unless it is held; asked again after a COMMIT that got no answer, it finds its own end."""
    ended = _held(update).update(
        state=state,
        lease_token=None,
        lease_until=None,
        outage_since=None,
        finished_at=Now(),
        file_id="",
        name="",
        claimed_type="",
        **columns,
    )
    if not ended and not TelegramUpdate.objects.filter(id=update.pk, state=state, attempt=update.attempt).exists():
        raise LeaseLost


def _put_back(held: QuerySet[TelegramUpdate], *, pause: timedelta, **columns: Any) -> None:
    with transaction.atomic():
        update = held.select_for_update(of=("self",)).first()
        if update is None:
            raise LeaseLost
        TelegramUpdate.objects.filter(id=update.pk).update(
            state=FetchState.WAITING,
            attempt=F("attempt") + 1,
            due_at=Now() + pause,
            lease_token=None,
            lease_until=None,
            **columns,
        )
        update.attempt += 1
        outbox.enqueue_fetch(update, pause=pause)


def _lease_end() -> Expression:
    return Now() + timedelta(seconds=settings.LEASE_SECONDS)
