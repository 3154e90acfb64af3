"""Speech workers that are killed and stopped in the middle of a recording: what was heard stays, nothing is left."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from django.contrib.auth.models import User

from attachments.models import Variant
from pipeline import intake, scratch
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.origins import Origin
from pipeline.states import Source, State
from tests import recordings
from tests.processes import Stack, Worker, until_state
from tests.speaking import RATE, address, silence
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

APP = "tests.crash.speech_app"


@pytest.fixture
def spoken(user: User) -> Callable[[int], Job]:
    """Accepts a recording of so many windows."""

    def accept(windows: int) -> Job:
        clip = np.concatenate([address(2.8), silence(1.5)])
        data = recordings.wav(np.tile(clip, windows), rate=RATE)
        received = intake.receive([data], created_by="test")
        return intake.accept(received, intake.Request(owner=user, origin=Origin(Source.REST), name="note.wav")).job

    return accept


def speech(running: Stack, name: str) -> Worker:
    changes = {"TRANSCRIPTION_BEAM": "1", "LEASE_SECONDS": "3", "LOG_LEVEL": "DEBUG"}
    return running.worker("speech", name=name, concurrency=1, app=APP, **changes).until_ready()


def deliver_thrice(job: Job) -> None:
    messages = OutboxMessage.objects.filter(job=job)
    for _ in range(2):
        until(lambda: messages.filter(sent_at__isnull=False).exists())
        messages.update(sent_at=None)


def makers(job: Job) -> dict[str, str]:
    """Which worker made each variant."""
    variants = Variant.objects.filter(attachment=job.attachment_id).select_related("stored_object")
    return {one.variant: one.stored_object.created_by.partition("@")[0] for one in variants}


def told(folder: Path) -> str:
    """All that processes, rows of work and messages say, in lower case."""
    rows = [JobEvent.objects.values_list(), OutboxMessage.objects.values_list(), Job.objects.values_list()]
    logs = [path.read_text(errors="replace") for path in folder.glob("*.log")]
    return "\n".join([*logs, *(str(list(each)) for each in rows)]).lower()


def copies(folder: Path) -> list[Path]:
    return list(folder.glob(f"{scratch.PREFIX}*"))


def test_of_two_speech_workers_one_works_and_when_it_is_killed_the_other_goes_on(
    spoken: Callable[[int], Job], running: Stack, tmp_path: Path
) -> None:
    """[transcription] захват неделим; освобождение: «Воркер убит посреди шага»; цепочка: «Воркер умер между окнами»."""
    running.dispatcher(LEASE_SECONDS="3")
    workers = {name: speech(running, name) for name in ("a", "b")}
    job = spoken(3)
    deliver_thrice(job)
    until(lambda: "window-0001" in makers(job), seconds=120, say=running.logs)
    (holder,) = set(makers(job).values())
    (other,) = workers.keys() - {holder}
    family = psutil.Process(workers[holder].pid).children(recursive=True)
    assert copies(tmp_path)
    workers[holder].send(signal.SIGKILL)
    psutil.wait_procs(family, timeout=30)
    assert [process for process in family if process.is_running()] == []

    until_state(State.READY, [job], running, seconds=120)
    made = makers(job)
    assert [made[name] for name in ("converted", "window-0001")] == [holder, holder]
    assert {made[name] for name in ("window-0002", "transcript", "text")} == {other}
    assert (job.failures, JobEvent.objects.filter(job=job, reason="claimed").count()) == (1, 2)
    # The next to start clears what the dead one left.
    running.worker("images").until_ready()
    assert copies(tmp_path) == []
    # At the most talkative level of everything, no word of it was told to anybody but its owner.
    everything = told(tmp_path)
    assert str(job.job_id) in everything
    assert [word for word in ("fellow", "americans", "country", "can do for you") if word in everything] == []


def test_a_worker_told_to_stop_hands_its_recording_back_and_keeps_what_it_heard(
    spoken: Callable[[int], Job], running: Stack
) -> None:
    """[transcription] отмена: «Воркеру велено остановиться посреди расшифровки»."""
    running.dispatcher(LEASE_SECONDS="3")
    worker = speech(running, "a")
    job = spoken(12)
    until(lambda: "window-0001" in makers(job), seconds=120, say=running.logs)
    worker.send(signal.SIGTERM)
    assert worker.wait(60) == 0
    until_state(State.QUEUED, [job], running)
    assert (job.attempt, job.failures) == (2, 0)
    assert JobEvent.objects.filter(job=job).latest("id").reason == "shutdown"
    assert {"converted", "window-0001"} <= makers(job).keys()


def test_a_long_recording_lets_a_short_note_go_first(spoken: Callable[[int], Job], running: Stack) -> None:
    """[transcription] цепочка: «Длинная запись отдаёт очередь»."""
    running.dispatcher(LEASE_SECONDS="3")
    long = spoken(2)
    running.worker(
        "speech", concurrency=1, app=APP, TRANSCRIPTION_BEAM="1", LEASE_SECONDS="3", SLICE_SECONDS="0"
    ).until_ready()
    until(lambda: "converted" in makers(long), seconds=120, say=running.logs)
    short = spoken(1)
    until_state(State.READY, [long, short], running, seconds=180)
    ended = {job.job_id: JobEvent.objects.get(job=job, to_state=State.READY).id for job in (long, short)}
    assert ended[short.job_id] < ended[long.job_id]
    assert (long.failures, short.failures) == (0, 0)


def test_a_worker_whose_model_does_not_hear_ends_and_takes_no_work(
    spoken: Callable[[int], Job], running: Stack
) -> None:
    running.dispatcher()
    job = spoken(1)
    worker = running.worker("speech", concurrency=1, app=APP, TRANSCRIPTION_MODEL="/nowhere")
    assert worker.wait(60) == 1
    assert worker.says("self_test_failed") and worker.says("TRANSCRIPTION_MODEL")
    job.refresh_from_db()
    assert (job.state, job.attempt, job.failures) == (State.QUEUED, 1, 0)
