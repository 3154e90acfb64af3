"""Sending a file: 202 means safe, and whatever is not answered with 202 leaves nothing behind."""

from __future__ import annotations

import hashlib
import io
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.db import connection
from django.test import Client, RequestFactory

from attachments import storage
from attachments.models import Attachment, BucketRole, StoredObject
from attachments.problems import Problem
from attachments.upload import Body
from pipeline import metrics
from pipeline.models import Job, OutboxMessage
from tests.attachments.conftest import URL, Door, Form, assert_problem, field_part, file_part, form, nothing_is_left
from tests.pictures import jpeg, png

pytestmark = pytest.mark.django_db


def stored_bytes(stored: StoredObject) -> bytes:
    with storage.open_object(stored.bucket, stored.key) as stream:
        return b"".join(stream)


def test_an_accepted_file_is_stored_whole_with_its_job_and_message(door: Door) -> None:
    data = jpeg()
    response = door.send(form(data))
    assert response.status_code == 202
    body = response.json()
    attachment = Attachment.objects.get(owner=door.owner)
    job = Job.objects.get(attachment=attachment)
    assert body == {
        "id": str(attachment.id),
        "job_id": str(job.job_id),
        "state": "queued",
        "attempt": 1,
        "pipeline": "image",
        "pipeline_version": 1,
        "filename": "photo.jpg",
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "content_type": "image/jpeg",
        "created_at": attachment.created_at.isoformat().replace("+00:00", "Z"),
    }
    assert response.headers["Location"] == f"http://testserver{URL}{attachment.id}/"
    assert response.headers["Retry-After"] == "1"
    assert response.headers["Cache-Control"] == "private, no-store"
    original = StoredObject.objects.get(attachment=attachment)
    assert original.bucket_role == BucketRole.STAGING
    assert stored_bytes(original) == data
    assert OutboxMessage.objects.filter(job=job, sent_at__isnull=True).count() == 1


def test_the_fields_may_come_before_or_after_the_file(door: Door) -> None:
    data = jpeg()
    fields = {"pipeline": "image", "language": "pt-BR", "sha256": hashlib.sha256(data).hexdigest().upper()}
    parts = [field_part(name, value) for name, value in fields.items()]
    for order in ([*parts, file_part(data)], [file_part(data), *parts]):
        assert door.send(Form(tuple(order))).status_code == 202
    assert set(Attachment.objects.values_list("requested_pipeline", "language")) == {("image", "pt-BR")}


def test_the_type_comes_from_the_bytes_and_the_claim_is_only_kept(door: Door) -> None:
    sent = Form((file_part(png(), name="report.pdf", kind="application/pdf"),))
    assert door.send(sent).json()["content_type"] == "image/png"
    attachment = Attachment.objects.get()
    assert (attachment.name, attachment.claimed_type) == ("report.pdf", "application/pdf")


NAMES = {
    "../../etc/passwd": "passwd",
    "C:\\Users\\ann\\photo.jpg": "photo.jpg",
    "..": "..",
    "/": "",
    "фото 🏞️.jpg": "фото 🏞️.jpg",
    "gpj.\u202eexe": "gpj.exe",
    "a\u2028b\x00\x1b[31m.jpg": "ab[31m.jpg",
    "&amp;.jpg": "&amp;.jpg",
    "n" * 300 + ".jpeg": "n" * 250 + ".jpeg",
    "<script>alert(1)</script>.jpg": "script>.jpg",
}


@pytest.mark.parametrize("claimed", NAMES)
def test_a_name_is_data_and_never_part_of_a_key(door: Door, claimed: str) -> None:
    response = door.send(Form((file_part(jpeg(), name=claimed),)))
    assert response.status_code == 202
    body = response.json()
    assert body["filename"] == NAMES[claimed]
    assert StoredObject.objects.get().key == f"attachments/{body['id']}/original"


def test_the_same_key_gives_the_same_bytes_of_answer(door: Door) -> None:
    first = door.send(key="one")
    again = door.send(key="one")
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.content == first.content
    assert again.headers["Location"] == first.headers["Location"]
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert Attachment.objects.count() == Job.objects.count() == StoredObject.objects.count() == 1


@pytest.mark.parametrize("other", [form(png()), form(language="de"), form(pipeline="image")])
def test_the_same_key_with_another_file_or_other_parameters_is_refused(door: Door, other: Form) -> None:
    door.send(key="one")
    assert_problem(door.send(other, key="one"), 422, "idempotency_key_reused")
    assert Attachment.objects.count() == StoredObject.objects.count() == 1


def test_the_keys_of_two_owners_have_nothing_to_do_with_each_other(door: Door, other_door: Door) -> None:
    assert door.send(key="one").json()["id"] != other_door.send(form(png()), key="one").json()["id"]


@pytest.mark.parametrize("key", ["", "k" * 256, "caf\xe9", "tab\there"])
def test_a_key_that_is_no_plain_text_of_up_to_255_characters_is_refused(door: Door, key: str) -> None:
    assert "Idempotency-Key" in assert_problem(door.send(key=key), 422, "invalid")["errors"]
    assert nothing_is_left()


PDF = b"%PDF-1.7\n" + b"0" * 2000
REFUSED: dict[str, tuple[Form, int, str]] = {
    "empty": (form(b""), 422, "empty_file"),
    "of a kind that has no pipeline": (form(PDF), 415, "unsupported_type"),
    "too many pixels": (form(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\x03\0\0\0\x03\0\0\x08\0\0\0\0"), 422, "too_many_pixels"),
    "other bytes than announced": (form(sha256="0" * 64), 422, "digest_mismatch"),
    "for another pipeline": (form(pipeline="speech"), 415, "pipeline_unavailable"),
    "with a second file": (Form((file_part(jpeg()), file_part(png()))), 422, "too_many_files"),
    "in another field": (Form((file_part(jpeg(), field="upload"),)), 422, "unknown_field"),
    "without a file": (Form((field_part("language", "en"),)), 422, "file_missing"),
    "with the file as text": (Form((field_part("file", "hello"),)), 422, "file_missing"),
    "with an unknown field": (form(colour="red"), 422, "invalid"),
    "with a field twice": (
        Form((field_part("language", "en"), field_part("language", "de"), file_part(jpeg()))), 422, "invalid",
    ),
    "with a bad language": (form(language="klingon as spoken"), 422, "invalid"),
    "with a bad pipeline": (form(pipeline="Image\x00"), 422, "invalid"),
    "with a bad digest": (form(sha256="0" * 63), 422, "invalid"),
    "with too large a field": (form(language="e" * 3_000_000), 413, "form_too_large"),
    "with too many fields": (
        Form((*(field_part(f"f{number}", "") for number in range(1100)), file_part(jpeg()))), 400, "bad_request",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_accepted_is_refused_with_its_code_and_leaves_nothing(door: Door, case: str) -> None:
    sent, status, code = REFUSED[case]
    assert_problem(door.send(sent), status, code)
    assert nothing_is_left()


def whole() -> bytes:
    return form(jpeg(1600, 1200)).body


def test_refusals_are_counted_by_code(door: Door) -> None:
    def counted() -> float:
        return float(metrics.REFUSED.labels(code="idempotency_key_reused")._value.get())

    before = counted()
    door.send(key="one")
    door.send(form(png()), key="one")
    assert counted() == before + 1


MALFORMED: dict[str, Callable[[], bytes]] = {
    "no closing delimiter": lambda: whole()[: -len("--frontier--\r\n")],
    "cut in the file": lambda: whole()[:5000],
    "cut in the delimiter": lambda: whole()[:-8],
    "no form at all": lambda: b"just some text",
    "another boundary": lambda: whole().replace(b"--frontier", b"--elsewhere"),
    "a header that never ends": lambda: b"--frontier\r\nContent-Disposition: form-data; name=" + b"x" * 9000,
    "bad base64": lambda: Form((b"Content-Transfer-Encoding: base64\r\n" + file_part(b"?"),)).body,
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_multipart_leaves_nothing(door: Door, case: str) -> None:
    response = door.client.generic("POST", URL, MALFORMED[case](), content_type=form().content_type)
    assert_problem(response, 400, "malformed_multipart")
    assert nothing_is_left()


@pytest.mark.parametrize("boundary", ["", "; boundary=", "; boundary=" + "x" * 300])
def test_multipart_without_a_usable_boundary_is_malformed(door: Door, boundary: str) -> None:
    response = door.client.generic("POST", URL, whole(), content_type=f"multipart/form-data{boundary}")
    assert_problem(response, 400, "malformed_multipart")


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded", "image/jpeg", ""])
def test_what_is_not_multipart_is_an_unsupported_media_type(door: Door, kind: str) -> None:
    assert_problem(door.client.generic("POST", URL, jpeg(), content_type=kind), 415, "unsupported_media_type")


def test_a_form_without_its_length_is_refused(door: Door) -> None:
    response = door.client.request(PATH_INFO=URL, REQUEST_METHOD="POST", CONTENT_TYPE=form().content_type)
    assert_problem(response, 411, "length_required")


def test_a_client_that_falls_silent_does_not_keep_its_thread(rf: RequestFactory) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb") as stream:
        theirs.sendall(b"--frontier")
        environ: dict[str, Any] = {"wsgi.input": stream, "gunicorn.socket": ours, "CONTENT_LENGTH": "1000"}
        body = Body(rf.post(URL, **environ))
        with pytest.raises(Problem) as refusal:
            body.read(silence_seconds=0.05)
        assert refusal.value.code == "body_incomplete"
        body.drain()  # gives up at once


class Unreadable(io.BytesIO):
    """A body that must not be touched."""

    def read(self, *_: Any) -> bytes:
        raise AssertionError("The body was read.")


def test_too_large_an_announcement_is_refused_before_a_byte_is_read(door: Door, settings: Any) -> None:
    announced = settings.MAX_UPLOAD_BYTES * 2
    response = door.client.request(
        PATH_INFO=URL,
        REQUEST_METHOD="POST",
        CONTENT_TYPE=form().content_type,
        CONTENT_LENGTH=str(announced),
        **{"wsgi.input": Unreadable()},
    )
    assert assert_problem(response, 413, "file_too_large")["limit"] == settings.MAX_UPLOAD_BYTES


def test_a_file_that_turns_out_too_large_is_refused_and_left_nowhere(door: Door, settings: Any) -> None:
    settings.MAX_UPLOAD_BYTES = 300_000
    assert_problem(door.send(form(jpeg() + b"0" * 300_000)), 413, "file_too_large")
    assert nothing_is_left()


def test_a_storage_that_is_away_is_told_and_nothing_is_accepted(door: Door, settings: Any) -> None:
    bucket = Path(settings.STORAGE_ROOT) / settings.STORAGE_BUCKET
    bucket.rename(bucket.with_name("unmounted"))
    response = door.send()
    assert_problem(response, 503, "storage_unavailable")
    assert int(response.headers["Retry-After"]) > 0
    assert not Attachment.objects.exists()


def test_nobody_sends_without_a_token(user: User) -> None:
    sent = form()
    for headers in ({}, {"Authorization": "Token wrong"}, {"Authorization": "Token a b"}, {"Authorization": "Token"}):
        response = Client().generic("POST", URL, sent.body, content_type=sent.content_type, headers=headers)
        code = "authentication_failed" if headers else "not_authenticated"
        assert_problem(response, 401, code)
        assert response.headers["WWW-Authenticate"] == "Token"
    assert nothing_is_left()


@pytest.fixture
def browser(user: User) -> Client:
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    client.cookies["csrftoken"] = "c" * 32
    return client


def test_a_browser_sends_with_its_session_and_the_token_in_a_header(browser: Client) -> None:
    sent = form()
    headers = {"X-CSRFToken": "c" * 32}
    response = browser.generic("POST", URL, sent.body, content_type=sent.content_type, headers=headers)
    assert response.status_code == 202


def test_a_browser_without_the_token_is_refused_before_its_file_is_taken_in(
    browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Form((field_part("csrfmiddlewaretoken", "c" * 32), file_part(jpeg())))
    spooled: list[object] = []
    monkeypatch.setattr(TemporaryFileUploadHandler, "new_file", lambda *_, **__: spooled.append(1))
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda *_, **__: spooled.append(1))
    response = browser.generic("POST", URL, sent.body, content_type=sent.content_type)
    assert_problem(response, 403, "permission_denied")
    assert not spooled
    assert nothing_is_left()


DIE_AT_COMMIT = """
CREATE FUNCTION test_die() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER test_die AFTER INSERT ON pipeline_outbox DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION test_die();
"""


@pytest.mark.django_db(transaction=True)
def test_a_commit_with_unknown_outcome_is_503_and_nothing_half_made_is_shown(door: Door) -> None:
    """The connection dies at COMMIT. The original is kept, for it may be in; the same key then decides."""
    with connection.cursor() as cursor:
        cursor.execute(DIE_AT_COMMIT)
    try:
        response = door.send(key="one")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION test_die CASCADE")
    assert_problem(response, 503, "outcome_unknown")
    assert door.get().json()["results"] == []
    assert StoredObject.objects.get().bucket_role == BucketRole.STAGING
    assert door.send(key="one").status_code == 202
    assert len(door.get().json()["results"]) == 1
