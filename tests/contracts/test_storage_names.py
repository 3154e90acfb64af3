"""Names that people give to files, and what becomes of them in a header."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.http import parse_options_header

from attachments.storage import MAX_FILENAME_BYTES, content_disposition

Disposition = Literal["inline", "attachment"]


def name_in(header: str) -> str:
    return parse_options_header(header)[1]["filename"]


@given(
    filename=st.text(st.characters(codec=None, categories=None), max_size=400),
    disposition=st.sampled_from(["inline", "attachment"]),
)
def test_any_name_makes_one_short_ascii_line_that_parses(filename: str, disposition: Disposition) -> None:
    header = content_disposition(filename, disposition)
    assert header.isascii()
    assert header.isprintable()
    kind, options = parse_options_header(header)
    assert kind == disposition
    assert list(options) == ["filename"]
    assert 0 < len(options["filename"].encode()) <= MAX_FILENAME_BYTES
    assert "/" not in options["filename"]
    assert "\\" not in options["filename"]


@pytest.mark.parametrize(
    ("filename", "shown"),
    [
        ("photo.jpg", "photo.jpg"),
        ("отчёт за май.pdf", "отчёт за май.pdf"),
        ("👨‍👩‍👧 family.png", "👨‍👩‍👧 family.png"),
        ("cafe\u0301.png", "café.png"),
        ('say "hi"; x=1.txt', 'say "hi"; x=1.txt'),
        ("50%22 off.txt", "50%22 off.txt"),
        ("../../etc/passwd", ".._.._etc_passwd"),
        ("C:\\temp\\a.png", "C:_temp_a.png"),
        ("a\r\nSet-Cookie: b=1.txt", "aSet-Cookie: b=1.txt"),
        ("a\0b\x7fc\u2028d.txt", "abcd.txt"),
        ("\u202egpj.exe", "gpj.exe"),
        ("half \ud83d emoji.png", "half  emoji.png"),
        (".env", ".env"),
        ("", "file"),
        ("\r\n\u202e", "file"),
        ("x" * 300 + ".png", "x" * 196 + ".png"),
        ("я" * 300 + ".png", "я" * 98 + ".png"),
        ("." + "x" * 300, "." + "x" * 199),
    ],
)
def test_a_name_arrives_as_it_was_but_for_what_could_do_harm(filename: str, shown: str) -> None:
    assert name_in(content_disposition(filename, "attachment")) == shown
    assert name_in(content_disposition(filename, "inline")) == shown
