"""What `verify` says of objects that were harmed for real, on either kind of storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_django import Settings

from attachments import storage
from attachments.errors import StorageUnavailable
from attachments.models import StoredObject
from pipeline import verification
from pipeline.lifecycle import Lease
from pipeline.selection import Selection
from pipeline.verification import Finding, Kind
from tests.backends import BUCKET, LocalBackend, S3Backend
from tests.leases import finish

pytestmark = pytest.mark.django_db
Backend = LocalBackend | S3Backend


def write(backend: Backend, key: str, data: bytes) -> None:
    """Put bytes under a key behind the back of everything that looks after them."""
    if isinstance(backend, S3Backend):
        backend.client.put_object(Bucket=BUCKET, Key=key, Body=data)
    else:
        path = backend.root / BUCKET / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def found(*, digests: bool = True) -> list[Finding]:
    steps = verification.attachments(Selection(), digests=digests)
    return [finding for step in steps for finding in step.findings]


def kinds(**how: bool) -> set[tuple[str, Kind]]:
    return {(finding.variant or "original", finding.kind) for finding in found(**how)}


def variant(name: str) -> StoredObject:
    return StoredObject.objects.get(variant__variant=name)


def test_deleted_cut_and_altered_bytes_are_told_apart(backend: Backend, leased: Callable[..., Lease]) -> None:
    finish(leased())
    assert kinds() == set()
    storage.delete(BUCKET, variant("thumbnail").key)
    write(backend, variant("crop").key, b"byte")
    write(backend, variant("optimized").key, b"bytez")
    write(backend, StoredObject.objects.get(attachment__isnull=False).key, b"")
    by_size = {
        ("thumbnail", Kind.VARIANT_MISSING),
        ("crop", Kind.VARIANT_DAMAGED),
        ("original", Kind.ORIGINAL_DAMAGED),
    }
    assert kinds(digests=False) == by_size
    assert kinds() == by_size | {("optimized", Kind.VARIANT_DAMAGED)}


def test_an_object_that_alone_cannot_be_read_is_no_outage(backend: Backend, leased: Callable[..., Lease]) -> None:
    finish(leased())
    if isinstance(backend, S3Backend):
        backend.proxy.fail("GET", matches="/crop", status=403, code="AccessDenied")
    else:
        path = Path(backend.root, BUCKET, variant("crop").key)
        path.unlink()
        path.symlink_to(path)
    assert kinds() == {("crop", Kind.VARIANT_UNREADABLE)}


@pytest.mark.parametrize("harm", ["is_answer_flipped", "is_answer_cut"])
def test_bytes_that_were_harmed_on_their_way_are_no_finding(
    harm: str, s3: S3Backend, leased: Callable[..., Lease]
) -> None:
    finish(leased())
    s3.proxy.fail("GET", times=1, matches="/crop", **{harm: True})
    assert kinds() == set()
    assert len([seen for seen in s3.proxy.seen if seen.method == "GET" and "/crop" in seen.path]) > 1


def test_a_storage_that_is_away_is_no_finding(
    backend: Backend, leased: Callable[..., Lease], settings: Settings
) -> None:
    finish(leased())
    if isinstance(backend, S3Backend):
        for method in ("GET", "HEAD", "PUT"):
            backend.proxy.fail(method, status=503, code="SlowDown")
    else:
        settings.STORAGE_ROOT += "-not-mounted"
    for walk in (verification.attachments(Selection(), digests=True), verification.unknown_objects()):
        with pytest.raises(StorageUnavailable):
            list(walk)


def test_objects_that_no_row_names_are_found_when_they_are_old(
    backend: Backend, leased: Callable[..., Lease], settings: Settings
) -> None:
    lease = leased()
    finish(lease)
    ours, others = f"attachments/{lease.attachment_id}/strange", "attachments/elsewhere/original"
    for key in (ours, others, "backups/of-somebody-else"):
        write(backend, key, b"strange")
    (step,) = verification.unknown_objects()
    assert (step.taken, step.findings, step.young) == (6, (), 2)
    settings.STAGING_RETENTION_SECONDS = -60.0
    (step,) = verification.unknown_objects()
    assert {(finding.kind, finding.about) for finding in step.findings} == {
        (Kind.UNKNOWN_OBJECT, f"{BUCKET}/{ours}"),
        (Kind.UNKNOWN_OBJECT, f"{BUCKET}/{others}"),
    }
    (step,) = verification.unknown_objects([lease.attachment_id])
    assert [finding.about for finding in step.findings] == [f"{BUCKET}/{ours}"]
