"""The command that brings the search in line with its setting, from the transcripts in the storage."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.core.management import CommandError, call_command

from attachments import search
from attachments.models import Attachment, StoredObject, Transcript, Variant
from pipeline import indexing, lifecycle, registry, removal, texts
from pipeline.lifecycle import Lease
from pipeline.models import Job
from tests.leases import record
from tests.speech import release_speech, transcribe

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _release(monkeypatch: pytest.MonkeyPatch) -> None:
    release_speech(monkeypatch, versions=2)
    monkeypatch.setattr(registry, "newest", lambda name: registry.get(name, 1))


@pytest.fixture
def unknown(leased: Callable[..., Lease], settings: Any) -> Callable[..., Attachment]:
    """Transcribed while the search was off."""

    def make(*sentences: str, language: str | None = "en") -> Attachment:
        settings.SEARCH_TRANSCRIPTS = False
        attachment = transcribe(leased(), *sentences, language=language)
        settings.SEARCH_TRANSCRIPTS = True
        return attachment

    return make


def search_index(*options: str) -> tuple[int, str]:
    """The exit code and the report."""
    out = io.StringIO()
    try:
        call_command("search_index", *options, stdout=out)
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()


def known() -> set[Attachment]:
    return {one.attachment for one in Transcript.objects.select_related("attachment")}


def path_of(attachment: Attachment) -> Path:
    stored = StoredObject.objects.get(variant__attachment=attachment, variant__variant=texts.TRANSCRIPT)
    return Path(configured.STORAGE_ROOT, stored.bucket, stored.key)


def test_what_was_transcribed_while_it_was_off_is_found_afterwards(
    unknown: Callable[..., Attachment], leased: Callable[..., Lease], settings: Any
) -> None:
    english, russian, silent = unknown("It rained."), unknown("Шёл дождь.", language="ru"), unknown(language=None)
    before = transcribe(leased(), "It rained before.")
    assert search_index("--dry-run") == (0, "Transcripts that the search does not know yet: 3.\n")
    assert known() == {before}
    code, report = search_index()
    assert (code, report.splitlines()[-1]) == (0, "Indexed: 3.")
    assert {one.attachment for one in search.said("rain")} == {english, before}
    assert search.moments("дожди", [russian.id])[russian.id].text == "Шёл дождь."
    assert Transcript.objects.get(attachment=silent).language is None
    assert search_index() == (0, "Transcripts that the search does not know yet: 0.\n")


def test_only_what_is_served_and_may_be_kept_is_indexed(
    unknown: Callable[..., Attachment], leased: Callable[..., Lease]
) -> None:
    served, deleted, expired, other = unknown(), unknown(), unknown(), unknown()
    record(leased(), texts.TRANSCRIPT)
    removal.remove(deleted.id, actor="test")
    Attachment.objects.filter(id=expired.id).update(texts_expired_at="2026-01-31T12:00Z")
    assert search_index("--attachment", str(served.id)) == (
        0,
        "Transcripts that the search does not know yet: 1.\nIndexed: 1.\n",
    )
    assert known() == {served}
    assert search_index()[1].endswith("Indexed: 1.\n")
    assert known() == {served, other}


def test_transcripts_that_cannot_be_read_keep_no_other_waiting_and_are_told(
    unknown: Callable[..., Attachment], caplog: pytest.LogCaptureFixture
) -> None:
    missing, damaged, foreign, intact = unknown(), unknown("Secret."), unknown("Secret."), unknown()
    path_of(missing).unlink()
    path_of(damaged).write_bytes(path_of(damaged).read_bytes().replace(b"Secret", b"Public"))
    not_ours = b'{"segments": "Secret."}'
    path_of(foreign).write_bytes(not_ours)
    StoredObject.objects.filter(variant__attachment=foreign, variant__variant=texts.TRANSCRIPT).update(
        sha256=hashlib.sha256(not_ours).hexdigest(), size=len(not_ours)
    )
    code, report = search_index()
    assert (code, report.splitlines()[-2]) == (1, "Indexed: 1.")
    assert report.endswith("`manage.py verify` says which, and mends what can be mended.")
    assert known() == {intact}
    assert caplog.messages.count("transcript_unreadable") == 3
    assert "Secret" not in str([vars(record) for record in caplog.records])


def test_where_it_is_off_all_words_are_dropped(leased: Callable[..., Lease], settings: Any) -> None:
    first, second = transcribe(leased()), transcribe(leased())
    settings.SEARCH_TRANSCRIPTS = False
    counted = "SEARCH_TRANSCRIPTS is off. Transcripts with words in the database: {}.\n"
    assert search_index("--dry-run") == (0, counted.format(2))
    assert search_index() == (
        1,
        f"{counted.format(2)}Nobody is there to ask: say --yes, or --dry-run to count only.",
    )
    assert search_index("--yes", "--attachment", str(first.id)) == (0, f"{counted.format(1)}Dropped: 1.\n")
    assert known() == {second}
    assert search_index("--yes")[1].endswith("Dropped: 1.\n")
    assert search_index("--yes") == (0, counted.format(0))
    assert Variant.objects.filter(variant=texts.TRANSCRIPT).count() == 2


def test_a_storage_that_is_away_stops_it_and_the_next_run_goes_on(
    unknown: Callable[..., Attachment], settings: Any
) -> None:
    for _ in range(2):
        unknown()
    own, settings.STORAGE_ROOT = settings.STORAGE_ROOT, f"{settings.STORAGE_ROOT}-not-mounted"
    code, report = search_index()
    assert (code, report.endswith("Run the same command again to go on.")) == (3, True)
    settings.STORAGE_ROOT = own
    assert search_index()[1].endswith("Indexed: 2.\n")


def test_an_interrupted_run_says_how_far_it_came_and_the_next_goes_on(
    unknown: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        unknown()
    real, reads = indexing._read, 0

    def read(stored: StoredObject) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 2:
            raise KeyboardInterrupt
        return real(stored)

    monkeypatch.setattr(indexing, "_read", read)
    code, report = search_index()
    assert (code, report.splitlines()[1:]) == (
        130,
        ["Indexed: 1.", "Interrupted. Run the same command again to go on."],
    )
    assert search_index()[1].endswith("Indexed: 2.\n")


def test_what_is_replaced_while_it_is_read_is_not_indexed_as_it_was(
    unknown: Callable[..., Attachment], leased: Callable[..., Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    attachment = unknown("Old words.")
    real = indexing._read

    def read(stored: StoredObject) -> bytes:
        data = real(stored)
        job = Job.objects.get(attachment=attachment)
        lifecycle.repair(job.job_id, variants=[texts.TRANSCRIPT], actor="verify", detail="")
        record(leased(Job.objects.get(attachment=attachment)), texts.TRANSCRIPT, b"{}")
        return data

    monkeypatch.setattr(indexing, "_read", read)
    assert search_index()[1].endswith("Indexed: 0. 1 were replaced or deleted meanwhile.\n")
    assert known() == set()
