"""The real model on a real recording: its words, their times, and what the caller can ask of it on the way."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from faster_whisper import WhisperModel

from pipeline.confined import Interrupted
from pipeline.speech import model, self_test
from tests.pipeline.speech.conftest import Hear, words
from tests.speaking import Samples, silence

WORDS = self_test.WORDS.split()


def test_the_words_of_a_known_recording_are_heard_at_their_times_and_alike_each_time(hear: Hear, clip: Samples) -> None:
    done: list[int] = []
    window = hear(clip, start_ms=300_000, on_progress=done.append)
    assert words(window) == WORDS
    assert (window.language, window.start_ms, window.end_ms) == ("en", 300_000, 311_000)
    assert window.language_probability is not None and window.language_probability > 0.9
    spoken = [word for segment in window.segments for word in segment.words]
    assert [word.text.strip(",.").lower() for word in spoken] == WORDS
    assert all(300_000 <= before.start_ms <= before.end_ms <= after.start_ms for before, after in pairwise(spoken))
    assert 308_000 < spoken[-1].start_ms < spoken[-1].end_ms <= 311_000
    assert done == sorted(done) and done[-1] == 11_000
    assert hear(clip, start_ms=300_000) == window


@pytest.mark.parametrize("seconds", [4, 11])
def test_the_beginning_is_encoded_once_for_its_language_and_for_its_words(
    seconds: int, hear: Hear, clip: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, encoded = WhisperModel.encode, []

    def counted(*given: Any) -> Any:
        encoded.append(encode(*given))
        return encoded[-1]

    monkeypatch.setattr(WhisperModel, "encode", counted)
    window = hear(clip[: seconds * 16_000])
    assert window.language == "en" and WORDS[:4] == words(window)[:4]
    assert len(encoded) == 1


@pytest.mark.parametrize(("asked", "cores", "threads"), [(0, 2, 2), (0, 64, 4), (7, 2, 7)])
def test_a_worker_takes_the_cores_that_it_has_but_no_more_than_help(
    asked: int, cores: int, threads: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TRANSCRIPTION_THREADS = asked
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    assert model.Options.from_settings().threads == threads


def test_a_given_language_wins_and_an_unknown_one_is_detected(hear: Hear, clip: Samples) -> None:
    short = clip[: 4 * 16_000]
    given = hear(short, language="de-AT")
    assert (given.language, given.language_probability) == ("de", None)
    assert hear(short, language="klingon").language == "en"


def test_a_stop_ends_the_work_at_the_next_segment(hear: Hear, clip: Samples) -> None:
    done: list[int] = []
    with pytest.raises(Interrupted):
        hear(clip, stop=lambda: True, on_progress=done.append)
    answers = iter([False, True])
    with pytest.raises(Interrupted):
        hear(clip, stop=lambda: next(answers), on_progress=done.append)
    assert done == []


@pytest.mark.parametrize("seconds", [0, 0.001, 0.2])
def test_next_to_no_recording_is_a_window_in_which_nothing_was_said(hear: Hear, seconds: float) -> None:
    window = hear(silence(seconds))
    assert (window.end_ms, window.segments, window.language) == (seconds * 1000, (), None)


def test_a_model_loaded_before_a_fork_is_refused_after_it(hear: Hear, clip: Samples) -> None:
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    # Should it hang all the same, it ends with the tests.
    child = fork.Process(target=_try_to_use, args=(answers, clip), daemon=True)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert answers.get() == ["LoadedBeforeFork", "LoadedBeforeFork"]


def _try_to_use(answers: Any, samples: Samples) -> None:
    raised = []
    for use in (
        lambda: model.load(model.Options.from_settings()),
        lambda: model.transcribe(samples, start_ms=0, language=None, stop=bool, on_progress=print),
    ):
        try:
            use()
        except model.LoadedBeforeFork as error:
            raised.append(type(error).__name__)
    answers.put(raised)


def test_a_name_that_is_no_folder_is_refused_without_asking_the_network(settings: Any, tmp_path: Path) -> None:
    for directory in (Path("base"), tmp_path):
        with pytest.raises(model.ModelUnavailable, match="Set TRANSCRIPTION_MODEL to a folder"):
            model.load(model.Options(directory=directory))
    settings.TRANSCRIPTION_MODEL = ""
    with pytest.raises(model.ModelUnavailable, match="Set TRANSCRIPTION_MODEL"):
        model.Options.from_settings()


def test_what_cannot_be_computed_here_is_refused_in_our_words() -> None:
    options = replace(model.Options.from_settings(), compute_type="int5")
    with pytest.raises(model.ModelUnavailable, match="int5"):
        model.load(options)


def test_the_self_test_is_a_command_that_says_by_its_status_whether_this_installation_hears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _self_test().returncode == 0
    monkeypatch.setenv("TRANSCRIPTION_MODEL", "/nowhere")
    failed = _self_test()
    assert failed.returncode == 1 and "TRANSCRIPTION_MODEL" in failed.stderr and "Traceback" not in failed.stderr


def test_the_self_test_notices_a_model_that_hears_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "WORDS", "four score and seven years ago our fathers brought forth a new nation")
    with pytest.raises(self_test.Misheard, match="% of the words"):
        self_test.run(model.Options.from_settings())


def _self_test() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline.speech.self_test"], capture_output=True, text=True, check=False
    )
