"""Recordings made from sound that is given as samples, as bytes of files of every kind that is taken, and of bad ones.

`melody` is a sound that tells where in it one is: a tone of its own each second, which `tones` hears again in what the
conversion made.
"""

from __future__ import annotations

import functools
import io
import struct
import tempfile
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.stream import Disposition
from PIL import Image

Samples = npt.NDArray[np.float32]

#: Hertz, in this order, one for each second.
SCALE = (330, 440, 550, 660, 880, 1100)
RATE = 48_000


def melody(seconds: float = 6.0, *, rate: int = RATE, first: int = 0) -> Samples:
    """One channel from -1 to 1. `first` is where in the scale it begins."""
    at = np.arange(round(seconds * rate)) / rate
    hertz = np.array(SCALE)[(at.astype(int) + first) % len(SCALE)]
    sound: Samples = (0.5 * np.sin(2 * np.pi * hertz * at)).astype(np.float32)
    return sound


def tones(converted: Path) -> list[int]:
    """What is heard in each whole second of a WAV file: the nearest tone of the scale, 0 for silence."""
    with wave.open(str(converted)) as file:
        rate, data = file.getframerate(), file.readframes(file.getnframes())
    heard = np.frombuffer(data, np.int16).astype(float)
    return [_tone(heard[second * rate : (second + 1) * rate], rate) for second in range(len(heard) // rate)]


def _tone(heard: npt.NDArray[np.float64], rate: int) -> int:
    # The borders of a second belong to both of its neighbours, once encoders have delayed the sound a little.
    middle = heard[rate // 5 : -rate // 5]
    if np.abs(middle).max() < 200:
        return 0
    strongest = np.abs(np.fft.rfft(middle)).argmax() * rate / len(middle)
    return min(SCALE, key=lambda hertz: abs(hertz - strongest))


def recorded(
    samples: Samples,
    *,
    container: str,
    codec: str,
    rate: int = RATE,
    channels: int = 1,
    bit_rate: int = 32_000,
    options: dict[str, str] | None = None,
    cover: bytes = b"",
    picture: str = "",
    pictures: int = 10,
    metadata: dict[str, str] | None = None,
    codec_options: dict[str, str] | None = None,
) -> bytes:
    """A file of one sound stream; with a JPEG as its cover, or a video by that encoder, ten pictures a second."""
    with tempfile.NamedTemporaryFile() as file:
        output: Any
        with av.open(file.name, "w", format=container, options=options or {}) as output:
            output.metadata.update(metadata or {})
            layout = "stereo" if channels == 2 else "mono"
            video: Any = _add_video(output, picture) if picture else None
            sound = output.add_stream(codec, rate=rate, options=codec_options or {}, bit_rate=bit_rate, layout=layout)
            picture_of_it = _add_cover(output) if cover else None
            output.start_encoding()
            if picture_of_it:
                output.mux(_packet(picture_of_it, cover))
            for shade in [*_pictures(pictures), None] if video else ():
                output.mux(video.encode(shade))
            for frame in [*_frames(samples, rate, channels), None]:
                output.mux(sound.encode(frame))
        return Path(file.name).read_bytes()


def _frames(samples: Samples, rate: int, channels: int) -> list[av.AudioFrame]:
    """A second each; in stereo the right side is silent, as where one of two microphones was off."""
    whole = (samples * 32_000).astype(np.int16)
    frames = []
    for start in range(0, len(whole), rate):
        part = whole[start : start + rate]
        both = np.stack([part, np.zeros_like(part)], axis=1).reshape(1, -1) if channels == 2 else part.reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(both, format="s16", layout="stereo" if channels == 2 else "mono")
        frame.sample_rate, frame.pts = rate, start
        frames.append(frame)
    return frames


def _add_video(output: Any, encoder: str) -> Any:
    stream = output.add_stream(encoder, rate=10)
    stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
    return stream


def _pictures(count: int = 10) -> list[av.VideoFrame]:
    shades = (np.full((48, 64, 3), 5 * at, np.uint8) for at in range(count))
    return [av.VideoFrame.from_ndarray(shade, format="rgb24") for shade in shades]


def _add_cover(output: Any) -> Any:
    stream = output.add_stream("mjpeg")
    stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
    stream.disposition = Disposition.attached_pic
    return stream


def _packet(stream: Any, data: bytes) -> av.Packet[Any]:
    packet: av.Packet[Any] = av.Packet(data)
    packet.stream, packet.pts, packet.dts = stream, 0, 0
    return packet


# --- ordinary files ---------------------------------------------------------------------------------


def telegram_voice(samples: Samples) -> bytes:
    """Ogg/Opus, 48 kHz, mono."""
    return recorded(samples, container="ogg", codec="libopus")


def vorbis(samples: Samples) -> bytes:
    return recorded(samples, container="ogg", codec="vorbis", channels=2, codec_options={"strict": "experimental"})


def m4a(samples: Samples, **how: Any) -> bytes:
    options = {"brand": "M4A ", **how.pop("options", {})}
    return recorded(samples, container="mp4", codec="aac", bit_rate=64_000, options=options, **how)


def fragmented_mp4(samples: Samples) -> bytes:
    """As browsers record it: in pieces, and a header that tells no length."""
    flags = "frag_keyframe+empty_moov+default_base_moof"
    options = {"movflags": flags, "frag_duration": "500000"}
    return recorded(samples, container="mp4", codec="aac", bit_rate=64_000, options=options)


def mp3(samples: Samples, **how: Any) -> bytes:
    return recorded(samples, container="mp3", codec="libmp3lame", **how)


def bare_mp3(samples: Samples, **how: Any) -> bytes:
    """Frames alone: no tag, and no first frame that counts the others."""
    return mp3(samples, options={"write_xing": "0", "id3v2_version": "0"}, **how)


def wav(samples: Samples, codec: str = "pcm_s16le", **how: Any) -> bytes:
    return recorded(samples, container="wav", codec=codec, **how)


def rf64(samples: Samples) -> bytes:
    """The WAV that is allowed to be larger than 4 GiB: its sizes stand in a chunk of their own."""
    return recorded(samples, container="wav", codec="pcm_s16le", options={"rf64": "always"})


def flac(samples: Samples, **how: Any) -> bytes:
    return recorded(samples, container="flac", codec="flac", **how)


def webm(samples: Samples, **how: Any) -> bytes:
    return recorded(samples, container="webm", codec="libopus", **how)


def live_webm(samples: Samples, **how: Any) -> bytes:
    """As browsers record it: no length anywhere, clusters of unknown size."""
    return webm(samples, options={"live": "1"}, **how)


def amr(samples: Samples) -> bytes:
    return recorded(samples, container="amr", codec="libopencore_amrnb", rate=8000, bit_rate=12_200)


def wide_amr(frames: int = 50) -> bytes:
    """Of the quietest kind; there is no encoder for more."""
    return b"#!AMR-WB\n" + (b"\x04" + bytes(17)) * frames


def two_tracks(first: Samples, second: Samples) -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        output: Any
        with av.open(file.name, "w", format="matroska") as output:
            tracks = [output.add_stream("flac", rate=RATE, layout="mono") for _ in range(2)]
            for track, samples in zip(tracks, (first, second), strict=True):
                for frame in [*_frames(samples, RATE, 1), None]:
                    output.mux(track.encode(frame))
        return Path(file.name).read_bytes()


def video_without_sound(encoder: str = "libx264", container: str = "mp4") -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        output: Any
        with av.open(file.name, "w", format=container) as output:
            stream = _add_video(output, encoder)
            for frame in _pictures():
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
        return Path(file.name).read_bytes()


def jpeg(width: int = 64, height: int = 48) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 60)).save(out, "JPEG")
    return out.getvalue()


COVER = jpeg()


#: Under the name of each kind: its detected type, and a writer of it.
KINDS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "voice note": ("audio/ogg", lambda: telegram_voice(melody())),
    "ogg vorbis": ("audio/ogg", lambda: vorbis(melody())),
    "m4a": ("audio/mp4", lambda: m4a(melody())),
    "m4a with a cover": ("audio/mp4", lambda: m4a(melody(), cover=COVER)),
    "m4a to be streamed": ("audio/mp4", lambda: m4a(melody(), options={"movflags": "faststart"})),
    "alac": ("audio/mp4", lambda: recorded(melody(), container="ipod", codec="alac")),
    "mp3": ("audio/mpeg", lambda: mp3(melody())),
    "mp3 with a cover": ("audio/mpeg", lambda: mp3(melody(), cover=COVER)),
    "mp3 of frames alone": ("audio/mpeg", lambda: bare_mp3(melody(rate=22_050), rate=22_050)),
    "aac": ("audio/aac", lambda: recorded(melody(), container="adts", codec="aac", bit_rate=64_000)),
    "wav of 8 bits, 8 kHz": ("audio/wav", lambda: wav(melody(rate=8000), "pcm_u8", rate=8000)),
    "wav by the telephone's law": ("audio/wav", lambda: wav(melody(rate=8000), "pcm_mulaw", rate=8000)),
    "wav of 16 bits, 16 kHz": ("audio/wav", lambda: wav(melody(rate=16_000), rate=16_000)),
    "wav of 24 bits, 44.1 kHz, stereo": (
        "audio/wav",
        lambda: wav(melody(rate=44_100), "pcm_s24le", rate=44_100, channels=2),
    ),
    "wav of 32 bits, 48 kHz, stereo": ("audio/wav", lambda: wav(melody(), "pcm_s32le", channels=2)),
    "wav of floating point": ("audio/wav", lambda: wav(melody(), "pcm_f32le")),
    "rf64": ("audio/wav", lambda: rf64(melody())),
    "flac": ("audio/flac", lambda: flac(melody(), channels=2)),
    "aiff": ("audio/aiff", lambda: recorded(melody(), container="aiff", codec="pcm_s16be")),
    "amr": ("audio/amr", lambda: amr(melody(rate=8000))),
    "webm": ("video/webm", lambda: webm(melody())),
    "webm from a browser": ("video/webm", lambda: live_webm(melody())),
    "webm with video": ("video/webm", lambda: webm(melody(), picture="libvpx")),
    "mp4 with video": (
        "video/mp4",
        lambda: recorded(melody(), container="mp4", codec="aac", bit_rate=64_000, picture="libx264"),
    ),
    "mp4 from a browser": ("video/mp4", lambda: fragmented_mp4(melody())),
    "mov": ("video/quicktime", lambda: recorded(melody(), container="mov", codec="pcm_s16le", picture="mpeg4")),
    "mkv": ("video/x-matroska", lambda: recorded(melody(), container="matroska", codec="aac", picture="libx264")),
}


@functools.cache
def of_kind(name: str) -> tuple[bytes, str]:
    """Six seconds of the melody, and the type of the file."""
    content_type, record = KINDS[name]
    return record(), content_type


# --- odd and damaged --------------------------------------------------------------------------------


def joined_mp3() -> bytes:
    """Three seconds of 44.1 kHz, then three of 48 kHz."""
    return mp3(melody(3, rate=44_100), rate=44_100) + mp3(melody(3, first=3))


def mp3_of_two_bit_rates() -> bytes:
    """From its first frames its length seems to be five times what it is."""
    return bare_mp3(melody(3)) + bare_mp3(melody(3, first=3), bit_rate=320_000)


def wav_announcing(data_bytes: int, *, samples: Samples) -> bytes:
    """16 kHz, 16 bits, mono, with another size in its header."""
    data = wav(samples, rate=16_000)
    at = data.index(b"data") + 4
    return data[:at] + struct.pack("<I", data_bytes) + data[at + 4 :]


def flac_announcing(samples: int, data: bytes) -> bytes:
    """The same with another number of samples in its header, 0 for an unknown one."""
    return data[:21] + bytes([data[21] & 0xF0 | samples >> 32]) + struct.pack(">I", samples & 0xFFFFFFFF) + data[26:]


def endless_wav(seconds: int) -> bytes:
    """A tone of 8 kbit/s, for hours, and nothing in the file that says for how long."""
    data = wav(melody(60, rate=1000), "pcm_u8", rate=1000)
    at = data.index(b"data") + 4
    return data[:at] + b"\xff" * 4 + data[at + 4 :][:60_000] * (seconds // 60)


def webm_with_a_pause() -> bytes:
    """Three seconds, five that were not stored, and three more: as a browser that saves on silence writes it."""
    with tempfile.NamedTemporaryFile() as file:
        output: Any
        with av.open(file.name, "w", format="webm", options={"live": "1"}) as output:
            sound = output.add_stream("libopus", rate=RATE, layout="mono")
            for packet in [packet for frame in _frames(melody(), RATE, 1) for packet in sound.encode(frame)]:
                if packet.pts >= 3 * packet.time_base.denominator:
                    packet.pts += 5 * packet.time_base.denominator
                    packet.dts = packet.pts
                output.mux(packet)
        return Path(file.name).read_bytes()


def empty_ogg() -> bytes:
    """The two headers of Opus, and no sound behind them."""
    data = telegram_voice(melody(1))
    second = data.index(b"OggS", 4)
    return data[: data.index(b"OggS", second + 4)]


def mov_that_refers_to(path: Path) -> bytes:
    """A QuickTime file of a second of sound that stands, it says, at the start of another file."""
    data = recorded(melody(1, rate=8000), container="mov", codec="pcm_s16le", rate=8000)
    own = data.index(b"dref") - 4
    (size,) = struct.unpack_from(">I", data, own)
    alias = _alias(path)
    entry = struct.pack(">I4sI", 12 + len(alias), b"alis", 0) + alias
    other = struct.pack(">I4sII", 16 + len(entry), b"dref", 0, 1) + entry
    return _with_larger_parents(data, own, len(other) - size, data[:own] + other + data[own + size :])


def _alias(path: Path) -> bytes:
    """The record by which a Macintosh finds a file: here by a path alone, which is its item 2."""
    name = str(path).encode()
    head = struct.pack(">4sHH", bytes(4), 150 + 4 + len(name) + 4, 2).ljust(150, b"\0")
    return head + struct.pack(">HH", 2, len(name)) + name + bytes(len(name) % 2) + struct.pack(">hH", -1, 0)


def _with_larger_parents(before: bytes, at: int, growth: int, data: bytes) -> bytes:
    grown = bytearray(data)
    start = 0
    while start < at:
        (size,) = struct.unpack_from(">I", before, start)
        if start + size <= at:
            start += size
            continue
        struct.pack_into(">I", grown, start, size + growth)
        start += 8
    return bytes(grown)
