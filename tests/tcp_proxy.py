"""A TCP proxy in front of PostgreSQL: it can fall silent, refuse, cut, and lose the answer to a COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from django.db import connection


@dataclass(eq=False)
class Link:
    """One client's connection. `is_deaf`: what the server still answers is lost, and ends the connection."""

    client: socket.socket
    server: socket.socket
    is_deaf: bool = False

    def cut(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@dataclass(eq=False)
class Trap:
    """Springs once, when one client has sent all these words in this order, before the last of them is passed on."""

    words: tuple[bytes, ...]
    act: Callable[[Link], None]
    seen: dict[Link, int] = field(default_factory=dict)
    has_sprung: threading.Event = field(default_factory=threading.Event)

    def look(self, link: Link, data: bytes) -> None:
        place = self.seen.get(link, 0)
        while place < len(self.words) and self.words[place] in data:
            place += 1
        self.seen[link] = place
        if place == len(self.words) and not self.has_sprung.is_set():
            self.has_sprung.set()
            self.act(link)


class Proxy:
    """Forwards bytes both ways until told otherwise; `database_url` leads through it."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._is_passing = threading.Event()
        self._is_passing.set()
        self._links: set[Link] = set()
        self._trap: Trap | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._listen()

    @property
    def database_url(self) -> str:
        return "postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/{NAME}".format(**connection.settings_dict, port=self.port)

    def silence(self, _: Link | None = None) -> None:
        """Connections stay open and new ones are taken, but not a byte gets through."""
        self._is_passing.clear()

    def speak(self) -> None:
        """Pass on everything that was held back."""
        self._is_passing.set()

    def cut(self) -> None:
        """End every connection; new ones are taken."""
        for link in list(self._links):
            link.cut()

    def refuse(self) -> None:
        """End every connection, and refuse new ones."""
        # Closing alone does not wake a thread that accepts.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def accept(self) -> None:
        """Take connections again after `refuse`."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listen()

    def trap(self, *words: bytes, act: Callable[[Link], None]) -> Trap:
        self._trap = Trap(words, act)
        return self._trap

    def close(self) -> None:
        self.refuse()
        self.speak()

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._is_passing.wait()
        try:
            link = Link(client, socket.create_connection(self._target))
        except OSError:
            client.close()
            return
        for end in (link.client, link.server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links.add(link)
        threading.Thread(target=self._forward, args=(link,), daemon=True).start()
        threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _forward(self, link: Link) -> None:
        with self._until_broken(link):
            while data := link.client.recv(65536):
                if self._trap is not None:
                    self._trap.look(link, data)
                self._is_passing.wait()
                link.server.sendall(data)

    def _answer(self, link: Link) -> None:
        with self._until_broken(link):
            while (data := link.server.recv(65536)) and not link.is_deaf:
                self._is_passing.wait()
                link.client.sendall(data)

    @contextlib.contextmanager
    def _until_broken(self, link: Link) -> Iterator[None]:
        with contextlib.suppress(OSError):
            yield
        link.cut()
        self._links.discard(link)


@contextlib.contextmanager
def in_front_of_database() -> Iterator[Proxy]:
    database = connection.settings_dict
    proxy = Proxy(database["HOST"], int(database["PORT"]))
    try:
        yield proxy
    finally:
        proxy.close()


def deafen(link: Link) -> None:
    """What is sent now arrives, and its answer is lost."""
    link.is_deaf = True
