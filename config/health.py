"""How the web process and what it leans on are doing, for probes and for Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.conf import settings
from django.db import Error, OperationalError, connection, transaction
from django.db.models import Count, Min, Q
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from attachments import storage
from attachments.errors import AttachmentError
from config import scraping
from pipeline.models import Job, OutboxMessage
from pipeline.states import Runner, State

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@require_safe
def healthz(_: HttpRequest) -> HttpResponse:
    """200 while the process lives; it asks nobody."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(_: HttpRequest) -> HttpResponse:
    """200 when an upload would be accepted, else 503 with the part that is not there.

    The broker is no such part: uploads are safe without it. How long the oldest message waits for it is told.
    """
    parts: dict[str, object] = {}
    is_ready = all([_probe("database", _outbox_age, parts), _probe("storage", storage.check, parts)])
    status = "ready" if is_ready else "unavailable"
    return JsonResponse({"status": status, **parts}, status=200 if is_ready else 503)


@require_safe
def metrics(_: HttpRequest) -> HttpResponse:
    """What this process counted (all of them where PROMETHEUS_MULTIPROC_DIR is set), and the database's gauges."""
    return HttpResponse(generate_latest(scraping.counted()) + generate_latest(_stock), content_type=CONTENT_TYPE_LATEST)


class Stock(Collector):
    """What the database holds, asked at each scrape; a figure that it does not tell in time is left out."""

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield from ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        is_up = _answer(_is_up) is not None
        yield _gauge("holdfast_database_up", "1 while the database answers.", int(is_up))
        if is_up:
            yield from filter(None, map(_answer, (_oldest_unsent, _oldest_queued, _dead, _jobs)))


def _answer(ask: Callable[[], Answer]) -> Answer | None:
    try:
        with _short_queries():
            return ask()
    except Error as error:
        logger.warning("scrape_without_answer", extra={"figure": ask.__name__, "cause": type(error).__name__})
        return None


def _is_up() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return True


def _probe(part: str, ask: Callable[[], dict[str, object] | None], parts: dict[str, object]) -> bool:
    try:
        parts.update(ask() or {})
        parts[part] = "ok"
    except (Error, AttachmentError) as error:
        logger.warning("not_ready", extra={"part": part, "cause": str(error)})
        parts[part] = "unavailable"
    return parts[part] == "ok"


def _outbox_age() -> dict[str, object]:
    with _short_queries(), connection.cursor() as cursor:
        # After a failover the address may lead to a standby, which takes no uploads.
        cursor.execute("SELECT current_setting('transaction_read_only') = 'on'")
        (is_read_only,) = cursor.fetchone() or (False,)
        if is_read_only:
            raise OperationalError("the database is read-only")
        return {"oldest_unsent_seconds": round(_unsent_seconds(), 1)}


@contextmanager
def _short_queries() -> Iterator[None]:
    """A probe must answer before its asker gives up."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = '2s'")
        yield


def _jobs() -> GaugeMetricFamily:
    counted = dict(Job.objects.values_list("state").annotate(count=Count("*")))
    gauge = GaugeMetricFamily("holdfast_jobs", "Jobs by state.", labels=["state"])
    for state in State.values:
        gauge.add_metric([state], counted.get(state, 0))
    return gauge


def _dead() -> GaugeMetricFamily:
    dead = Job.objects.filter(state=State.FAILED, failures__gte=settings.MAX_FAILURES).count()
    return _gauge("holdfast_dead_jobs", "Failed jobs that have no chances left.", dead)


def _oldest_queued() -> GaugeMetricFamily:
    waiting = Job.objects.filter(state=State.QUEUED, runner=Runner.WORKER, due_at__lte=Now())
    oldest = waiting.aggregate(age=Now() - Min("due_at"))["age"]
    seconds = oldest.total_seconds() if oldest else 0
    return _gauge("holdfast_oldest_queued_seconds", "For how long the oldest due job has waited to be taken.", seconds)


def _oldest_unsent() -> GaugeMetricFamily:
    return _gauge(
        "holdfast_oldest_unsent_seconds",
        "For how long the oldest due message has waited for the broker.",
        _unsent_seconds(),
    )


def _unsent_seconds() -> float:
    due = Q(sent_at__isnull=True, due_at__lte=Now())
    oldest = OutboxMessage.objects.filter(due).aggregate(age=Now() - Min("due_at"))["age"]
    return float(oldest.total_seconds()) if oldest else 0.0


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=value)


_stock = CollectorRegistry()
_stock.register(Stock())
