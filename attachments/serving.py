"""User bytes on their way out: a redirect to a short-lived signed URL, or the bytes themselves from local storage.

The stored, detected type is what is sent. Only a fixed list of pictures and sounds may show inside a page; everything
else is a download, and nothing may run: a sandbox without sources, and no guessing of types.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, StreamingHttpResponse
from django.utils.cache import get_conditional_response
from django.utils.http import http_date

from attachments import storage
from attachments.errors import ObjectCorrupt
from attachments.models import StoredObject
from attachments.problems import Problem

INLINE = frozenset(
    {
        *(f"image/{kind}" for kind in ("avif", "gif", "jpeg", "png", "webp")),
        *(f"audio/{kind}" for kind in ("aac", "flac", "mp4", "mpeg", "ogg", "wav", "webm")),
    }
)
HARMLESS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    # A newer version may be served under the same address, so ask each time; the answer is mostly 304.
    "Cache-Control": "private, no-cache",
}
SINGLE_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


class Range(NamedTuple):
    """The bytes from `start` up to, not including, `end`."""

    start: int
    end: int


def serve(request: HttpRequest, stored: StoredObject, *, filename: str) -> HttpResponseBase:
    """The answer to GET or HEAD for one object.

    Raises Problem (412, 416), and ObjectMissing, ObjectCorrupt or StorageUnavailable before the first byte.
    """
    disposition: storage.Disposition = "inline" if stored.content_type in INLINE else "attachment"
    url = storage.signed_url(
        stored.bucket, stored.key, filename=filename, content_type=stored.content_type, disposition=disposition
    )
    if url is not None:
        return HttpResponseRedirect(url, headers={"Cache-Control": "private, no-store"})
    headers = {
        **HARMLESS,
        "Accept-Ranges": "bytes",
        "Content-Type": stored.content_type,
        "Content-Disposition": storage.content_disposition(filename, disposition),
        "ETag": f'"{stored.sha256}"',
        "Last-Modified": http_date(stored.created_at.timestamp()),
    }
    return _unless_known(request, stored, headers) or _bytes(request, stored, headers)


def _unless_known(request: HttpRequest, stored: StoredObject, headers: dict[str, str]) -> HttpResponseBase | None:
    """304 when the client has these very bytes; Problem 412 when it asked for others."""
    early = get_conditional_response(
        request,
        etag=headers["ETag"],
        last_modified=int(stored.created_at.timestamp()),
        response=HttpResponse(headers=headers),
    )
    if early is None or early.status_code == 200:
        return None
    if early.status_code == 412:
        raise Problem(412, "precondition_failed", "The file is not the one that was asked for; get it anew.")
    return early


def _bytes(request: HttpRequest, stored: StoredObject, headers: dict[str, str]) -> HttpResponseBase:
    assert stored.size is not None
    wanted = _range(request, stored.size, etag=headers["ETag"])
    start, end = wanted or Range(0, stored.size)
    stream = storage.open_object(stored.bucket, stored.key, start=start, length=end - start)
    if stream.remaining != end - start:
        stream.close()
        raise ObjectCorrupt(f"{stored} is shorter than {stored.size} bytes.")
    headers["Content-Length"] = str(end - start)
    if wanted:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{stored.size}"
    if request.method == "HEAD":
        stream.close()
        return HttpResponse(headers=headers)
    return StreamingHttpResponse(stream, status=206 if wanted else 200, headers=headers)


def _range(request: HttpRequest, size: int, *, etag: str) -> Range | None:
    """The one range asked for; None means everything: no range, several, or one that is not understood."""
    header = request.headers.get("Range", "").strip()
    found = SINGLE_RANGE.fullmatch(header)
    if found is None or found[0] == "bytes=-" or request.method != "GET":
        return None
    if request.headers.get("If-Range", etag) != etag:
        return None
    first, last = found.groups()
    if not first:
        wanted = Range(max(size - int(last), 0), size)
    else:
        wanted = Range(int(first), min(int(last) + 1, size) if last else size)
        if last and int(last) < int(first):
            return None
    if wanted.start >= wanted.end:
        headers = {"Content-Range": f"bytes */{size}"}
        raise Problem(416, "range_not_satisfiable", "The file has no such bytes.", headers=headers, size=size)
    return wanted
