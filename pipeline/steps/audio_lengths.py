"""What a recording's own bytes say of its length, and whether they stop in the middle.

libav answers both too kindly: where a header promises more than there is, or promises nothing, it makes an estimate
from the file's size, and a file that was cut short looks whole. Pure Python over hostile bytes: for the confined child.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Disposition

from attachments.inspection import id3_bytes

#: From here on a 32-bit size is what programs write that do not know it yet and cannot come back: no file is so large.
PLACEHOLDER_BYTES = 0x7FFF0000
#: An Ogg page: 27 bytes, up to 255 lengths, and as many segments of up to 255 bytes.
MOST_OGG_PAGE_BYTES = 27 + 255 + 255 * 255
#: What may stand in a file of pieces once the first has begun.
MP4_PIECES = {
    b"moof",
    b"mdat",
    b"mfra",
    b"styp",
    b"sidx",
    b"ssix",
    b"emsg",
    b"prft",
    b"free",
    b"skip",
    b"uuid",
    b"moov",
}
EBML_SEGMENT, EBML_CLUSTER = 0x18538067, 0x1F43B675


# --- length in seconds; None where the file does not say, or says it by an estimate ------------------


def told_by_stream(_: Path, __: InputContainer, stream: AudioStream) -> float | None:
    return float(stream.duration * stream.time_base) if stream.duration and stream.time_base else None


def told_by_nothing(_: Path, __: InputContainer, ___: AudioStream) -> float | None:
    return None


def told_by_wave_header(path: Path, container: InputContainer, stream: AudioStream) -> float | None:
    """Nothing, when a recorder did not come back to fill in its size.

    Where the header counts the samples, libav tells the length that it announces; else of what is there, and by how
    much there should be more is told in bytes.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        promised, start, counted = _wave_data(file, size)
    told = told_by_stream(path, container, stream)
    if told is None or not promised:
        return None
    return told if stream.duration == counted else told * max(1.0, promised / (size - start))


def told_by_first_frame(path: Path, _: InputContainer, stream: AudioStream) -> float | None:
    """The number of frames that encoders put into the first frame of an MP3."""
    with path.open("rb") as file:
        file.seek(id3_bytes(file.read(10)))
        head = file.read(4096)
    frames = _frames_announced(head)
    rate = stream.codec_context.sample_rate
    return frames * (1152 if rate >= 32_000 else 576) / rate if frames and rate else None


def told_by_matroska(_: Path, container: InputContainer, __: AudioStream) -> float | None:
    """The file's length is that of its longest track, so beside a picture it promises nothing about the sound."""
    has_pictures = any(not stream.disposition & Disposition.attached_pic for stream in container.streams.video)
    if has_pictures or not container.duration:
        return None
    told = (container.duration - (container.start_time or 0)) / 1_000_000
    return told if told > 0 else None


# --- stops in the middle ----------------------------------------------------------------------------


def never_cut(_: Path) -> bool:
    return False


def is_ogg_cut(path: Path) -> bool:
    """Whether the last page is incomplete. Recorders that stop without a farewell still write whole pages."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - MOST_OGG_PAGE_BYTES))
        tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    return len(page) < 27 or len(page) < 27 + page[26] + sum(page[27 : 27 + page[26]])


def is_mp4_cut(path: Path) -> bool:
    """Whether the header is incomplete, or in a file of pieces, whose header does not tell their length, one of them.

    At the first thing that is no piece libav stops as at the end. Elsewhere what is no box is not ours to judge.
    """
    size, at, name, is_fragmented = path.stat().st_size, 0, b"", False
    with path.open("rb") as file:
        while at < size:
            file.seek(at)
            head = file.read(16)
            length, name = int.from_bytes(head[:4], "big"), head[4:8]
            if length == 1:
                length = int.from_bytes(head[8:16], "big")
            is_fragmented |= name == b"moof"
            if length < 8 or (is_fragmented and name not in MP4_PIECES):
                return is_fragmented
            at += length
    return at > size and (is_fragmented or name == b"moov")


def is_matroska_cut(path: Path) -> bool:
    """Whether the chain of elements breaks before the end, as it does where bytes are missing."""
    at, end = 0, path.stat().st_size
    with path.open("rb") as file:
        while at < end:
            file.seek(at)
            head = file.read(12)
            name, name_bytes = _ebml_number(head, keep_marker=True)
            length, length_bytes = _ebml_number(head[name_bytes:])
            if not name_bytes or not length_bytes:
                return True
            at += name_bytes + length_bytes
            is_unknown = length == (1 << 7 * length_bytes) - 1
            if name == EBML_SEGMENT and not is_unknown:
                if at + length > end:
                    return True
                end = at + length
            if name not in (EBML_SEGMENT, EBML_CLUSTER):
                at += length
    return at > end


# --- reading ----------------------------------------------------------------------------------------


def _wave_data(file: BinaryIO, size: int) -> tuple[int, int, int]:
    """How many bytes of sound are announced, where they start, how many samples are counted; 0 for what is not told.

    RF64 keeps both numbers in a chunk of its own.
    """
    at, wide, counted = 12, 0, 0
    while at + 8 <= size:
        file.seek(at)
        name, length, body = file.read(4), int.from_bytes(file.read(4), "little"), file.read(24)
        if name == b"ds64":
            wide, counted = int.from_bytes(body[8:16], "little"), int.from_bytes(body[16:24], "little")
        if name == b"fact":
            counted = counted or int.from_bytes(body[:4], "little")
        if name == b"data":
            narrow = length if length < PLACEHOLDER_BYTES else 0
            return wide if length == 0xFFFFFFFF else narrow, at + 8, counted
        at += 8 + length + length % 2
    return 0, 0, 0


def _frames_announced(head: bytes) -> int:
    for tag in (b"Xing", b"Info"):
        at = head.find(tag)
        if at >= 0 and int.from_bytes(head[at + 4 : at + 8], "big") & 1:
            return int.from_bytes(head[at + 8 : at + 12], "big")
    at = head.find(b"VBRI")
    return int.from_bytes(head[at + 14 : at + 18], "big") if at >= 0 else 0


def _ebml_number(head: bytes, *, keep_marker: bool = False) -> tuple[int, int]:
    """A number and its length in bytes, which its leading zero bits tell; length 0 when it is none, or not whole."""
    length = 9 - head[0].bit_length() if head else 0
    if not 1 <= length <= 8 or len(head) < length:
        return 0, 0
    number = int.from_bytes(head[:length], "big")
    return (number if keep_marker else number & ~(1 << 7 * length)), length
