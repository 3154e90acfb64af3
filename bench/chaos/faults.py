"""The faults of the local stack: signals to its processes, and cuts of its connections and queues.

Each kind has its rule and its act in one table, KINDS.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import psutil
import psycopg
import requests
from amqp.exceptions import AMQPError
from kombu import Connection

from bench.chaos.arena import Injected, NotNow
from bench.chaos.schedule import Fault, Rule
from config.local.stack import Stack
from pipeline.broker import BrokerUnavailable, Publisher
from pipeline.wire import Message

CONNECT_SECONDS = 3
CALL_SECONDS = 3.0
#: How many of the newest messages one is taken from to be sent again, and how often.
NEWEST, COPIES = 40, 3
#: Most young processes are spared: a stack that only ever starts has nothing to lose. A program is young for half the
#: time that the whole stack took to start here, a process of its pool for a quarter.
SPARED = 0.9
PROGRAM_IS_YOUNG, CHILD_IS_YOUNG = 0.5, 0.25
#: Of cuts, the share that cuts every connection at once.
ALL = 0.2

IMAGES, CONTROL = "worker-images", "worker-control"

Choice = TypeVar("Choice")


class LocalArena:
    """A stack of `config.local.stack`, in the hands of its supervisor."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._broker_url = stack.environment["CELERY_BROKER_URL"]
        self._database_url = stack.environment["DATABASE_URL"]
        self._start_seconds = time.time() - psutil.Process(self._pid("web")).create_time()
        self._acts = {name: act for name, (_, act) in KINDS.items()}
        self.rules = {name: rule for name, (rule, _) in KINDS.items()}
        if not stack.management_url:
            # A broker that was given to us is not ours to restart.
            self.rules = {name: rule for name, rule in self.rules.items() if name not in OWN_BROKER}

    def inject(self, fault: Fault) -> Injected:
        try:
            return self._acts[fault.kind](self, fault)
        except (psutil.Error, OSError, AMQPError, BrokerUnavailable, psycopg.Error, requests.RequestException) as error:
            raise NotNow(f"{type(error).__name__}") from error

    def missing(self) -> list[str]:
        down = [name for name, state in self._stack.supervisor.states().items() if state != "RUNNING"]
        if not self._answers("readyz"):
            down.append("web does not answer")
        return down + [f"{queue} has no worker" for queue in self._stack.queues if not self._has_consumer(queue)]

    def _answers(self, path: str) -> bool:
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{self._stack.web_url}/{path}", timeout=CALL_SECONDS).status_code == 200
        return False

    def _has_consumer(self, queue: str) -> bool:
        with contextlib.suppress(OSError, AMQPError), self._broker() as channel:
            return bool(channel.queue_declare(queue, passive=True).consumer_count)
        return False

    # --- processes ----------------------------------------------------------------------------------

    def kill(self, name: str, fault: Fault) -> Injected:
        process = self._main(name, fault)
        process.kill()
        return Injected(f"{name}, process {process.pid}")

    def kill_all(self, name: str, fault: Fault) -> Injected:
        """A program with every process below it, as a machine that loses power."""
        family = _family(self._main(name, fault))
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return Injected(f"{name}, {len(family)} processes")

    def kill_child(self, name: str, fault: Fault) -> Injected:
        process = self._child(name, fault)
        process.kill()
        return Injected(f"a child of {name}, process {process.pid}")

    def terminate(self, name: str, fault: Fault) -> Injected:
        process = self._main(name, fault)
        process.terminate()
        return Injected(f"{name}, process {process.pid}")

    def freeze(self, name: str, fault: Fault) -> Injected:
        """A program with every process below it, as a machine that is paused."""
        return _frozen(_family(self._main(name, fault)), f"{name} for {fault.seconds:.0f} s")

    def freeze_child(self, name: str, fault: Fault) -> Injected:
        return _frozen(_family(self._child(name, fault)), f"a child of {name} for {fault.seconds:.0f} s")

    def _main(self, name: str, fault: Fault) -> psutil.Process:
        process = psutil.Process(self._pid(name))
        if self._is_spared(process, fault, PROGRAM_IS_YOUNG):
            raise NotNow(f"{name} has just started")
        return process

    def _child(self, name: str, fault: Fault) -> psutil.Process:
        """One of a program's own kind below it: Gunicorn's and Celery's workers, not the decoders below those."""
        main = psutil.Process(self._pid(name))
        children = [
            child
            for child in sorted(main.children(), key=lambda one: one.pid)
            if _is_like(child, main) and not self._is_spared(child, fault, CHILD_IS_YOUNG)
        ]
        return _chosen(children, fault.draw, f"{name} has no children")

    def _is_spared(self, process: psutil.Process, fault: Fault, share: float) -> bool:
        return fault.draw < SPARED and time.time() - process.create_time() < self._start_seconds * share

    def _pid(self, name: str) -> int:
        processes = self._stack.supervisor.processes()
        if name not in processes:
            raise NotNow(f"{name} is not running")
        return processes[name]

    # --- connections and queues ---------------------------------------------------------------------

    def cut_database(self, fault: Fault) -> Injected:
        clients = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        with self._database() as database:
            pids = [pid for (pid,) in database.execute(f"SELECT pid {clients} ORDER BY backend_start")]
            cut = pids if fault.draw < ALL else [_chosen(pids, fault.draw, "no connections")]
            database.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [cut])
        return Injected(f"{len(cut)} of {len(pids)} connections")

    def cut_broker(self, fault: Fault) -> Injected:
        names = sorted(one["name"] for one in self._management("GET", "connections").json())
        cut = names if fault.draw < ALL else [_chosen(names, fault.draw, "no connections")]
        for name in cut:
            self._management("DELETE", f"connections/{quote(name, safe='')}")
        return Injected(f"{len(cut)} of {len(names)} connections")

    def purge_queue(self, fault: Fault) -> Injected:
        queue = _chosen(self._stack.queues, fault.draw, "")
        with self._broker() as channel:
            lost = channel.queue_purge(queue)
        return Injected(f"{queue}, {lost} messages")

    def delete_queue(self, fault: Fault) -> Injected:
        queue = _chosen(self._stack.queues, fault.draw, "")
        with self._broker() as channel:
            lost = channel.queue_delete(queue)
        return Injected(f"{queue}, {lost} messages")

    def duplicate_message(self, fault: Fault) -> Injected:
        """Any of the newest, of an attempt that is over too."""
        columns = ", ".join(Message._fields)
        with self._database() as database:
            rows = database.execute(
                f"SELECT {columns} FROM pipeline_outbox WHERE sent_at IS NOT NULL ORDER BY id DESC LIMIT {NEWEST}"
            ).fetchall()
        message = Message(*_chosen(rows, fault.draw, "no message was sent yet"))
        publisher = Publisher()
        try:
            publisher.publish([message] * COPIES)
        finally:
            publisher.close()
        return Injected(f"{message.message_id}, {COPIES} copies")

    @contextlib.contextmanager
    def _database(self) -> Any:
        with psycopg.connect(self._database_url, autocommit=True, connect_timeout=CONNECT_SECONDS) as opened:
            yield opened

    @contextlib.contextmanager
    def _broker(self) -> Any:
        # It may be frozen, and who waits for it without a limit can no longer undo that.
        limits = {"read_timeout": CONNECT_SECONDS, "write_timeout": CONNECT_SECONDS}
        with (
            Connection(self._broker_url, connect_timeout=CONNECT_SECONDS, transport_options=limits) as opened,
            opened.channel() as channel,
        ):
            yield channel

    def _management(self, method: str, path: str) -> requests.Response:
        parts = urlsplit(self._stack.management_url)
        login = (parts.username or "", parts.password or "")
        url = f"http://{parts.hostname}:{parts.port}/api/{path}"
        answer = requests.request(method, url, auth=login, timeout=CALL_SECONDS)
        # 404: it has closed meanwhile.
        if answer.status_code != 404:
            answer.raise_for_status()
        return answer


def _frozen(processes: list[psutil.Process], what: str) -> Injected:
    stopped = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
            stopped.append(process)
    return Injected(what, undo=partial(_resume, stopped))


def _resume(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _is_like(child: psutil.Process, parent: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return child.cmdline() == parent.cmdline()
    return False


def _chosen(candidates: Sequence[Choice], draw: float, otherwise: str) -> Choice:
    if not candidates:
        raise NotNow(otherwise)
    return candidates[int(draw * len(candidates))]


Act = Callable[[LocalArena, Fault], Injected]


def _on(name: str, act: Callable[[LocalArena, str, Fault], Injected]) -> Act:
    return lambda arena, fault: act(arena, name, fault)


#: Longer than a lease of 15 s and the look for lost ones after it.
PAST_THE_LEASE = (17.0, 26.0)
#: What has a limit takes nobody's place either (`schedule`): whole programs, which take long to start, and what strands
#: messages, which are found a minute later.
KINDS: dict[str, tuple[Rule, Act]] = {
    "kill web worker": (Rule(14), _on("web", LocalArena.kill_child)),
    "kill web": (Rule(4, limit=8), _on("web", LocalArena.kill)),
    "kill dispatcher": (Rule(7), _on("dispatcher", LocalArena.kill)),
    "kill beat": (Rule(5), _on("beat", LocalArena.kill)),
    "kill image child": (Rule(28), _on(IMAGES, LocalArena.kill_child)),
    "kill image worker": (Rule(2, limit=4), _on(IMAGES, LocalArena.kill)),
    "kill image worker whole": (Rule(2, limit=4), _on(IMAGES, LocalArena.kill_all)),
    "kill control child": (Rule(4), _on(CONTROL, LocalArena.kill_child)),
    "kill control worker": (Rule(3, limit=6), _on(CONTROL, LocalArena.kill_all)),
    "restart web": (Rule(2, limit=4), _on("web", LocalArena.terminate)),
    "restart dispatcher": (Rule(2, limit=6), _on("dispatcher", LocalArena.terminate)),
    "restart beat": (Rule(1, limit=6), _on("beat", LocalArena.terminate)),
    "restart image worker": (Rule(1.5, limit=4), _on(IMAGES, LocalArena.terminate)),
    "restart control worker": (Rule(1, limit=4), _on(CONTROL, LocalArena.terminate)),
    "freeze image child": (Rule(4, seconds=PAST_THE_LEASE), _on(IMAGES, LocalArena.freeze_child)),
    "freeze image worker": (Rule(1, limit=3, seconds=PAST_THE_LEASE), _on(IMAGES, LocalArena.freeze)),
    "freeze dispatcher": (Rule(1.5, limit=4, seconds=PAST_THE_LEASE), _on("dispatcher", LocalArena.freeze)),
    "freeze web worker": (Rule(1, limit=4, seconds=PAST_THE_LEASE), _on("web", LocalArena.freeze_child)),
    "freeze broker": (Rule(1, limit=2, seconds=(3.0, 20.0)), _on("rabbitmq", LocalArena.freeze)),
    "cut database connections": (Rule(8), LocalArena.cut_database),
    "cut broker connections": (Rule(5), LocalArena.cut_broker),
    "purge queue": (Rule(2.5, limit=6), LocalArena.purge_queue),
    "delete queue": (Rule(1.5, limit=4), LocalArena.delete_queue),
    "duplicate message": (Rule(5), LocalArena.duplicate_message),
    "restart broker": (Rule(2.5, limit=6), _on("rabbitmq", LocalArena.kill_all)),
    "restart database": (Rule(2.5, limit=4), _on("postgres", LocalArena.kill_all)),
}
OWN_BROKER = {"freeze broker", "cut broker connections", "restart broker"}
