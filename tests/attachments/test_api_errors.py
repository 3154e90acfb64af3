"""Every error says what is wrong in the same shape, whoever raised it; and the schema that promises so."""

from __future__ import annotations

import uuid

import pytest
from django.core.management import call_command
from django.test import Client

from tests.attachments.conftest import URL, Door, assert_problem

pytestmark = pytest.mark.django_db

NOBODYS = uuid.UUID(int=0)


@pytest.mark.parametrize(("method", "path"), [("PUT", ""), ("PATCH", f"{NOBODYS}/"), ("POST", f"{NOBODYS}/original/")])
def test_a_method_that_is_not_there_is_told_which_are(door: Door, method: str, path: str) -> None:
    response = door.client.generic(method, URL + path)
    assert "Allow" in assert_problem(response, 405, "method_not_allowed")["detail"]
    assert "GET" in response.headers["Allow"]


@pytest.mark.parametrize(
    ("headers", "code"),
    [({}, "not_authenticated"), ({"Authorization": "Token wrong"}, "authentication_failed")],
)
def test_who_sends_no_token_or_a_wrong_one_is_told_how(client: Client, headers: dict[str, str], code: str) -> None:
    response = client.get(URL, headers=headers)
    assert "Authorization: Token <token>" in assert_problem(response, 401, code)["detail"]


@pytest.mark.parametrize(
    "path", ["/api/v1/nothing/", "/api/", "/api/v1/attachments", f"/api/v1/attachments/{NOBODYS}/x/"]
)
def test_an_address_that_is_not_there_is_a_problem_too(door: Door, path: str) -> None:
    for method in ("GET", "POST"):
        assert_problem(door.client.generic(method, path), 404, "not_found")


def test_an_answer_that_cannot_be_in_the_type_asked_for_is_406(door: Door) -> None:
    assert_problem(door.get(Accept="text/html"), 406, "not_acceptable")


def test_an_address_for_people_keeps_its_page(client: Client) -> None:
    response = client.get("/nothing")
    assert (response.status_code, response.headers["Content-Type"]) == (404, "text/html; charset=utf-8")


def test_an_unexpected_error_says_nothing_but_its_trace(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("attachments.listing.find_status", explode)
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    response = door.get(f"{NOBODYS}/", traceparent=trace)
    assert assert_problem(response, 500, "internal_error")["trace_id"] == "a" * 32
    assert b"secret" not in response.content


def test_an_error_outside_of_a_view_is_a_problem_as_well(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("django.middleware.common.CommonMiddleware.process_response", explode)
    door.client.raise_request_exception = False
    response = door.get(f"{NOBODYS}/")
    assert_problem(response, 500, "internal_error")
    assert b"secret" not in response.content


def test_a_host_that_is_not_ours_is_a_bad_request(door: Door) -> None:
    assert_problem(door.client.get(URL, headers={"Host": "evil.example"}), 400, "bad_request")


def test_the_schema_is_valid_and_names_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("spectacular", "--validate", "--fail-on-warn", "--format", "openapi-json")
    schema = capsys.readouterr().out
    for operation in ("create", "list", "retrieve", "destroy", "original", "variant"):
        assert f'"attachments_{operation}"' in schema


def test_the_schema_and_its_page_are_served(door: Door) -> None:
    assert door.get("/api/v1/schema/", Accept="application/json").json()["openapi"].startswith("3.")
    assert door.get("/api/v1/docs/").status_code == 200


def test_the_bare_address_leads_to_the_page_of_the_api(client: Client) -> None:
    response = client.get("/")
    assert (response.status_code, response.headers["Location"]) == (302, "/api/v1/docs/")
