"""How a browser's session proves itself to the REST door; everything else sends a token."""

from __future__ import annotations

import copy

from drf_spectacular.authentication import SessionScheme
from rest_framework.authentication import SessionAuthentication
from rest_framework.request import Request


class BrowserSession(SessionAuthentication):
    """A session, with its CSRF token in the X-CSRFToken header.

    Django's check also looks into the form of a POST; it would take in the whole upload to find a token there.
    """

    def enforce_csrf(self, request: Request) -> None:
        without_form = copy.copy(request._request)  # noqa: SLF001  (REST framework has no public name for it)
        without_form.method = "PUT"
        super().enforce_csrf(without_form)  # type: ignore[arg-type]


class BrowserSessionScheme(SessionScheme):  # type: ignore[no-untyped-call]
    target_class = "attachments.authentication.BrowserSession"
