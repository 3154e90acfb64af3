"""Replay in the admin: only those with the permission, only what they saw, only once, and never by a GET."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core import signing
from django.db import connection
from django.test import Client
from django.urls import reverse

from attachments.models import BucketRole, StoredObject
from pipeline import admin_replay, lifecycle
from pipeline.failures import Failure
from pipeline.models import Job, JobEvent, OutboxMessage, Replay
from pipeline.states import State

pytestmark = [
    pytest.mark.django_db,
    # Nothing is collected in a checkout: WhiteNoise finds the files in their packages.
    pytest.mark.filterwarnings("ignore:No directory at:UserWarning"),
]

LIST = "/admin/pipeline/job/"
REPLAY = "/admin/pipeline/job/replay/"
FAILURES = "/admin/pipeline/job/failures/"


def staff(name: str, *permissions: str, **options: Any) -> Client:
    person = User.objects.create_user(name, is_staff=True)
    person.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(**options)
    client.force_login(person)
    return client


@pytest.fixture
def operator() -> Client:
    return staff("olga", "view_job", "view_jobevent", "view_replay", "replay_job")


def ticket_on(page: Any) -> str:
    found = re.search(r'name="ticket" value="([^"]+)"', page.content.decode())
    assert found, page.content.decode()
    return unescape(found[1])


def confirm(client: Client, address: str = REPLAY, **changes: str) -> Any:
    """Look at the page and send it, as a person would."""
    sent = {"ticket": ticket_on(client.get(address)), "reason": "decoder updated", "per_second": "10", **changes}
    return client.post(address, sent, follow=True)


def states() -> set[tuple[str, int]]:
    return set(Job.objects.values_list("state", "attempt"))


def shown(response: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def test_everything_that_the_lists_filter_shows_is_replayed_and_nothing_else(
    operator: Client, failed: Callable[..., Job]
) -> None:
    bad = {failed().job_id, failed().job_id}
    failed(code="time_limit"), failed(step="fetch")
    address = f"{LIST}?state__exact=failed&error_code=bad_file&error_step=image&pipeline=image"
    link = re.search(r'href="([^"]+)">Replay everything', operator.get(address).content.decode())
    assert link
    page = operator.get(unescape(link[1]))
    assert "2 of 2 failed jobs will be put back to work" in shown(page)
    response = confirm(operator, unescape(link[1]))
    act = Replay.objects.get()
    assert response.redirect_chain == [(reverse("admin:pipeline_replay_change", args=[act.pk]), 302)]
    assert "2 replayed." in shown(response)
    assert act.chosen_by == {
        "state__exact": "failed",
        "error_code": "bad_file",
        "error_step": "image",
        "pipeline": "image",
    }
    assert (act.via, act.reason, act.matching) == ("admin", "decoder updated", 2)
    assert act.actor == f"operator:{User.objects.get(username='olga').pk}:olga"
    assert {line.job_id for line in act.jobs.all()} == bad
    assert set(Job.objects.filter(state=State.QUEUED).values_list("job_id", flat=True)) == bad


def test_selected_jobs_are_replayed_as_the_page_showed_them(operator: Client, failed: Callable[..., Job]) -> None:
    chosen, other = failed(), failed()
    selected = {"action": "replay_selected", "_selected_action": [str(chosen.job_id)]}
    ((address, _),) = operator.post(LIST, selected, follow=True).redirect_chain
    assert states() == {(State.FAILED, 1)}
    confirm(operator, address)
    assert Job.objects.get(job_id=chosen.job_id).state == State.QUEUED
    assert Job.objects.get(job_id=other.job_id).state == State.FAILED
    assert Replay.objects.get().chosen_by == {"jobs": [str(chosen.job_id)]}


def test_a_selection_across_pages_means_the_lists_filter(operator: Client, failed: Callable[..., Job]) -> None:
    job = failed()
    failed(code="time_limit")
    selected = {"action": "replay_selected", "_selected_action": [str(job.job_id)], "select_across": "1"}
    response = operator.post(f"{LIST}?error_code=bad_file", selected)
    assert response.headers["Location"] == f"{REPLAY}?error_code=bad_file"


def test_a_job_is_replayed_from_its_page_and_the_timeline_says_who_and_why(
    operator: Client, failed: Callable[..., Job], queued: Callable[..., Job]
) -> None:
    job = failed()
    address = reverse("admin:pipeline_job_change", args=[job.job_id])
    button = f"{LIST}{job.job_id}/replay/"
    assert button in operator.get(address).content.decode()
    waiting = queued().job_id
    waiting_page = operator.get(reverse("admin:pipeline_job_change", args=[waiting])).content.decode()
    assert f"{waiting}/replay/" not in waiting_page
    confirm(operator, operator.get(button).headers["Location"])
    page = operator.get(address)
    assert button not in page.content.decode()
    event = JobEvent.objects.get(job=job, reason="replay")
    assert f"{event.actor} decoder updated" in shown(page)
    assert reverse("admin:pipeline_replay_change", args=[Replay.objects.get().pk]) in page.content.decode()


def test_sending_a_page_twice_does_nothing_twice(operator: Client, failed: Callable[..., Job]) -> None:
    """Nor when the job failed again since: that failure was on no page yet."""
    job = failed()
    sent = {"ticket": ticket_on(operator.get(REPLAY)), "reason": "again", "per_second": "10"}
    operator.post(REPLAY, sent)
    assert "1 not failed any more." in shown(operator.post(REPLAY, sent, follow=True)).lower()
    lease = lifecycle.claim(job.job_id, attempt=2, worker="w")
    assert lease is not None
    lifecycle.fail(lease, Failure(code="bad_file", sentence="Damaged again."))
    operator.post(REPLAY, sent)
    assert states() == {(State.FAILED, 2)}
    assert (Replay.objects.count(), OutboxMessage.objects.count()) == (1, 2)


def test_a_page_over_the_limit_says_so_and_does_not_go_on_when_sent_again(
    operator: Client, failed: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_replay, "ACT_LIMIT", 2)
    for _ in range(3):
        failed()
    page = operator.get(REPLAY)
    assert "2 of 3 failed jobs will be put back" in shown(page)
    assert "1 more match than one act may replay" in shown(page)
    sent = {"ticket": ticket_on(page), "reason": "again", "per_second": "10"}
    operator.post(REPLAY, sent), operator.post(REPLAY, sent)
    assert Job.objects.filter(state=State.QUEUED).count() == 2


def test_the_page_counts_by_code_and_what_has_no_original(operator: Client, failed: Callable[..., Job]) -> None:
    failed(), failed(code="time_limit", step="")
    StoredObject.objects.filter(attachment=failed().attachment_id).update(bucket_role=BucketRole.TRASH)
    page = shown(operator.get(REPLAY))
    assert "2 of 3 failed jobs will be put back" in page
    assert "1 cannot be replayed: the original is no longer kept" in page
    assert re.search(r"bad_file image 2 1 .* time_limit - 1 0 ", page)


def test_where_nothing_can_be_replayed_the_page_offers_nothing(operator: Client, queued: Callable[..., Job]) -> None:
    queued()
    page = operator.get(REPLAY).content.decode()
    assert "0 of 0 failed jobs" in page
    assert 'name="ticket"' not in page


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": ""},
        {"reason": " \t "},
        {"reason": "..."},
        {"reason": "x" * 501},
        {"reason": "a\x00"},
        {"per_second": "0"},
        {"per_second": "nan"},
        {"per_second": ""},
    ],
    ids=str,
)
def test_without_a_usable_reason_and_rate_the_page_is_shown_again(
    operator: Client, failed: Callable[..., Job], changes: dict[str, str]
) -> None:
    failed()
    response = confirm(operator, **changes)
    assert (response.status_code, response.redirect_chain) == (200, [])
    assert response.context["form"].errors.keys() == changes.keys()
    assert 'name="ticket"' in response.content.decode()
    assert states() == {(State.FAILED, 1)}


def test_a_ticket_that_was_changed_lent_or_left_lying_replays_nothing(
    operator: Client, failed: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = failed()
    ticket = ticket_on(operator.get(REPLAY))
    forged = signing.dumps(({}, 1, [(str(job.job_id), 1)]))
    for wrong in ("", "x", forged, ticket[:-1], ticket.upper()):
        response = confirm(operator, ticket=wrong)
        assert "That page was too old" in shown(response)
    confirm(staff("bob", "view_job", "replay_job"), ticket=ticket)
    monkeypatch.setattr(admin_replay, "TICKET_SECONDS", -1)
    confirm(operator)
    assert states() == {(State.FAILED, 1)}
    assert not Replay.objects.exists()


def test_a_get_changes_nothing(operator: Client, failed: Callable[..., Job]) -> None:
    failed()
    ticket = ticket_on(operator.get(REPLAY))
    for address in (REPLAY, FAILURES):
        operator.get(address, {"ticket": ticket, "reason": "why", "per_second": "10"})
    assert states() == {(State.FAILED, 1)}


def test_without_the_permission_there_is_neither_button_nor_page(failed: Callable[..., Job]) -> None:
    job = failed()
    clerk = staff("clerk", "view_job", "view_replay")
    list_page = clerk.get(LIST).content.decode()
    assert [word for word in ("Replay everything", "replay_selected") if word in list_page] == []
    job_page = clerk.get(reverse("admin:pipeline_job_change", args=[job.job_id])).content.decode()
    assert f"{job.job_id}/replay/" not in job_page
    failures_page = clerk.get(FAILURES).content.decode()
    assert ("bad_file" in failures_page, REPLAY in failures_page) == (True, False)
    ticket = ticket_on(staff("olga", "view_job", "replay_job").get(REPLAY))
    sent = {"ticket": ticket, "reason": "why", "per_second": "10"}
    for address in (REPLAY, f"{LIST}{job.job_id}/replay/"):
        assert clerk.get(address).status_code == 403
        assert clerk.post(address, sent).status_code == 403
    clerk.post(LIST, {"action": "replay_selected", "_selected_action": [str(job.job_id)]}, follow=True)
    # The permission to replay alone shows nobody the jobs.
    assert staff("blind", "replay_job").get(REPLAY).status_code == 403
    assert staff("nobody").get(FAILURES).status_code == 403
    assert states() == {(State.FAILED, 1)}


def test_a_page_of_another_site_cannot_replay(failed: Callable[..., Job]) -> None:
    failed()
    client = staff("olga", "view_job", "replay_job", enforce_csrf_checks=True)
    sent = {"ticket": ticket_on(client.get(REPLAY)), "reason": "why", "per_second": "10"}
    assert client.post(REPLAY, sent).status_code == 403
    assert states() == {(State.FAILED, 1)}


@pytest.mark.parametrize("query", ["job_id__in=nonsense", "nonsense=1", "state__exact__x=1"])
def test_an_address_that_means_no_list_replays_nothing(
    operator: Client, failed: Callable[..., Job], query: str
) -> None:
    failed()
    response = operator.get(f"{REPLAY}?{query}")
    assert (response.status_code, response.headers["Location"]) == (302, LIST)


def test_failures_are_grouped_by_code_and_step_with_ways_to_their_list_and_their_replay(
    operator: Client, failed: Callable[..., Job]
) -> None:
    first, last = failed(code="time_limit", step=""), failed(code="time_limit", step="")
    failed()
    page = operator.get(FAILURES)
    times = [f"{job.finished_at:%F %T}" for job in (first, last) if job.finished_at]
    assert f"time_limit - 2 0 {' '.join(times)} Replay…" in shown(page)
    links = [unescape(link) for link in re.findall(r'href="([^"]+error_code=time_limit[^"]+)"', page.content.decode())]
    assert [link.partition("?")[0] for link in links] == [LIST, REPLAY]
    jobs = {job.pk for job in operator.get(links[0]).context["cl"].result_list}
    assert jobs == {first.pk, last.pk}
    confirm(operator, links[1])
    assert set(Job.objects.filter(state=State.QUEUED).values_list("job_id", flat=True)) == jobs


def test_an_act_shows_who_why_and_every_job_before_and_after(operator: Client, failed: Callable[..., Job]) -> None:
    job = failed()
    page = shown(confirm(operator))
    assert "decoder updated" in page
    assert f"{job.job_id} state failed, attempt 1, failures 1, error code bad_file, error step image" in page
    assert "state queued, attempt 2, failures 0" in page
    assert operator.post(reverse("admin:pipeline_replay_change", args=[Replay.objects.get().pk])).status_code == 403


def test_an_act_that_the_database_breaks_off_tells_what_was_done(operator: Client, failed: Callable[..., Job]) -> None:
    failed()
    broken = failed()
    # The message of its next attempt is there already, so it cannot be written.
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pipeline_outbox SET attempt = 2 WHERE job_id = %s", [broken.job_id])
    page = shown(confirm(operator))
    assert "Broken off by an error of the database" in page
    assert "1 replayed." in page
    assert Job.objects.get(job_id=broken.job_id).state == State.FAILED
    assert Replay.objects.get().jobs.count() == 1
