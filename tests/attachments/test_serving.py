"""User bytes on their way out: whole, in part, or not at all, and never able to run in a page of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attachments import storage
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from attachments.names import download_name
from pipeline.models import Job
from tests.attachments.conftest import URL, Door, assert_problem
from tests.pictures import png

pytestmark = pytest.mark.django_db

DATA = bytes(range(256)) * 4


@pytest.fixture
def ready(finished: Callable[..., Attachment]) -> Attachment:
    return finished(data=DATA)


def thumbnail(attachment: Attachment) -> str:
    return f"{URL}{attachment.id}/variants/thumbnail/"


def content(response: Any) -> bytes:
    return b"".join(response.streaming_content) if response.streaming else response.content


def test_the_original_is_what_was_sent_before_and_after_the_work(
    door: Door, queued: Callable[..., Job], finished: Callable[..., Attachment]
) -> None:
    job = queued(png())
    assert content(door.get(f"{job.attachment_id}/original/")) == png()
    finished(job)
    response = door.get(f"{job.attachment_id}/original/")
    assert (response.status_code, content(response)) == (200, png())
    assert response.headers["Content-Length"] == str(len(png()))
    assert response.headers["ETag"] == f'"{job.attachment.sha256}"'


def test_bytes_are_served_as_what_they_are_and_cannot_run(door: Door, ready: Attachment) -> None:
    response = door.get(thumbnail(ready))
    assert content(response) == DATA
    assert response.headers["Content-Type"] == "image/webp"
    assert response.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert response.headers["Cache-Control"] == "private, no-cache"
    assert response.headers["Content-Disposition"] == 'inline; filename="photo-thumbnail.webp"'


@pytest.mark.parametrize(
    ("content_type", "disposition"),
    [
        ("image/png", "inline"),
        ("image/avif", "inline"),
        ("audio/ogg", "inline"),
        ("image/svg+xml", "attachment"),
        ("image/tiff", "attachment"),
        ("text/html", "attachment"),
        ("text/plain", "attachment"),
        ("application/pdf", "attachment"),
        ("application/octet-stream", "attachment"),
    ],
)
def test_only_plain_pictures_and_sounds_show_in_a_page(
    door: Door, finished: Callable[..., Attachment], content_type: str, disposition: str
) -> None:
    attachment = finished(content_type=content_type)
    header = door.get(thumbnail(attachment)).headers["Content-Disposition"]
    assert header.split(";")[0] == disposition


def test_a_hostile_name_stays_within_its_header(door: Door, ready: Attachment) -> None:
    Attachment.objects.filter(id=ready.id).update(name='a"; x=y\r\nSet-Cookie: a=b\u202egpj.exe')
    header = door.get(f"{ready.id}/original/").headers["Content-Disposition"]
    assert header.isascii()
    assert header.startswith("inline; filename")
    assert "\r" not in header
    assert "\n" not in header


@pytest.mark.parametrize(
    ("name", "content_type", "variant", "expected"),
    [
        ("photo.JPG", "image/jpeg", "", "photo.JPG"),
        ("photo.heic", "image/jpeg", "", "photo.heic.jpg"),
        ("page.html", "image/png", "", "page.html.png"),
        ("", "image/png", "", "file.png"),
        ("notes", "application/octet-stream", "", "notes"),
        ("photo.jpg", "image/webp", "thumbnail", "photo-thumbnail.webp"),
        (".jpg", "image/webp", "thumbnail", ".jpg-thumbnail.webp"),
        ("", "text/plain", "transcript", "file-transcript.txt"),
    ],
)
def test_a_download_is_called_what_it_is(name: str, content_type: str, variant: str, expected: str) -> None:
    assert download_name(name, content_type=content_type, variant=variant) == expected


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=1000-", 1000, 1024),
        ("bytes=1000-999999999999999999", 1000, 1024),
        ("bytes=-24", 1000, 1024),
        ("bytes=-5000", 0, 1024),
    ],
)
def test_a_part_is_served_alone(door: Door, ready: Attachment, asked: str, start: int, end: int) -> None:
    response = door.get(thumbnail(ready), Range=asked)
    assert (response.status_code, content(response)) == (206, DATA[start:end])
    assert response.headers["Content-Range"] == f"bytes {start}-{end - 1}/1024"
    assert response.headers["Content-Length"] == str(end - start)


@pytest.mark.parametrize(
    "asked", ["bytes=0-1,5-6", "bytes=-", "bytes=9-3", "lines=1-2", "bytes=a-b", "bytes=" + "9" * 99 + "-"]
)
def test_a_range_that_is_several_or_none_gets_everything(door: Door, ready: Attachment, asked: str) -> None:
    response = door.get(thumbnail(ready), Range=asked)
    assert (response.status_code, content(response)) == (200, DATA)


@pytest.mark.parametrize("asked", ["bytes=1024-", "bytes=5000-6000", "bytes=-0"])
def test_a_range_outside_of_the_file_is_416(door: Door, ready: Attachment, asked: str) -> None:
    response = door.get(thumbnail(ready), Range=asked)
    assert_problem(response, 416, "range_not_satisfiable")
    assert response.headers["Content-Range"] == "bytes */1024"


def test_what_the_client_has_is_not_sent_again(door: Door, ready: Attachment) -> None:
    etag = door.get(thumbnail(ready)).headers["ETag"]
    for known in (etag, f'"other", {etag}', f"W/{etag}", "*"):
        response = door.get(thumbnail(ready), **{"If-None-Match": known})
        assert (response.status_code, content(response), response.headers["ETag"]) == (304, b"", etag)
    assert door.get(thumbnail(ready), **{"If-None-Match": '"other"'}).status_code == 200


def test_a_part_of_another_file_is_not_patched_onto_this_one(door: Door, ready: Attachment) -> None:
    etag = door.get(thumbnail(ready)).headers["ETag"]
    assert door.get(thumbnail(ready), Range="bytes=0-9", **{"If-Range": etag}).status_code == 206
    assert content(door.get(thumbnail(ready), Range="bytes=0-9", **{"If-Range": '"other"'})) == DATA
    assert_problem(door.get(thumbnail(ready), **{"If-Match": '"other"'}), 412, "precondition_failed")


def test_a_look_at_the_headers_sends_no_bytes(door: Door, ready: Attachment) -> None:
    response = door.client.head(thumbnail(ready), headers={"Range": "bytes=0-9"})
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["Content-Length"] == "1024"


def test_a_client_that_wants_another_type_gets_the_bytes_all_the_same(door: Door, ready: Attachment) -> None:
    assert content(door.get(thumbnail(ready), Accept="image/png")) == DATA


def test_an_original_that_is_no_longer_kept_is_gone(door: Door, ready: Attachment) -> None:
    StoredObject.objects.filter(attachment=ready).update(bucket_role=BucketRole.TRASH)
    assert_problem(door.get(f"{ready.id}/original/"), 410, "original_gone")
    assert door.get(f"{ready.id}/").json()["original"] is None
    Attachment.objects.filter(id=ready.id).update(original=None)
    assert_problem(door.get(f"{ready.id}/original/"), 410, "original_gone")


def test_bytes_that_should_be_there_and_are_not_are_a_503(door: Door, ready: Attachment, settings: Any) -> None:
    stored = Variant.objects.get(attachment=ready, variant="thumbnail").stored_object
    path = Path(settings.STORAGE_ROOT) / stored.bucket / stored.key
    path.write_bytes(DATA[:100])
    assert_problem(door.get(thumbnail(ready)), 503, "object_corrupt")
    path.unlink()
    for method in ("GET", "HEAD"):
        assert door.client.generic(method, thumbnail(ready)).status_code == 503
    missing = door.get(thumbnail(ready))
    assert_problem(missing, 503, "object_missing")
    # Repeating does not bring it back.
    assert "Retry-After" not in missing.headers


def test_a_storage_that_is_away_is_a_503(door: Door, ready: Attachment, settings: Any) -> None:
    bucket = Path(settings.STORAGE_ROOT) / settings.STORAGE_BUCKET
    bucket.rename(bucket.with_name("unmounted"))
    assert_problem(door.get(thumbnail(ready)), 503, "storage_unavailable")


def test_s3_serves_its_bytes_itself_for_a_short_while(door: Door, ready: Attachment, settings: Any) -> None:
    settings.STORAGE_BACKEND = "s3"
    settings.AWS_ACCESS_KEY_ID = settings.AWS_SECRET_ACCESS_KEY = "key"
    settings.AWS_S3_ENDPOINT_URL = "http://127.0.0.1:1"
    settings.AWS_S3_PUBLIC_ENDPOINT_URL = "https://files.example"
    settings.AWS_S3_REGION_NAME = "us-east-1"
    response = door.get(thumbnail(ready))
    assert response.status_code == 302
    assert response.headers["Cache-Control"] == "private, no-store"
    address = response.headers["Location"]
    assert address.startswith("https://files.example/")
    assert f"X-Amz-Expires={settings.SIGNED_URL_SECONDS}" in address
    assert "response-content-type=image%2Fwebp" in address
    assert "response-content-disposition=inline%3B%20filename%3D%22photo-thumbnail.webp%22" in address


def test_a_large_file_leaves_in_small_pieces(door: Door, finished: Callable[..., Attachment]) -> None:
    attachment = finished(data=DATA * 1024)
    pieces = list(door.get(thumbnail(attachment)).streaming_content)
    assert b"".join(pieces) == DATA * 1024
    assert max(len(piece) for piece in pieces) <= storage.CHUNK_BYTES
