"""What an answer says: a text in parts that Telegram takes, a picture with a link, or a sentence that helps.

Plain text only: what was said may hold anything, and must arrive as it was said.
"""

from __future__ import annotations

import re
import unicodedata

from notifications.telegram.outgoing import File, Message
from notifications.telegram.sentences import told

#: In UTF-16 units, whichever of them or of code points Telegram counts to 4096.
TEXT_LIMIT = 4000
#: The Bot API takes no request of more than 32,768 bytes, in which most letters are written `%XX%XX`.
ENCODED_LIMIT = 30_000
#: A longer text is sent as a file, below its first part.
PARTS_LIMIT = 3

_SENTENCE_END = re.compile(r"\n|[.!?…][\"'»”’)]*\s|[。！？][」』”’）]*")
_SPACE = re.compile(r"\s")
_JOINERS = frozenset("\N{ZERO WIDTH JOINER}\N{VARIATION SELECTOR-16}\N{COMBINING ENCLOSING KEYCAP}")
_SKIN_TONES = range(0x1F3FB, 0x1F400)
#: No cluster of signs that are one to the eye is longer.
_CLUSTER_LIMIT = 16


def of_sentence(sentence: str) -> list[Message]:
    return [_text(sentence)]


def of_transcript(text: str, subtitles: bytes, *, language: str) -> list[Message]:
    """The text in parts, or its beginning and the whole of it as files; says so when nothing was said."""
    parts = cut(text)
    if not parts:
        return of_sentence(told("no_speech", language))
    if len(parts) <= PARTS_LIMIT:
        return [_text(part) for part in parts]
    return [
        _text(parts[0]),
        _document(File("transcript.txt", text.encode(), "text/plain"), caption=told("whole_text", language)),
        _document(File("transcript.srt", subtitles, "application/x-subrip")),
    ]


def of_picture(thumbnail: bytes, *, link: str, language: str) -> list[Message]:
    caption = " ".join(filter(None, [told("picture_ready", language), link]))
    file = File("thumbnail.webp", thumbnail, "image/webp")
    return [Message(method="sendPhoto", parameters={"caption": caption}, files={"photo": file})]


def cut(text: str) -> list[str]:
    """The text in parts of at most TEXT_LIMIT units, each as long as it can be and end with a sentence, or a word."""
    parts = []
    rest = text.strip()
    while rest:
        end = _end(rest)
        parts.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    return parts


def _end(text: str) -> int:
    """Where the first part ends: after a sentence, else a word, of its second half; else between two signs."""
    longest = _longest(text)
    if longest == len(text):
        return longest
    # One more, for the space after the part's last word.
    for pattern in (_SENTENCE_END, _SPACE):
        ends = [found.end() for found in pattern.finditer(text, longest // 2, longest + 1)]
        if ends:
            return ends[-1]
    return _between_signs(text, longest)


def _longest(text: str) -> int:
    """How many of the first characters fit."""
    units = encoded = 0
    for number, character in enumerate(text[: TEXT_LIMIT + 1]):
        units += 2 if ord(character) > 0xFFFF else 1
        encoded += 1 if character.isascii() and character.isalnum() else 3 * len(character.encode("utf-8", "replace"))
        if units > TEXT_LIMIT or encoded > ENCODED_LIMIT:
            return number
    return len(text)


def _between_signs(text: str, longest: int) -> int:
    """Not before an accent, a skin tone or the rest of a joined emoji."""
    for end in range(longest, max(longest - _CLUSTER_LIMIT, 1), -1):
        if not _continues(text[end]) and text[end - 1] != "\N{ZERO WIDTH JOINER}":
            return end
    return longest


def _continues(character: str) -> bool:
    return character in _JOINERS or unicodedata.category(character).startswith("M") or ord(character) in _SKIN_TONES


def _text(text: str) -> Message:
    return Message(method="sendMessage", parameters={"text": text}, files={})


def _document(file: File, *, caption: str = "") -> Message:
    parameters = {"caption": caption} if caption else {}
    return Message(method="sendDocument", parameters=parameters, files={"document": file})
