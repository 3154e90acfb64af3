"""The two backends that every storage test runs against: local files, and a real S3 server behind a real hop."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from moto.server import ThreadedMotoServer
from pytest_django import Settings

from attachments import storage
from tests.contracts.s3_proxy import S3Proxy

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

BUCKET = "holdfast"
SECRET = "a-secret-that-is-never-shown"


@dataclass
class LocalBackend:
    root: Path

    def everything(self) -> list[str]:
        """Every file, also hidden and unfinished ones, and every folder inside the bucket."""
        bucket = self.root / BUCKET
        return sorted(str(path.relative_to(bucket)) for path in bucket.rglob("*"))

    def put_beside(self, key: str, body: bytes) -> None:
        """Write an object behind our back, whatever its name."""
        (self.root / BUCKET / key).parent.mkdir(parents=True, exist_ok=True)
        (self.root / BUCKET / key).write_bytes(body)

    def lose(self, key: str) -> None:
        (self.root / BUCKET / key).unlink()

    def body_of(self, key: str) -> bytes:
        return (self.root / BUCKET / key).read_bytes()


@dataclass
class S3Backend:
    proxy: S3Proxy
    client: S3Client

    def everything(self) -> list[str]:
        """Every object but the readiness probe's, and every multipart upload that is still open."""
        objects = self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        uploads = self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        keys = [found["Key"] for found in objects if found["Key"] != ".probe"]
        return sorted(keys + [f"upload of {found['Key']}" for found in uploads])

    def put_beside(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=body)

    def lose(self, key: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=key)

    def body_of(self, key: str) -> bytes:
        return self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def s3_client(s3_server: str) -> S3Client:
    return boto3.client(
        "s3",
        endpoint_url=s3_server,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key=SECRET,
    )


@pytest.fixture(scope="session")
def s3_proxy(s3_server: str) -> Iterator[S3Proxy]:
    with S3Proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture
def local(settings: Settings, tmp_path: Path) -> LocalBackend:
    settings.STORAGE_BACKEND = "local"
    settings.STORAGE_ROOT = str(tmp_path / "storage")
    settings.STORAGE_BUCKET = BUCKET
    storage.make_bucket(BUCKET)
    return LocalBackend(tmp_path / "storage")


@pytest.fixture
def s3(settings: Settings, s3_proxy: S3Proxy, s3_client: S3Client) -> Iterator[S3Backend]:
    settings.STORAGE_BACKEND = "s3"
    settings.STORAGE_BUCKET = BUCKET
    settings.AWS_S3_ENDPOINT_URL = s3_proxy.url
    settings.AWS_S3_PUBLIC_ENDPOINT_URL = ""
    settings.AWS_S3_REGION_NAME = "us-east-1"
    settings.AWS_S3_ADDRESSING_STYLE = "path"
    settings.AWS_ACCESS_KEY_ID = "key"
    settings.AWS_SECRET_ACCESS_KEY = SECRET
    storage.make_bucket(BUCKET)
    s3_proxy.recover()
    yield S3Backend(s3_proxy, s3_client)
    s3_proxy.recover()
    _empty(s3_client)


@pytest.fixture(params=["local", "s3"])
def backend(request: pytest.FixtureRequest) -> LocalBackend | S3Backend:
    chosen: LocalBackend | S3Backend = request.getfixturevalue(request.param)
    return chosen


def _empty(client: S3Client) -> None:
    for found in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=found["Key"])
    for upload in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
        client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])
