"""Objects in S3 or anything that speaks its protocol. Configured and connected by django-storages.

The writing is ours, because `S3Storage` has no digest of what it sends, no abort and no look at the result.
Here every body is signed over its SHA-256 (also over TLS), which any server of signature version 4 must
verify, and an object counts as stored only when a HEAD shows this writer's own mark and size.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import cached_property, lru_cache, partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError
from django.conf import settings

from attachments.errors import KeyTaken, ObjectMissing, StorageUnavailable
from attachments.storage import Listed, Source
from attachments.storage_s3_client import MARK, UNREACHABLE, Options, code_of, connect, find, status_of, storage_errors

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from types_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

# 10,000 parts at most, so an object of 58 GiB; a writer holds three parts, two of them on their way.
PART_BYTES = 6 * 1024**2
PARTS_IN_FLIGHT = 2
PROBE_KEY = ".probe"


def current() -> S3Store:
    return _store(os.getpid(), Options.from_settings())


@lru_cache(maxsize=4)
def _store(_process_id: int, options: Options) -> S3Store:
    """One store per process: its client may be shared by threads, but its connections not over a fork."""
    return S3Store(options)


class S3Store:
    """Buckets behind one endpoint."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._client = connect(options, options.endpoint_url)
        self._has_conditional_writes = True

    def sink(self, bucket: str, key: str, *, content_type: str) -> S3Sink:
        return S3Sink(self, self._client, bucket, key, content_type=content_type)

    def source(self, bucket: str, key: str, *, start: int, length: int | None) -> tuple[Source, int]:
        wanted: dict[str, Any] = {}
        if length == 0:
            return self._nothing(bucket, key)
        if start or length is not None:
            wanted["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
        with storage_errors(f"Reading {bucket}/{key}"):
            try:
                found = self._client.get_object(Bucket=bucket, Key=key, **wanted)
            except ClientError as error:
                if status_of(error) == 416:
                    return self._nothing(bucket, key)
                if status_of(error) != 404 or code_of(error) == "NoSuchBucket":
                    raise
                raise ObjectMissing(f"{bucket} has no {key}.") from error
        return S3Source(found["Body"]), found["ContentLength"]

    def size_of(self, bucket: str, key: str) -> int | None:
        with storage_errors(f"Looking for {bucket}/{key}"):
            if found := find(self._client, bucket, key):
                return found.size
            # A HEAD has no body to say whether the object or the whole bucket is missing.
            self._client.head_bucket(Bucket=bucket)
            return None

    def delete(self, bucket: str, key: str) -> None:
        with storage_errors(f"Deleting {bucket}/{key}"):
            self._client.delete_object(Bucket=bucket, Key=key)

    def listing(self, bucket: str, *, folder: str | None) -> Iterator[Listed]:
        pages = self._client.get_paginator("list_objects_v2")
        with storage_errors(f"Listing {bucket}"):
            for page in pages.paginate(Bucket=bucket, Prefix=_prefix(folder)):
                for found in page.get("Contents", ()):
                    yield Listed(found["Key"], found["Size"], found["LastModified"])

    def abort_stale_uploads(self, bucket: str, *, begun_before: datetime, folder: str | None) -> int:
        aborted = 0
        pages = self._client.get_paginator("list_multipart_uploads")
        with storage_errors(f"Aborting uploads to {bucket}"):
            for page in pages.paginate(Bucket=bucket, Prefix=_prefix(folder)):
                for found in page.get("Uploads", ()):
                    if found["Initiated"] < begun_before:
                        self.abort_upload({"Bucket": bucket, "Key": found["Key"]}, found["UploadId"])
                        aborted += 1
        return aborted

    def signed_url(self, bucket: str, key: str, *, content_type: str, disposition: str) -> str:
        wanted = {
            "Bucket": bucket,
            "Key": key,
            "ResponseContentType": content_type,
            "ResponseContentDisposition": disposition,
        }
        with storage_errors(f"Signing a URL of {bucket}/{key}"):
            return self._signer.generate_presigned_url(
                "get_object", Params=wanted, ExpiresIn=settings.SIGNED_URL_SECONDS
            )

    def make_bucket(self, bucket: str) -> None:
        with storage_errors(f"Making the bucket {bucket}"):
            try:
                self._client.head_bucket(Bucket=bucket)
            except ClientError as error:
                if status_of(error) != 404:
                    raise
                self._client.create_bucket(Bucket=bucket, **_location(self._options.region_name))

    def check(self, bucket: str) -> None:
        with storage_errors(f"Writing to the bucket {bucket}"):
            self._prober.put_object(Bucket=bucket, Key=PROBE_KEY, Body=b"1")
        with storage_errors(f"Looking into the bucket {bucket} (is listing it allowed?)"):
            # Without the right to list, S3 answers 403 for what is missing: a lost object would read as an outage.
            find(self._prober, bucket, f"{PROBE_KEY}-absent")

    def publish(self, request: Callable[..., object], bucket: str, key: str) -> ClientError | None:
        """Send the request that makes an object visible if its key is free; the refusal is returned, not raised."""
        try:
            if self._has_conditional_writes:
                request(IfNoneMatch="*")
            elif find(self._client, bucket, key) is None:
                request()
        except ClientError as error:
            if code_of(error) == "NotImplemented" and self._has_conditional_writes:
                self._has_conditional_writes = False
                return self.publish(request, bucket, key)
            if code_of(error) in {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload"}:
                return error
            raise
        return None

    def abort_upload(self, at: dict[str, Any], upload_id: str) -> None:
        try:
            self._client.abort_multipart_upload(**at, UploadId=upload_id)
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                raise

    def _nothing(self, bucket: str, key: str) -> tuple[Source, int]:
        if self.size_of(bucket, key) is None:
            raise ObjectMissing(f"{bucket} has no {key}.")
        return BytesIO(), 0

    @cached_property
    def _signer(self) -> S3Client:
        return connect(self._options, self._options.public_endpoint_url or self._options.endpoint_url)

    @cached_property
    def _prober(self) -> S3Client:
        """Gives up soon, so that a readiness probe answers while the storage does not."""
        return connect(self._options, self._options.endpoint_url, connect_seconds=2, read_seconds=5, attempts=1)


class S3Source:
    """The body of a GET."""

    def __init__(self, body: StreamingBody) -> None:
        self._body = body
        self.close = body.close

    def read(self, size: int, /) -> bytes:
        with storage_errors("Reading an object"):
            return self._body.read(size)


class S3Sink:
    """One PUT when the object fits into one part, else a multipart upload, two parts at a time."""

    def __init__(self, store: S3Store, client: S3Client, bucket: str, key: str, *, content_type: str) -> None:
        self._store = store
        self._client = client
        self._bucket = bucket
        self._key = key
        self._at: dict[str, Any] = {"Bucket": bucket, "Key": key}
        self._name = f"{bucket}/{key}"
        # Tells our own object from another's when an answer was lost and the request was sent twice.
        self._mark = uuid.uuid4().hex
        self._about: dict[str, Any] = {"ContentType": content_type, "Metadata": {MARK: self._mark}}
        self._buffer = bytearray()
        self._size = 0
        self._upload_id = ""
        self._is_sent = False
        self._parts: list[Future[str]] = []
        self._threads = ThreadPoolExecutor(PARTS_IN_FLIGHT, "s3-part")

    def append(self, chunk: bytes) -> None:
        self._size += len(chunk)
        rest = memoryview(chunk)
        with storage_errors(f"Writing {self._name}"):
            while rest:
                room = PART_BYTES - len(self._buffer)
                self._buffer += rest[:room]
                rest = rest[room:]
                if len(self._buffer) == PART_BYTES:
                    self._send_part()

    def commit(self) -> None:
        with storage_errors(f"Storing {self._name}"):
            request = self._last_request()
            self._is_sent = True
            refusal = self._store.publish(request, self._bucket, self._key)
            found = find(self._client, self._bucket, self._key)
        if found and found.mark != self._mark:
            raise KeyTaken(f"{self._name} is already stored.") from refusal
        if found is None or found.size != self._size:
            raise StorageUnavailable(f"Storing {self._name}: the object is not there as it was sent.") from refusal

    def discard(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        try:
            if self._upload_id:
                self._store.abort_upload(self._at, self._upload_id)
            found = find(self._client, self._bucket, self._key) if self._is_sent else None
            if found and found.mark == self._mark:
                self._client.delete_object(**self._at)
        except (ClientError, *UNREACHABLE) as error:
            logger.warning("object_not_discarded", extra={"error": type(error).__name__})

    def _send_part(self) -> None:
        if not self._upload_id:
            self._upload_id = self._client.create_multipart_upload(**self._at, **self._about)["UploadId"]
        if len(self._parts) >= PARTS_IN_FLIGHT:
            self._parts[-PARTS_IN_FLIGHT].result()
        self._parts.append(self._threads.submit(self._upload_part, len(self._parts) + 1, self._buffer))
        self._buffer = bytearray()

    def _upload_part(self, number: int, body: Any) -> str:
        sent = self._client.upload_part(**self._at, UploadId=self._upload_id, PartNumber=number, Body=body)
        return sent["ETag"]

    def _last_request(self) -> Callable[..., object]:
        if not self._upload_id:
            body: Any = self._buffer  # boto3's type stubs know no bytearray; boto3 does
            return partial(self._client.put_object, **self._at, **self._about, Body=body)
        if self._buffer:
            self._send_part()
        parts: list[Any] = [{"PartNumber": number, "ETag": part.result()} for number, part in enumerate(self._parts, 1)]
        self._threads.shutdown()
        return partial(
            self._client.complete_multipart_upload,
            **self._at,
            UploadId=self._upload_id,
            MultipartUpload={"Parts": parts},
        )


def _prefix(folder: str | None) -> str:
    return "" if folder is None else f"{folder}/"


def _location(region_name: str) -> dict[str, Any]:
    if region_name in {"", "us-east-1"}:
        return {}
    return {"CreateBucketConfiguration": {"LocationConstraint": region_name}}
