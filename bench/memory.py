"""How much the web process grows while it receives a file of a gigabyte."""

from __future__ import annotations

import http.client
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token

from attachments import storage
from bench.figures import Figure
from config.local.places import free_port
from tests.pictures import jpeg
from tests.processes import Process, stack
from tests.waiting import until

GIGABYTE = 1024**3
PIECE = 1024**2
BOUNDARY = "bench"


def receiving_a_gigabyte(folder: Path) -> list[Figure]:
    storage.make_bucket("holdfast")
    owner, _ = User.objects.get_or_create(username="bench")
    token = Token.objects.get_or_create(user=owner)[0].key
    port = free_port()
    with stack(folder) as running:
        web = running.web(port, WEB_WORKERS="1")
        until(lambda: _upload(port, token, len(jpeg())) == 202, seconds=60, say=running.logs)
        idle = _resident(web)
        peak, status = _peak_while(web, lambda: _upload(port, token, GIGABYTE))
    assert status == 202, status
    grown = (peak - idle) / 1024**2
    return [
        Figure(
            row="memory",
            what="web process above idle while receiving 1 GB",
            shown=f"{grown:.0f} MB",
            target="≤ 64 MB",
            is_met=grown <= 64,
        )
    ]


def _resident(web: Process) -> int:
    return sum(child.memory_info().rss for child in web.children())


def _peak_while(web: Process, act: Callable[[], int]) -> tuple[int, int]:
    answer: list[int] = []
    thread = threading.Thread(target=lambda: answer.append(act()))
    thread.start()
    peak = 0
    while thread.is_alive():
        peak = max(peak, _resident(web))
        thread.join(0.05)
    return peak, answer[0]


def _upload(port: int, token: str, size: int) -> int:
    """POST a picture's header followed by noise, `size` bytes in all, from flat memory; returns the status."""
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="big.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    ).encode()
    tail = f"\r\n--{BOUNDARY}--\r\n".encode()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.putrequest("POST", "/api/v1/attachments/")
        connection.putheader("Authorization", f"Token {token}")
        connection.putheader("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
        connection.putheader("Content-Length", str(len(head) + size + len(tail)))
        connection.endheaders(head)
        picture, noise = jpeg(), secrets.token_bytes(PIECE)
        connection.send(picture)
        left = size - len(picture)
        while left > 0:
            connection.send(noise[: min(left, PIECE)])
            left -= PIECE
        connection.send(tail)
        return connection.getresponse().status
    except OSError:
        return 0
