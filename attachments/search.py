"""Full-text search in what was said: PostgreSQL's words of each transcript, and the moment where a query is met.

English and Russian words are found in all their forms, those of other languages as they are written. The text is here
only while SEARCH_TRANSCRIPTS is on; `manage.py search_index` makes it so for what was transcribed before.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from django.conf import settings
from django.contrib.postgres.search import SearchQuery
from django.db import DatabaseError, connection, transaction
from django.db.models import Q, QuerySet
from psycopg.types.json import Jsonb

from attachments.models import Attachment, Transcript
from attachments.outages import sqlstate_of

#: By the transcript's language; `MOMENTS` says it a second time.
CONFIGURATIONS = {"en": "english", "ru": "russian"}
ANY_OTHER = "simple"
#: What the database answers where words and places would not fit into one tsvector, 1 MB.
PROGRAM_LIMIT_EXCEEDED = "54000"
#: A hyphen that excludes nothing; PostgreSQL refuses a query with many of them in a row.
_STRAY_HYPHEN = re.compile(r'-(?![\w"])')
_EXCLUDED = re.compile(r'(?<!\S)-(?:"[^"]*"?|\S+)')

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Match:
    """The first moment of a recording that answers a query, in ms from its beginning, and what is said then."""

    start_ms: int
    end_ms: int
    text: str


def index(
    attachment_id: uuid.UUID, pipeline_version: int, language: str | None, segments: Iterable[tuple[int, int, str]]
) -> bool:
    """Let the search find these (start_ms, end_ms, text); False where it is off, or the texts are to be forgotten.

    Again for the same version, it takes the place of what was there. Locks the attachment, so whoever holds a lock on
    its job must have locked the attachment before.
    """
    if not settings.SEARCH_TRANSCRIPTS:
        return False
    spoken = [(start_ms, end_ms, _storable(text)) for start_ms, end_ms, text in segments]
    with transaction.atomic():
        attachment = Attachment.objects.select_for_update().filter(id=attachment_id).first()
        if attachment is None or attachment.deleted_at or attachment.texts_expired_at:
            return False
        _write(attachment, pipeline_version, language, spoken)
    return True


def said(q: str) -> QuerySet[Transcript]:
    """Transcripts, of whatever version and owner, that answer a query in the syntax of web searches."""
    q = _STRAY_HYPHEN.sub(" ", q)
    other = Q(language=None) | ~Q(language__in=CONFIGURATIONS)
    answers = other & Q(words=SearchQuery(q, config=ANY_OTHER, search_type="websearch"))
    for language, configuration in CONFIGURATIONS.items():
        answers |= Q(language=language, words=SearchQuery(q, config=configuration, search_type="websearch"))
    return Transcript.objects.filter(answers)


def moments(q: str, attachment_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Match]:
    """Where the served versions of these attachments answer `q`: the first segment that does so alone.

    Else the first with any word of it; none for a query that only excludes, in a recording where nothing is said.
    """
    q = _STRAY_HYPHEN.sub(" ", q)
    words: dict[str, Any] = {"ids": list(attachment_ids), "q": q, "included": _EXCLUDED.sub(" ", q)}
    with connection.cursor() as cursor:
        cursor.execute(MOMENTS, words)
        return {
            attachment_id: Match(start_ms=start_ms, end_ms=end_ms, text=text)
            for attachment_id, start_ms, end_ms, text in cursor.fetchall()
        }


MOMENTS = """
WITH spoken AS (
    SELECT
        said.attachment_id,
        said.segments,
        CASE said.language WHEN 'en' THEN 'english' WHEN 'ru' THEN 'russian' ELSE 'simple' END::regconfig AS forms
    FROM attachment_transcript said
    JOIN stored_file file ON file.id = said.attachment_id AND file.served_version = said.pipeline_version
    WHERE file.id = ANY(%(ids)s)
), asked AS MATERIALIZED (
    SELECT
        *,
        websearch_to_tsquery(forms, %(q)s) AS query,
        tsvector_to_array(to_tsvector(forms, %(included)s)) AS included
    FROM spoken
)
SELECT attachment_id, (segment->>0)::int, (segment->>1)::int, segment->>2
FROM asked CROSS JOIN LATERAL (
    SELECT segment
    FROM jsonb_array_elements(segments) WITH ORDINALITY AS listed (segment, place)
    CROSS JOIN LATERAL to_tsvector(forms, segment->>2) AS words
    WHERE words @@ query OR tsvector_to_array(words) && included
    ORDER BY words @@ query DESC, place
    LIMIT 1
) AS first
"""


WRITE = """
INSERT INTO attachment_transcript (attachment_id, pipeline_version, language, segments, words)
VALUES (%(id)s, %(version)s, %(language)s, %(segments)s, to_tsvector(%(configuration)s::regconfig, %(text)s::text))
ON CONFLICT (attachment_id, pipeline_version)
DO UPDATE SET language = excluded.language, segments = excluded.segments, words = excluded.words
"""


def _write(attachment: Attachment, version: int, language: str | None, spoken: list[tuple[int, int, str]]) -> None:
    """All of the words, or of a recording so long that they are too many, those of its first half, or quarter."""
    configuration, count = CONFIGURATIONS.get(language or "", ANY_OTHER), len(spoken)
    row = {"id": attachment.id, "version": version, "language": language, "segments": Jsonb(spoken)}
    while True:
        text = " ".join(text for _, _, text in spoken[:count])
        try:
            with transaction.atomic():
                _send(WRITE, {**row, "configuration": configuration, "text": text})
        except DatabaseError as error:
            if sqlstate_of(error) != PROGRAM_LIMIT_EXCEEDED or not count:
                raise
            count //= 2
            logger.warning("indexed_in_part", extra={"attachment_id": str(attachment.id), "segments": count})
        else:
            return


def _send(statement: str, values: Mapping[str, Any]) -> None:
    """With the values apart from the statement, which Django would put into it: it is what the database logs."""
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
        cursor.execute(statement, values)


def _storable(text: str) -> str:
    """PostgreSQL takes neither NUL nor half a surrogate pair."""
    return text.replace("\x00", "").encode("utf-8", "ignore").decode()
