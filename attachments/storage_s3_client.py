"""How an S3 server is reached, through django-storages, and what its answers and silences mean to us."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.conf import settings
from storages.backends.s3 import S3Storage
from urllib3.exceptions import HTTPError

from attachments.errors import StorageUnavailable

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

#: The name of the metadata by which a writer knows its own object.
MARK = "writer"
#: What a client raises when it gets no answer; an answer that refuses is a ClientError.
UNREACHABLE = (BotoCoreError, HTTPError, OSError)


@dataclass(frozen=True)
class Options:
    """What makes one connection differ from another; empty texts leave the choice to boto3."""

    endpoint_url: str
    public_endpoint_url: str
    region_name: str
    addressing_style: str
    access_key: str
    secret_key: str = field(repr=False)

    @classmethod
    def from_settings(cls) -> Options:
        return cls(
            endpoint_url=settings.AWS_S3_ENDPOINT_URL,
            public_endpoint_url=settings.AWS_S3_PUBLIC_ENDPOINT_URL,
            region_name=settings.AWS_S3_REGION_NAME,
            addressing_style=settings.AWS_S3_ADDRESSING_STYLE,
            access_key=settings.AWS_ACCESS_KEY_ID,
            secret_key=settings.AWS_SECRET_ACCESS_KEY,
        )


class Found(NamedTuple):
    """What a HEAD tells of an object: its size in bytes, and the mark of its writer."""

    size: int
    mark: str


def connect(
    options: Options, endpoint_url: str, *, connect_seconds: float = 5, read_seconds: float = 30, attempts: int = 3
) -> S3Client:
    """A client that threads may share, and processes may not."""
    s3: Any = {"addressing_style": options.addressing_style, "payload_signing_enabled": True}
    config = Config(
        signature_version="s3v4",
        s3=s3,
        # Newer defaults send checksum trailers that many servers besides AWS refuse.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=connect_seconds,
        read_timeout=read_seconds,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=32,
        tcp_keepalive=True,
    )
    storage = S3Storage(
        endpoint_url=endpoint_url or None,
        region_name=options.region_name or None,
        access_key=options.access_key or None,
        secret_key=options.secret_key or None,
        client_config=config,
    )
    return cast("S3Client", storage.connection.meta.client)


def find(client: S3Client, bucket: str, key: str) -> Found | None:
    """Look at an object; None when it, or its bucket, is not there: a HEAD does not say which."""
    try:
        head = client.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if status_of(error) != 404:
            raise
        return None
    # Some servers capitalise the names of metadata.
    marks = [value for name, value in head["Metadata"].items() if name.lower() == MARK]
    return Found(head["ContentLength"], "".join(marks))


def status_of(error: ClientError) -> int:
    return error.response["ResponseMetadata"]["HTTPStatusCode"]


def code_of(error: ClientError) -> str:
    return error.response["Error"]["Code"]


@contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """Every failure to reach the storage, and every refusal that is not handled closer by, is an outage."""
    # Messages of servers and clients are not repeated: they may name accounts, addresses and keys.
    try:
        yield
    except ClientError as error:
        answer = f"{error.operation_name} was answered {status_of(error)} {code_of(error)}"
        raise StorageUnavailable(f"{action}: {answer}.") from error
    except UNREACHABLE as error:
        raise StorageUnavailable(f"{action}: {type(error).__name__}.") from error
