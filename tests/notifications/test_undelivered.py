"""[transcription] Requirement: Недоставленный ответ не роняет шаг; its three scenarios, and what no record may hold."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from django.contrib.auth.models import User
from prometheus_client.parser import text_string_to_metric_families

from config.local.places import free_port
from notifications.models import TelegramUpdate
from pipeline import metrics, registry
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.origins import Origin
from pipeline.states import Reply, Source, State
from tests.botapi import TOKEN, BotApi
from tests.notifications.hearing import BY_FAMILY, HEARD, SENTENCE
from tests.pictures import jpeg
from tests.processes import Process, Stack, until_state
from tests.waiting import until
from tests.work import make_quick, work

pytestmark = pytest.mark.django_db(transaction=True)

APP = "tests.notifications.loud_app"
SECRET = TOKEN.partition(":")[2]
CAPTION = "A caption that only its writer knows."
ANN = Origin(Source.TELEGRAM, chat_id=77, message_id=1001, language="en")

Queued = Callable[..., Job]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process accepts is for the workers of `APP`."""
    monkeypatch.setattr(registry, "PIPELINES", (HEARD,))
    monkeypatch.setattr(registry, "_BY_FAMILY", BY_FAMILY)


def bot(server: BotApi) -> dict[str, str]:
    return {"TELEGRAM_BOT_TOKEN": TOKEN, "TELEGRAM_API_URL": server.url, "TELEGRAM_OWNER": "ann", "LOG_LEVEL": "DEBUG"}


def lines(process: Process, event: str) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in process.logs().splitlines() if line.startswith("{")]
    return [line for line in told if line["event"] == event]


def undelivered(port: int) -> dict[str, float]:
    """How many answers were not delivered, by reason, as the worker tells whoever scrapes it."""
    scraped = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
    samples = [sample for family in text_string_to_metric_families(scraped) for sample in family.samples]
    return {
        sample.labels["reason"]: sample.value
        for sample in samples
        if sample.name == "holdfast_replies_undelivered_total"
    }


def records(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str, str]]:
    return [
        (record.levelno, record.__dict__["job_id"], record.__dict__["reason"])
        for record in caplog.records
        if record.message == "reply_undelivered"
    ]


def counted() -> float:
    return sum(
        sample.value
        for sample in next(iter(metrics.REPLIES_UNDELIVERED.collect())).samples
        if sample.name.endswith("_total")
    )


def test_scenario_the_senders_door_is_not_up(bot_api: BotApi, user: User, running: Stack) -> None:
    """[transcription] Scenario: Вход отправителя не поднят."""
    # GIVEN задача принята входом Telegram прошлым запуском сервиса
    before = [
        running.dispatcher(name="before", **bot(bot_api)),
        running.worker("telegram", concurrency=1, app=APP, **bot(bot_api)).until_ready(),
        running.poller(**bot(bot_api)),
    ]
    bot_api.receive(photo=[photo(bot_api)], caption=CAPTION)
    until(Job.objects.exists, say=running.logs)
    job = Job.objects.get()
    assert (job.source, job.state, job.reply_chat_id) == (Source.TELEGRAM, State.QUEUED, 77)
    for process in before:
        process.terminate()
    # AND сервис поднялся без этого входа
    port = free_port()
    running.dispatcher(name="after")
    worker = running.worker("images", app=APP, LOG_LEVEL="DEBUG", METRICS_PORT=str(port))
    # WHEN шаг конвейера доходит до ответа отправителю
    until(lambda: lines(worker, "reply_undelivered"), seconds=60, say=running.logs)
    # THEN шаг завершается без отказа, и воркер не считает прогон сбоем
    job.refresh_from_db()
    assert (job.state, job.failures, job.error_code) == (State.READY, 0, "")
    assert [line["outcome"] for line in lines(worker, "attempt_ended")] == ["ready"]
    # AND задача остаётся в достигнутом состоянии, в повтор не уходит и в `failed` не переводится
    assert (job.attempt, job.reply, job.reply_reason) == (1, Reply.UNDELIVERED, "not_configured")
    assert OutboxMessage.objects.filter(job=job).count() == 1
    # AND в журнале есть запись уровня `WARN` о недоставке с идентификатором задачи и причиной
    (line,) = lines(worker, "reply_undelivered")
    assert (line["level"], line["job_id"], line["reason"]) == ("WARNING", str(job.job_id), "not_configured")
    assert JobEvent.objects.filter(job=job, reason="reply_undelivered").get().detail == "not_configured"
    # AND счётчик недоставленных ответов вырос с этой причиной меткой
    assert undelivered(port) == {"not_configured": 1}
    # AND ни текста расшифровки, ни сообщения отправителя в этой записи нет
    assert set(line) == {"at", "level", "logger", "event", "job_id", "reason", "trace_id"}
    assert SENTENCE not in running.logs() and CAPTION not in running.logs()
    assert bot_api.sent() == []


def photo(server: BotApi) -> dict[str, Any]:
    file_id = server.keep_file(jpeg(64, 48))
    return {"file_id": file_id, "file_unique_id": file_id[-8:], "width": 64, "height": 48}


def test_scenario_the_job_names_no_chat(
    bot_api: BotApi, queued: Queued, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[transcription] Scenario: Адресат у задачи не назван."""
    # GIVEN у задачи источником значится Telegram, а чат не назван
    make_quick(monkeypatch)
    job = queued(origin=Origin(Source.TELEGRAM))
    before = counted()
    # WHEN шаг конвейера доходит до ответа отправителю
    # THEN шаг завершается без отказа, и воркер не считает прогон сбоем
    assert work(job) == "ready"
    # AND задача остаётся в достигнутом состоянии
    job.refresh_from_db()
    assert (job.state, job.attempt, job.failures, job.reply) == (State.READY, 1, 0, Reply.UNDELIVERED)
    # AND в журнале есть запись уровня `ERROR` о недоставке с идентификатором задачи и причиной
    assert records(caplog) == [(logging.ERROR, str(job.job_id), "missing_chat")]
    assert counted() == before + 1
    assert bot_api.calls == []


def test_a_missing_chat_is_told_even_while_the_door_is_not_up(
    queued: Queued, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[transcription] один уровень на обе причины утопил бы этот сигнал в потоке штатных записей."""
    make_quick(monkeypatch)
    for origin in (Origin(Source.TELEGRAM), ANN):
        work(queued(origin=origin))
    assert [(level, reason) for level, _, reason in records(caplog)] == [
        (logging.ERROR, "missing_chat"),
        (logging.WARNING, "not_configured"),
    ]


def test_scenario_the_file_did_not_come_from_telegram(
    bot_api: BotApi, queued: Queued, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[transcription] Scenario: Отвечать некуда, потому что запись пришла не из Telegram."""
    # GIVEN задача принята по HTTP
    make_quick(monkeypatch)
    job, before = queued(), counted()
    # WHEN шаг конвейера доходит до ответа отправителю
    # THEN шаг завершается без отказа и без записи о недоставке
    assert work(job) == "ready"
    job.refresh_from_db()
    assert (job.state, job.reply) == (State.READY, Reply.NONE)
    assert (records(caplog), counted()) == ([], before)
    assert not JobEvent.objects.filter(reason="reply_undelivered").exists()
    assert bot_api.calls == []


@pytest.mark.usefixtures("heard")
def test_no_record_holds_the_token_or_what_was_said(
    bot_api: BotApi, queued: Queued, running: Stack, tmp_path: Path
) -> None:
    """[transcription] приватность содержимого: at DEBUG, with every library's loggers on, whatever Telegram answers."""
    bot_api.fail("sendMessage", times=1, status=400, description=f"Bad Request: can't parse: {SENTENCE}")
    bot_api.fail("sendMessage", times=1, status=500, description=f"upstream of /bot{TOKEN}/sendMessage")
    for status in (200, 502):
        bot_api.fail("sendMessage", times=1, status=status, page=f"<p>/bot{TOKEN}/sendMessage {SENTENCE}</p>")
    bot_api.fail("sendMessage", times=1, is_answer_lost=True)
    port = free_port()
    running.dispatcher(**bot(bot_api))
    worker = running.worker(concurrency=1, app=APP, **bot(bot_api), METRICS_PORT=str(port))
    jobs = [queued(jpeg(width=64 + number), origin=ANN) for number in range(6)]
    until_state(State.READY, jobs, running)
    until(lambda: not Job.objects.filter(reply__in=[Reply.DUE, Reply.SENDING]).exists(), say=running.logs)
    assert sorted(Job.objects.values_list("reply_reason", flat=True)) == [
        "",
        "network",
        "network",
        "rejected",
        "timeout_unknown",
        "timeout_unknown",
    ]
    # The loggers were on, and what they had to say was written.
    assert worker.says("HTTP Request: POST") and worker.says("send_request_headers.started")
    assert SENTENCE in str(bot_api.sent()[-1].params)
    rows = [JobEvent, OutboxMessage, Job, TelegramUpdate]
    told = [str(list(model._default_manager.values_list())) for model in rows]
    told += [path.read_text(errors="replace") for path in tmp_path.glob("*.log")]
    told.append(requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text)
    # The library writes some of its errors in small letters.
    for text in told:
        assert SECRET.lower() not in text.lower()
        assert SENTENCE.lower() not in text.lower()
