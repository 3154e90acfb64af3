"""The REST door as a careful client uses it: what got no answer, or "not now", is asked again."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import requests

ANSWER_SECONDS = 30.0
AGAIN_SECONDS = 0.5
#: Also no answers: a proxy in front of a deployment says these while what is behind it restarts.
NOT_NOW = (408, 425, 429)


@dataclass(frozen=True)
class Answer:
    """A final answer: its status and its JSON, or nothing where the body is none."""

    status: int
    body: dict[str, Any]

    @property
    def code(self) -> str:
        return str(self.body.get("code", f"http_{self.status}"))


class Door:
    """Calls of one person. `answers` counts the answers to uploads by status; `url` has no slash at its end."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self.answers: Counter[str] = Counter()
        self._headers = {"Authorization": f"Token {token}"}
        self._lock = threading.Lock()

    def upload(self, name: str, data: bytes, *, key: str, sha256: str = "", until: float) -> Answer | None:
        """Sends a file until it is taken or refused; None when `until` (monotonic) comes first."""
        return self._asked(
            "POST",
            "attachments/",
            until=until,
            is_upload=True,
            headers={**self._headers, "Idempotency-Key": key},
            files={"file": (name, data)},
            data={"sha256": sha256} if sha256 else {},
        )

    def delete(self, attachment_id: str, *, until: float) -> Answer | None:
        return self._asked("DELETE", f"attachments/{attachment_id}/", until=until)

    def status(self, attachment_id: str, *, until: float) -> Answer | None:
        return self._asked("GET", f"attachments/{attachment_id}/", until=until)

    def replay(self, attachment_id: str, *, reason: str, until: float) -> Answer | None:
        return self._asked("POST", f"attachments/{attachment_id}/replay/", until=until, json={"reason": reason})

    def fetch(self, url: str, *, until: float) -> tuple[int, str] | None:
        """Size and SHA-256 of what an address of the API serves; None when it serves nothing until then."""
        while time.monotonic() < until:
            with contextlib.suppress(requests.RequestException):
                answer = requests.get(url, headers=self._headers, timeout=ANSWER_SECONDS)
                if answer.status_code == 200:
                    return len(answer.content), hashlib.sha256(answer.content).hexdigest()
                if answer.status_code < 500:
                    return None
            time.sleep(AGAIN_SECONDS)
        return None

    def is_ready(self) -> bool:
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{self.url}/readyz", timeout=5).status_code == 200
        return False

    def _asked(self, method: str, path: str, *, until: float, is_upload: bool = False, **options: Any) -> Answer | None:
        options = {"headers": self._headers, **options}
        while True:
            answer = self._ask(method, path, **options)
            if is_upload:
                with self._lock:
                    self.answers[str(answer.status) if answer else "no answer"] += 1
            if answer and answer.status < 500 and answer.status not in NOT_NOW:
                return answer
            if time.monotonic() > until:
                return None
            time.sleep(AGAIN_SECONDS)

    def _ask(self, method: str, path: str, **options: Any) -> Answer | None:
        try:
            answer = requests.request(method, f"{self.url}/api/v1/{path}", timeout=ANSWER_SECONDS, **options)
        except requests.RequestException:
            return None
        body: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            body = answer.json()
        return Answer(answer.status_code, body)
