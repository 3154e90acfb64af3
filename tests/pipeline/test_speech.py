"""Recordings through the real executor, with the real conversion and the real model.

The requirements are docs/requirements/transcription.md.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import override_settings
from prometheus_client import generate_latest

from attachments import search, storage
from attachments.errors import PipelineUnavailable
from attachments.models import Attachment, Transcript, Variant
from pipeline import confined, intake, lifecycle, removal, scratch
from pipeline.models import Job, JobEvent
from pipeline.origins import Origin
from pipeline.speech import cutting, model, self_test
from pipeline.states import Source, State
from pipeline.steps import audio
from tests import recordings
from tests.speaking import RATE, Samples, address, noise, silence
from tests.waiting import until
from tests.work import work

pytestmark = pytest.mark.django_db(transaction=True)

PROMISED = {"transcript", "text", "srt", "vtt", "json"}


@pytest.fixture(autouse=True)
def _server(settings: Any) -> Iterator[None]:
    # One text is weighed: what is tested is the work around the model.
    settings.TRANSCRIPTION_BEAM = 1
    yield
    confined.shut_down()


@pytest.fixture
def recorded(user: User) -> Callable[..., Job]:
    """Accepts a recording as the REST door would; returns its queued job."""

    def accept(data: bytes, **options: Any) -> Job:
        received = intake.receive([data], created_by="test")
        # Names and types are claims, which decide nothing.
        claims = {"name": "holiday.jpg", "claimed_type": "image/jpeg"}
        request = intake.Request(owner=user, origin=Origin(Source.REST), **claims, **options)
        return intake.accept(received, request).job

    return accept


@pytest.fixture(scope="module")
def clip() -> Samples:
    """The first five words of the sample."""
    return address(2.8)


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a recording of a few seconds has several."""
    monkeypatch.setattr(cutting, "WINDOW_MS", 4_600)
    monkeypatch.setattr(cutting, "SEARCH_MS", 2_000)


def spoken() -> bytes:
    return self_test.SAMPLE.read_bytes()


def twice(clip: Samples) -> bytes:
    """The clip two times with a pause: two windows, with `short_windows`."""
    return wav(np.concatenate([clip, silence(1.5), clip]))


def wav(samples: Samples) -> bytes:
    return recordings.wav(samples, rate=RATE)


def shown(job: Job) -> dict[str, bytes]:
    """What the owner is given, by variant."""
    variants = Variant.objects.filter(attachment=job.attachment_id, is_internal=False).select_related("stored_object")
    return {one.variant: read(one) for one in variants}


def read(variant: Variant) -> bytes:
    stored = variant.stored_object
    with storage.open_object(stored.bucket, stored.key) as stream:
        return b"".join(stream)


def internal(job: Job) -> set[str]:
    return set(Variant.objects.filter(attachment=job.attachment_id, is_internal=True).values_list("variant", flat=True))


def words(text: bytes) -> list[str]:
    return "".join(letter if letter.isalpha() else " " for letter in text.decode().lower()).split()


def test_a_voice_note_becomes_text_subtitles_and_words(recorded: Callable[..., Job]) -> None:
    """[transcription] цепочка: «Запись проходит цепочку до конца»."""
    job = recorded(spoken())
    assert (job.pipeline, job.queue) == ("speech", "speech")
    assert work(job) == "ready"
    job.refresh_from_db()
    made = shown(job)
    assert made.keys() == PROMISED
    assert internal(job) == {"converted"}
    assert words(made["text"]) == self_test.WORDS.split()
    document = json.loads(made["json"])
    assert (document["language"], round(document["duration"])) == ("en", 11)
    assert made["srt"].startswith(b"1\n00:00:0")
    assert made["vtt"].startswith(b"WEBVTT\n")
    attachment = Attachment.objects.get(id=job.attachment_id)
    assert attachment.media["codec"] == "opus"
    assert Transcript.objects.get(attachment=attachment).language == "en"
    assert [said.attachment_id for said in search.said("countries")] == [attachment.id]


def test_what_was_made_is_not_made_again(recorded: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """[transcription] цепочка: «Воркер умер после преобразования»."""
    job = recorded(spoken())
    with monkeypatch.context() as broken:
        broken.setattr(model, "load", _fail)
        assert work(job) == "retried"
    assert internal(job) == {"converted"}
    Job.objects.update(due_at="2000-01-01T00:00:00Z")
    monkeypatch.setattr(audio, "CHILD", "nothing:here")
    assert work(job) == "ready"
    assert words(shown(job)["text"]) == self_test.WORDS.split()


def test_a_lost_format_is_written_from_the_transcript(
    recorded: Callable[..., Job], clip: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = recorded(wav(clip))
    assert work(job) == "ready"
    lifecycle.repair(job.job_id, variants=["srt"], actor="test", detail="lost")
    assert "srt" not in shown(job)
    monkeypatch.setattr(model, "load", _fail)
    assert work(job) == "ready"
    assert shown(job)["srt"].startswith(b"1\n")


def _fail(*_: Any) -> None:
    raise RuntimeError("out of order")


@pytest.mark.usefixtures("short_windows")
def test_a_long_recording_is_done_in_slices_and_goes_on_where_it_was(
    recorded: Callable[..., Job], clip: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[transcription] цепочка: «Длинная запись отдаёт очередь», «Воркер умер между окнами»."""
    job = recorded(twice(clip))
    heard = count_windows(monkeypatch)
    outcomes, done = [], []
    with override_settings(SLICE_SECONDS=0):
        while (outcome := work(job)) == "sliced":
            outcomes.append(internal(job))
            job.refresh_from_db()
            done.append((job.state, job.failures))
    assert outcome == "ready"
    assert outcomes == [{"converted"}, {"converted", "window-0001"}]
    assert set(done) == {(State.QUEUED, 0)}
    assert len(heard) == len(set(heard)) == 2
    transcript = json.loads(shown(job)["transcript"])
    starts = [segment["start_ms"] for segment in transcript["segments"]]
    assert starts == sorted(starts) and starts[-1] > 4_000
    assert words(shown(job)["text"]) == self_test.WORDS.split()[:5] * 2
    assert [event.reason for event in JobEvent.objects.filter(job=job, to_state=State.QUEUED)][1:] == ["slice"] * 2


def count_windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the windows begin that the model is given from here on."""
    heard: list[int] = []
    transcribe = model.transcribe

    def counted(samples: Samples, *, start_ms: int, **options: Any) -> Any:
        heard.append(start_ms)
        return transcribe(samples, start_ms=start_ms, **options)

    monkeypatch.setattr(model, "transcribe", counted)
    return heard


@pytest.mark.usefixtures("short_windows")
def test_a_window_of_another_cut_is_heard_again(
    recorded: Callable[..., Job], clip: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that cuts elsewhere must not put together what does not fit."""
    job = recorded(twice(clip))
    with override_settings(SLICE_SECONDS=0):
        assert [work(job), work(job)] == ["sliced", "sliced"]
    monkeypatch.setattr(cutting, "WINDOW_MS", 9_200)
    heard = count_windows(monkeypatch)
    assert work(job) == "ready"
    assert heard == [0]


@pytest.mark.usefixtures("short_windows")
def test_windows_that_the_storage_lost_are_heard_again_and_cost_no_chance(
    recorded: Callable[..., Job], clip: Samples, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SLICE_SECONDS = 0
    job = recorded(wav(np.concatenate([clip, silence(1.5), clip, silence(1.5), clip])))
    assert [work(job), work(job), work(job)] == ["sliced"] * 3
    lost = Variant.objects.filter(variant__startswith="window-").select_related("stored_object")
    for window in lost:
        storage.delete(window.stored_object.bucket, window.stored_object.key)
    settings.SLICE_SECONDS = 300
    heard = count_windows(monkeypatch)
    assert (len(lost), work(job), len(heard)) == (2, "ready", 3)
    assert Job.objects.get().failures == 0


def test_a_recording_of_a_single_sample_is_silence(recorded: Callable[..., Job]) -> None:
    job = recorded(wav(np.zeros(1, np.float32)))
    assert work(job) == "ready"
    assert shown(job)["text"] == b""


@pytest.mark.parametrize("samples", [silence(3), noise(5, -30)])
def test_where_nobody_speaks_the_text_is_empty(recorded: Callable[..., Job], samples: Samples) -> None:
    """[transcription] цепочка: «В записи не говорят»."""
    job = recorded(wav(samples))
    assert work(job) == "ready"
    made = shown(job)
    document = json.loads(made["transcript"])
    assert (made["text"], document["no_speech"], document["language"], document["segments"]) == (b"", True, None, [])
    assert Transcript.objects.get(attachment=job.attachment_id).language is None


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (recordings.video_without_sound(), "no_audio_stream"),
        (spoken()[:12_000], "bad_file"),
    ],
)
def test_what_cannot_be_converted_fails_at_once_with_its_reason(
    recorded: Callable[..., Job], data: bytes, code: str
) -> None:
    """[transcription] цепочка: «Файл не поддаётся преобразованию»."""
    job = recorded(data)
    assert work(job) == "failed"
    job.refresh_from_db()
    assert (job.state, job.error_code, job.error_step, job.failures) == (State.FAILED, code, "convert", 1)
    assert keeps_original(job)


def keeps_original(job: Job) -> bool:
    original = Attachment.objects.select_related("original").get(id=job.attachment_id).original
    assert original is not None
    with storage.open_object(original.bucket, original.key) as stream:
        return bool(b"".join(stream))


def test_a_deletion_ends_the_conversion_and_nothing_is_recorded(recorded: Callable[..., Job], settings: Any) -> None:
    """[transcription] отмена: «Отмена посреди преобразования»."""
    settings.RENEW_SECONDS, settings.LEASE_SECONDS = 0.1, 5
    job = recorded(recordings.endless_wav(3 * 3600))
    strangers, children = set(psutil.Process().children(recursive=True)), list[psutil.Process]()

    def delete_while_it_is_converted() -> None:
        until(lambda: list(scratch_folders("convert/converted.wav")))
        children.extend(set(psutil.Process().children(recursive=True)) - strangers)
        removal.remove(job.attachment_id, actor="test")
        connection.close()

    deleting = threading.Thread(target=delete_while_it_is_converted)
    deleting.start()
    assert work(job) == "cancelled"
    deleting.join()
    # The one that is left forks the children, and waits for the next.
    _, alive = psutil.wait_procs(children, timeout=5)
    assert (len(children), len(alive)) == (2, 1)
    job.refresh_from_db()
    assert (job.state, job.error_code, job.failures) == (State.FAILED, "cancelled", 0)
    assert not Variant.objects.filter(attachment=job.attachment_id).exists()


def scratch_folders(within: str = "") -> Iterator[Path]:
    """What this process has in its scratch folders."""
    return Path(tempfile.gettempdir()).glob(f"{scratch.PREFIX}{os.getpid()}-*/{within}")


@pytest.mark.usefixtures("short_windows")
def test_a_deletion_ends_the_transcription_and_leaves_no_word_of_it(
    recorded: Callable[..., Job], clip: Samples, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """[transcription] отмена: «Отмена посреди расшифровки»."""
    settings.RENEW_SECONDS, settings.LEASE_SECONDS = 0.1, 5
    job = recorded(twice(clip))
    heard = count_windows(monkeypatch)
    deleting = threading.Thread(target=_delete_at_first_window, args=(job.attachment_id, heard))
    deleting.start()
    assert work(job) == "cancelled"
    deleting.join()
    assert len(heard) < 2
    job.refresh_from_db()
    assert (job.state, job.error_code, job.failures) == (State.FAILED, "cancelled", 0)
    assert not Transcript.objects.exists()
    assert not Variant.objects.filter(attachment=job.attachment_id).exists()


def _delete_at_first_window(attachment_id: uuid.UUID, heard: list[int]) -> None:
    until(lambda: heard)
    removal.remove(attachment_id, actor="test")
    connection.close()


@pytest.mark.usefixtures("short_windows")
def test_progress_is_told_with_the_lease(
    recorded: Callable[..., Job], clip: Samples, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.RENEW_SECONDS, settings.LEASE_SECONDS = 0.1, 5
    told: list[float] = []
    renew = lifecycle.renew

    def watched(lease: lifecycle.Lease, *, progress: float | None = None) -> None:
        renew(lease, progress=progress)
        if progress is not None:
            told.append(Job.objects.get(job_id=lease.job_id).progress or 0)

    monkeypatch.setattr(lifecycle, "renew", watched)
    assert work(recorded(twice(clip))) == "ready"
    assert told == sorted(told)
    assert any(0 < done < 1 for done in told)


def test_without_a_model_recordings_are_refused_and_nothing_is_kept(
    recorded: Callable[..., Job], settings: Any
) -> None:
    settings.TRANSCRIPTION_MODEL = ""
    with pytest.raises(PipelineUnavailable):
        recorded(spoken())
    assert not Attachment.objects.exists()


def test_without_a_model_recordings_are_kept_as_they_are_where_any_file_is_accepted(
    recorded: Callable[..., Job], settings: Any
) -> None:
    settings.TRANSCRIPTION_MODEL, settings.ACCEPT_ANY_FILE = "", True
    assert recorded(spoken()).pipeline == "store"


def test_one_job_after_another_leaves_nothing_behind(recorded: Callable[..., Job]) -> None:
    """[transcription] освобождение: «Много задач подряд»."""
    process = psutil.Process()
    assert work(recorded(spoken())) == "ready"
    before = (process.num_fds(), len(process.children()))
    for data in (spoken()[:12_000], wav(silence(2)), spoken()[:12_000], wav(silence(3))):
        assert work(recorded(data)) in ("ready", "failed")
    assert (process.num_fds(), len(process.children())) == before
    assert list(scratch_folders()) == []


def test_the_language_that_the_sender_names_is_taken(recorded: Callable[..., Job], clip: Samples) -> None:
    job = recorded(wav(clip), language="en-GB")
    assert work(job) == "ready"
    document = json.loads(shown(job)["transcript"])
    # What was not detected has no probability.
    assert (document["language"], document["language_probability"]) == ("en", None)


def test_no_word_reaches_the_logs_the_metrics_or_the_next_note(
    recorded: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever any library says at its most talkative."""
    said, silent = recorded(spoken()), recorded(wav(silence(4)))
    with caplog.at_level(logging.DEBUG):
        assert [work(said), work(silent)] == ["ready", "ready"]
    assert words(shown(said)["text"]) == self_test.WORDS.split()
    assert shown(silent)["text"] == b""
    # The records whole: what is told besides the message is in their fields.
    told = f"{[vars(record) for record in caplog.records]}{generate_latest().decode()}".lower()
    assert str(said.job_id) in told and 'pipeline="speech"' in told
    assert [word for word in ("fellow", "americans", "country", "ask not") if word in told] == []


def test_processes_that_never_transcribe_load_no_model() -> None:
    native = "numpy", "ctranslate2", "faster_whisper", "onnxruntime", "av"
    program = (
        f"import django, sys; django.setup(); import pipeline.tasks; print([n for n in {native} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=os.environ)
    assert done.stdout == "[]\n"


def test_a_conversion_that_the_storage_lost_is_made_again(
    recorded: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = recorded(wav(silence(2)))
    with monkeypatch.context() as broken:
        broken.setattr(cutting, "spans", _fail)
        assert work(job) == "retried"
    converted = Variant.objects.get(attachment=job.attachment_id, variant="converted").stored_object
    storage.delete(converted.bucket, converted.key)
    outcomes = []
    for _ in range(2):
        Job.objects.update(due_at="2000-01-01T00:00:00Z")
        outcomes.append(work(job))
    assert outcomes == ["retried", "ready"]
