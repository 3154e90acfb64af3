"""Bytes to store, and how they get in and out."""

from __future__ import annotations

import hashlib
import random

from attachments import storage
from attachments.storage import Written
from tests.backends import BUCKET

KEY = "attachments/7d0c/original"


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def measured(body: bytes) -> Written:
    return Written(len(body), hashlib.sha256(body).hexdigest())


def store(key: str, body: bytes, *, chunk_bytes: int = 65_536) -> Written:
    with storage.writer(BUCKET, key, content_type="application/octet-stream") as writer:
        for start in range(0, len(body), chunk_bytes):
            writer.write(body[start : start + chunk_bytes])
        return writer.finish()


def load(key: str, **limits: int) -> bytes:
    with storage.open_object(BUCKET, key, **limits) as stream:
        return b"".join(stream)
