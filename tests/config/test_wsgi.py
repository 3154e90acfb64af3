"""Headers that Django trips over before its own error handling begins."""

from __future__ import annotations

import io
from typing import Any

import pytest

from config.wsgi import application

HOSTILE = (
    "multipart/form-data; boundary*=bogus'x'y",
    "text/plain; charset=zip",
    "text/plain; charset=undefined",
    ";;=",
)


@pytest.mark.django_db
@pytest.mark.parametrize("content_type", HOSTILE)
def test_a_content_type_that_cannot_be_read_is_no_server_error(content_type: str) -> None:
    answers: list[str] = []
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/api/v1/attachments/",
        "QUERY_STRING": "a=1",
        "CONTENT_TYPE": content_type,
        "CONTENT_LENGTH": "0",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "wsgi.input": io.BytesIO(),
        "wsgi.url_scheme": "http",
    }

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
        answers.extend([status, dict(headers)["Content-Type"]])

    body = b"".join(application(environ, start))
    assert answers == ["401 Unauthorized", "application/problem+json"]
    assert b"not_authenticated" in body
