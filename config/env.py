"""Every environment variable that Holdfast reads: its name, its type and its default.

A name that is not declared here cannot be read, so `compose.yaml` and the documentation are checked
against this one table. A value of the wrong type stops the process and names the variable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent
REQUIRED = object()

#: name: (type, default). Sizes are bytes, durations seconds.
VARIABLES: dict[str, tuple[Any, Any]] = {
    # Django
    "SECRET_KEY": (str, REQUIRED),
    "DEBUG": (bool, False),
    "ALLOWED_HOSTS": (list, []),
    "CSRF_TRUSTED_ORIGINS": (list, []),
    "INSECURE_HTTP": (bool, False),
    "LOG_LEVEL": (str, "INFO"),
    "LOG_FORMAT": (str, "json"),
    "LOCAL_STACK": (bool, False),
    # PostgreSQL and RabbitMQ
    "DATABASE_URL": (str, REQUIRED),
    "DATABASE_LISTEN_URL": (str, ""),
    "CELERY_BROKER_URL": (str, REQUIRED),
    # Storage
    "STORAGE_BACKEND": (str, "local"),
    "STORAGE_ROOT": (str, ""),
    "STORAGE_BUCKET": (str, "holdfast"),
    "AWS_ACCESS_KEY_ID": (str, ""),
    "AWS_SECRET_ACCESS_KEY": (str, ""),
    "AWS_S3_ENDPOINT_URL": (str, ""),
    "AWS_S3_PUBLIC_ENDPOINT_URL": (str, ""),
    "AWS_S3_REGION_NAME": (str, ""),
    "AWS_S3_ADDRESSING_STYLE": (str, "auto"),
    "SIGNED_URL_SECONDS": (int, 300),
    # Intake
    "MAX_UPLOAD_BYTES": (int, 2 * 1024**3),
    "MAX_IMAGE_PIXELS": (int, 90_000_000),
    "MAX_AUDIO_SECONDS": (float, 4 * 3600.0),
    "MAX_WAITERS": (int, 8),
    "ACCEPT_ANY_FILE": (bool, False),
    "SEARCH_TRANSCRIPTS": (bool, True),
    # Timings of work (design: states)
    "LEASE_SECONDS": (float, 15.0),
    "RENEW_SECONDS": (float, 5.0),
    "MAX_FAILURES": (int, 5),
    "RETRY_PAUSE_SECONDS": (float, 5.0),
    "RETRY_PAUSE_CAP_SECONDS": (float, 600.0),
    "OUTAGE_GIVE_UP_SECONDS": (float, 24 * 3600.0),
    "RECOVER_EVERY_SECONDS": (float, 5.0),
    "REDISPATCH_EVERY_SECONDS": (float, 15.0),
    "REDISPATCH_AFTER_SECONDS": (float, 60.0),
    "SWEEP_EVERY_SECONDS": (float, 300.0),
    "LISTING_EVERY_SECONDS": (float, 24 * 3600.0),
    "OUTBOX_POLL_SECONDS": (float, 5.0),
    "DISPATCHER_POLL_SECONDS": (float, 1.0),
    "CONFIRM_SECONDS": (float, 10.0),
    "IMAGE_STEP_SECONDS": (float, 60.0),
    "AUDIO_STEP_SECONDS": (float, 600.0),
    "STEP_MEMORY_BYTES": (int, 2 * 1024**3),
    "SLICE_SECONDS": (float, 300.0),
    # Speech
    "TRANSCRIPTION_MODEL": (str, ""),
    "TRANSCRIPTION_DEVICE": (str, "cpu"),
    "TRANSCRIPTION_COMPUTE_TYPE": (str, "int8"),
    "TRANSCRIPTION_THREADS": (int, 0),
    "TRANSCRIPTION_BEAM": (int, 5),
    # Telegram
    "TELEGRAM_BOT_TOKEN": (str, ""),
    "TELEGRAM_API_URL": (str, "https://api.telegram.org"),
    "TELEGRAM_MAX_WAIT": (float, 10.0),
    "TELEGRAM_WEBHOOK_SECRET": (str, ""),
    "TELEGRAM_ALLOWED_CHATS": (list, []),
    "TELEGRAM_OWNER": (str, ""),
    "TELEGRAM_MAX_FILE_BYTES": (int, 20_000_000),
    "TELEGRAM_ACKNOWLEDGE": (bool, False),
    "PUBLIC_URL": (str, ""),
    # Retention
    "STAGING_RETENTION_SECONDS": (float, 24 * 3600.0),
    "SUPERSEDED_RETENTION_SECONDS": (float, 24 * 3600.0),
    "FAILED_RETENTION_DAYS": (int, 30),
    "TRANSCRIPT_RETENTION_DAYS": (int, 0),
    "OUTBOX_RETENTION_SECONDS": (float, 7 * 24 * 3600.0),
    # Observability
    "METRICS_PORT": (int, 0),
    "PROMETHEUS_MULTIPROC_DIR": (str, ""),
    "FLOWER_URL": (str, ""),
    # Web server (config/gunicorn.py)
    "WEB_BIND": (str, "127.0.0.1:8000"),
    "WEB_WORKERS": (int, 2),
    "WEB_THREADS": (int, 16),
    # Tests only
    "FAILPOINTS": (str, ""),
}


def read(name: str) -> Any:
    """The value of a declared variable; ImproperlyConfigured names a malformed one, or a required one without value."""
    cast, default = VARIABLES[name]
    try:
        value = environ.Env().get_value(name, cast=cast, default=default)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} must be of type {cast.__name__}: {error}.") from error
    if default is REQUIRED and (value is REQUIRED or not value.strip()):
        raise ImproperlyConfigured(f"Set {name}; see docs/deployment.md.")
    return value
