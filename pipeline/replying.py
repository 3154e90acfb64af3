"""The answer to who sent a file by Telegram: due → sending → sent, or undelivered for a reason.

It leaves after the reached state was saved, at most once, whatever happens: each move is guarded by the state before
it. An answer that does not arrive fails nothing and is never tried again ([transcription]: недоставленный ответ не
роняет шаг). The worker that ended the job sends it; what it could not send yet is sent by a redelivered message of
the ended job, or by `sweep`.
"""

from __future__ import annotations

import logging
import time
import uuid
from datetime import timedelta

from django.db import Error, connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from notifications import replies
from notifications.reasons import Reason, level_of
from notifications.replies import News
from notifications.telegram.outgoing import Address
from pipeline import metrics
from pipeline.models import Job, JobEvent
from pipeline.states import TERMINAL, Reply

#: The worker that ended the job is quicker, unless it died.
LEFT_TO_THE_WORKER = timedelta(seconds=1)
#: No answer takes that long to be sent: who began to died over it, and nobody knows how far it came.
SENDING_LIMIT = timedelta(minutes=1)
#: One look may send for so long, since Telegram may be slow to refuse.
LOOK_SECONDS = 20.0
SWEEP_LIMIT = 500

logger = logging.getLogger(__name__)


def reply(job_id: uuid.UUID, *, actor: str) -> None:
    """Send what is due to the sender of a job's file, if anything; raises nothing."""
    try:
        job = _find_due(job_id)
        if job is not None:
            _answer(job, actor=actor)
    except Error as error:
        # What is still due is found by `sweep`, and so is what was begun: it will not be sent twice.
        connection.close()
        logger.warning("reply_not_saved", extra={"job_id": str(job_id), "cause": type(error).__name__})


def sweep(*, actor: str = "dispatcher") -> int:
    """Send the answers that no worker sent, and give up those that somebody died over; how many it dealt with."""
    until = time.monotonic() + LOOK_SECONDS
    forsaken = Q(reply=Reply.DUE, state__in=TERMINAL, reply_at__lt=Now() - LEFT_TO_THE_WORKER)
    abandoned = Q(reply=Reply.SENDING, reply_at__lt=Now() - SENDING_LIMIT)
    found = list(Job.objects.filter(forsaken | abandoned).order_by("reply_at")[:SWEEP_LIMIT])
    for number, job in enumerate(found):
        if time.monotonic() > until:
            return number
        if job.reply == Reply.SENDING:
            _end(job, Reason.TIMEOUT_UNKNOWN, actor=actor)
        else:
            reply(job.job_id, actor=actor)
    return len(found)


def _find_due(job_id: uuid.UUID) -> Job | None:
    """Nothing is owed to who deleted the file; and a job that was replayed meanwhile is told of at its next end."""
    due = Job.objects.filter(job_id=job_id, reply=Reply.DUE, state__in=TERMINAL)
    if due.filter(attachment__deleted_at__isnull=False).update(reply=Reply.NONE):
        return None
    return due.first()


def _answer(job: Job, *, actor: str) -> None:
    """Read first what is to be sent, since the storage may be slow; from then on it is on its way."""
    address = _address(job)
    answer = replies.compose(_news(job), address)
    if not _begin(job):
        return
    if isinstance(answer, Reason):
        _end(job, answer, actor=actor)
    else:
        assert address is not None
        _end(job, replies.send(answer, address), actor=actor)


def _begin(job: Job) -> bool:
    """Due to sending; False when somebody else took it."""
    due = Job.objects.filter(
        job_id=job.job_id, reply=Reply.DUE, reply_at=job.reply_at, state=job.state, attempt=job.attempt
    )
    if not due.update(reply=Reply.SENDING, reply_at=Now()):
        return False
    job.refresh_from_db(fields=["reply_at"])
    return True


def _news(job: Job) -> News:
    return News(
        attachment_id=job.attachment_id,
        pipeline_version=job.pipeline_version,
        error_code=job.error_code,
        error=job.error,
        language=job.reply_language,
        age=_age(job),
    )


def _age(job: Job) -> timedelta:
    """Since it ended, by the database's clock."""
    age: timedelta = Job.objects.values_list(Now() - F("finished_at"), flat=True).get(job_id=job.job_id)
    return age


def _address(job: Job) -> Address | None:
    if job.reply_chat_id is None:
        return None
    return Address(
        chat_id=job.reply_chat_id,
        message_id=job.reply_message_id,
        thread_id=job.reply_thread_id,
        business_id=job.reply_business_id,
    )


def _end(job: Job, reason: Reason | None, *, actor: str) -> None:
    """Sending to sent or undelivered; told once, by whoever wrote it."""
    begun = Job.objects.filter(job_id=job.job_id, reply=Reply.SENDING, reply_at=job.reply_at)
    if reason is None:
        begun.update(reply=Reply.SENT, reply_at=Now())
        return
    with transaction.atomic():
        if not begun.update(reply=Reply.UNDELIVERED, reply_reason=reason, reply_at=Now()):
            return
        JobEvent.objects.create(
            job=job,
            from_state=job.state,
            to_state=job.state,
            attempt=job.attempt,
            reason="reply_undelivered",
            actor=actor,
            detail=reason,
        )
    metrics.REPLIES_UNDELIVERED.labels(reason=reason.value).inc()
    logger.log(level_of(reason), "reply_undelivered", extra={"job_id": str(job.job_id), "reason": reason.value})
