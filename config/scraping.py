"""Serves on METRICS_PORT what a process and all its children counted.

A worker's pool and Gunicorn's workers count in processes of their own. prometheus_client adds them up through files in
one folder, which must be known before the first counter is made: `share` comes first, `serve` when the main process
is up.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from config.env import read

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

FOLDER = "PROMETHEUS_MULTIPROC_DIR"


def share() -> None:
    """Give this process and its children one folder to count in; nothing without METRICS_PORT."""
    from prometheus_client import values

    if read("METRICS_PORT") and not read(FOLDER):
        folder = tempfile.mkdtemp(prefix="holdfast-metrics-")
        os.environ[FOLDER] = folder
        # Flower's plug-in of the celery command has imported it by now, without a folder.
        values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]
        atexit.register(_remove, folder, owner=os.getpid())


def serve() -> None:
    """Answer scrapes from a thread of the main process."""
    from prometheus_client import start_http_server

    if read("METRICS_PORT"):
        start_http_server(read("METRICS_PORT"), registry=counted())


def counted() -> CollectorRegistry:
    """What this process counted; where it shares a folder, what all of them did."""
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    if not read(FOLDER):
        return REGISTRY
    every_process = CollectorRegistry()
    MultiProcessCollector(every_process)  # type: ignore[no-untyped-call]
    return every_process


def forget(pid: int) -> None:
    """A child ended: its gauges no longer count."""
    from prometheus_client.multiprocess import mark_process_dead

    if read(FOLDER):
        mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _remove(folder: str, *, owner: int) -> None:
    """Children inherit the exit handler, but the folder is the main process's."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
