"""Celery: the app, its consumer, queues, routes and beat, all declared here, once.

Celery stays at the rim: PostgreSQL decides state, attempts and due times (docs/contract.md). No result backend, no
ETA or countdown, no Celery retries for pipeline work. The topology itself is `pipeline.broker`'s.
"""

from __future__ import annotations

import datetime
import importlib
import logging
import logging.config
import os
import sys
import warnings
from typing import Any

import celery
from celery.exceptions import CPendingDeprecationWarning
from celery.signals import (
    beat_init,
    before_task_publish,
    celeryd_after_setup,
    setup_logging,
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_shutting_down,
)
from celery.worker.consumer import Consumer
from django.core.exceptions import ImproperlyConfigured
from kombu import Message

from config import scraping
from pipeline.wire import UNREADABLE

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# Celery would load every view to run all of Django's checks, and then not look at what they found.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

logger = logging.getLogger(__name__)

RECONNECT_CAP_SECONDS = 5

scraping.share()

# It announces another default of a setting that is set on purpose below.
warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)

app = celery.Celery("holdfast")


class StrictConsumer(Consumer):
    """Stock Celery dies on a body of the wrong shape, silently acknowledges an undecodable one, and declares 28
    delayed-delivery queues. This one sends both to the dead-letter queue and stays alive."""

    class Blueprint(Consumer.Blueprint):
        default_steps = [step for step in Consumer.Blueprint.default_steps if not step.endswith(":DelayedDelivery")]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Workers share nothing but the queue: gossip floods large clusters and mingle delays every start.
        super().__init__(*args, **{**kwargs, "without_mingle": True, "without_gossip": True})

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
        handle = super().create_task_handler(*args, **kwargs)

        def on_message(message: Message) -> None:
            flaw = _flaw(message)
            if flaw:
                self._dead_letter(message, flaw)
                return
            try:
                handle(message)
            except self.connection_errors + self.channel_errors:
                raise
            except Exception as error:  # noqa: BLE001  (whatever Celery makes of a message, the worker lives)
                self._dead_letter(message, f"not understood: {type(error).__name__}")

        return on_message

    def on_decode_error(self, message: Message, exc: Exception) -> None:
        self._dead_letter(message, f"undecodable: {type(exc).__name__}")

    def on_unknown_task(self, body: Any, message: Message, exc: Exception) -> None:  # noqa: ARG002  (Celery's signature)
        self._dead_letter(message, "unknown task")

    def _dead_letter(self, message: Message, flaw: str) -> None:
        logger.error("message_rejected", extra={"flaw": flaw, "message_id": message.properties.get("message_id")})
        message.reject_log_error(logger, self.connection_errors)


def _flaw(message: Message) -> str | None:
    """What keeps a message from being a task of ours in Celery's protocol 2; None when nothing does."""
    headers = message.headers
    if isinstance(headers, dict) and UNREADABLE in headers:
        return f"unreadable: {headers[UNREADABLE]}"
    if not isinstance(headers, dict) or not isinstance(headers.get("task"), str):
        return "no task header"
    if not isinstance(headers.get("id"), str):
        return "no id header"
    if headers.get("eta") is not None or headers.get("timelimit") not in (None, [None, None]):
        return "eta or timelimit set"
    if not _is_moment(headers.get("expires")) or not isinstance(headers.get("retries", 0), int):
        return "malformed headers"
    return _body_flaw(message)


def _is_moment(text: Any) -> bool:
    try:
        return text is None or bool(datetime.datetime.fromisoformat(text))
    except (TypeError, ValueError):
        return False


def _body_flaw(message: Message) -> str | None:
    try:
        body = message.payload
    except Exception as error:  # noqa: BLE001  (kombu lets every decoder's own errors through)
        return f"undecodable: {type(error).__name__}"
    if not isinstance(body, list) or len(body) != 3:
        return "body is not [args, kwargs, embed]"
    args, kwargs, embed = body
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(embed, dict):
        return "body has parts of the wrong type"
    return "embedded callbacks" if any(embed.values()) else None


class Configuration:
    """Celery's settings; connection and timings come from Django's."""

    from django.conf import settings as _settings

    from pipeline import broker as _broker

    broker_url = _settings.CELERY_BROKER_URL
    broker_connection_timeout = 5
    broker_connection_retry_on_startup = True
    broker_connection_max_retries = None
    broker_channel_error_retry = True
    broker_transport_options = {
        "read_timeout": 15,
        "write_timeout": 15,
        "interval_max": RECONNECT_CAP_SECONDS,
    }
    # Flower inspects with up to eight connections, each of which waits for a second one.
    broker_pool_limit = 16

    task_queues = _broker.QUEUES
    task_default_queue = "control"
    task_default_exchange = _broker.EXCHANGE.name
    task_default_exchange_type = "direct"
    task_default_routing_key = "control"
    task_create_missing_queues = False
    task_serializer = "json"
    accept_content = ["json"]
    task_ignore_result = True
    task_acks_late = True
    task_reject_on_worker_lost = True
    task_send_sent_event = True

    # A worker that lost its machine still holds an exclusive queue for a minute, and its successor of the same name
    # could not start. Durable, because RabbitMQ is giving up transient queues that are not exclusive.
    control_queue_exclusive = False
    control_queue_durable = True
    event_queue_exclusive = False
    event_queue_durable = True

    worker_consumer = "config.celery:StrictConsumer"
    worker_prefetch_multiplier = 1
    worker_enable_prefetch_count_reduction = False
    worker_cancel_long_running_tasks_on_connection_loss = False
    worker_send_task_events = True
    worker_hijack_root_logger = False
    worker_redirect_stdouts = False
    worker_max_tasks_per_child = 500

    # Celery's Django support would open a new database connection for every task, which costs more than a claim, and
    # `recover` trusts no young one. A broken connection is replaced where its error is met (`claims`, `tasks`).
    CELERY_DB_REUSE_MAX = sys.maxsize

    imports = ("pipeline.tasks", "notifications.tasks")
    beat_schedule = {
        name: {"task": f"pipeline.{name}", "schedule": seconds, "options": {"expires": seconds}}
        for name, seconds in (
            ("drain_outbox", _settings.OUTBOX_POLL_SECONDS),
            ("recover", _settings.RECOVER_EVERY_SECONDS),
            ("redispatch", _settings.REDISPATCH_EVERY_SECONDS),
            ("sweep", _settings.SWEEP_EVERY_SECONDS),
            ("reply", _settings.OUTBOX_POLL_SECONDS),
        )
    }


app.config_from_object("config.celery:Configuration")


@setup_logging.connect
def _log_like_django(**_: Any) -> None:
    from django.conf import settings

    logging.config.dictConfig(settings.LOGGING)


@worker_shutting_down.connect
def _tell_children(**_: Any) -> None:
    from pipeline import shutdown

    shutdown.request()


@before_task_publish.connect
def _let_workers_drop_it(properties: dict[str, Any], **_: Any) -> None:
    """What expires is dropped by the worker that takes it: the broker would put it among the dead letters."""
    properties.pop("expiration", None)


@worker_init.connect
@beat_init.connect
def _serve_metrics(**_: Any) -> None:
    scraping.serve()


@beat_init.connect
@celeryd_after_setup.connect
def _refuse_wrong_settings(**_: Any) -> None:
    """Celery swallows what a receiver of its signals raises, but not SystemExit."""
    from config import checks

    try:
        checks.refuse_wrong_settings()
    except ImproperlyConfigured as error:
        logger.critical("wrong_settings", extra={"cause": str(error)})
        raise SystemExit(1) from None


@celeryd_after_setup.connect
def _load_the_bot_api(**_: Any) -> None:
    """Once for all children, and before the first of them answers anybody."""
    from django.conf import settings

    if settings.TELEGRAM_BOT_TOKEN:
        importlib.import_module("notifications.telegram.client")


@celeryd_after_setup.connect
def _prepare(instance: Any, **_: Any) -> None:
    """Clear what a killed predecessor left; and a worker whose decoders do not keep their promise takes no work."""
    from pipeline import confined, registry, scratch

    scratch.clear_abandoned()
    try:
        registry.self_test(queues=set(instance.app.amqp.queues.consume_from))
    except Exception:
        logger.exception("self_test_failed")
        raise SystemExit(1) from None
    finally:
        confined.shut_down()


@worker_process_init.connect
def _begin_child(**_: Any) -> None:
    """Remove what a killed predecessor left, and let this child end itself when it hangs (`deadman`)."""
    from pipeline import deadman, scratch

    scratch.clear_abandoned()
    deadman.enable()


@worker_process_shutdown.connect
def _forget_child(pid: int, **_: Any) -> None:
    scraping.forget(pid)
