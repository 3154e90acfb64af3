"""Where Telegram posts updates: the row is committed before the answer, 200 for all that need not come again."""

from __future__ import annotations

import hmac
import json
import logging

from django.conf import settings
from django.db import Error
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import UnreadablePostError
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105  (a header's name)
#: An update with the longest message there may be, every character of it escaped, is far smaller.
UPDATE_LIMIT_BYTES = 512 * 1024
RETRY_AFTER_SECONDS = 5

logger = logging.getLogger(__name__)


@csrf_exempt
@require_POST
def webhook(request: HttpRequest) -> HttpResponse:
    """One update. 404 where no webhook is set up, 403 without its secret, 400 for what is no update, 503 for not now.

    Telegram sends the updates of a chat one by one and repeats for a day what is not answered by 200. So an update
    that cannot be understood, now or tomorrow, gets 200 too, and an ERROR in the log.
    """
    if not settings.TELEGRAM_WEBHOOK_SECRET or not settings.TELEGRAM_BOT_TOKEN:
        raise Http404
    told = request.headers.get(SECRET_HEADER, "")
    if not hmac.compare_digest(told.encode(), settings.TELEGRAM_WEBHOOK_SECRET.encode()):
        return HttpResponse(status=403)
    if int(request.META.get("CONTENT_LENGTH") or 0) > UPDATE_LIMIT_BYTES:
        return HttpResponse(status=413)
    # Loaded by those who have a bot only.
    from notifications.telegram import updates

    try:
        taken = updates.take(json.loads(request.body))
    except (ValueError, RecursionError, UnreadablePostError, updates.NotAnUpdate):
        return HttpResponse(status=400)
    except Error as error:
        logger.warning("update_put_off", extra={"cause": type(error).__name__})
        return HttpResponse(status=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
    logger.debug("update_taken", extra={"outcome": taken.value})
    return HttpResponse(status=200)
