"""What the conversion of recordings refuses, how it ends when it must, and its self-test."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attachments import inspection
from attachments.errors import AttachmentError, AudioTooLong, BadFile, EmptyAudio, EmptyFile, NoAudio, UnsupportedType
from pipeline import confined
from pipeline.steps import SelfTestFailed, audio, wav
from pipeline.steps.audio import ConvertStep
from tests import recordings
from tests.pipeline.steps.conftest import Make
from tests.recordings import melody

SIX_HOURS = 6 * 3600
#: Of these nothing tells how long they should be, so what is left of them is a shorter recording.
WITHOUT_LENGTH = ("mp3 of frames alone", "aac", "amr")

ONE_DEMUXER = ({"audio/mp4", "video/mp4", "video/quicktime"}, {"video/webm", "video/x-matroska"})
#: The demuxer of FLAC takes any file, and finds nothing in it.
NO_SUCH_SOUND = (BadFile, EmptyAudio)

# --- damage -----------------------------------------------------------------------------------------


def test_a_truncated_recording_of_gigabytes_is_a_bad_file_too(convert: Make, settings: Any) -> None:
    """RF64 tells in 64 bits what 32 cannot."""
    settings.MAX_AUDIO_SECONDS = 40_000
    data, content_type = recordings.of_kind("rf64")
    announced = (3 << 30).to_bytes(8, "little")
    at = data.index(b"ds64") + 16
    with pytest.raises(BadFile):
        convert(data[:at] + announced + bytes(8) + data[at + 16 :], content_type)


@pytest.mark.parametrize("name", sorted(recordings.KINDS.keys() - {*WITHOUT_LENGTH}))
def test_a_truncated_recording_is_a_bad_file(convert: Make, name: str) -> None:
    """Up to eight tenths of it; of nine, less than a second is missing, which some kinds may lack."""
    data, content_type = recordings.of_kind(name)
    for tenth in range(1, 9):
        with pytest.raises(BadFile):
            convert(data[: len(data) * tenth // 10], content_type)


@pytest.mark.parametrize("name", WITHOUT_LENGTH)
def test_what_is_left_of_a_recording_that_tells_no_length_is_converted(convert: Make, name: str) -> None:
    data, content_type = recordings.of_kind(name)
    for tenth in range(1, 10):
        facts = convert(data[: len(data) * tenth // 10], content_type).original_facts
        assert facts["duration_ms"] == pytest.approx(600 * tenth, abs=100)


def test_a_recording_cut_anywhere_in_its_header_is_a_bad_file(convert: Make) -> None:
    """Among these are files whose sound stream has lost its codec."""
    data, content_type = recordings.of_kind("m4a to be streamed")
    header = data.index(b"mdat") + 300
    for length in range(40, header, header // 25):
        with pytest.raises(BadFile):
            convert(data[:length], content_type)


@pytest.mark.parametrize("name", ["voice note", "webm from a browser", "m4a", "mp4 from a browser", "flac"])
def test_a_hole_in_the_middle_is_a_bad_file(convert: Make, name: str) -> None:
    data, content_type = recordings.of_kind(name)
    third = len(data) // 3
    with pytest.raises(BadFile):
        convert(data[:third] + bytes(third) + data[2 * third :], content_type)


@pytest.mark.parametrize("content_type", sorted({kind for kind, _ in recordings.KINDS.values()}))
def test_other_bytes_under_a_recordings_name_are_a_bad_file(convert: Make, content_type: str) -> None:
    for data in (
        b"Dear all, this is a text.\n" * 400,
        recordings.COVER,
        b"\x89PNG\r\n\x1a\n" + bytes(500),
        b"0123456789",
    ):
        with pytest.raises(NO_SUCH_SOUND):
            convert(data, content_type)


def test_an_empty_file_is_told_apart(convert: Make) -> None:
    with pytest.raises(EmptyFile):
        convert(b"", "audio/ogg")


def test_a_header_without_any_sound_is_told_apart(convert: Make) -> None:
    with pytest.raises(EmptyAudio):
        convert(recordings.wav(melody(0)), "audio/wav")


def test_a_voice_note_that_has_only_its_headers_is_a_bad_file(convert: Make) -> None:
    with pytest.raises(BadFile):
        convert(recordings.empty_ogg(), "audio/ogg")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["voice note", "m4a to be streamed", "mp3 with a cover", "webm with video", "flac"])
def test_damaged_recordings_end_with_a_word_for_it(convert: Make, name: str, seed: int) -> None:
    whole, content_type = recordings.of_kind(name)
    data, chance = bytearray(whole), random.Random(seed)
    for _ in range(40):
        data[chance.randrange(len(data))] = chance.randrange(256)
    with contextlib.suppress(AttachmentError, confined.Crashed, confined.MemoryLimit):
        assert convert(bytes(data), content_type).original_facts["duration_ms"] > 0


# --- what is no recording ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        (recordings.video_without_sound(), "video/mp4"),
        (recordings.video_without_sound("mpeg4", "mov"), "video/quicktime"),
        (recordings.video_without_sound("libvpx", "webm"), "video/webm"),
    ],
    ids=["mp4", "mov", "webm"],
)
def test_a_video_without_sound_is_told_apart(convert: Make, data: bytes, content_type: str) -> None:
    with pytest.raises(NoAudio):
        convert(data, content_type)


def test_only_the_demuxer_of_the_detected_type_is_tried(convert: Make) -> None:
    one_each = {content_type: data for data, content_type in map(recordings.of_kind, recordings.KINDS)}
    for real, claimed in itertools.permutations(one_each, 2):
        if not any({real, claimed} <= alike for alike in ONE_DEMUXER):
            with pytest.raises(NO_SUCH_SOUND):
                convert(one_each[real], claimed)


@pytest.mark.parametrize("content_type", ["application/vnd.apple.mpegurl", "image/png", ""])
def test_other_types_are_unsupported_whatever_the_bytes(convert: Make, content_type: str) -> None:
    with pytest.raises(UnsupportedType):
        convert(recordings.telegram_voice(melody(1)), content_type)


def test_a_codec_that_is_not_listed_is_unsupported(convert: Make) -> None:
    with pytest.raises(UnsupportedType):
        convert(recordings.recorded(melody(1), container="matroska", codec="wavpack"), "video/x-matroska")


# --- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        (recordings.wav_announcing(SIX_HOURS * 32_000, samples=melody(1, rate=16_000)), "audio/wav"),
        (
            recordings.flac_announcing(SIX_HOURS * 16_000, recordings.flac(melody(1, rate=16_000), rate=16_000)),
            "audio/flac",
        ),
    ],
    ids=["wav", "flac"],
)
def test_six_hours_by_the_header_are_refused_before_anything_is_decoded(
    convert: Make, tmp_path: Path, data: bytes, content_type: str
) -> None:
    with pytest.raises(AudioTooLong) as raised:
        convert(data, content_type)
    assert raised.value.facts == {"limit": 4 * 3600}
    assert not list((tmp_path / "scratch" / "convert").iterdir())


def test_six_hours_that_no_header_tells_of_are_refused_when_they_were_decoded(convert: Make) -> None:
    with pytest.raises(AudioTooLong):
        convert(recordings.endless_wav(SIX_HOURS), "audio/wav")


def test_the_limit_is_the_settings(convert: Make, settings: Any) -> None:
    data = recordings.live_webm(melody(3))
    settings.MAX_AUDIO_SECONDS = 3.0
    assert convert(data, "video/webm").original_facts["duration_ms"] == 3000
    settings.MAX_AUDIO_SECONDS = 2.9
    with pytest.raises(AudioTooLong):
        convert(data, "video/webm")


def test_a_pause_cannot_be_longer_than_a_recording_may(convert: Make, settings: Any) -> None:
    settings.MAX_AUDIO_SECONDS = 9.0
    with pytest.raises(AudioTooLong):
        convert(recordings.webm_with_a_pause(), "video/webm")


@pytest.mark.parametrize("rate", [1, 400_000_000])
def test_an_absurd_rate_is_a_bad_file(convert: Make, rate: int) -> None:
    """A second of each sample would make hours of a small file."""
    data = recordings.wav(melody(0.5, rate=16_000), rate=16_000)
    with pytest.raises(BadFile, match=f"{rate} Hz"):
        convert(data.replace(struct.pack("<II", 16_000, 32_000), struct.pack("<II", rate, 2 * rate)), "audio/wav")


def test_a_step_that_takes_too_long_ends_as_that(convert: Make, settings: Any) -> None:
    settings.AUDIO_STEP_SECONDS = 0.01
    with pytest.raises(confined.TimeLimit):
        convert(recordings.endless_wav(3600), "audio/wav")


def test_a_step_that_is_told_to_stop_does(convert: Make) -> None:
    with pytest.raises(confined.Interrupted):
        convert(recordings.endless_wav(3600), "audio/wav", stop=lambda: True)


# --- trust ------------------------------------------------------------------------------------------


def test_no_decoder_looks_at_a_cover(tmp_path: Path) -> None:
    """Nobody but a decoder could know how large it is."""
    import av

    from pipeline.steps import audio_decoding

    path = tmp_path / "song.mp3"
    path.write_bytes(recordings.mp3(melody(1), cover=recordings.jpeg(640, 480)))
    with av.open(str(path)) as trusting:
        assert trusting.streams.video[0].width == 640
    with path.open("rb") as file, audio_decoding._opened(file, audio_decoding.FORMATS["audio/mpeg"]) as ours:
        assert [stream.width for stream in ours.streams.video] == [0]


def test_a_file_that_refers_to_another_does_not_lead_there(convert: Make, tmp_path: Path) -> None:
    """QuickTime may keep its sound elsewhere, by a path."""
    secret = tmp_path / "secret"
    secret.write_bytes(recordings.wav(melody(2, rate=8000), rate=8000))
    with pytest.raises(BadFile):
        convert(recordings.mov_that_refers_to(secret), "video/quicktime")


GOOD = wav.header(3) + bytes(6)


@pytest.mark.parametrize(
    "made",
    [
        GOOD[:-2],
        GOOD + bytes(2),
        GOOD.replace(b"data", b"LIST"),
        GOOD[:24] + struct.pack("<I", 8000) + GOOD[28:],
        b"",
        wav.header(0),
        wav.header(16_000 * 5 * 3600),
    ],
)
def test_anything_but_that_wav_is_not_handed_on(tmp_path: Path, made: bytes) -> None:
    path = tmp_path / "converted.wav"
    path.write_bytes(GOOD)
    assert audio._checked_samples(path) == 3
    path.write_bytes(made)
    with pytest.raises(confined.ChildFailed):
        audio._checked_samples(path)


def test_a_wav_longer_than_allowed_is_not_handed_on(tmp_path: Path, settings: Any) -> None:
    settings.MAX_AUDIO_SECONDS = 1.0
    path = tmp_path / "converted.wav"
    path.write_bytes(wav.header(16_001) + bytes(32_002))
    with pytest.raises(confined.ChildFailed):
        audio._checked_samples(path)


def test_a_link_or_a_folder_in_its_place_is_not_followed(tmp_path: Path) -> None:
    secret, made = tmp_path / "secret", tmp_path / "converted.wav"
    secret.write_bytes(GOOD)
    made.symlink_to(secret)
    with pytest.raises(confined.ChildFailed):
        audio._checked_samples(made)
    made.unlink()
    made.mkdir()
    with pytest.raises(confined.ChildFailed):
        audio._checked_samples(made)


def test_the_worker_itself_never_loads_a_decoder() -> None:
    program = "import sys; import pipeline.steps.audio; print({'av', 'numpy'} & set(sys.modules))"
    root = Path(__file__).resolve().parents[3]
    ran = subprocess.run([sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "set()"


# --- self-test --------------------------------------------------------------------------------------


def test_the_self_test_passes_here(tmp_path: Path) -> None:
    ConvertStep().self_test(tmp_path)


def test_the_self_test_notices_a_type_that_is_not_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = shutil.copytree(audio.SAMPLES, tmp_path / "samples")
    (samples / "audio/flac/plain.flac").write_bytes(b"fLaC" + bytes(60))
    monkeypatch.setattr(audio, "SAMPLES", samples)
    with pytest.raises(SelfTestFailed, match=r"plain\.flac"):
        ConvertStep().self_test(tmp_path)


def test_the_samples_of_the_self_test_and_the_door_know_the_same_types() -> None:
    from pipeline.steps.audio_decoding import FORMATS

    sampled = {"/".join(path.parts[-3:-1]) for path in audio.SAMPLES.glob("*/*/*")}
    kinds = [kind for kind in vars(inspection).values() if isinstance(kind, inspection.Kind)]
    assert {content_type for content_type in sampled if not content_type.startswith("image/")} == set(FORMATS)
    assert {kind.content_type for kind in kinds if kind.family in ("audio", "video")} == set(FORMATS)


@pytest.mark.parametrize("sample", sorted(audio.SAMPLES.glob("[av]*/*/*")), ids=lambda sample: sample.name)
def test_the_samples_are_what_their_folder_says(sample: Path) -> None:
    found = inspection.detect(sample.read_bytes())
    assert found is not None
    assert found.content_type == "/".join(sample.parts[-3:-1])
