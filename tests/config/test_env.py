"""What the environment lacks or gets wrong stops the process, in words that name the variable."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured

from config.env import REQUIRED, VARIABLES, read

NEEDED = [name for name, (_, default) in VARIABLES.items() if default is REQUIRED]


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("value", [None, "", "  ", "$HOLDFAST_UNSET"])
def test_a_required_variable_without_a_value_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    monkeypatch.delenv("HOLDFAST_UNSET", raising=False)
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(ImproperlyConfigured, match=f"Set {name};"):
        read(name)


def test_a_required_value_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "a secret")
    assert read("SECRET_KEY") == "a secret"


def test_what_is_not_set_has_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEB_THREADS", raising=False)
    assert read("WEB_THREADS") == 16


def test_a_value_of_the_wrong_type_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_THREADS", "many")
    with pytest.raises(ImproperlyConfigured, match="WEB_THREADS must be of type int"):
        read("WEB_THREADS")
