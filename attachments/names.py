"""Names as people see them. A client's name is data: cleaned for display, and never part of a key or a path."""

from __future__ import annotations

import unicodedata

NAME_LIMIT = 255

#: What a download's name must end in, so that a person's system opens it as what it is; the first is the usual one.
EXTENSIONS: dict[str, tuple[str, ...]] = {
    "application/json": (".json",),
    "application/pdf": (".pdf",),
    "application/x-subrip": (".srt",),
    "audio/aac": (".aac", ".adts"),
    "audio/aiff": (".aiff", ".aif", ".aifc"),
    "audio/amr": (".amr",),
    "audio/amr-wb": (".awb", ".amr"),
    "audio/flac": (".flac",),
    "audio/mp4": (".m4a", ".m4b", ".mp4"),
    "audio/mpeg": (".mp3",),
    "audio/ogg": (".ogg", ".oga", ".opus", ".ogv"),
    "audio/wav": (".wav",),
    "audio/webm": (".webm",),
    "image/avif": (".avif",),
    "image/gif": (".gif",),
    "image/heic": (".heic", ".heif"),
    "image/heic-sequence": (".heics", ".heic"),
    "image/heif": (".heif", ".heic"),
    "image/heif-sequence": (".heifs", ".heif"),
    "image/jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "image/png": (".png", ".apng"),
    "image/tiff": (".tif", ".tiff"),
    "image/webp": (".webp",),
    "text/csv": (".csv",),
    "text/plain": (".txt", ".text", ".md", ".log"),
    "text/vtt": (".vtt",),
    "video/mp4": (".mp4", ".m4v", ".m4a", ".3gp", ".3g2", ".f4v"),
    "video/quicktime": (".mov", ".qt"),
    "video/webm": (".webm", ".weba"),
    "video/x-matroska": (".mkv", ".mka"),
}

# Explicit bidirectional controls make `gpj.exe` read as `exe.jpg`.
_BIDI_CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_INVISIBLE = {"Cc", "Cs", "Zl", "Zp"}


def display_name(claimed: str) -> str:
    """The last part of a claimed path, on one line, at most NAME_LIMIT characters with its extension; may be empty."""
    name = printable(claimed.replace("\\", "/").rpartition("/")[2])
    if len(name) <= NAME_LIMIT:
        return name
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix) > 16:
        return name[:NAME_LIMIT]
    return stem[: NAME_LIMIT - len(dot + suffix)] + dot + suffix


def printable(claimed: str) -> str:
    """The text without control characters, line breaks and hidden reordering."""
    return "".join(
        char
        for char in claimed
        if unicodedata.category(char) not in _INVISIBLE and unicodedata.bidirectional(char) not in _BIDI_CONTROLS
    ).strip()


def download_name(name: str, *, content_type: str, variant: str = "") -> str:
    """What to call a download: the attachment's own name, told apart by variant, ending in what it really is."""
    extensions = EXTENSIONS.get(content_type.partition(";")[0], ())
    if variant:
        stem = name.rpartition(".")[0] or name or "file"
        return f"{stem}-{variant}{extensions[0] if extensions else ''}"
    if not name:
        return f"file{extensions[0] if extensions else ''}"
    if not extensions or name.lower().endswith(extensions):
        return name
    return name + extensions[0]
