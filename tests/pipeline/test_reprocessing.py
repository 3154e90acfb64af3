"""A newer version is made of what an older one serves: slowly, once, and without ever serving less."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from attachments import listing, storage
from attachments.models import Attachment, BucketRole, StoredObject, Variant
from config.env import BASE_DIR
from pipeline import confined, lifecycle, removal, reprocessing
from pipeline.failures import Failure
from pipeline.lifecycle import Lease
from pipeline.models import Job, JobEvent, OutboxMessage
from pipeline.registry import Pipeline
from pipeline.reprocessing import Outcome, Reprocessing
from pipeline.selection import Selection
from pipeline.states import State
from tests.leases import finish
from tests.pictures import jpeg
from tests.processes import environment
from tests.waiting import until
from tests.work import work

pytestmark = pytest.mark.django_db
FAST = ("--pipeline", "image", "--yes", "--rate", "1000")


@pytest.fixture(autouse=True)
def _decoder() -> Iterator[None]:
    yield
    confined.shut_down()


@pytest.fixture
def served(leased: Callable[..., Lease]) -> Callable[[], Attachment]:
    """An attachment that version 1 serves."""

    def finished() -> Attachment:
        lease = leased()
        finish(lease)
        return Attachment.objects.get(id=lease.attachment_id)

    return finished


def reprocess(*options: str) -> tuple[int, str]:
    """The exit code and the report."""
    out = io.StringIO()
    try:
        call_command("reprocess", *options, stdout=out)
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()


def shown(attachment: Attachment) -> dict[str, bytes]:
    """The variants that the owner gets, with their bytes."""
    status = listing.find_status(attachment.owner, attachment.id)
    assert status is not None and status.state == State.READY
    found = {}
    for name, variant in status.variants.items():
        with storage.open_object(variant.stored_object.bucket, variant.stored_object.key) as stream:
            found[name] = b"".join(stream)
    return found


def test_the_old_variants_are_served_until_the_executor_has_made_all_of_the_new(
    queued: Callable[..., Job], release_image_v2: Callable[[], Pipeline]
) -> None:
    job = queued(jpeg())
    assert work(job) == "ready"
    attachment = Attachment.objects.get()
    before = shown(attachment)
    assert set(before) == {"thumbnail", "crop", "optimized"}
    release_image_v2()
    code, report = reprocess(*FAST)
    assert (code, report.splitlines()[-1]) == (0, "Jobs begun: 1.")
    assert shown(attachment) == before
    newer = Job.objects.get(pipeline_version=2)
    event = JobEvent.objects.get(job=newer)
    assert (event.actor, event.reason) == ("reprocess", "reprocess")
    assert OutboxMessage.objects.get(job=newer).message_id == f"{newer.job_id}:1"
    assert work(newer) == "ready"
    attachment.refresh_from_db()
    assert attachment.served_version == 2
    keys = Variant.objects.filter(pipeline_version=2).values_list("stored_object__key", flat=True)
    assert len(keys) == 3 and all("/v2/1/" in key for key in keys)
    assert shown(attachment) == before, "the same step made them"
    assert work(job) == "finished"
    assert Attachment.objects.get().served_version == 2


def test_only_what_an_older_version_serves_is_begun(
    served: Callable[[], Attachment],
    leased: Callable[..., Lease],
    queued: Callable[..., Job],
    release_image_v2: Callable[[], Pipeline],
) -> None:
    meant, deleted, gone, swept, begun, overtaken = [served() for _ in range(6)]
    unserved, failed = queued().attachment, leased()
    lifecycle.fail(failed, Failure(code="bad_file", sentence="Damaged."))
    removal.remove(deleted.id, actor="test")
    Attachment.objects.filter(id=gone.id).update(original=None)
    StoredObject.objects.filter(attachment=swept).update(bucket_role=BucketRole.TRASH)
    Job.objects.filter(attachment=overtaken).update(pipeline_version=3)
    Attachment.objects.filter(id=overtaken.id).update(served_version=3)
    newer = release_image_v2()
    held = lifecycle.reprocess(begun.id, pipeline=newer, actor="test")
    again = lifecycle.claim(held.job_id, attempt=1, worker="worker-b")
    assert again is not None
    lifecycle.fail(again, Failure(code="bad_file", sentence="Damaged."))
    code, report = reprocess("--pipeline", "image", "--dry-run")
    assert (code, report.splitlines()) == (
        0,
        [
            "         1  served by v1, to be made anew by image v2",
            "         1  left alone: have a failed job of v2 (replay these)",
            "         2  left alone: their original is no longer kept",
            "To begin: 1, in 0:00:00 at the soonest (5 a second).",
        ],
    )
    assert Job.objects.filter(pipeline_version=2).count() == 1
    assert reprocess(*FAST)[0] == 0
    assert set(Job.objects.filter(pipeline_version=2).values_list("attachment", flat=True)) == {meant.id, begun.id}
    assert unserved.jobs.count() == 1


def test_filters_and_limit_choose_and_another_run_goes_on(
    served: Callable[[], Attachment], release_image_v2: Callable[[], Pipeline]
) -> None:
    attachments = [served() for _ in range(3)]
    release_image_v2()
    for options in (("--from-version", "7"), ("--accepted-before", "2020-01-31"), ("--content-type", "image/gif")):
        assert reprocess(*FAST, *options) == (0, "Nothing to do: nothing matches.\n")
    chosen = attachments[1]
    assert reprocess(*FAST, "--attachment", str(chosen.id), "--owner", "ann", "--from-version", "1")[0] == 0
    assert Job.objects.get(pipeline_version=2).attachment_id == chosen.id
    assert reprocess(*FAST, "--limit", "1")[1].endswith("Jobs begun: 1.\n")
    assert reprocess(*FAST)[1].endswith("Jobs begun: 1.\n")
    assert reprocess(*FAST)[1].endswith("Nothing to do: all is begun.\n")
    assert Job.objects.filter(pipeline_version=2).count() == 3


def test_what_cannot_be_done_is_said_plainly(
    served: Callable[[], Attachment], release_image_v2: Callable[[], Pipeline]
) -> None:
    served()
    told = {
        ("--pipeline", "picture"): "This release has no picture; it has image v1, speech v1, store v1.",
        (
            "--pipeline",
            "image",
            "--to-version",
            "3",
        ): "This release has no image v3; it has image v1, speech v1, store v1.",
        ("--pipeline", "image"): "image v1 is the oldest version: nothing can be made anew by it.",
    }
    for options, words in told.items():
        assert reprocess(*options, "--yes") == (1, words)
    release_image_v2()
    code, report = reprocess("--pipeline", "image")
    assert (code, report.endswith("Nobody is there to ask: say --yes, or --dry-run to count only.")) == (1, True)
    assert Job.objects.count() == 1


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self, *, at_each_second: Callable[[], object] = lambda: None) -> None:
        self.now, self.slept, self._act = 0.0, [0.0], at_each_second

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        if seconds == reprocessing.LOOK_AGAIN_SECONDS:
            self._act()


def test_jobs_are_begun_evenly_at_the_rate(
    served: Callable[[], Attachment], release_image_v2: Callable[[], Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        served()
    clock = Clock()
    monkeypatch.setattr(reprocessing, "time", clock)
    work_to_do = Reprocessing(pipeline=release_image_v2(), selection=Selection())
    begun = [clock.now for _ in work_to_do.run(per_second=4.0, max_waiting=20)]
    assert begun == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_nothing_is_begun_while_the_queue_is_long(
    served: Callable[[], Attachment],
    queued: Callable[..., Job],
    leased: Callable[..., Lease],
    release_image_v2: Callable[[], Pipeline],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """New uploads go first: what waits already is let through before more is added; what was put off waits for none."""
    served()
    lifecycle.release(leased(), reason="outage", pause=timedelta(hours=1), is_outage=True)
    waiting = [queued(), queued(), queued()]
    clock = Clock(at_each_second=lambda: leased(waiting.pop()))
    monkeypatch.setattr(reprocessing, "time", clock)
    work_to_do = Reprocessing(pipeline=release_image_v2(), selection=Selection())
    outcomes = list(work_to_do.run(per_second=4.0, max_waiting=1))
    assert outcomes == [Outcome.HELD_BACK, Outcome.HELD_BACK, Outcome.BEGUN]
    assert len(waiting) == 1


def test_what_others_began_or_deleted_meanwhile_is_skipped(
    served: Callable[[], Attachment], release_image_v2: Callable[[], Pipeline]
) -> None:
    first, second, third = served(), served(), served()
    newer = release_image_v2()
    steps = Reprocessing(pipeline=newer, selection=Selection()).run(per_second=1000.0, max_waiting=20)
    assert next(steps) is Outcome.BEGUN
    lifecycle.reprocess(second.id, pipeline=newer, actor="another")
    removal.remove(first.id, actor="test")
    assert list(steps) == [Outcome.ALREADY_THERE, Outcome.GONE]
    assert set(Job.objects.filter(pipeline_version=2).values_list("attachment", flat=True)) == {second.id, third.id}


@pytest.mark.django_db(transaction=True)
def test_ctrl_c_ends_it_with_a_summary_and_the_next_run_goes_on(
    served: Callable[[], Attachment], release_image_v2: Callable[[], Pipeline]
) -> None:
    for _ in range(12):
        served()
    newer = Job.objects.filter(pipeline_version=2)
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.release_v2", "reprocess", "--pipeline", "image", "--yes", "--rate", "1"],
        cwd=BASE_DIR,
        env=environment(DJANGO_SETTINGS_MODULE="config.settings"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until(lambda: newer.count() >= 2, seconds=60, say=running.poll)
        running.send_signal(signal.SIGINT)
        report, told = running.communicate(timeout=60)
    finally:
        running.kill()
    begun = newer.count()
    assert running.returncode == 130, told
    # It may have been interrupted between a commit and its count.
    assert report.splitlines()[-1] in {f"Jobs begun: {count}." for count in (begun, begun - 1)}
    assert told.endswith("Interrupted. Run the same command again to go on.\n")
    release_image_v2()
    assert reprocess(*FAST)[1].endswith(f"Jobs begun: {12 - begun}.\n")
