"""The web process's entry point."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import django
from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.utils.http import parse_header_parameters

from config import checks

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")


class Request(WSGIRequest):
    """A Content-Type that cannot be read is none, and a charset changes nothing: everything here is UTF-8.

    Django raises for some of both outside of its own error handling, and the server would answer with its own page.
    """

    def _set_content_type_params(self, meta: Mapping[str, Any]) -> None:
        try:
            self.content_type, self.content_params = parse_header_parameters(meta.get("CONTENT_TYPE", ""))
        except ValueError:
            self.content_type, self.content_params = "", {}


class Handler(WSGIHandler):
    request_class = Request


django.setup(set_prefix=False)
checks.refuse_wrong_settings()
application = Handler()
