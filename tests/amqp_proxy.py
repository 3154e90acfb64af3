"""A TCP proxy in front of the real broker that can fall silent, or say on its behalf that publishing is blocked."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

#: Method frame on channel 0: class connection (10), method blocked (60), a short string.
REASON = b"low on memory"
BLOCKED = struct.pack(">HHB", 10, 60, len(REASON)) + REASON
BLOCKED_FRAME = struct.pack(">BHI", 1, 0, len(BLOCKED)) + BLOCKED + b"\xce"


class Proxy:
    """Forwards bytes both ways until told otherwise; `url` leads through it."""

    def __init__(self, broker_url: str) -> None:
        parts = urlsplit(broker_url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5672)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._passing = threading.Event()
        self._passing.set()
        self._clients: list[socket.socket] = []
        address = parts.netloc.rsplit("@", 1)[0] + f"@127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = urlunsplit(parts._replace(netloc=address))
        threading.Thread(target=self._accept, daemon=True).start()

    def block(self) -> None:
        """As RabbitMQ under an alarm: say so, then read nothing more from publishers."""
        self._passing.clear()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.sendall(BLOCKED_FRAME)

    def unblock(self) -> None:
        self._passing.set()

    def close(self) -> None:
        self._passing.set()
        for opened in (self._listener, *self._clients):
            opened.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._clients.append(client)
                threading.Thread(target=self._forward, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_publisher: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_publisher:
                    self._passing.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def in_front_of(broker_url: str) -> Iterator[Proxy]:
    proxy = Proxy(broker_url)
    try:
        yield proxy
    finally:
        proxy.close()
