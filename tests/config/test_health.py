"""What probes and Prometheus are told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from pipeline import lifecycle
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job, OutboxMessage
from tests.attachments.conftest import Door, form, serve

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _collected_static_files(settings: Any, tmp_path: Path) -> None:
    """WhiteNoise warns where `collectstatic` was never run."""
    settings.STATIC_ROOT = str(tmp_path)


@pytest.mark.parametrize("path", ["/healthz", "/healthcheck"])
def test_a_living_process_says_so_without_asking_the_database(
    client: Client, django_assert_num_queries: Any, path: str
) -> None:
    with django_assert_num_queries(0):
        response = client.get(path)
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_ready_means_that_an_upload_would_be_accepted(client: Client) -> None:
    response = client.get("/readyz")
    assert response.status_code == 200
    assert response.json() == {"status": "ready", "database": "ok", "storage": "ok", "oldest_unsent_seconds": 0.0}


def test_a_message_that_waits_for_the_broker_is_told_and_makes_nothing_unready(
    client: Client, queued: Callable[..., Job]
) -> None:
    queued()
    OutboxMessage.objects.update(due_at=Now() - timedelta(minutes=5))
    response = client.get("/readyz")
    assert response.status_code == 200
    assert response.json()["oldest_unsent_seconds"] >= 300


def test_a_storage_that_is_away_makes_the_process_unready(client: Client, settings: Any) -> None:
    bucket = Path(settings.STORAGE_ROOT) / settings.STORAGE_BUCKET
    bucket.rename(bucket.with_name("unmounted"))
    response = client.get("/readyz")
    assert response.status_code == 503
    assert (response.json()["storage"], response.json()["database"]) == ("unavailable", "ok")


def samples(client: Client) -> dict[tuple[str, str], float]:
    text = client.get("/metrics").content.decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, sample.labels.get("state", "")): sample.value for family in families for sample in family.samples
    }


def test_the_metrics_tell_what_the_database_holds(
    client: Client, queued: Callable[..., Job], leased: Callable[..., Lease], settings: Any
) -> None:
    queued()
    Job.objects.update(due_at=Now() - timedelta(minutes=5))
    OutboxMessage.objects.update(due_at=Now() - timedelta(minutes=7))
    lease = leased()
    Job.objects.filter(job_id=lease.job_id).update(failures=settings.MAX_FAILURES - 1)
    lifecycle.fail(lease, Failure(code="internal_error", sentence="Something went wrong."))
    found = samples(client)
    assert found["holdfast_database_up", ""] == 1
    assert [found["holdfast_jobs", state] for state in ("queued", "processing", "ready", "failed")] == [1, 0, 0, 1]
    assert found["holdfast_dead_jobs", ""] == 1
    assert 300 <= found["holdfast_oldest_queued_seconds", ""] < 400
    assert 420 <= found["holdfast_oldest_unsent_seconds", ""] < 500


@pytest.mark.django_db(transaction=True)
def test_one_figure_that_takes_too_long_hides_no_other(client: Client, queued: Callable[..., Job]) -> None:
    queued()
    with closing(connection.copy()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE pipeline_job IN ACCESS EXCLUSIVE MODE")
        found = samples(client)
    assert found["holdfast_database_up", ""] == 1
    assert found["holdfast_oldest_unsent_seconds", ""] >= 0
    assert ("holdfast_jobs", "queued") not in found


def test_the_metrics_tell_what_this_process_counted(client: Client, queued: Callable[..., Job]) -> None:
    queued()
    assert 'holdfast_accepted_total{pipeline="image",source="rest"}' in client.get("/metrics").content.decode()


@pytest.fixture
def door(user: User) -> Door:
    return Door(user)


@pytest.mark.django_db(transaction=True)
def test_any_web_process_tells_what_all_of_them_counted(door: Door, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    options = {"WEB_WORKERS": "2", "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "shared")}
    with contextmanager(serve)(tmp_path / "web", **options) as web:
        for _ in range(6):
            assert web.send(form(), door.token).status_code == 202
        told = [web.ask("GET", "/metrics").content.decode() for _ in range(4)]
    assert all('holdfast_accepted_total{pipeline="image",source="rest"} 6.0' in text for text in told)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_only_look(client: Client, path: str) -> None:
    assert client.post(path).status_code == 405
