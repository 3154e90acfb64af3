"""A copy of somebody's file does not outlive the process that made it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from attachments.errors import StorageUnavailable
from pipeline import scratch


def test_a_starting_worker_clears_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = tmp_path / f"{scratch.PREFIX}{os.getpid()}-1-abc"
    dead.mkdir()
    (dead / "original").write_bytes(b"private")
    with scratch.folder() as alive:
        (alive / "original").write_bytes(b"in work")
        assert scratch.clear_abandoned() == 1
        assert not dead.exists()
        assert (alive / "original").exists()
    assert not alive.exists()


def test_no_place_to_work_is_an_outage_and_not_the_files_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not mounted"))
    with pytest.raises(StorageUnavailable), scratch.folder():
        pass
