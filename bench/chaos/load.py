"""The uploads of a run: sent at a steady pace, followed to their end, and all that their client knows of them."""

from __future__ import annotations

import hashlib
import itertools
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.chaos.door import Answer, Door
from bench.chaos.files import OTHER_DIGEST, Order, Sample

SENDERS = 8
#: Status questions a second while faults come; they must not take the place of the work.
QUESTIONS = 8
#: With so many unfinished no more are begun: what a slow machine gets behind with must still end soon after the faults.
MOST_OPEN = 150
#: For how long a client asks again after the last fault.
PATIENCE_SECONDS = 90.0
ENDS = ("ready", "failed")


@dataclass
class Upload:
    """One file and its fate. `state` and `error_code` are the API's own; `complaints` are broken promises."""

    number: int
    key: str
    sample: Sample
    manner: str
    size: int
    sha256: str
    id: str | None = None
    job_id: str | None = None
    refused: str | None = None
    state: str = ""
    attempt: int = 0
    error_code: str | None = None
    retry_at: str | None = None
    was_told_to_go: bool = False
    is_deleted: bool = False
    was_replayed: bool = False
    changed: float = 0.0
    complaints: list[str] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Accepted, not deleted, and not ended as far as we know."""
        return self.id is not None and not self.is_deleted and self.state not in ENDS

    @property
    def name(self) -> str:
        """For people: the id, or the key of one that has none."""
        return self.id or self.key

    def learn(self, status: dict[str, Any]) -> None:
        """Take over what the API says of it now."""
        news = (status["state"], status["attempt"], status["error_code"], status.get("retry_at"))
        if news != (self.state, self.attempt, self.error_code, self.retry_at):
            self.changed = time.monotonic()
            self.state, self.attempt, self.error_code, self.retry_at = news


class Load:
    """Sends `per_second` uploads a second until told to stop; several at a time."""

    def __init__(self, door: Door, *, order: Callable[[int], Order], per_second: float) -> None:
        self.door = door
        self.run = f"chaos-{secrets.token_hex(4)}"
        self.uploads: list[Upload] = []
        self._order = order
        self._pause = 1 / per_second
        self._waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._until = float("inf")
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._senders = [threading.Thread(target=self._send, daemon=True) for _ in range(SENDERS)]
        self._pacer = threading.Thread(target=self._pace, daemon=True)

    def start(self) -> None:
        for thread in (self._follower, *self._senders, self._pacer):
            thread.start()

    def stop(self) -> None:
        """Begin no more uploads; those begun are asked for until they are answered, for PATIENCE_SECONDS."""
        self._until = time.monotonic() + PATIENCE_SECONDS
        self._is_over.set()
        for thread in (self._pacer, *self._senders, self._follower):
            thread.join()

    @property
    def accepted(self) -> list[Upload]:
        return [upload for upload in list(self.uploads) if upload.id is not None]

    @property
    def states(self) -> Counter[str]:
        """Uploads by what is known of them: accepted, refused, deleted, and the API's states."""
        counts: Counter[str] = Counter()
        for upload in list(self.uploads):
            counts["accepted"] += upload.id is not None
            counts["refused"] += upload.refused is not None
            counts["deleted"] += upload.is_deleted
            if not upload.is_deleted:
                counts[upload.state] += 1
        return counts

    def ask(self, uploads: list[Upload], *, until: float) -> None:
        """Learn how each of these stands."""
        for upload in uploads:
            assert upload.id is not None
            answer = self.door.status(upload.id, until=until)
            if answer is not None:
                self._learn(upload, answer)

    def _pace(self) -> None:
        due = time.monotonic()
        for number in itertools.count():
            if self._is_over.wait(max(0.0, due - time.monotonic())):
                break
            if self._waiting.qsize() < SENDERS and sum(upload.is_open for upload in self.uploads) < MOST_OPEN:
                self._waiting.put(number)
            # What an outage held up is not caught up with: that would be a flood.
            due = max(due + self._pause, time.monotonic())
        for _ in self._senders:
            self._waiting.put(None)

    def _send(self) -> None:
        while (number := self._waiting.get()) is not None:
            order = self._order(number)
            data = order.sample.stamped(number)
            digest = hashlib.sha256(data).hexdigest()
            upload = Upload(number, f"{self.run}-{number}", order.sample, order.manner, len(data), digest)
            self.uploads.append(upload)
            self._carry_out(order, upload, data)

    def _carry_out(self, order: Order, upload: Upload, data: bytes) -> None:
        match order.manner:
            case "twice":
                self._twice(upload, data)
            case "reused":
                self._reused(upload, data)
            case _:
                self._once(upload, data)
        if order.manner == "deleted" and upload.id is not None:
            self._delete(upload, after=order.pause)

    def _once(self, upload: Upload, data: bytes) -> None:
        announced = hashlib.sha256(b"other").hexdigest() if upload.sample.lawful == OTHER_DIGEST else ""
        answer = self.door.upload(upload.sample.name, data, key=upload.key, sha256=announced, until=self._until)
        self._take(upload, answer)

    def _twice(self, upload: Upload, data: bytes) -> None:
        twin = threading.Thread(target=self._once, args=(upload, data), daemon=True)
        twin.start()
        self._once(upload, data)
        twin.join()

    def _reused(self, upload: Upload, data: bytes) -> None:
        self._once(upload, data)
        answer = self.door.upload(upload.sample.name, data + b"!", key=upload.key, until=self._until)
        if upload.id is not None and answer is not None and answer.code != "idempotency_key_reused":
            upload.complaints.append(f"its key was taken for other bytes: {answer.status} {answer.code}")

    def _delete(self, upload: Upload, *, after: float) -> None:
        assert upload.id is not None
        self._is_over.wait(after)
        upload.was_told_to_go = True
        answer = self.door.delete(upload.id, until=self._until)
        # 404 when the first 204 got lost.
        upload.is_deleted = answer is not None and answer.status in (204, 404)
        if not upload.is_deleted:
            told = f"{answer.status} {answer.code}" if answer else "not at all"
            upload.complaints.append(f"deleting it was answered {told}")

    def _take(self, upload: Upload, answer: Answer | None) -> None:
        if answer is None:
            upload.complaints.append("was never answered")
        elif answer.status == 202:
            self._accept(upload, answer.body)
        else:
            upload.refused = answer.code
            if answer.code not in upload.sample.lawful:
                upload.complaints.append(f"was refused: {answer.status} {answer.code}")

    def _accept(self, upload: Upload, body: dict[str, Any]) -> None:
        if upload.id not in (None, body["id"]):
            upload.complaints.append(f"one key led to two attachments: {upload.id} and {body['id']}")
        if (body["size"], body["sha256"]) != (upload.size, upload.sha256):
            upload.complaints.append("the 202 names other bytes than were sent")
        upload.changed = time.monotonic()
        upload.state = upload.state or body["state"]
        upload.job_id, upload.id = body["job_id"], body["id"]

    def _follow(self) -> None:
        """Ask for the uploads that have not ended, oldest first and in turn."""
        last = -1
        while not self._is_over.wait(1 / QUESTIONS):
            waiting = [upload for upload in list(self.uploads) if upload.is_open]
            if not waiting:
                continue
            upload = next((one for one in waiting if one.number > last), waiting[0])
            last = upload.number
            self.ask([upload], until=time.monotonic())

    def _learn(self, upload: Upload, answer: Answer) -> None:
        if answer.status == 200:
            upload.learn(answer.body)
        elif upload.was_told_to_go:
            upload.is_deleted = answer.status == 404
        else:
            upload.complaints.append(f"the API lost it: {answer.status} {answer.code}")
