"""Settings that contradict each other are refused at boot, in words that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from config.logging import logging_config
from tests.processes import Process, Stack


def ids() -> list[str | None]:
    return [message.id for message in run_checks(tags=["holdfast"])]


def test_the_settings_of_the_local_stack_contradict_nothing() -> None:
    assert ids() == []


@pytest.mark.parametrize(
    ("changes", "expected", "hint"),
    [
        ({"RENEW_SECONDS": 6.0, "LEASE_SECONDS": 15.0}, "holdfast.E001", "LEASE_SECONDS"),
        ({"MAX_FAILURES": 0}, "holdfast.E002", "MAX_FAILURES"),
        ({"SIGNED_URL_SECONDS": 0}, "holdfast.E003", "SIGNED_URL_SECONDS"),
        ({"MAX_WAITERS": -1}, "holdfast.E004", "MAX_WAITERS"),
        ({"MAX_WAITERS": 16, "WEB_THREADS": 16}, "holdfast.E004", "WEB_THREADS"),
        ({"MAX_AUDIO_SECONDS": 60_001.0}, "holdfast.E005", "MAX_AUDIO_SECONDS"),
        ({"TELEGRAM_MAX_WAIT": 31.0}, "holdfast.E006", "TELEGRAM_MAX_WAIT"),
        ({"STORAGE_BACKEND": "ftp"}, "holdfast.E010", "local or s3"),
        ({"TELEGRAM_BOT_TOKEN": "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"}, "holdfast.E040", "BotFather"),
        ({"TELEGRAM_WEBHOOK_SECRET": "s e c r e t"}, "holdfast.E041", "letters"),
        ({"TELEGRAM_ALLOWED_CHATS": ["-100500", "@ann"]}, "holdfast.E042", "numbers"),
        ({"STORAGE_BACKEND": "s3", "STORAGE_BUCKET": ""}, "holdfast.E011", "STORAGE_BUCKET"),
        ({"STORAGE_BACKEND": "local", "STORAGE_ROOT": ""}, "holdfast.E012", "STORAGE_ROOT"),
        ({"FAILPOINTS": "after_commit=kill", "LOCAL_STACK": False, "INSECURE_HTTP": False}, "holdfast.E020", "Unset"),
        ({"INSECURE_HTTP": True, "LOCAL_STACK": False}, "holdfast.W021", "TLS"),
    ],
)
def test_a_contradiction_is_named_with_what_to_do(
    settings: Any, changes: dict[str, object], expected: str, hint: str
) -> None:
    for name, value in changes.items():
        setattr(settings, name, value)
    (found,) = run_checks(tags=["holdfast"])
    assert found.id == expected
    assert hint in str(found.hint)


@pytest.mark.parametrize(
    "changes",
    [
        {"RENEW_SECONDS": 5.0, "LEASE_SECONDS": 15.0},
        {"MAX_FAILURES": 1},
        {"SIGNED_URL_SECONDS": 1},
        {"MAX_WAITERS": 0},
        {"MAX_WAITERS": 15, "WEB_THREADS": 16},
        {"STORAGE_BACKEND": "s3", "STORAGE_ROOT": ""},
    ],
)
def test_a_value_at_its_bound_is_accepted(settings: Any, changes: dict[str, object]) -> None:
    for name, value in changes.items():
        setattr(settings, name, value)
    assert ids() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "start", [Stack.worker, Stack.beat, Stack.dispatcher, lambda stack, **env: stack.web(0, **env)]
)
def test_no_process_starts_with_settings_that_contradict_each_other(
    start: Callable[..., Process], running: Stack
) -> None:
    process = start(running, RENEW_SECONDS="1", LEASE_SECONDS="2")
    assert process.wait(seconds=60) != 0
    assert "Set LEASE_SECONDS to at least 3 × RENEW_SECONDS" in process.logs()


def test_an_unknown_log_format_names_the_variable_and_the_choices() -> None:
    with pytest.raises(ImproperlyConfigured, match="LOG_FORMAT must be json or console, not 'xml'"):
        logging_config(level="INFO", style="xml")
