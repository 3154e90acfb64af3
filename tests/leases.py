"""What a worker does with a lease, without the work: variants of a few bytes."""

from __future__ import annotations

from attachments import objects, storage
from attachments.models import StoredObject
from pipeline import lifecycle
from pipeline.lifecycle import Lease

VARIANTS = ("crop", "optimized", "thumbnail")


def record(lease: Lease, variant: str, data: bytes = b"bytes") -> StoredObject:
    key = objects.variant_key(
        lease.attachment_id, version=lease.pipeline.version, attempt=lease.attempt, variant=variant
    )
    stored = objects.register(key, content_type="image/webp", created_by=lease.worker)
    with storage.writer(stored.bucket, stored.key, content_type="image/webp") as writer:
        writer.write(data)
        written = writer.finish()
    lifecycle.record(
        lease, variant=variant, object_id=stored.id, written=written, facts={"width": 1}, original_facts={"width": 9}
    )
    return stored


def finish(lease: Lease) -> None:
    for variant in VARIANTS:
        record(lease, variant)
    lifecycle.complete(lease)
