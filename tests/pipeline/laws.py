"""What must hold of the rows and the bytes after every act, in whatever order the acts came.

The laws know nothing of the model: they compare the tables with each other, with the storage, and with what they were.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from typing import Any

from django.conf import settings
from django.db import connection

from attachments import storage
from pipeline.states import MOVES, State
from tests.pipeline.model import MAX_FAILURES, PROMISED

Row = dict[str, Any]

#: Columns that say where a job and its file came from, and what they are.
ORIGIN = ("source", "carrier", "attachment_id", "pipeline", "pipeline_version", "runner", "queue")
IDENTITY = ("owner_id", "content_type", "size", "sha256")
#: How work ends, or is put off, through no fault of its own.
BLAMELESS = {"shutdown", "outage", "slice", "cancelled", "original_gone"}
TABLES = {
    "files": "stored_file",
    "jobs": "pipeline_job",
    "events": "pipeline_job_event",
    "messages": "pipeline_outbox",
    "variants": "attachment_variant",
    "objects": "s3_object",
}
#: All tables at one moment, in one answer: this is asked after every act.
READ = "SELECT json_build_object('now', clock_timestamp(){})".format(
    "".join(f", '{name}', (SELECT json_agg(t) FROM {table} t)" for name, table in TABLES.items())
)


@dataclass(frozen=True)
class Snapshot:
    """Rows by their ids, as JSON has them: ids and times are text."""

    now: datetime
    files: dict[str, Row]
    jobs: dict[str, Row]
    events: list[Row]
    messages: dict[tuple[str, int], Row]
    variants: list[Row]
    objects: dict[int, Row]
    keys: frozenset[str]

    def history(self) -> dict[str, list[Row]]:
        of_job = defaultdict(list)
        for event in self.events:
            of_job[event["job_id"]].append(event)
        return of_job

    def has_been_ready(self, file: str) -> list[int]:
        """The versions of a file that were ever ready."""
        jobs = (self.jobs[event["job_id"]] for event in self.events if event["to_state"] == State.READY)
        return [job["pipeline_version"] for job in jobs if job["attachment_id"] == file]


def read() -> Snapshot:
    with connection.cursor() as cursor:
        cursor.execute(READ)
        (tables,) = cursor.fetchone()
    rows: dict[str, list[Row]] = {name: tables[name] or [] for name in TABLES}
    return Snapshot(
        now=datetime.fromisoformat(tables["now"]),
        files={row["id"]: row for row in rows["files"]},
        jobs={row["job_id"]: row for row in rows["jobs"]},
        events=sorted(rows["events"], key=itemgetter("id")),
        messages={(row["job_id"], row["attempt"]): row for row in rows["messages"]},
        variants=rows["variants"],
        objects={row["id"]: row for row in rows["objects"]},
        keys=frozenset(listed.key for listed in storage.listing(settings.STORAGE_BUCKET)),
    )


def check(before: Snapshot, after: Snapshot) -> None:
    for law in LAWS:
        law(before, after)


def history_only_grows(before: Snapshot, after: Snapshot) -> None:
    assert after.events[: len(before.events)] == before.events


def every_move_is_lawful_and_follows_the_one_before(_: Snapshot, after: Snapshot) -> None:
    for job_id, events in after.history().items():
        states = ["", *(event["to_state"] for event in events)]
        assert [event["from_state"] for event in events] == states[:-1]
        assert all((State(a) if a else None, State(b)) in MOVES for a, b in pairwise(states))
        assert after.jobs[job_id]["state"] == states[-1]
    assert after.history().keys() == after.jobs.keys()


def every_attempt_begins_in_the_queue(_: Snapshot, after: Snapshot) -> None:
    for job_id, events in after.history().items():
        begun = [event["attempt"] for event in events if event["to_state"] == State.QUEUED]
        assert begun == list(range(1, after.jobs[job_id]["attempt"] + 1))


def who_waits_has_a_message(_: Snapshot, after: Snapshot) -> None:
    for job_id, job in after.jobs.items():
        assert job["state"] != State.QUEUED or (job_id, job["attempt"]) in after.messages
    for (job_id, attempt), message in after.messages.items():
        assert message["message_id"] == f"{job_id}:{attempt}"
        assert attempt <= after.jobs[job_id]["attempt"]


def an_unsent_message_is_never_given_up(before: Snapshot, after: Snapshot) -> None:
    unsent = {key for key, message in before.messages.items() if message["sent_at"] is None}
    assert unsent <= after.messages.keys()


def only_its_own_failures_count(_: Snapshot, after: Snapshot) -> None:
    for job_id, events in after.history().items():
        failures = 0
        for event in events:
            if event["reason"] in {"replay", "repair"}:
                failures = 0
            elif event["from_state"] == State.PROCESSING and event["to_state"] != State.READY:
                failures += event["reason"] not in BLAMELESS
        job = after.jobs[job_id]
        assert job["failures"] == failures
        assert failures < MAX_FAILURES or (failures == MAX_FAILURES and job["state"] == State.FAILED)


def a_lease_has_one_holder(_: Snapshot, after: Snapshot) -> None:
    for job in after.jobs.values():
        assert (job["state"] == State.PROCESSING) == (job["lease_token"] is not None)
    tokens = Counter(job["lease_token"] for job in after.jobs.values() if job["lease_token"])
    assert set(tokens.values()) <= {1}


def the_newest_version_that_was_ready_is_served(_: Snapshot, after: Snapshot) -> None:
    for file_id, file in after.files.items():
        assert file["served_version"] == max(after.has_been_ready(file_id), default=None)


def what_is_ready_and_served_is_whole(_: Snapshot, after: Snapshot) -> None:
    """While its job is under repair some of it may be missing; of what was deleted nothing is served."""
    for job in after.jobs.values():
        file, version = after.files[job["attachment_id"]], job["pipeline_version"]
        if job["state"] == State.READY and file["served_version"] == version and file["deleted_at"] is None:
            assert _recorded(after, job) == PROMISED[version]


def an_original_is_published_with_the_first_result(_: Snapshot, after: Snapshot) -> None:
    for file_id, file in after.files.items():
        if file["original_id"] is not None:
            role = after.objects[file["original_id"]]["bucket_role"]
            assert role == ("originals" if after.has_been_ready(file_id) else "staging")


def only_what_was_deleted_or_failed_has_no_original(_: Snapshot, after: Snapshot) -> None:
    for file_id, file in after.files.items():
        states = {job["state"] for job in after.jobs.values() if job["attachment_id"] == file_id}
        is_failed = states == {State.FAILED} and file["served_version"] is None
        assert file["original_id"] is not None or file["deleted_at"] is not None or is_failed


def what_is_pointed_at_is_there_byte_for_byte(_: Snapshot, after: Snapshot) -> None:
    originals = [file["original_id"] for file in after.files.values() if file["original_id"] is not None]
    for variant in after.variants:
        assert after.objects[variant["stored_object_id"]]["bucket_role"] == "variants"
    for object_id in (*originals, *(variant["stored_object_id"] for variant in after.variants)):
        row = after.objects[object_id]
        with storage.open_object(row["bucket"], row["key"]) as stream:
            data = b"".join(stream)
        assert (len(data), hashlib.sha256(data).hexdigest()) == (row["size"], row["sha256"])


def nothing_in_the_storage_is_unknown(_: Snapshot, after: Snapshot) -> None:
    assert after.keys <= {row["key"] for row in after.objects.values()}


def no_object_comes_back(before: Snapshot, after: Snapshot) -> None:
    later = {"staging": 0, "originals": 1, "variants": 1, "trash": 2}
    for object_id, row in before.objects.items():
        now = after.objects.get(object_id)
        assert now is None or later[now["bucket_role"]] >= later[row["bucket_role"]]
        assert now is not None or object_id not in {file["original_id"] for file in after.files.values()}


def where_it_came_from_never_changes(before: Snapshot, after: Snapshot) -> None:
    for job_id, job in before.jobs.items():
        assert [after.jobs[job_id][column] for column in ORIGIN] == [job[column] for column in ORIGIN]
    for file_id, file in before.files.items():
        assert [after.files[file_id][column] for column in IDENTITY] == [file[column] for column in IDENTITY]


def what_was_deleted_stays_deleted(before: Snapshot, after: Snapshot) -> None:
    for file_id, file in after.files.items():
        was = before.files.get(file_id, file)
        assert was["deleted_at"] is None or was["deleted_at"] == file["deleted_at"]
        if file["deleted_at"] is None:
            continue
        assert (file["name"], file["claimed_type"], file["media"], file["original_id"]) == ("", "", {}, None)
        assert not any(variant["attachment_id"] == file_id for variant in after.variants)
        for job in after.jobs.values():
            if job["attachment_id"] == file_id:
                assert job["media"] == {}
                assert job["cancel_requested_at"] is not None or job["finished_at"] is not None


def _recorded(snapshot: Snapshot, job: Row) -> set[str]:
    key = (job["attachment_id"], job["pipeline_version"])
    return {row["variant"] for row in snapshot.variants if (row["attachment_id"], row["pipeline_version"]) == key}


LAWS: tuple[Callable[[Snapshot, Snapshot], None], ...] = (
    history_only_grows,
    every_move_is_lawful_and_follows_the_one_before,
    every_attempt_begins_in_the_queue,
    who_waits_has_a_message,
    an_unsent_message_is_never_given_up,
    only_its_own_failures_count,
    a_lease_has_one_holder,
    the_newest_version_that_was_ready_is_served,
    what_is_ready_and_served_is_whole,
    an_original_is_published_with_the_first_result,
    only_what_was_deleted_or_failed_has_no_original,
    what_is_pointed_at_is_there_byte_for_byte,
    nothing_in_the_storage_is_unknown,
    no_object_comes_back,
    where_it_came_from_never_changes,
    what_was_deleted_stays_deleted,
)
