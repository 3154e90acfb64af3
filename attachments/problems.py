"""Every error as an RFC 9457 problem document, told apart by a stable `code`.

The table of errors and their statuses is `attachments.errors`; what goes wrong outside of a view ends here too,
by the handlers that `config.urls` names. Addresses for people (admin, pages) keep Django's own error pages.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views import defaults
from rest_framework.exceptions import APIException, ValidationError

from attachments.errors import AttachmentError, ObjectCorrupt, ObjectMissing
from attachments.outages import is_conflict, is_database_away
from config.logging import current_carrier

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 5
#: Asking again does not help; only the operator does.
UNTIL_MENDED = frozenset({ObjectCorrupt.code, ObjectMissing.code})

DATABASE_AWAY = (503, "database_unavailable", "The database is not available for the moment. Try again later.")
#: What the frameworks raise, in our words; the first match decides.
FOREIGN: tuple[tuple[type[Exception], int, str, str], ...] = (
    (Http404, 404, "not_found", "There is nothing at this address. Addresses end in a slash."),
    (PermissionDenied, 403, "permission_denied", "You are not allowed to do this."),
    (RequestDataTooBig, 413, "form_too_large", "The form's fields are larger than this service accepts."),
    (SuspiciousOperation, 400, "bad_request", "The request could not be understood."),
)
#: What to do next, after what REST framework says is wrong; by its codes.
_WHAT_NEXT = {
    "not_authenticated": "Send your token in the header: Authorization: Token <token>.",
    "authentication_failed": "Send a valid one in the header: Authorization: Token <token>.",
    "method_not_allowed": "The header Allow names the methods that this address takes.",
    "not_acceptable": "Accept application/json, or leave the header out.",
}
UNEXPECTED = (500, "internal_error", "Something went wrong here. If it stays, tell the operator the trace_id.")

logger = logging.getLogger(__name__)


class Problem(Exception):
    """An answer that says what is wrong and what to do next; further `facts` become members of the document."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **facts: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.facts = facts


def exception_handler(error: Exception, _context: dict[str, Any]) -> HttpResponse:
    """What REST framework asks for each exception that a view raised; never leaves one to an HTML page."""
    problem = as_problem(error)
    _log(problem, error)
    return as_response(problem)


def as_problem(error: BaseException | None) -> Problem:
    """The problem that an exception means to the client. Nothing of an unexpected one is shown."""
    match error:
        case Problem():
            return error
        case AttachmentError():
            return Problem(error.status, error.code, error.sentence, **error.facts)
        case ValidationError():
            return invalid(error.detail)
        case APIException():
            sentences = f"{error.detail} {_WHAT_NEXT.get(error.default_code, '')}".rstrip()
            return Problem(error.status_code, error.default_code, sentences, headers=_headers(error))
    if error is not None and is_database_away(error):
        return Problem(*DATABASE_AWAY, headers={"Retry-After": "1"} if is_conflict(error) else None)
    status, code, detail = next((known[1:] for known in FOREIGN if isinstance(error, known[0])), UNEXPECTED)
    return Problem(status, code, detail)


def invalid(errors: Any) -> Problem:
    """Values that cannot be; `errors` maps each field or parameter to sentences about it."""
    return Problem(422, "invalid", "Some values cannot be used; see errors.", errors=errors)


def as_response(problem: Problem) -> HttpResponse:
    document = {
        **problem.facts,
        "type": f"/problems/{problem.code}",
        "title": problem.code.replace("_", " ").capitalize(),
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
        "trace_id": current_carrier()["traceparent"].split("-")[1],
    }
    headers = {"Cache-Control": "no-store", **problem.headers}
    if problem.status == 503 and problem.code not in UNTIL_MENDED:
        headers.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    return JsonResponse(document, status=problem.status, headers=headers, content_type=CONTENT_TYPE)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return as_response(as_problem(exception)) if _is_api(request) else defaults.bad_request(request, exception)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return as_response(as_problem(exception)) if _is_api(request) else defaults.permission_denied(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return as_response(as_problem(exception)) if _is_api(request) else defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """For what was raised outside of a REST view; Django calls this while it handles the exception, and logs it."""
    problem = as_problem(sys.exc_info()[1])
    if _is_api(request):
        return as_response(problem)
    if problem.status == 503:
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        return HttpResponse(problem.detail, status=503, headers=headers, content_type="text/plain")
    return defaults.server_error(request)


def _is_api(request: HttpRequest) -> bool:
    return request.path_info.startswith("/api/")


def _headers(error: APIException) -> dict[str, str]:
    """What REST framework attached to its own errors, as its own handler would send it."""
    headers = {}
    if auth_header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = auth_header
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(int(wait))
    return headers


def _log(problem: Problem, error: Exception) -> None:
    if problem.code == "internal_error":
        logger.error("unexpected_error", exc_info=error)
    elif problem.status >= 500:
        cause = error.detail if isinstance(error, AttachmentError) else type(error).__name__
        logger.error("request_failed", extra={"code": problem.code, "cause": cause})
