"""The one door into the pipeline: what is accepted is safe, what is refused leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction

from attachments import objects, storage
from attachments.errors import (
    DigestMismatch,
    EmptyFile,
    FileTooLarge,
    KeyReused,
    PipelineUnavailable,
    StorageUnavailable,
    TooManyPixels,
    UnsupportedType,
)
from attachments.models import Attachment, BucketRole, StoredObject
from pipeline import intake
from pipeline.intake import Receiver
from pipeline.models import Job, OutboxMessage
from pipeline.origins import Origin
from pipeline.states import Source
from tests.attachments.conftest import Door, assert_problem
from tests.corpus import png_claiming
from tests.pictures import jpeg, png
from tests.work import make_quick, work

pytestmark = pytest.mark.django_db


def request(user: User, **changes: str) -> intake.Request:
    return intake.Request(owner=user, origin=Origin(Source.REST), **changes)


def receive(data: bytes) -> intake.Received:
    return intake.receive([data], created_by="test")


def stored_files(settings: Any) -> list[Path]:
    return [path for path in Path(settings.STORAGE_ROOT).rglob("*") if path.is_file()]


def nothing_is_left(settings: Any) -> bool:
    return not StoredObject.objects.exists() and not Attachment.objects.exists() and not stored_files(settings)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What others see of an object's row when its first byte is about to be written."""
    rows: list[object] = []
    real = storage.writer

    def writer(bucket: str, key: str, *, content_type: str) -> storage.Writer:
        # Another connection sees only what is committed.
        with closing(connection.copy()) as other, other.cursor() as cursor:
            cursor.execute("SELECT bucket_role, size FROM s3_object WHERE key = %s", [key])
            rows.extend(cursor.fetchall())
        return real(bucket, key, content_type=content_type)

    monkeypatch.setattr(storage, "writer", writer)
    return rows


@pytest.mark.django_db(transaction=True)
def test_an_objects_row_is_committed_before_its_first_byte(
    queued: Callable[..., Job], rows: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original's by the door, the variants' by the worker."""
    make_quick(monkeypatch)
    job = queued()
    assert rows == [(BucketRole.STAGING, None)]
    assert work(job) == "ready"
    assert rows == [(BucketRole.STAGING, None)] * 4


@pytest.mark.django_db(transaction=True)
def test_an_objects_row_does_not_wait_for_a_larger_transaction() -> None:
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        objects.register("attachments/x/original", content_type="image/png", created_by="test")


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_any_split_into_chunks_is_the_same_file(size: int, user: User) -> None:
    data = jpeg()
    received = intake.receive((data[at : at + size] for at in range(0, len(data), size)), created_by="test")
    assert received.written == receive(data).written
    assert received.stored.content_type == "image/jpeg"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EmptyFile),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", UnsupportedType),
        (b"%PDF-1.7 ", UnsupportedType),
        (b"MZ\x90\x00", UnsupportedType),
        (b"just text", UnsupportedType),
        (png_claiming(225_000, 225_000), TooManyPixels),
    ],
)
def test_what_cannot_be_accepted_is_refused_and_leaves_nothing(
    data: bytes, error: type[Exception], settings: Any
) -> None:
    with pytest.raises(error):
        receive(data)
    assert nothing_is_left(settings)


def test_too_many_bytes_are_refused_as_soon_as_they_arrive(settings: Any) -> None:
    settings.MAX_UPLOAD_BYTES = 100_000
    taken: list[int] = []

    def chunks() -> Iterator[bytes]:
        yield jpeg()
        for number in range(1000):
            taken.append(number)
            yield b"x" * 10_000

    with pytest.raises(FileTooLarge):
        intake.receive(chunks(), created_by="test")
    assert len(taken) < 15
    assert nothing_is_left(settings)


def test_a_stream_that_breaks_off_leaves_nothing(settings: Any) -> None:
    def chunks() -> Iterator[bytes]:
        yield jpeg()
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        intake.receive(chunks(), created_by="test")
    assert nothing_is_left(settings)


def test_another_digest_than_announced_is_refused(user: User, settings: Any) -> None:
    with pytest.raises(DigestMismatch):
        intake.accept(receive(png()), request(user, sha256="0" * 64))
    assert nothing_is_left(settings)


def test_a_pipeline_that_the_type_does_not_lead_to_is_refused(user: User, settings: Any) -> None:
    with pytest.raises(PipelineUnavailable):
        intake.accept(receive(png()), request(user, pipeline="speech"))
    assert nothing_is_left(settings)


def test_any_file_is_stored_where_the_deployment_says_so(user: User, settings: Any) -> None:
    settings.ACCEPT_ANY_FILE = True
    accepted = intake.accept(receive(b"just text"), request(user))
    assert (accepted.job.pipeline, accepted.attachment.content_type) == ("store", "application/octet-stream")


def test_the_same_key_bytes_and_parameters_lead_to_the_same_attachment(user: User, settings: Any) -> None:
    first = intake.accept(receive(png()), request(user, idempotency_key="k"))
    again = intake.accept(receive(png()), request(user, idempotency_key="k"))
    assert (again.attachment.id, again.job.job_id, again.is_repeat) == (first.attachment.id, first.job.job_id, True)
    assert (Attachment.objects.count(), OutboxMessage.objects.count(), len(stored_files(settings))) == (1, 1, 1)


@pytest.mark.parametrize("changes", [{"language": "de"}, {"pipeline": "image"}, {"data": jpeg()}])
def test_a_key_used_for_something_else_is_refused(changes: dict[str, Any], user: User) -> None:
    intake.accept(receive(png()), request(user, idempotency_key="k"))
    data = changes.pop("data", png())
    with pytest.raises(KeyReused):
        intake.accept(receive(data), request(user, idempotency_key="k", **changes))


def test_keys_of_different_owners_do_not_meet(user: User) -> None:
    other = User.objects.create_user("bob")
    first = intake.accept(receive(png()), request(user, idempotency_key="k"))
    second = intake.accept(receive(png()), request(other, idempotency_key="k"))
    assert first.attachment.id != second.attachment.id


def test_attachment_job_and_message_are_one_transaction(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    received = receive(png())
    monkeypatch.setattr("pipeline.outbox.enqueue", lambda *_, **__: connection.cursor().execute("SELECT 1/0"))
    with pytest.raises(Exception, match="division by zero"):
        intake.accept(received, request(user))
    assert not Attachment.objects.exists()
    assert not Job.objects.exists()


def test_storage_that_is_away_refuses_for_now(settings: Any) -> None:
    settings.STORAGE_ROOT = settings.STORAGE_ROOT + "-not-mounted"
    with pytest.raises(StorageUnavailable):
        receive(png())


def test_a_clients_name_never_reaches_a_key(user: User) -> None:
    accepted = intake.accept(receive(png()), request(user, name="../../etc/passwd\x00.png"[:20]))
    key = StoredObject.objects.get(attachment=accepted.attachment).key
    assert key == f"attachments/{accepted.attachment.id}/original"


def test_two_attachments_cannot_share_a_key_in_the_database(user: User) -> None:
    intake.accept(receive(png()), request(user, idempotency_key="k"))
    with pytest.raises(IntegrityError):
        Attachment.objects.create(owner=user, content_type="image/png", size=1, sha256="0" * 64, idempotency_key="k")


def test_an_aborted_receiver_does_nothing_more(settings: Any) -> None:
    with Receiver(created_by="test") as receiver:
        receiver.write(jpeg())
        receiver.abort()
        receiver.abort()
    assert nothing_is_left(settings)


def test_an_original_that_the_sweep_took_is_not_accepted(user: User) -> None:
    """An upload that outlasts the retention of staging must not end in a 202 for bytes that are about to go."""
    received = receive(png())
    StoredObject.objects.filter(id=received.stored.id).update(bucket_role=BucketRole.TRASH)
    with pytest.raises(StorageUnavailable):
        intake.accept(received, request(user))
    assert not Attachment.objects.exists()
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("sqlstate", ["53100", "53200", "25006", "57014"])
def test_a_commit_that_the_database_refuses_is_503_and_nothing_half_made(
    sqlstate: str, user: User, settings: Any, tmp_path: Path
) -> None:
    """No space, no memory, no writes, no time: the server's own answer, so the outcome is known."""
    settings.STATIC_ROOT = str(tmp_path)
    door = Door(user)
    with refusing_to_commit(sqlstate):
        answer = door.send(key="one")
    assert_problem(answer, 503, "database_unavailable")
    assert answer.headers["Retry-After"] == "5"
    assert door.get().json()["results"] == []
    assert StoredObject.objects.get().bucket_role == BucketRole.STAGING
    assert door.send(key="one").status_code == 202
    assert Job.objects.get().messages.count() == 1


@contextmanager
def refusing_to_commit(sqlstate: str) -> Iterator[None]:
    """A deferred trigger, so that it is the COMMIT that fails."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{sqlstate}'; END $$;"
            "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON pipeline_outbox DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        try:
            yield
        finally:
            cursor.execute("DROP FUNCTION refuse CASCADE")
