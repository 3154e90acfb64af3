"""The admin shows everything there is, to those who may look, and lets nobody change it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from attachments.models import Attachment, StoredObject, Variant
from pipeline import lifecycle, replays, replying
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job, JobEvent, OutboxMessage, Replay
from pipeline.origins import Origin
from pipeline.states import Source
from tests.leases import finish

pytestmark = [
    pytest.mark.django_db,
    # Nothing is collected in a checkout: WhiteNoise finds the files in their packages.
    pytest.mark.filterwarnings("ignore:No directory at:UserWarning"),
]

MODELS: tuple[type[Model], ...] = (Attachment, Variant, StoredObject, Job, JobEvent, OutboxMessage, Replay)


@pytest.fixture
def ready(leased: Callable[..., Lease]) -> Job:
    """A job that went all the way, if only after a replay, so that every table has a row."""
    lease = leased()
    lifecycle.fail(lease, Failure(code="bad_file", sentence="Send an intact copy."))
    act = replays.Act(actor="operator:7:ann", via="test", reason="again", chosen_by={}, matching=1)
    act.replay(replays.Seen(lease.job_id, 1))
    again = lifecycle.claim(lease.job_id, attempt=2, worker="worker-b")
    assert again is not None
    finish(again)
    return Job.objects.get(job_id=lease.job_id)


@pytest.fixture
def failed(leased: Callable[..., Lease]) -> Job:
    lease = leased()
    lifecycle.fail(
        lease, Failure(code="bad_file", sentence="Send an intact copy.", cause="Traceback <b>", step="image")
    )
    return Job.objects.get(job_id=lease.job_id)


def changelist(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def page(model: type[Model], action: str, row: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{action}", args=[row])


def test_every_table_of_ours_is_shown() -> None:
    # Whoever serves the admin loads it.
    assert reverse("admin:index")
    assert {model for model in admin.site._registry if model._meta.app_label in {"attachments", "pipeline"}} == set(
        MODELS
    )


@pytest.mark.parametrize("model", MODELS)
def test_lists_and_pages_render_for_a_superuser(
    admin_client: Client, ready: Job, failed: Job, model: type[Model]
) -> None:
    assert admin_client.get(changelist(model)).status_code == 200
    for row in model._default_manager.all():
        assert admin_client.get(page(model, "change", row.pk)).status_code == 200


@pytest.mark.parametrize(
    "address",
    [
        "/admin/pipeline/job/?error_code=%00",
        "/admin/pipeline/job/?state__exact=%00",
        "/admin/pipeline/job/replay/?error_code=%00",
        "/admin/attachments/storedobject/?bucket_role=%00",
    ],
)
def test_a_filter_that_no_row_can_have_leads_back_to_a_list(admin_client: Client, failed: Job, address: str) -> None:
    answer = admin_client.get(address, follow=True)
    assert (answer.status_code, [status for _, status in answer.redirect_chain]) == (200, [302])


@pytest.mark.parametrize("model", MODELS)
def test_staff_without_permission_sees_nothing(ready: Job, model: type[Model]) -> None:
    client = Client()
    client.force_login(User.objects.create_user("clerk", is_staff=True))
    assert client.get(changelist(model)).status_code == 403
    assert client.get(page(model, "change", model._default_manager.earliest("pk").pk)).status_code == 403


@pytest.mark.parametrize("model", MODELS)
def test_staff_with_permission_to_view_may_look(ready: Job, model: type[Model]) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    client = Client()
    client.force_login(clerk)
    assert client.get(changelist(model)).status_code == 200


@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_added_changed_or_deleted_even_by_a_superuser(
    admin_client: Client, ready: Job, model: type[Model]
) -> None:
    row = model._default_manager.earliest("pk")
    add = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add")
    assert admin_client.get(add).status_code == 403
    assert admin_client.post(page(model, "change", row.pk), {}).status_code == 403
    assert admin_client.post(page(model, "delete", row.pk), {"post": "yes"}).status_code == 403
    selected = {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}
    admin_client.post(changelist(model), selected)
    assert model._default_manager.filter(pk=row.pk).exists()


@pytest.mark.parametrize("model", MODELS)
def test_a_list_counts_nothing_and_asks_no_more_for_more_rows(
    admin_client: Client, leased: Callable[..., Lease], model: type[Model]
) -> None:
    def queries() -> list[str]:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            admin_client.get(changelist(model))
        return [query["sql"] for query in captured.captured_queries]

    finish(leased())
    few = queries()
    for _ in range(3):
        finish(leased())
    many = queries()
    assert len(many) == len(few)
    assert not [sql for sql in many if "COUNT(" in sql.upper()]


def found(client: Client, model: type[Model], term: str) -> set[object]:
    response = client.get(changelist(model), {"q": term})
    return {row.pk for row in response.context["cl"].result_list}


def test_a_job_is_found_by_its_id_its_attachment_and_the_digest_of_its_original(
    admin_client: Client, ready: Job, failed: Job
) -> None:
    for term in (str(ready.job_id), str(ready.attachment_id)):
        assert found(admin_client, Job, term) == {ready.pk}
    # Both sent the same picture.
    assert found(admin_client, Job, ready.attachment.sha256.upper()) == {ready.pk, failed.pk}
    for nobody in (str(uuid.uuid4()), "f" * 64, "' OR 1=1"):
        assert found(admin_client, Job, nobody) == set()


def test_an_attachment_is_found_by_its_id_a_job_the_digest_and_its_owner(
    admin_client: Client, ready: Job, failed: Job
) -> None:
    for term in (str(ready.attachment_id), str(ready.job_id)):
        assert found(admin_client, Attachment, term) == {ready.attachment_id}
    for term in (ready.attachment.sha256, "ann"):
        assert found(admin_client, Attachment, term) == {ready.attachment_id, failed.attachment_id}


def test_what_belongs_to_an_attachment_or_a_job_is_found_by_its_id(
    admin_client: Client, ready: Job, failed: Job
) -> None:
    attachment, job = str(ready.attachment_id), str(ready.job_id)
    assert len(found(admin_client, StoredObject, attachment)) == 4
    assert len(found(admin_client, Variant, attachment)) == 3
    assert len(found(admin_client, JobEvent, job)) == 6
    messages = found(admin_client, OutboxMessage, job)
    (first,), (second,) = (found(admin_client, OutboxMessage, f"{job}:{attempt}") for attempt in (1, 2))
    assert messages == {first, second}
    assert found(admin_client, Replay, job) == {Replay.objects.get().pk}
    assert found(admin_client, Replay, str(failed.job_id)) == set()


def filtered(client: Client, model: type[Model], **filters: str) -> set[object]:
    return {row.pk for row in client.get(changelist(model), filters).context["cl"].result_list}


def test_jobs_are_filtered_by_state_pipeline_and_error_code(admin_client: Client, ready: Job, failed: Job) -> None:
    assert filtered(admin_client, Job, state__exact="failed") == {failed.pk}
    assert filtered(admin_client, Job, pipeline="image") == {ready.pk, failed.pk}
    assert filtered(admin_client, Job, pipeline="store") == set()
    assert filtered(admin_client, Job, error_code="bad_file") == {failed.pk}
    assert filtered(admin_client, Job, error_code="internal_error") == set()


def test_failures_are_filtered_by_step_and_by_how_long_ago_they_were(
    admin_client: Client, ready: Job, failed: Job
) -> None:
    assert filtered(admin_client, Job, error_step="image") == {failed.pk}
    assert filtered(admin_client, Job, error_step="-") == set()
    assert filtered(admin_client, Job, failed_within="hour") == {failed.pk}
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pipeline_job SET error_step = '', finished_at = finished_at - interval '2 hours'")
    assert filtered(admin_client, Job, error_step="-") == {failed.pk}
    assert filtered(admin_client, Job, failed_within="hour") == set()
    assert filtered(admin_client, Job, failed_within="day") == {failed.pk}


def test_attachments_are_filtered_by_what_is_served(admin_client: Client, ready: Job, failed: Job) -> None:
    assert filtered(admin_client, Attachment, served="yes") == {ready.attachment_id}
    assert filtered(admin_client, Attachment, served="no") == {failed.attachment_id}
    assert filtered(admin_client, Attachment, served="deleted") == set()


def test_messages_are_filtered_by_how_far_they_came(admin_client: Client, queued: Callable[..., Job]) -> None:
    fresh, stuck, sent = (OutboxMessage.objects.get(job=queued()).pk for _ in range(3))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pipeline_outbox SET due_at = now() - interval '2 minutes' WHERE id = %s", [stuck])
        cursor.execute("UPDATE pipeline_outbox SET sent_at = now() WHERE id = %s", [sent])
    assert filtered(admin_client, OutboxMessage, sent="no") == {fresh, stuck}
    assert filtered(admin_client, OutboxMessage, sent="overdue") == {stuck}
    assert filtered(admin_client, OutboxMessage, sent="yes") == {sent}


def test_one_can_walk_from_an_attachment_to_its_job_its_events_and_its_message(
    admin_client: Client, failed: Job
) -> None:
    message = OutboxMessage.objects.get(job=failed)
    attachment_page = admin_client.get(page(Attachment, "change", failed.attachment_id)).content.decode()
    assert page(Job, "change", failed.pk) in attachment_page
    job_page = admin_client.get(page(Job, "change", failed.pk)).content.decode()
    assert page(OutboxMessage, "change", message.pk) in job_page
    assert page(Attachment, "change", failed.attachment_id) in job_page
    assert [reason for reason in ("accepted", "claimed", "bad_file") if reason not in job_page] == []
    assert "Traceback &lt;b&gt;" in job_page


def test_a_jobs_page_says_why_its_sender_got_no_answer(
    admin_client: Client, queued: Callable[..., Job], leased: Callable[..., Lease]
) -> None:
    job = queued(origin=Origin(Source.TELEGRAM, chat_id=77))
    finish(leased(job))
    replying.reply(job.job_id, actor="worker-a")
    shown = admin_client.get(page(Job, "change", job.pk)).content.decode()
    for words in ("Undelivered", "not_configured", "reply_undelivered"):
        assert words in shown


def test_a_message_leads_to_its_delivery_in_flower(
    admin_client: Client, queued: Callable[..., Job], settings: Any
) -> None:
    message = OutboxMessage.objects.get(job=queued())
    settings.FLOWER_URL = "http://flower.example/"
    shown = admin_client.get(page(OutboxMessage, "change", message.pk)).content.decode()
    assert f'href="http://flower.example/task/{message.message_id}"' in shown
