"""What was said is found by its owner, at the moment where it is said, and by nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import DatabaseError, connection, transaction

from attachments import search
from attachments.models import Attachment, Transcript
from config.logging import FORMATTERS
from pipeline import lifecycle, removal
from pipeline.lifecycle import Lease
from pipeline.models import Job
from pipeline.registry import Pipeline
from tests.attachments.conftest import URL, Door, assert_problem, put_variant
from tests.waiting import somebody_waits_for_a_lock, until

pytestmark = pytest.mark.django_db

Said = Callable[..., Attachment]


@pytest.fixture
def said(finished: Callable[..., Attachment]) -> Said:
    """A ready attachment in which these sentences are said, a second each."""

    def say(*sentences: str, language: str | None = "en", job: Job | None = None) -> Attachment:
        attachment = finished(job)
        index(attachment, sentences, language=language)
        return attachment

    return say


def index(attachment: Attachment, sentences: Sequence[str], *, version: int = 1, language: str | None = "en") -> bool:
    spoken = [(1000 * second, 1000 * second + 900, text) for second, text in enumerate(sentences)]
    return search.index(attachment.id, version, language, spoken)


def hits(door: Door, q: str, **parameters: str) -> dict[str, Any]:
    """The moment in each attachment that is found."""
    response = door.get(f"?{urlencode({'q': q, **parameters})}")
    assert response.status_code == 200, response.content
    return {found["id"]: found["match"] for found in response.json()["results"]}


def moment(second: int, text: str) -> dict[str, Any]:
    return {"start_ms": 1000 * second, "end_ms": 1000 * second + 900, "text": text}


def test_words_are_found_in_the_forms_of_their_language(door: Door, said: Said) -> None:
    english = str(said("Ask not what your countries can do.").id)
    russian = str(said("Он приехал.", "Обсудили новые договоры и deadlines.", language="ru").id)
    finnish = str(said("Puhuimme sopimuksesta.", language="fi").id)
    assert hits(door, "COUNTRY asked") == {english: moment(0, "Ask not what your countries can do.")}
    assert hits(door, "новый договор") == {russian: moment(1, "Обсудили новые договоры и deadlines.")}
    assert list(hits(door, "deadline")) == [russian]
    assert list(hits(door, "sopimuksesta")) == [finnish]
    assert hits(door, "sopimus") == {}


@pytest.mark.parametrize(
    ("q", "second"),
    [
        ("wind", 0),
        ("light wind", 2),
        ("cold wind", 0),
        ('"wind is light"', 2),
        ("snow or rain", 1),
        ("wind -snow", 0),
        ('wind -"heavy snow" ', 0),
        ("light -wind", None),
        ("-snow", 0),
        ("sun", None),
        ("the", None),
    ],
)
def test_the_moment_is_the_first_that_answers_alone_else_the_first_with_any_word(
    door: Door, said: Said, q: str, second: int | None
) -> None:
    sentences = ("The wind comes from the north.", "Then rain.", "The wind is light.", "It is cold.")
    attachment = said(*sentences)
    found = {} if second is None else {str(attachment.id): moment(second, sentences[second])}
    assert hits(door, q) == found


def test_a_recording_in_which_nothing_is_said_has_no_moment(door: Door, said: Said) -> None:
    silent = said(language=None)
    assert hits(door, "-snow") == {str(silent.id): None}
    assert hits(door, "snow") == {}


def test_only_the_owners_own_and_living_are_found(door: Door, other_door: Door, said: Said) -> None:
    attachment = said("Nobody else may hear this.")
    assert list(hits(door, "hear")) == [str(attachment.id)]
    assert hits(other_door, "hear") == {}
    door.delete(attachment.id)
    assert hits(door, "hear") == {}


def test_only_the_served_version_is_searched(
    door: Door, said: Said, leased: Callable[..., Lease], release_image_v2: Callable[[], Pipeline]
) -> None:
    attachment = said("A wreck on the beach.")
    newer = leased(lifecycle.reprocess(attachment.id, pipeline=release_image_v2(), actor="test"))
    index(attachment, ["Recognise speech."], version=2)
    assert (list(hits(door, "beach")), hits(door, "speech")) == ([str(attachment.id)], {})
    for variant in sorted(newer.pipeline.promised):
        put_variant(newer, variant, data=b"newer")
    lifecycle.complete(newer)
    assert (hits(door, "beach"), list(hits(door, "speech"))) == ({}, [str(attachment.id)])


def test_a_search_has_pages_and_the_other_filters(door: Door, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attachments.listing.PAGE_SIZE", 2)
    sent = [str(said(f"Number {number}.").id) for number in range(3)]
    said("Something else.")
    first = door.get(f"{URL}?q=number").json()
    second = door.get(first["next"].removeprefix("http://testserver")).json()
    assert [found["id"] for page in (first, second) for found in page["results"]] == sent[::-1]
    assert second["results"][0]["match"] == moment(0, "Number 0.")
    assert hits(door, "number", state="failed") == {}
    assert {found["match"] for found in door.get().json()["results"]} == {None}


@pytest.mark.parametrize(
    "q",
    ["%00", "a%00b", "%ED%A0%80", "%F0%9F", "x" * 256, "%C3%A4" * 300, ""],
)
def test_a_query_that_cannot_be_is_refused_or_finds_nothing(door: Door, said: Said, q: str) -> None:
    said("Anything.")
    response = door.get(f"?q={q}")
    if response.status_code != 200:
        assert_problem(response, 422, "invalid")
    else:
        assert response.json()["results"] == []


ODD = (
    '"',
    '""',
    "-",
    "- -",
    "!&|()<->:*",
    "'; DROP TABLE s3_object; --",
    "\\",
    "%s %(q)s {}",
    "((((" * 60,
    "-" * 255,
    "- " * 120,
    "-<!(" * 60,
    '-"' * 120,
    "or or or",
    '"or',
    "x" * 255,
    "😀" * 255,
    "\u202e\ufeff",
    "a-b-c-" * 40,
    "http://a.b/c?d=e&f",
)


def test_odd_queries_are_answered(door: Door, said: Said) -> None:
    for language in ("en", "ru", None):
        said("Anything.", language=language)
    statuses = {q: door.get(f"?{urlencode({'q': q})}").status_code for q in ODD}
    assert statuses == dict.fromkeys(ODD, 200)


def test_where_the_search_is_off_nothing_is_kept_and_a_query_is_told_so(door: Door, said: Said, settings: Any) -> None:
    settings.SEARCH_TRANSCRIPTS = False
    said("Not in the database.")
    assert not Transcript.objects.exists()
    problem = assert_problem(door.get("?q=database"), 400, "search_off")
    assert "SEARCH_TRANSCRIPTS" in problem["detail"]
    assert len(door.get().json()["results"]) == 1


@pytest.mark.parametrize("style", FORMATTERS)
def test_what_was_searched_for_is_in_no_line_of_the_log(
    door: Door, caplog: pytest.LogCaptureFixture, style: str
) -> None:
    assert_problem(door.get("?q=harbour&cursor=none"), 422, "invalid")
    lines = [FORMATTERS[style]().format(record) for record in caplog.records]
    assert "Unprocessable" in "".join(lines)
    assert "harbour" not in "".join(lines)


def test_indexing_again_takes_the_place_of_what_was_there(door: Door, said: Said) -> None:
    attachment = said("Once.")
    index(attachment, ["Дважды."], language="ru")
    assert (hits(door, "once"), list(hits(door, "дважды"))) == ({}, [str(attachment.id)])
    assert Transcript.objects.count() == 1


def test_text_that_postgresql_would_refuse_is_cleaned(door: Door, said: Said) -> None:
    attachment = said("Half a \ud83d pair and a nu\x00l.")
    assert hits(door, "nul pair") == {str(attachment.id): moment(0, "Half a  pair and a nul.")}


def test_of_more_words_than_postgresql_can_index_the_first_are_found(
    door: Door, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    attachment = said(*(" ".join(f"word{number * 200 + count}x" for count in range(200)) for number in range(600)))
    assert list(hits(door, "word7x")) == [str(attachment.id)]
    assert hits(door, "word119999x") == {}
    assert "indexed_in_part" in caplog.messages
    assert len(Transcript.objects.get().segments) == 600


def test_what_the_database_logs_of_a_failed_statement_holds_no_word(finished: Callable[..., Attachment]) -> None:
    attachment = finished()
    with connection.cursor() as cursor:
        cursor.execute(REFUSE_AND_QUOTE)
    with pytest.raises(DatabaseError, match="INSERT INTO attachment_transcript") as refused:
        index(attachment, ["Nobody but us."])
    assert "Nobody" not in str(refused.value)


#: PostgreSQL writes a statement that fails into its own log; here it tells it to us.
REFUSE_AND_QUOTE = """
CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION '%', current_query(); END $$;
CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON attachment_transcript
FOR EACH ROW EXECUTE FUNCTION pg_temp.refuse();
"""


def test_the_index_serves_the_search(said: Said) -> None:
    said("Anything.")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    assert search.said("anything").explain().count("attachment_transcript_words") == 3


@pytest.mark.django_db(transaction=True)
def test_what_is_deleted_while_it_is_transcribed_leaves_no_text(finished: Callable[..., Attachment]) -> None:
    attachment = finished()

    def index_late() -> bool:
        try:
            return index(attachment, ["Too late."])
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            removal.remove(attachment.id, actor="test")
            late = thread.submit(index_late)
            until(lambda: late.done() or somebody_waits_for_a_lock())
        assert late.result() is False
    assert not Transcript.objects.exists()
