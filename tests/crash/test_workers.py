"""Workers that are killed, frozen, stopped and poisoned, as real processes: the slot comes back, nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import kombu
import psutil
import pytest

from attachments.models import Attachment, BucketRole, StoredObject, Variant
from pipeline.models import Job, JobEvent
from pipeline.states import State
from tests.crash.poison import poisoned
from tests.pictures import jpeg
from tests.processes import Stack, Worker, until_state
from tests.rabbit import until_count
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

APP = "tests.crash.poison_app"
#: Longer than a burst of new processes keeps a busy machine from renewing.
CALM: dict[str, Any] = {"LEASE_SECONDS": "3", "RENEW_SECONDS": "0.5"}
POISONS = {
    ("kill", ""): "worker_lost",
    ("segfault", ""): "worker_lost",
    ("memory", ""): "memory_limit",
    ("child", "exhaust_memory"): "memory_limit",
    ("child", "touch_nothing"): "crashed",
    ("child", "loop"): "time_limit",
}

Queued = Callable[..., Job]


@pytest.fixture
def held(queued: Queued, tmp_path: Path) -> Callable[[str], Job]:
    """A job that stays in the hands of its worker until the file of that name in `tmp_path` exists."""
    return lambda name: queued(poisoned("wait", tmp_path / name))


def holder(job: Job) -> psutil.Process:
    """The process that works on the job."""
    job.refresh_from_db()
    return psutil.Process(int(job.leased_by.rpartition(":")[2]))


def assert_effect_is_single(job: Job) -> None:
    variants = Variant.objects.filter(attachment=job.attachment_id, pipeline_version=1)
    assert sorted(variants.values_list("variant", flat=True)) == ["crop", "optimized", "thumbnail"]
    assert JobEvent.objects.filter(job=job, to_state=State.READY).count() == 1
    assert Attachment.objects.get(id=job.attachment_id).served_version == 1


def assert_both_slots_work(queued: Queued, running: Stack, meeting: Path) -> None:
    """Two jobs wait for each other, and two processes tell that they were there."""
    for _ in range(2):
        queued(poisoned("meet", meeting))
    until(lambda: len(list(meeting.parent.glob(f"{meeting.name}.*"))) == 2, seconds=60, say=running.logs)


@pytest.mark.timeout(180)
def test_poison_ends_with_its_reason_and_its_neighbours_never_notice(
    queued: Queued, held: Callable[[str], Job], running: Stack, tmp_path: Path
) -> None:
    """[attachments] «повторы исчерпаны»: a file that takes its worker along is tried MAX_FAILURES times, no more."""
    settled: dict[str, Any] = {"MAX_FAILURES": "2", "RETRY_PAUSE_SECONDS": "0.1", **CALM}
    running.dispatcher(**settled)
    worker = running.worker(app=APP, **settled).until_ready()
    beside = held("beside")
    until_state(State.PROCESSING, [beside], running)
    poison = {kind: queued(poisoned(*kind)) for kind in POISONS}
    neighbours = [queued(jpeg()) for _ in range(4)]

    until_state(State.FAILED, list(poison.values()), running, seconds=120)
    assert {kind: (job.error_code, job.failures) for kind, job in poison.items()} == {
        kind: (code, 2) for kind, code in POISONS.items()
    }
    assert all(job.error for job in poison.values())
    (tmp_path / "beside").touch()
    until_state(State.READY, [beside, *neighbours], running)
    assert {(job.attempt, job.failures) for job in [beside, *neighbours]} == {(1, 0)}
    assert worker.is_running
    assert_both_slots_work(queued, running, tmp_path / "meeting")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("loop", ["loop", "spin"])
def test_an_endless_loop_in_the_worker_itself_costs_a_process_and_not_the_slot(
    loop: str, queued: Queued, running: Stack, tmp_path: Path
) -> None:
    """Whether it silences the heartbeat, as native code can, or only does not hear that the time is over."""
    settled = {"MAX_FAILURES": "2", "ATTEMPT_SECONDS": "4", "SILENCE_SECONDS": "4"}
    running.dispatcher(**settled)
    worker = running.worker(app=APP, concurrency=2, **settled).until_ready()
    poison = queued(poisoned(loop))
    until_state(State.FAILED, [poison], running)
    assert (poison.error_code, poison.failures) == ("worker_lost", 2)
    assert_both_slots_work(queued, running, tmp_path / "meeting")
    assert worker.is_running


def test_a_killed_child_costs_its_own_job_one_chance_and_its_neighbour_nothing(
    held: Callable[[str], Job], running: Stack, rabbit: kombu.Connection, tmp_path: Path
) -> None:
    running.dispatcher(**CALM)
    running.worker(app=APP, **CALM).until_ready()
    struck, beside = held("free"), held("free")
    until_state(State.PROCESSING, [struck, beside], running)
    holder(struck).kill()
    until(lambda: Job.objects.filter(job_id=struck.job_id, attempt=2).exists(), say=running.logs)
    (tmp_path / "free").touch()
    until_state(State.READY, [struck, beside], running)
    assert [(job.attempt, job.failures) for job in (struck, beside)] == [(2, 1), (1, 0)]
    for job in (struck, beside):
        assert_effect_is_single(job)
    until_count(rabbit, "images", 0)


def test_a_killed_worker_takes_its_children_along_and_another_takes_over_its_jobs(
    held: Callable[[str], Job], running: Stack, rabbit: kombu.Connection, tmp_path: Path
) -> None:
    """Only the main process is killed; children that went on alone would work beside their successors."""
    running.dispatcher()
    first = running.worker(app=APP).until_ready()
    jobs = [held("free"), held("free")]
    until_state(State.PROCESSING, jobs, running)
    pool = first.children()
    first.send(signal.SIGKILL)
    psutil.wait_procs(pool, timeout=30)
    assert not any(child.is_running() for child in pool)
    (tmp_path / "free").touch()
    running.worker(name="b", app=APP)
    until_state(State.READY, jobs, running)
    assert {job.failures for job in jobs} == {1}
    for job in jobs:
        assert_effect_is_single(job)
    until_count(rabbit, "images", 0)


def test_a_worker_frozen_past_its_lease_publishes_nothing_when_it_thaws(
    queued: Queued, running: Stack, tmp_path: Path
) -> None:
    """[transcription]: only the holder of the claim writes. It froze between storing an object and recording it."""
    once = tmp_path / "once"
    once.touch()
    running.dispatcher()
    frozen = running.worker(name="a", concurrency=1, FAILPOINTS=f"after_store=sleep:2@{once}").until_ready()
    job = queued()
    until(lambda: not once.exists(), say=running.logs)
    frozen.freeze()
    other = running.worker(name="b", concurrency=1)
    until_state(State.READY, [job], running)
    published = served_objects(job)

    frozen.thaw()
    frozen.until_says("lease_lost")
    assert served_objects(job) == published
    assert all(stored.created_by.startswith("b@test") for stored in published)
    assert not StoredObject.objects.filter(created_by__startswith="a@test").exclude(bucket_role=BucketRole.TRASH)
    assert_effect_is_single(job)
    other.terminate()
    later = queued()
    until_state(State.READY, [later], running)
    assert JobEvent.objects.get(job=later, to_state=State.READY).actor.startswith("a@test")


def served_objects(job: Job) -> list[StoredObject]:
    return list(StoredObject.objects.filter(variant__attachment=job.attachment_id).order_by("id"))


def test_a_worker_told_to_stop_finishes_what_it_can_and_hands_back_the_rest(
    queued: Queued, held: Callable[[str], Job], running: Stack, rabbit: kombu.Connection, tmp_path: Path
) -> None:
    worker, short, long = busy_worker(queued, held, running, tmp_path)
    worker.send(signal.SIGTERM)
    (tmp_path / "held").touch()
    assert worker.wait() == 0
    until_state(State.READY, [short], running)
    until_state(State.QUEUED, [long], running)
    assert [(job.attempt, job.failures) for job in (short, long)] == [(1, 0), (2, 0)]
    assert JobEvent.objects.filter(job=long).latest("id").reason == "shutdown"
    until_count(rabbit, "images", 1)


def test_a_worker_whose_every_process_is_told_to_stop_hands_back_all_its_work(
    queued: Queued, held: Callable[[str], Job], running: Stack, tmp_path: Path
) -> None:
    """systemd signals every process of a service; none of its jobs may pay for that with a chance."""
    worker, *jobs = busy_worker(queued, held, running, tmp_path)
    for process in [*psutil.Process(worker.pid).children(recursive=True), psutil.Process(worker.pid)]:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    assert worker.wait() == 0
    until_state(State.QUEUED, jobs, running)
    assert [(job.attempt, job.failures) for job in jobs] == [(2, 0), (2, 0)]


def busy_worker(queued: Queued, held: Callable[[str], Job], running: Stack, folder: Path) -> tuple[Worker, Job, Job]:
    """A worker that works on a job until the file `held` exists, and on one without end in a confined child."""
    running.dispatcher()
    worker = running.worker(app=APP).until_ready()
    short, long = held("held"), queued(poisoned("child", "wait_for_ever"))
    until_state(State.PROCESSING, [short, long], running)
    until(lambda: list(folder.glob("holdfast-scratch-*/started")), say=running.logs)
    return worker, short, long
