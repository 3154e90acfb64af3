"""`manage.py verify`: what a person or a script learns from it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from attachments import storage
from attachments.models import StoredObject
from pipeline import verification
from pipeline.lifecycle import Lease
from pipeline.management.commands.verify import REMEDIES
from pipeline.models import OutboxMessage
from pipeline.verification import Kind, Step
from tests.leases import finish

pytestmark = pytest.mark.django_db


def verify(*options: str) -> tuple[int, str]:
    """The exit code and the report."""
    out = io.StringIO()
    try:
        call_command("verify", *options, stdout=out)
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()


@pytest.fixture
def damaged(leased: Callable[..., Lease]) -> Lease:
    """A ready attachment that lost two of its three variants."""
    lease = leased()
    finish(lease)
    for stored in StoredObject.objects.filter(variant__variant__in=["crop", "thumbnail"]):
        storage.delete(stored.bucket, stored.key)
    return lease


def test_all_is_well(leased: Callable[..., Lease]) -> None:
    finish(leased())
    assert verify() == (
        0,
        "Looked at 4 objects of 1 attachments, and for the rows of 4 objects in the storage.\n",
    )


def test_each_finding_is_a_line_with_its_ids_and_each_kind_a_row_with_what_helps(damaged: Lease) -> None:
    code, report = verify()
    key = StoredObject.objects.get(variant__variant="crop")
    assert code == 1
    assert f"variant_missing      {key}, attachment {damaged.attachment_id}, job {damaged.job_id}\n" in report
    assert "variant_missing             2        0  --repair makes it again from the original\n" in report
    assert report.endswith("Wrong, and not repaired: 2.")


def test_what_was_repaired_is_no_failure(damaged: Lease) -> None:
    code, report = verify("--repair")
    assert code == 0
    assert report.count("attempt 2 makes it again") == 2
    assert verify()[0] == 0


def test_without_digests_altered_bytes_are_not_seen(leased: Callable[..., Lease], settings: Any) -> None:
    finish(leased())
    stored = StoredObject.objects.get(variant__variant="crop")
    storage.delete(stored.bucket, stored.key)
    with storage.writer(stored.bucket, stored.key, content_type="image/webp") as writer:
        writer.write(b"bytez")
        writer.finish()
    assert verify("--no-digests")[0] == 0
    assert verify()[0] == 1


def test_filters_and_limit_narrow_what_is_looked_at(damaged: Lease, leased: Callable[..., Lease]) -> None:
    finish(leased())
    OutboxMessage.objects.filter(job=damaged.job_id).delete()
    for option, value in (("--accepted-before", "2020-01-31"), ("--content-type", "image/gif")):
        assert verify(option, value) == (
            0,
            "Looked at 0 objects of 0 attachments, and for the rows of 0 objects in the storage.\n",
        )
    code, report = verify(
        "--attachment", str(damaged.attachment_id), "--owner", "ann", "--accepted-after", "2020-01-31"
    )
    assert code == 1
    assert "of 1 attachments, and for the rows of 0 objects" in report
    assert "of 1 attachments, and for the rows of 2 objects" in verify("--attachment", str(damaged.attachment_id))[1]
    assert verify("--limit", "1")[1].endswith("Stopped at the limit; there may be more.")
    for option, value in (("--owner", "nobody"), ("--attachment", "00000000-0000-0000-0000-000000000000")):
        assert "No such" in verify(option, value)[1]


def test_a_storage_that_is_away_has_an_exit_code_of_its_own(damaged: Lease, settings: Any) -> None:
    settings.STORAGE_ROOT += "-not-mounted"
    code, report = verify("--repair")
    assert code == 3
    assert "The storage is away" in report
    assert "variant_missing" not in report


def interrupt() -> None:
    raise KeyboardInterrupt


def lose_the_connection() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("stop", "exit_code", "words"),
    [(interrupt, 130, "Interrupted."), (lose_the_connection, 3, "The database is away: OperationalError.")],
)
def test_a_walk_that_stops_early_says_where_to_go_on(
    stop: Callable[[], None],
    exit_code: int,
    words: str,
    leased: Callable[..., Lease],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish(leased())
    real = verification.attachments

    def stopped(*arguments: Any, **options: Any) -> Iterator[Step]:
        yield from real(*arguments, **options)
        stop()

    monkeypatch.setattr(verification, "attachments", stopped)
    code, report = verify()
    connection.close()
    monkeypatch.undo()
    assert code == exit_code
    rest = report.rpartition(f"{words} Go on with ")[2].split()
    assert rest[0] == "--accepted-before"
    assert "Looked at 0 objects" in verify(*rest)[1]


def test_every_kind_says_what_helps() -> None:
    assert set(REMEDIES) == set(Kind)
