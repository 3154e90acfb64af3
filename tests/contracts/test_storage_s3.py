"""How the S3 backend behaves when the network, the server or the bytes let it down."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pytest_django import Settings

from attachments import storage
from attachments.errors import KeyTaken, ObjectCorrupt, StorageUnavailable
from attachments.storage import content_disposition
from attachments.storage_s3 import PART_BYTES
from tests.backends import BUCKET, SECRET, S3Backend
from tests.contracts.bodies import KEY, content, load, measured, store
from tests.contracts.s3_proxy import S3Proxy

SMALL = 1000
LARGE = 2 * PART_BYTES + 5


def fetch(tmp_path: Path, body: bytes) -> bytes:
    written = measured(body)
    try:
        storage.fetch(BUCKET, KEY, tmp_path / "copy", size=written.size, sha256=written.sha256)
    except BaseException:
        assert not (tmp_path / "copy").exists()
        raise
    return (tmp_path / "copy").read_bytes()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_server_that_is_busy_for_a_moment_is_asked_again(s3: S3Backend, tmp_path: Path, size: int) -> None:
    for method in ("PUT", "POST", "HEAD", "GET"):
        s3.proxy.fail(method, times=2, status=503, code="SlowDown")
    assert store(KEY, content(size)) == measured(content(size))
    assert fetch(tmp_path, content(size)) == content(size)


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("status", [403, 500, 503])
def test_a_server_that_keeps_refusing_is_an_outage_and_keeps_nothing(s3: S3Backend, size: int, status: int) -> None:
    s3.proxy.fail("PUT", status=status, code="AccessDenied" if status == 403 else "InternalError")
    with pytest.raises(StorageUnavailable, match=str(status)):
        store(KEY, content(size))
    assert s3.everything() == []


def test_every_act_on_a_server_that_keeps_failing_is_an_outage(s3: S3Backend) -> None:
    store(KEY, b"x")
    for method in ("PUT", "GET", "HEAD", "DELETE"):
        s3.proxy.fail(method, status=503, code="SlowDown")
    for act in (
        lambda: storage.open_object(BUCKET, KEY),
        lambda: storage.size_of(BUCKET, KEY),
        lambda: storage.delete(BUCKET, KEY),
        lambda: list(storage.listing(BUCKET)),
        lambda: storage.abort_stale_uploads(BUCKET, begun_before=datetime.datetime.now(datetime.UTC)),
        lambda: storage.make_bucket(BUCKET),
        storage.check,
    ):
        with pytest.raises(StorageUnavailable):
            act()
    s3.proxy.recover()
    assert load(KEY) == b"x"


def test_nobody_at_the_address_is_an_outage(s3: S3Backend, settings: Settings) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        settings.AWS_S3_ENDPOINT_URL = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for act in (lambda: store(KEY, b"x"), lambda: load(KEY), storage.check):
            with pytest.raises(StorageUnavailable, match="EndpointConnectionError"):
                act()
    assert s3.everything() == []


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_upload_that_is_cut_once_is_sent_again(s3: S3Backend, size: int) -> None:
    s3.proxy.fail("PUT", times=1, is_request_cut=True)
    assert store(KEY, content(size)) == measured(content(size))
    assert load(KEY) == content(size)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_upload_that_is_always_cut_leaves_nothing(s3: S3Backend, size: int) -> None:
    s3.proxy.fail("PUT", is_request_cut=True)
    with pytest.raises(StorageUnavailable):
        store(KEY, content(size))
    assert s3.everything() == []


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_bytes_that_change_on_their_way_are_refused_by_the_server(s3: S3Backend, size: int) -> None:
    s3.proxy.fail("PUT", is_request_flipped=True)
    with pytest.raises(StorageUnavailable, match="XAmzContentSHA256Mismatch"):
        store(KEY, content(size))
    assert s3.everything() == []


@pytest.mark.parametrize(("size", "matches"), [(SMALL, ""), (LARGE, "partNumber=1"), (LARGE, "partNumber=3")])
def test_an_object_that_was_accepted_but_stored_short_is_none(s3: S3Backend, size: int, matches: str) -> None:
    """The server says 200 and keeps half of the body: only a look at what is there can tell."""
    s3.proxy.fail("PUT", matches=matches, is_stored_short=True)
    with pytest.raises(StorageUnavailable):
        store(KEY, content(size))
    assert s3.everything() == []


def test_an_upload_that_ends_while_it_is_aborted_is_left_alone(s3: S3Backend) -> None:
    store_in_parts = storage.writer(BUCKET, KEY, content_type="text/plain")
    store_in_parts.write(content(LARGE))
    s3.proxy.fail("DELETE", status=404, code="NoSuchUpload")
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)
    storage.abort_stale_uploads(BUCKET, begun_before=later)
    assert store_in_parts.finish() == measured(content(LARGE))


@pytest.mark.parametrize(("size", "method"), [(SMALL, "PUT"), (LARGE, "PUT"), (LARGE, "POST")])
def test_an_answer_that_is_lost_once_does_not_lose_the_object(s3: S3Backend, size: int, method: str) -> None:
    s3.proxy.fail(method, times=1, matches="uploadId" if size == LARGE else "", is_answer_lost=True)
    assert store(KEY, content(size)) == measured(content(size))
    assert load(KEY) == content(size)
    assert s3.everything() == [KEY]


def test_an_object_that_cannot_be_looked_at_afterwards_is_not_kept(s3: S3Backend) -> None:
    s3.proxy.fail("HEAD", times=3, status=503, code="SlowDown")
    with pytest.raises(StorageUnavailable, match="HeadObject"):
        store(KEY, content(SMALL))
    assert s3.everything() == []


def test_an_upload_that_cannot_even_be_aborted_still_reports_why_it_failed(s3: S3Backend) -> None:
    s3.proxy.fail("PUT", status=503, code="SlowDown")
    s3.proxy.fail("DELETE", status=500, code="InternalError")
    with pytest.raises(StorageUnavailable, match="SlowDown"):
        store(KEY, content(LARGE))
    assert s3.everything() == [f"upload of {KEY}"]


def test_a_server_without_conditional_writes_is_looked_at_first(s3: S3Backend, settings: Settings) -> None:
    settings.AWS_ACCESS_KEY_ID = "another-server"
    s3.proxy.fail("PUT", needs_header="If-None-Match", status=501, code="NotImplemented")
    s3.proxy.fail("POST", needs_header="If-None-Match", status=501, code="NotImplemented")
    store(KEY, content(SMALL))
    with pytest.raises(KeyTaken):
        store(KEY, content(LARGE))
    assert load(KEY) == content(SMALL)
    assert s3.everything() == [KEY]


@pytest.mark.parametrize("times", [1, -1])
def test_a_download_that_is_cut_is_an_outage(s3: S3Backend, tmp_path: Path, times: int) -> None:
    store(KEY, content(LARGE))
    s3.proxy.fail("GET", times=times, is_answer_cut=True)
    with pytest.raises(StorageUnavailable, match="Reading"):
        fetch(tmp_path, content(LARGE))


def test_a_download_of_other_bytes_is_corrupt(s3: S3Backend, tmp_path: Path) -> None:
    store(KEY, content(SMALL))
    s3.proxy.fail("GET", is_answer_flipped=True)
    with pytest.raises(ObjectCorrupt):
        fetch(tmp_path, content(SMALL))


def test_a_storage_that_may_not_be_listed_fails_the_check(s3: S3Backend) -> None:
    s3.proxy.fail("HEAD", status=403, code="Forbidden")
    with pytest.raises(StorageUnavailable, match="listing"):
        storage.check()


def test_a_storage_that_may_not_be_written_fails_the_check(s3: S3Backend) -> None:
    s3.proxy.fail("PUT", status=403, code="AccessDenied")
    with pytest.raises(StorageUnavailable, match="AccessDenied"):
        storage.check()


def test_every_body_is_signed_over_its_digest(s3: S3Backend) -> None:
    store(KEY, content(LARGE))
    _assert_bodies_are_signed(s3.proxy, parts=3)


def test_every_body_is_signed_over_its_digest_over_tls_too(
    s3: S3Backend, s3_server: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _certified(tmp_path / "pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "pem"))
    with S3Proxy(s3_server, tls=context) as proxy:
        settings.AWS_S3_ENDPOINT_URL = proxy.url
        store(KEY, content(LARGE))
        assert load(KEY) == content(LARGE)
        _assert_bodies_are_signed(proxy, parts=3)


def _assert_bodies_are_signed(proxy: S3Proxy, *, parts: int) -> None:
    sent = [request for request in proxy.seen if request.method == "PUT"]
    assert len(sent) == parts
    assert [request.payload_sha256 for request in sent] == [request.body_sha256 for request in sent]


def test_no_message_shows_a_secret_or_a_signature(s3: S3Backend) -> None:
    def break_everything() -> None:
        for method in ("PUT", "GET", "HEAD"):
            s3.proxy.fail(method, status=403, code="SignatureDoesNotMatch")

    acts: list[Callable[[], object]] = [lambda: store(KEY, b"x"), lambda: load(KEY), storage.check]
    break_everything()
    for act in acts:
        with pytest.raises(StorageUnavailable) as failure:
            act()
        shown = "".join(traceback.format_exception(failure.value))
        assert SECRET not in shown
        assert "X-Amz-Signature" not in shown
        assert "Signature=" not in shown
        assert failure.value.__cause__ is not None


def test_a_signed_url_serves_the_bytes_under_a_harmless_name(s3: S3Backend, settings: Settings) -> None:
    store(KEY, b"<script>")
    name = 'отчёт\r\nX-Evil: "1".html'
    url = storage.signed_url(BUCKET, KEY, filename=name, content_type="image/png", disposition="attachment")
    assert url is not None
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"<script>"
        assert answer.headers["Content-Type"] == "image/png"
        assert answer.headers["Content-Disposition"] == content_disposition(name, "attachment")
        assert answer.headers["X-Evil"] is None


def test_a_signed_url_names_the_public_address_and_its_life(s3: S3Backend, settings: Settings) -> None:
    settings.AWS_S3_PUBLIC_ENDPOINT_URL = "https://files.example.test"
    settings.SIGNED_URL_SECONDS = 77
    url = storage.signed_url(BUCKET, KEY, filename="a.png", content_type="image/png", disposition="inline")
    assert url is not None
    assert url.startswith(f"https://files.example.test/{BUCKET}/{KEY}?")
    assert "X-Amz-Expires=77&" in url
    assert SECRET not in url
    assert s3.proxy.seen == []


def _certified(pem: Path) -> ssl.SSLContext:
    """A certificate for 127.0.0.1, written to `pem` with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
