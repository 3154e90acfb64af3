"""Decodes one recording to what the speech model reads. Run only where a crash is harmless: in a confined child.

One pass with flat memory: packet by packet from the first sound stream to the file. Pictures, covers included, are
never decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import av
from av.audio.fifo import AudioFifo
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Discard

from attachments.errors import AudioTooLong, BadFile, EmptyAudio, EmptyFile, NoAudio, UnsupportedType
from pipeline.steps import audio_lengths as lengths
from pipeline.steps import wav


@dataclass(frozen=True, kw_only=True)
class Format:
    """How a type is read: the one demuxer that may, who tells its length, and what shows that bytes are missing."""

    name: str
    demuxer: str
    told: Callable[[Path, InputContainer, AudioStream], float | None]
    is_cut: Callable[[Path], bool] = lengths.never_cut
    #: Whether a jump of its clock is silence that nobody stored; elsewhere it is a loss.
    may_pause: bool = False
    options: dict[str, str] = field(default_factory=dict)


_OGG = Format(name="ogg", demuxer="ogg", told=lengths.told_by_stream, is_cut=lengths.is_ogg_cut)
_MP3 = Format(name="mp3", demuxer="mp3", told=lengths.told_by_first_frame)
_AAC = Format(name="aac", demuxer="aac", told=lengths.told_by_nothing)
_AMR = Format(name="amr", demuxer="amr", told=lengths.told_by_nothing)
# Its packets would last 40 ms, and each costs the same.
_WAV = Format(name="wav", demuxer="wav", told=lengths.told_by_wave_header, options={"max_size": "65536"})
_FLAC = Format(name="flac", demuxer="flac", told=lengths.told_by_stream)
_AIFF = Format(name="aiff", demuxer="aiff", told=lengths.told_by_stream)
_MP4 = Format(name="mp4", demuxer="mov", told=lengths.told_by_stream, is_cut=lengths.is_mp4_cut, may_pause=True)
_MATROSKA = Format(
    name="matroska", demuxer="matroska", told=lengths.told_by_matroska, is_cut=lengths.is_matroska_cut, may_pause=True
)

#: By detected type. Being listed here is what makes a type acceptable.
FORMATS: dict[str, Format] = {
    "audio/ogg": _OGG,
    "audio/mpeg": _MP3,
    "audio/aac": _AAC,
    "audio/amr": _AMR,
    "audio/amr-wb": _AMR,
    "audio/wav": _WAV,
    "audio/flac": _FLAC,
    "audio/aiff": _AIFF,
    "audio/mp4": _MP4,
    "video/mp4": _MP4,
    "video/quicktime": _MP4,
    "video/webm": _MATROSKA,
    "video/x-matroska": _MATROSKA,
}

#: The decoders that may run, by libav's names; a codec that is not here is told to the sender as not supported.
DECODERS = frozenset(
    {
        *("aac", "ac3", "alac", "amrnb", "amrwb", "eac3", "flac", "gsm", "gsm_ms", "mp2float", "mp3float", "opus"),
        *("speex", "vorbis", "adpcm_ima_qt", "adpcm_ima_wav", "adpcm_ms", "pcm_alaw", "pcm_mulaw", "pcm_u8", "pcm_s8"),
        *(f"pcm_{kind}{order}" for kind in ("s16", "s24", "s32", "f32", "f64") for order in ("le", "be")),
    }
)
#: Outside of these a rate is damage, and one frame of it would make gigabytes.
LOWEST_RATE, HIGHEST_RATE = 1_000, 768_000
#: Clocks of containers count in milliseconds, and frames are up to 120 ms long.
LONGEST_JITTER_SECONDS = 0.2
SILENCE = bytes(wav.RATE * wav.SAMPLE_BYTES)


def convert(request: dict[str, Any]) -> dict[str, Any]:
    """{original, content_type, output, max_seconds} → {original: facts}, and the WAV file at `output`.

    Raises AudioTooLong, BadFile, EmptyAudio, EmptyFile, NoAudio, UnsupportedType.
    """
    path, content_type = Path(request["original"]), request["content_type"]
    if content_type not in FORMATS:
        raise UnsupportedType(f"no demuxer is allowed for {content_type}")
    if path.stat().st_size == 0:
        raise EmptyFile
    kind = FORMATS[content_type]
    if kind.is_cut(path):
        raise BadFile("the file ends in the middle of a part of it")
    with path.open("rb") as file, _reading(), _opened(file, kind) as container:
        stream = _sound(container)
        told = kind.told(path, container, stream)
        if told and told > request["max_seconds"]:
            raise AudioTooLong(f"{told:.0f} s by its header", limit=request["max_seconds"])
        facts = _facts(kind, stream, told)
        with Path(request["output"]).open("wb") as output:
            sound = Sound(output=output, max_seconds=request["max_seconds"])
            _decode(container, stream, sound, kind)
            sound.finish()
        _check_whole(sound, told)
        return {"original": facts}


@dataclass(kw_only=True)
class Sound:
    """The WAV file while it grows."""

    output: BinaryIO
    max_seconds: float
    samples: int = 0
    #: Where we are in the recording, pauses included: what was decoded counts, not what came out of the resampler yet.
    seconds: float = 0.0
    packets: int = 0
    undecodable: int = 0
    _shape: tuple[int, str, int] | None = None
    _resampler: AudioResampler = field(default_factory=lambda: AudioResampler("s16", "mono", wav.RATE))
    #: Frames are short, and the resampler's price is by the call: it gets a second at a time.
    _waiting: AudioFifo = field(default_factory=AudioFifo)

    def __post_init__(self) -> None:
        self.output.write(wav.header(0))

    def add(self, frame: AudioFrame) -> None:
        shape = (frame.sample_rate, frame.format.name, frame.layout.nb_channels)
        if shape != self._shape:
            self._begin(shape)
        self.seconds += frame.samples / frame.sample_rate
        frame.pts = None
        self._waiting.write(frame)
        if self._waiting.samples >= frame.sample_rate:
            self._resample()

    def pause(self, seconds: float) -> None:
        self._resample()
        self.seconds += seconds
        left = round(seconds * wav.RATE) * wav.SAMPLE_BYTES
        while left:
            part = SILENCE[:left]
            self._append(part)
            left -= len(part)

    def finish(self) -> None:
        self._flush()
        self.output.seek(0)
        self.output.write(wav.header(self.samples))

    def _begin(self, shape: tuple[int, str, int]) -> None:
        """A recording may change its rate or its channels on the way; a resampler may not."""
        if not LOWEST_RATE <= shape[0] <= HIGHEST_RATE:
            raise BadFile(f"{shape[0]} Hz")
        self._flush()
        self._shape, self._waiting = shape, AudioFifo()
        self._resampler = AudioResampler("s16", "mono", wav.RATE)

    def _flush(self) -> None:
        self._resample()
        self._write(self._resampler.resample(None))

    def _resample(self) -> None:
        if (frame := self._waiting.read()) is not None:
            self._write(self._resampler.resample(frame))

    def _write(self, frames: list[AudioFrame]) -> None:
        for frame in frames:
            self._append(memoryview(frame.planes[0])[: frame.samples * wav.SAMPLE_BYTES])

    def _append(self, data: bytes | memoryview) -> None:
        self.output.write(data)
        self.samples += len(data) // wav.SAMPLE_BYTES
        if self.samples > self.max_seconds * wav.RATE:
            raise AudioTooLong(f"more than {self.max_seconds:.0f} s", limit=self.max_seconds)


def _opened(file: BinaryIO, kind: Format) -> InputContainer:
    """By descriptor, so that no name leads anywhere; nothing that the file refers to can be opened either."""
    return av.open(
        file,
        "r",
        format=kind.demuxer,
        container_options=kind.options
        | {
            "format_whitelist": kind.demuxer,
            "protocol_whitelist": "",
            # Opening a file decodes a little of streams whose header says too little; never of a picture.
            "codec_whitelist": ",".join(sorted(DECODERS)),
        },
        metadata_errors="replace",
        buffer_size=256 * 1024,
        io_open=_refuse,
    )


def _refuse(url: str, *_: Any) -> NoReturn:
    raise BadFile(f"the file refers to another: {url[:200]}")


def _sound(container: InputContainer) -> AudioStream:
    """The first sound stream; all others are skipped without reading them, where the container allows it."""
    if not container.streams.audio:
        raise NoAudio
    stream = container.streams.audio[0]
    for other in container.streams:
        if other.index != stream.index:
            other.discard = Discard.all
    # Without a codec there is no context, whatever the annotations say.
    name = stream.codec_context.name if stream.codec_context else "unknown"
    if name not in DECODERS:
        raise UnsupportedType(f"no decoder is allowed for {name}")
    stream.codec_context.thread_count = 1
    return stream


def _decode(container: InputContainer, stream: AudioStream, sound: Sound, kind: Format) -> None:
    origin = (container.start_time or 0) / av.time_base
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.FFmpegError as error:
            if isinstance(error, MemoryError):
                raise
            # Broken packets happen, above all where recordings were joined; `_check_whole` counts them.
            sound.undecodable += 1
            continue
        sound.packets += bool(frames)
        for frame in frames:
            if kind.may_pause and frame.time is not None:
                pause = frame.time - origin - sound.seconds
                if pause > LONGEST_JITTER_SECONDS:
                    sound.pause(pause)
            sound.add(frame)


def _check_whole(sound: Sound, told: float | None) -> None:
    """BadFile when noticeably less was decoded than there was: a shorter transcript would pass for the whole."""
    allowed = max(1.0, 0.02 * (told or sound.seconds))
    if not sound.samples and (sound.undecodable or told):
        raise BadFile("nothing of it could be decoded")
    if not sound.samples or not sound.packets:
        raise EmptyAudio
    lost = sound.undecodable * sound.seconds / sound.packets
    if lost > allowed:
        raise BadFile(f"about {lost:.1f} s could not be decoded")
    if told and told - sound.seconds > allowed:
        raise BadFile(f"{sound.seconds:.1f} s of {told:.1f} s")


def _facts(kind: Format, stream: AudioStream, told: float | None) -> dict[str, Any]:
    context = stream.codec_context
    return {
        "format": kind.name,
        "codec": context.codec.canonical_name,
        "declared_ms": round(told * 1000) if told else None,
        "sample_rate": context.sample_rate,
        "channels": context.layout.nb_channels,
    }


@contextmanager
def _reading() -> Iterator[None]:
    """Errors of libav become ours. Those of writing are the system's, and pass."""
    try:
        yield
    except av.FFmpegError as error:
        if isinstance(error, MemoryError):
            raise
        raise BadFile(f"{type(error).__name__}: {error.strerror}") from error
