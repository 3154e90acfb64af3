"""Log lines with an action word, fields and the trace they belong to.

The trace context (W3C `traceparent`) is taken from the HTTP request, or begun there, stored as the job's
carrier and bound again by the worker, so that one id joins the lines of every process.
"""

from __future__ import annotations

import contextvars
import datetime
import json
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse

TRACEPARENT = re.compile(r"^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$")
TRACESTATE_LIMIT = 512

_carrier: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("carrier")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "data"}
#: Django's, whose address holds what was searched for: the message names its path.
_NOT_TOLD = frozenset({"request"})


def new_carrier() -> dict[str, str]:
    """A W3C trace context that starts a trace here."""
    return {"traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"}


def current_carrier() -> dict[str, str]:
    """The trace context bound to this request or job; a new one where none is bound."""
    bound = _carrier.get(None)
    return dict(bound) if bound else new_carrier()


@contextmanager
def bound_carrier(carrier: Mapping[str, str]) -> Iterator[None]:
    """Log lines written inside carry this trace context."""
    token = _carrier.set(carrier)
    try:
        yield
    finally:
        _carrier.reset(token)


def carrier_from_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The caller's trace context when it is well-formed, else a new one: a malformed header starts over."""
    traceparent = headers.get("traceparent", "")
    if not TRACEPARENT.match(traceparent):
        return new_carrier()
    carrier = {"traceparent": traceparent}
    tracestate = headers.get("tracestate", "")
    if tracestate and len(tracestate) <= TRACESTATE_LIMIT and tracestate.isascii() and tracestate.isprintable():
        carrier["tracestate"] = tracestate
    return carrier


class TraceMiddleware:
    """Binds the request's trace context and answers with its `traceparent`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        carrier = carrier_from_headers(request.headers)
        with bound_carrier(carrier):
            response = self.get_response(request)
        response.headers.setdefault("traceparent", carrier["traceparent"])
        return response


class TraceFilter(logging.Filter):
    """Adds the trace id to every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        bound = _carrier.get(None)
        if bound and not hasattr(record, "trace_id"):
            record.trace_id = bound["traceparent"].split("-")[1]
        return True


#: At DEBUG these print SQL, message bodies and signed requests.
FRAMEWORKS = ("amqp", "asyncio", "boto3", "botocore", "celery", "django", "kombu", "s3transfer", "urllib3")
#: At INFO already these print each address that is asked, and the Bot API's hold the token.
OUTSPOKEN = ("httpcore", "httpx", "telegram")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD | _NOT_TOLD}


class Discreet(logging.Formatter):
    """Writes a line without the secret, wherever in it that is: the second fence, whatever loggers are turned on."""

    def __init__(self, *, secret: str = "") -> None:
        super().__init__()
        self._secret = secret

    def discreet(self, line: str) -> str:
        return line.replace(self._secret, "[secret]") if self._secret else line


class JsonFormatter(Discreet):
    """One JSON object a line: at, level, logger, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        fields = {"at": at, "level": record.levelname, "logger": record.name, "event": record.getMessage()}
        fields.update(_fields(record))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return self.discreet(json.dumps(fields, default=str, ensure_ascii=False))


class ConsoleFormatter(Discreet):
    """The same facts for a person's eyes."""

    def line(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).strftime("%H:%M:%S.%f")[:-3]
        line = f"{at} {record.levelname:<7} {record.name}: {record.getMessage()} {fields}".rstrip()
        return self.discreet(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


FORMATTERS = {"json": JsonFormatter, "console": ConsoleFormatter}


def logging_config(*, level: str, style: str, bot_token: str = "") -> dict[str, Any]:
    """A dictConfig to stderr; `style` is the value of LOG_FORMAT: `json` or `console`, else ImproperlyConfigured."""
    if style not in FORMATTERS:
        raise ImproperlyConfigured(f"LOG_FORMAT must be {' or '.join(FORMATTERS)}, not {style!r}.")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"trace": {"()": TraceFilter}},
        # The part after the bot's number is the secret, and the colon may be encoded in an address.
        "formatters": {"line": {"()": FORMATTERS[style], "secret": bot_token.rpartition(":")[2]}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["trace"]}},
        "root": {"handlers": ["stderr"], "level": level},
        # The frameworks at DEBUG print SQL, message bodies and signed requests; ours never need that.
        "loggers": {
            **{name: {"level": "INFO"} for name in FRAMEWORKS},
            **{name: {"level": "WARNING"} for name in OUTSPOKEN},
        },
    }
