"""Gunicorn's settings: threads, because waiting clients and slow uploads are cheap."""

import os
from pathlib import Path
from typing import Any

from config import scraping
from config.env import read
from pipeline import sandbox

scraping.share()

bind = read("WEB_BIND")
worker_class = "gthread"
workers = read("WEB_WORKERS")
threads = read("WEB_THREADS")
timeout = 120
graceful_timeout = 30
keepalive = 5
# The arbiter's heartbeat file must not wait for a disk.
_MEMORY = Path("/dev/shm")  # noqa: S108  (a mount of the kernel's, not a temporary file)
worker_tmp_dir = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
# Its default place is in the home folder, shared by every stack of a user and not writable in a container.
control_socket_disable = True
errorlog = "-"


def when_ready(_server: Any) -> None:
    scraping.serve()


def post_fork(_server: Any, worker: Any) -> None:
    """A worker dies with its master: one that still served a slow client would keep the next master from the port."""
    sandbox.die_with(worker.ppid)


def child_exit(_server: Any, worker: Any) -> None:
    scraping.forget(worker.pid)
