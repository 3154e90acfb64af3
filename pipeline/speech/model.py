"""The speech model: Whisper by faster-whisper, from a folder on this machine, in the process that uses it.

Its native libraries start threads, which a fork does not take along: a model loaded before the fork hangs at its
first use, without a word. So it is loaded by whoever transcribes, and never asks the network for anything.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from django.conf import settings

from pipeline.confined import Interrupted
from pipeline.speech import gates
from pipeline.speech.gates import Heard, Said
from pipeline.speech.samples import SAMPLE_RATE, SAMPLES_PER_MS, Samples, quietest
from pipeline.speech.transcript import Window

if TYPE_CHECKING:
    from faster_whisper.transcribe import Segment as WhisperSegment

    from pipeline.speech.whisper import Whisper

#: Without the tokenizer's file the library would fetch one.
FILES = ("model.bin", "config.json", "tokenizer.json")

#: More threads bring next to nothing for one recording.
MOST_THREADS = 4

#: The first try, and the warmer ones, with which a doubtful decode is written again; above that the model invents.
TEMPERATURES = (0.0, 0.2, 0.4)
#: The warmer tries draw lots: the same in every process.
SEED = 1

#: A voice for longer than this, without a word, is heard again; the voice detector lets pauses of 2 s pass for one.
HOLE_SECONDS = 4
#: So long are the pieces at most in which it is heard again.
PIECE_SECONDS = 10

#: Below this the language detected is a guess.
SURE = 0.5


class ModelUnavailable(Exception):
    """There is no speech model here that works; the message says what to set."""


class LoadedBeforeFork(RuntimeError):
    """The model was loaded in a parent of this process, where its threads stayed."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """`device` is cpu, cuda or auto; `compute_type` one of CTranslate2's; `beam` the number of texts weighed."""

    directory: Path
    device: str = "cpu"
    compute_type: str = "int8"
    threads: int = 1
    beam: int = 5

    @classmethod
    def from_settings(cls) -> Options:
        """Raises ModelUnavailable where no model is set."""
        if not settings.TRANSCRIPTION_MODEL:
            raise ModelUnavailable("Set TRANSCRIPTION_MODEL to the folder of a speech model.")
        return cls(
            directory=Path(settings.TRANSCRIPTION_MODEL),
            device=settings.TRANSCRIPTION_DEVICE,
            compute_type=settings.TRANSCRIPTION_COMPUTE_TYPE,
            threads=settings.TRANSCRIPTION_THREADS or min(len(os.sched_getaffinity(0)), MOST_THREADS),
            beam=settings.TRANSCRIPTION_BEAM,
        )

    @property
    def name(self) -> str:
        """What transcripts call the model: its folder's name."""
        return self.directory.resolve().name


@dataclass(frozen=True)
class _Loaded:
    pid: int
    options: Options
    model: Whisper


_loaded: _Loaded | None = None


def load(options: Options) -> None:
    """Load the model into this process, unless it is there; raises ModelUnavailable, LoadedBeforeFork."""
    global _loaded  # noqa: PLW0603
    if _loaded is None or _mine(_loaded).options != options:
        _loaded = _Loaded(os.getpid(), options, _open(options))


def transcribe(
    samples: Samples,
    *,
    start_ms: int,
    language: str | None,
    stop: Callable[[], bool],
    on_progress: Callable[[int], None],
    likely: str | None = None,
) -> Window:
    """What is said in a window of a recording, which begins `start_ms` into it. One call at a time.

    `samples` are mono, 16,000 a second, −1…1. `language` is a code such as "en": it wins over what is heard, unless
    the model does not know it. `likely` is the language of the window before, taken where detection is unsure.
    `stop` is asked at the start and at each segment; Interrupted is raised then. `on_progress` is told how many
    milliseconds of the window are done. The same samples give the same window, unless the model doubted and drew lots.
    Raises ModelUnavailable and LoadedBeforeFork.
    """
    loaded = _mine(_loaded)
    whole_ms = len(samples) // SAMPLES_PER_MS
    said: list[Said] = []
    spoken: str | None = None
    probability: float | None = None
    _go_on_unless(stop)
    if speech := _speech(samples):
        segments, spoken, probability = _decode(loaded, samples, speech, _known(loaded, language), likely)
        for segment in segments:
            _go_on_unless(stop)
            said.append(_said(segment))
            on_progress(min(whole_ms, round(segment.end * 1000)))
        said = _without_holes(loaded, samples, said, speech=speech, language=spoken, stop=stop)
    on_progress(whole_ms)
    is_sure = probability is None or probability >= SURE
    kept = gates.keep(said, start_ms=start_ms, end_ms=start_ms + whole_ms, is_language_sure=is_sure)
    return Window(
        start_ms=start_ms,
        end_ms=start_ms + whole_ms,
        language=spoken if kept else None,
        language_probability=probability if kept else None,
        segments=kept,
    )


def _mine(loaded: _Loaded | None) -> _Loaded:
    if loaded is None:
        raise ModelUnavailable("Load the model first.")
    if loaded.pid != os.getpid():
        raise LoadedBeforeFork(f"loaded in process {loaded.pid}")
    return loaded


def _open(options: Options) -> Whisper:
    missing = [name for name in FILES if not (options.directory / name).is_file()]
    if missing:
        raise ModelUnavailable(
            f"Set TRANSCRIPTION_MODEL to a folder that holds {', '.join(FILES)}; {', '.join(missing)} not found."
        )
    import ctranslate2

    from pipeline.speech.whisper import Whisper

    # Below that it tells how long people speak, and in which language.
    logging.getLogger("faster_whisper").setLevel(logging.WARNING)
    ctranslate2.set_random_seed(SEED)
    try:
        return Whisper(
            str(options.directory),
            device=options.device,
            compute_type=options.compute_type,
            cpu_threads=options.threads,
            local_files_only=True,
        )
    except (RuntimeError, ValueError) as error:
        raise ModelUnavailable(f"The model of TRANSCRIPTION_MODEL cannot be used as set: {error}") from error


def _speech(samples: Samples) -> list[dict[str, int]]:
    """Where there is a voice: {"start", "end"} in samples, in order. Nothing else is shown to the model."""
    from faster_whisper.vad import get_speech_timestamps

    return get_speech_timestamps(samples, sampling_rate=SAMPLE_RATE) if samples.size else []


def _decode(
    loaded: _Loaded, samples: Samples, speech: list[dict[str, int]], language: str | None, likely: str | None
) -> tuple[Iterator[WhisperSegment], str, float | None]:
    """The segments, with the times of `samples`, and the language with its probability (None: it was given)."""
    from faster_whisper.transcribe import restore_speech_timestamps

    voice = np.concatenate([samples[part["start"] : part["end"]] for part in speech])
    segments, info = loaded.model.transcribe(
        voice,
        language=language,
        beam_size=loaded.options.beam,
        temperature=TEMPERATURES,
        # An invented sentence would lead to the next one.
        condition_on_previous_text=False,
        # Repetition is no reason to draw lots: see _without_holes.
        compression_ratio_threshold=None,
        word_timestamps=True,
    )
    if language is None and likely is not None and info.language_probability < SURE:
        return _decode(loaded, samples, speech, _known(loaded, likely), None)
    probability = None if language is not None else round(float(info.language_probability), 4)
    return restore_speech_timestamps(segments, speech, SAMPLE_RATE), info.language, probability


def _without_holes(
    loaded: _Loaded,
    samples: Samples,
    said: list[Said],
    *,
    speech: list[dict[str, int]],
    language: str | None,
    stop: Callable[[], bool],
) -> list[Said]:
    """What was said, with the places heard again where there is a voice and no word, or a loop instead of words.

    Whisper gets lost in repetition: it goes on for ever, or says it once and skips the rest of its 30 s. In short
    pieces there is nothing to get lost in.
    """
    decodes = [list(decode) for _, decode in groupby(said, key=lambda each: each.decode)]
    sound = [each for decode in decodes if not _is_lost(decode) for each in decode]
    again = [
        each
        for begin, end in _holes(sound, speech, len(samples))
        for at, piece in _pieces(samples, begin, end)
        for each in _heard_again(loaded, piece, at, language, stop)
    ]
    return sorted([*sound, *again], key=lambda each: each.start)


def _is_lost(decode: list[Said]) -> bool:
    """A shorter loop would be the same again: the gates cut it."""
    return decode[-1].end - decode[0].start > PIECE_SECONDS and gates.is_loop(decode)


def _holes(said: list[Said], speech: list[dict[str, int]], end: int) -> Iterator[tuple[int, int]]:
    """The places between segments, from sample to sample, with a voice for so long that it must have said something."""
    at = 0
    for each in [*said, None]:
        start = end if each is None else round(each.start * SAMPLE_RATE)
        voice = sum(max(0, min(start, part["end"]) - max(at, part["start"])) for part in speech)
        if voice > HOLE_SECONDS * SAMPLE_RATE:
            yield at, start
        at = end if each is None else max(at, round(each.end * SAMPLE_RATE))


def _pieces(samples: Samples, begin: int, end: int) -> Iterator[tuple[int, Samples]]:
    longest = PIECE_SECONDS * SAMPLE_RATE
    while end - begin > longest:
        middle = begin + longest // 2
        cut = middle + quietest(samples[middle : begin + longest])
        yield begin, samples[begin:cut]
        begin = cut
    yield begin, samples[begin:end]


def _heard_again(
    loaded: _Loaded, piece: Samples, at: int, language: str | None, stop: Callable[[], bool]
) -> Iterator[Said]:
    _go_on_unless(stop)
    if speech := _speech(piece):
        segments, *_ = _decode(loaded, piece, speech, language, None)
        for segment in segments:
            yield _said(segment, decode=at, later=at / SAMPLE_RATE)


def _go_on_unless(stop: Callable[[], bool]) -> None:
    if stop():
        raise Interrupted


def _known(loaded: _Loaded, language: str | None) -> str | None:
    """The model's code for a language such as "en", "EN" or "en-GB"; None where it knows no such language."""
    code = (language or "").replace("_", "-").split("-")[0].strip().lower()
    return code if code in loaded.model.supported_languages else None


def _said(segment: WhisperSegment, *, decode: int | None = None, later: float = 0.0) -> Said:
    return Said(
        decode=segment.seek if decode is None else decode,
        start=segment.start + later,
        end=segment.end + later,
        text=segment.text,
        words=tuple(_heard(segment.words or (), later)),
        avg_logprob=segment.avg_logprob,
        no_speech_prob=segment.no_speech_prob,
        compression_ratio=segment.compression_ratio,
        temperature=segment.temperature or 0.0,
    )


def _heard(words: Iterable[Any], later: float) -> Iterator[Heard]:
    for word in words:
        start, end = float(word.start) + later, float(word.end) + later
        yield Heard(start=start, end=end, text=word.word, probability=float(word.probability))
