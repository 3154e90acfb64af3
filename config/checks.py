"""Relations between settings, checked at boot (`manage.py check`); each message says what to do."""

from __future__ import annotations

import re
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured

#: 16,000 samples of two bytes a second make 1.92 GB of it; `pipeline.sandbox` allows 2 GiB.
MAX_WAVE_SECONDS = 60_000
#: With the 20 s that sending takes at most, less than the minute of `pipeline.replying`.
MAX_REPLY_WAIT_SECONDS = 30


def refuse_wrong_settings() -> None:
    """ImproperlyConfigured with every error between settings, for processes that no `manage.py` starts."""
    errors = [found for found in checks.run_checks(tags=["holdfast"]) if found.is_serious()]
    if errors:
        raise ImproperlyConfigured("\n".join(map(str, errors)))


@register("holdfast")
def timings(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if settings.RENEW_SECONDS * 3 > settings.LEASE_SECONDS:
        found.append(
            Error(
                "A lease must outlast three renewals.",
                hint="Set LEASE_SECONDS to at least 3 × RENEW_SECONDS.",
                id="holdfast.E001",
            )
        )
    if settings.MAX_FAILURES < 1:
        found.append(Error("A job needs at least one try.", hint="Set MAX_FAILURES to 1 or more.", id="holdfast.E002"))
    if settings.SIGNED_URL_SECONDS < 1:
        found.append(
            Error(
                "A signed URL must hold for a second at least.",
                hint="Set SIGNED_URL_SECONDS to 1 or more.",
                id="holdfast.E003",
            )
        )
    if not 0 <= settings.MAX_WAITERS < settings.WEB_THREADS:
        found.append(
            Error(
                "Requests that wait must leave a thread for the others.",
                hint="Set MAX_WAITERS to at least 0 and less than WEB_THREADS.",
                id="holdfast.E004",
            )
        )
    if not 0 < settings.MAX_AUDIO_SECONDS <= MAX_WAVE_SECONDS:
        found.append(
            Error(
                "A recording of that length, converted, is larger than a decoding child may write.",
                hint=f"Set MAX_AUDIO_SECONDS to more than 0 and at most {MAX_WAVE_SECONDS}.",
                id="holdfast.E005",
            )
        )
    if not 0 <= settings.TELEGRAM_MAX_WAIT <= MAX_REPLY_WAIT_SECONDS:
        found.append(
            Error(
                "An answer that waits for longer is taken for lost while it is on its way.",
                hint=f"Set TELEGRAM_MAX_WAIT to at least 0 and at most {MAX_REPLY_WAIT_SECONDS}.",
                id="holdfast.E006",
            )
        )
    return found


@register("holdfast")
def storage(**_: Any) -> list[CheckMessage]:
    if settings.STORAGE_BACKEND not in ("local", "s3"):
        return [
            Error(
                f"Unknown STORAGE_BACKEND {settings.STORAGE_BACKEND!r}.",
                hint="Set it to local or s3.",
                id="holdfast.E010",
            )
        ]
    if settings.STORAGE_BACKEND == "local" and not settings.STORAGE_ROOT:
        return [
            Error(
                "Local storage needs a folder.", hint="Set STORAGE_ROOT, or STORAGE_BACKEND to s3.", id="holdfast.E012"
            )
        ]
    if settings.STORAGE_BACKEND == "s3" and not settings.STORAGE_BUCKET:
        return [Error("S3 storage needs a bucket.", hint="Set STORAGE_BUCKET.", id="holdfast.E011")]
    return []


#: What each must look like, where it is given.
_TELEGRAM = (
    ("TELEGRAM_BOT_TOKEN", r"[0-9]{1,18}:[A-Za-z0-9_-]+", "Copy it whole, as BotFather gave it.", "E040"),
    ("TELEGRAM_WEBHOOK_SECRET", r"[A-Za-z0-9_-]{1,256}", "Use 1 to 256 letters, digits, _ and -.", "E041"),
)


@register("holdfast")
def telegram(**_: Any) -> list[CheckMessage]:
    """No message quotes a value: these are secrets."""
    found: list[CheckMessage] = [
        Error(f"{name} cannot be right.", hint=hint, id=f"holdfast.{number}")
        for name, pattern, hint, number in _TELEGRAM
        if getattr(settings, name) and not re.fullmatch(pattern, getattr(settings, name))
    ]
    if not all(re.fullmatch(r"-?[0-9]{1,18}", chat) for chat in settings.TELEGRAM_ALLOWED_CHATS):
        found.append(
            Error(
                "TELEGRAM_ALLOWED_CHATS must be numbers.",
                hint="Separate the chats' numbers by commas; those of groups begin with a minus.",
                id="holdfast.E042",
            )
        )
    return found


@register("holdfast")
def local_only(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if settings.FAILPOINTS and not settings.LOCAL_STACK:
        found.append(
            Error("FAILPOINTS kill processes on purpose.", hint="Unset FAILPOINTS in production.", id="holdfast.E020")
        )
    if settings.INSECURE_HTTP and not settings.LOCAL_STACK:
        found.append(
            checks.Warning(
                "INSECURE_HTTP serves cookies and tokens without TLS.",
                hint="Unset it, and put a TLS proxy in front.",
                id="holdfast.W021",
            )
        )
    return found


@register(Tags.database)
def durability(databases: Any = None, **_: Any) -> list[CheckMessage]:
    """202 means safe only where a commit reaches the disk."""
    if not databases or settings.LOCAL_STACK:
        return []
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit') AND setting = 'off'")
        off = [row[0] for row in cursor.fetchall()]
    return [
        Error(
            f"PostgreSQL runs with {name} off: a commit may be lost after 202.",
            hint=f"Turn {name} on in the server and for this role.",
            id="holdfast.E030",
        )
        for name in off
    ]
