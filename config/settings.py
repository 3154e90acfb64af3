"""The one settings file. Values come from `config.env`; relations between them are checked in `config.checks`."""

from __future__ import annotations

from typing import Any

import environ

from config.env import BASE_DIR, read
from config.logging import logging_config

# --- Django -----------------------------------------------------------------------------------------
SECRET_KEY = read("SECRET_KEY")
DEBUG = read("DEBUG")
ALLOWED_HOSTS = read("ALLOWED_HOSTS")
CSRF_TRUSTED_ORIGINS = read("CSRF_TRUSTED_ORIGINS")
LOCAL_STACK = read("LOCAL_STACK")
INSECURE_HTTP = read("INSECURE_HTTP")
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"

INSTALLED_APPS = [
    "unfold",
    # Only who serves the admin loads it (config.urls).
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "config.apps.ConfigApp",
    "attachments",
    "pipeline",
    "notifications",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "config.logging.TraceMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

STATIC_URL = "/static/"
# Without `collectstatic` (the local stack, tests) WhiteNoise serves straight from the packages.
STATIC_ROOT = None if LOCAL_STACK else BASE_DIR / "staticfiles"
WHITENOISE_USE_FINDERS = LOCAL_STACK

# --- Security ---------------------------------------------------------------------------------------
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = not INSECURE_HTTP
SECURE_REDIRECT_EXEMPT = [r"^(healthz|healthcheck|readyz|metrics)$"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_HSTS_SECONDS = 0 if INSECURE_HTTP else 365 * 24 * 3600
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = not INSECURE_HTTP
X_FRAME_OPTIONS = "DENY"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# --- PostgreSQL -------------------------------------------------------------------------------------
DATABASE_URL = read("DATABASE_URL")
#: LISTEN needs a session of its own, so never a transaction pooler; empty: DATABASE_URL is a direct connection.
DATABASE_LISTEN_URL = read("DATABASE_LISTEN_URL")
_database = environ.Env.db_url_config(DATABASE_URL)
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        **_database,
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            "connect_timeout": 5,
            # A peer that vanished without a FIN is noticed within half a minute.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
            "options": "-c statement_timeout=30s -c idle_in_transaction_session_timeout=30s -c lock_timeout=10s",
            # What the URL says, such as sslmode, goes first.
            **_database.get("OPTIONS", {}),
        },
    }
}

# --- RabbitMQ ---------------------------------------------------------------------------------------
CELERY_BROKER_URL = read("CELERY_BROKER_URL")
CONFIRM_SECONDS = read("CONFIRM_SECONDS")

# --- Storage ----------------------------------------------------------------------------------------
STORAGE_BACKEND = read("STORAGE_BACKEND")
STORAGE_ROOT = read("STORAGE_ROOT")
STORAGE_BUCKET = read("STORAGE_BUCKET")
AWS_ACCESS_KEY_ID = read("AWS_ACCESS_KEY_ID")
AWS_SECRET_ACCESS_KEY = read("AWS_SECRET_ACCESS_KEY")
AWS_S3_ENDPOINT_URL = read("AWS_S3_ENDPOINT_URL")
AWS_S3_PUBLIC_ENDPOINT_URL = read("AWS_S3_PUBLIC_ENDPOINT_URL")
AWS_S3_REGION_NAME = read("AWS_S3_REGION_NAME")
AWS_S3_ADDRESSING_STYLE = read("AWS_S3_ADDRESSING_STYLE")
SIGNED_URL_SECONDS = read("SIGNED_URL_SECONDS")

# --- Intake -----------------------------------------------------------------------------------------
MAX_UPLOAD_BYTES = read("MAX_UPLOAD_BYTES")
MAX_IMAGE_PIXELS = read("MAX_IMAGE_PIXELS")
MAX_AUDIO_SECONDS = read("MAX_AUDIO_SECONDS")
MAX_WAITERS = read("MAX_WAITERS")
#: For `config.checks`; the web server reads it itself.
WEB_THREADS = read("WEB_THREADS")
ACCEPT_ANY_FILE = read("ACCEPT_ANY_FILE")
SEARCH_TRANSCRIPTS = read("SEARCH_TRANSCRIPTS")

# --- Timings of work; see docs/states.md -------------------------------------------------------------
LEASE_SECONDS = read("LEASE_SECONDS")
RENEW_SECONDS = read("RENEW_SECONDS")
MAX_FAILURES = read("MAX_FAILURES")
RETRY_PAUSE_SECONDS = read("RETRY_PAUSE_SECONDS")
RETRY_PAUSE_CAP_SECONDS = read("RETRY_PAUSE_CAP_SECONDS")
OUTAGE_GIVE_UP_SECONDS = read("OUTAGE_GIVE_UP_SECONDS")
RECOVER_EVERY_SECONDS = read("RECOVER_EVERY_SECONDS")
REDISPATCH_EVERY_SECONDS = read("REDISPATCH_EVERY_SECONDS")
REDISPATCH_AFTER_SECONDS = read("REDISPATCH_AFTER_SECONDS")
SWEEP_EVERY_SECONDS = read("SWEEP_EVERY_SECONDS")
LISTING_EVERY_SECONDS = read("LISTING_EVERY_SECONDS")
OUTBOX_POLL_SECONDS = read("OUTBOX_POLL_SECONDS")
DISPATCHER_POLL_SECONDS = read("DISPATCHER_POLL_SECONDS")
IMAGE_STEP_SECONDS = read("IMAGE_STEP_SECONDS")
AUDIO_STEP_SECONDS = read("AUDIO_STEP_SECONDS")
STEP_MEMORY_BYTES = read("STEP_MEMORY_BYTES")
SLICE_SECONDS = read("SLICE_SECONDS")

# --- Speech -----------------------------------------------------------------------------------------
TRANSCRIPTION_MODEL = read("TRANSCRIPTION_MODEL")
TRANSCRIPTION_DEVICE = read("TRANSCRIPTION_DEVICE")
TRANSCRIPTION_COMPUTE_TYPE = read("TRANSCRIPTION_COMPUTE_TYPE")
TRANSCRIPTION_THREADS = read("TRANSCRIPTION_THREADS")
TRANSCRIPTION_BEAM = read("TRANSCRIPTION_BEAM")

# --- Telegram; see docs/telegram.md ------------------------------------------------------------------
TELEGRAM_BOT_TOKEN = read("TELEGRAM_BOT_TOKEN")
TELEGRAM_API_URL = read("TELEGRAM_API_URL").rstrip("/")
TELEGRAM_MAX_WAIT = read("TELEGRAM_MAX_WAIT")
TELEGRAM_WEBHOOK_SECRET = read("TELEGRAM_WEBHOOK_SECRET")
TELEGRAM_ALLOWED_CHATS = read("TELEGRAM_ALLOWED_CHATS")
TELEGRAM_OWNER = read("TELEGRAM_OWNER")
TELEGRAM_MAX_FILE_BYTES = read("TELEGRAM_MAX_FILE_BYTES")
TELEGRAM_ACKNOWLEDGE = read("TELEGRAM_ACKNOWLEDGE")
PUBLIC_URL = read("PUBLIC_URL").rstrip("/")

# --- Retention; see docs/retention.md ----------------------------------------------------------------
STAGING_RETENTION_SECONDS = read("STAGING_RETENTION_SECONDS")
SUPERSEDED_RETENTION_SECONDS = read("SUPERSEDED_RETENTION_SECONDS")
FAILED_RETENTION_DAYS = read("FAILED_RETENTION_DAYS")
TRANSCRIPT_RETENTION_DAYS = read("TRANSCRIPT_RETENTION_DAYS")
OUTBOX_RETENTION_SECONDS = read("OUTBOX_RETENTION_SECONDS")

# --- REST -------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.TokenAuthentication",
        "attachments.authentication.BrowserSession",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "attachments.problems.exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Holdfast",
    "DESCRIPTION": "Takes a person's attachment and holds it fast.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
}

# --- Observability ----------------------------------------------------------------------------------
METRICS_PORT = read("METRICS_PORT")
FLOWER_URL = read("FLOWER_URL")
LOGGING = logging_config(level=read("LOG_LEVEL"), style=read("LOG_FORMAT"), bot_token=TELEGRAM_BOT_TOKEN)
UNFOLD = {
    "SITE_TITLE": "Holdfast",
    "SITE_HEADER": "Holdfast",
    "SITE_DROPDOWN": [{"icon": "local_florist", "title": "Flower", "link": FLOWER_URL}] if FLOWER_URL else [],
}

# --- Tests ------------------------------------------------------------------------------------------
#: `name=action[,name=action]`; refused by a check outside the local stack.
FAILPOINTS = read("FAILPOINTS")
