"""Shapes that cross a process border: JSON Schema files and their compiled validators."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import best_match

FOLDER = Path(__file__).parent


class InvalidShape(Exception):
    """A document does not fit its schema; the text names the place and the rule, never the value."""


@cache
def validator(name: str) -> Draft202012Validator:
    """The compiled validator of `<name>.schema.json`."""
    schema = json.loads((FOLDER / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FormatChecker())


def validate(name: str, document: Any) -> None:
    """Raise InvalidShape unless `document` fits `<name>.schema.json`."""
    error = best_match(validator(name).iter_errors(document))
    if error is not None:
        place = "/".join(map(str, error.absolute_path)) or "the document"
        raise InvalidShape(f"{name}: {place} breaks the rule '{error.validator}'")
