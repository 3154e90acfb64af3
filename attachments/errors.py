"""What can be wrong with an attachment or its storage, in our own words.

Library errors become these at the edge, with the cause chained. `sentence` is for the person who sent
the file: it says what to do next and never holds a path, a key or a secret. Which of them are worth
trying again is decided in one place, `pipeline.outcomes`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class AttachmentError(Exception):
    """Something about one attachment; `code` and the HTTP `status` are public, `detail` goes to the operator."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    sentence: ClassVar[str] = "Something went wrong with this file."

    def __init__(self, detail: str = "", **facts: Any) -> None:
        super().__init__(detail or self.sentence)
        self.detail = detail or self.sentence
        self.facts = facts


class Refused(AttachmentError):
    """The file cannot be accepted as it is."""

    status = 422


class EmptyFile(Refused):
    code = "empty_file"
    sentence = "The file is empty. Send the file again; it may not have finished copying."


class FileTooLarge(Refused):
    code = "file_too_large"
    status = 413
    sentence = "The file is larger than this service accepts. Send a smaller one."


class UnsupportedType(Refused):
    code = "unsupported_type"
    status = 415
    sentence = "This kind of file is not supported. Send one of the supported kinds."


class PipelineUnavailable(Refused):
    code = "pipeline_unavailable"
    status = 415
    sentence = "This pipeline does not take this kind of file here. Leave `pipeline` out, or send a file of its kind."


class DigestMismatch(Refused):
    code = "digest_mismatch"
    sentence = "The file arrived with other bytes than announced. Send it again."


class TooManyPixels(Refused):
    code = "too_many_pixels"
    sentence = "The picture has more pixels than this service accepts. Send a smaller version of it."


class NoAudio(Refused):
    code = "no_audio_stream"
    sentence = "There is no sound in this file. Send a recording with a sound track."


class EmptyAudio(Refused):
    code = "empty_audio"
    sentence = "The recording is empty: it has no length at all. Record it again, and send it once it is saved."


class AudioTooLong(Refused):
    code = "audio_too_long"
    sentence = "The recording is longer than this service accepts. Send it in shorter parts."


class BadFile(AttachmentError):
    """The bytes are not a readable file of their type; trying again cannot help."""

    code = "bad_file"
    sentence = "The file is damaged or incomplete and could not be read. Send an intact copy."


class StorageUnavailable(AttachmentError):
    """The storage did not answer or refused for now; nothing is known to be lost."""

    code = "storage_unavailable"
    status = 503
    sentence = "The storage is not available for the moment. Please try again later."


class ObjectMissing(AttachmentError):
    """An object that the database names is not in the storage."""

    code = "object_missing"
    status = 503
    sentence = "The stored file could not be found. Please contact the operator."


class ObjectCorrupt(AttachmentError):
    """An object's bytes do not have the size or SHA-256 that the database names."""

    code = "object_corrupt"
    status = 503
    sentence = "The stored file is damaged. Please contact the operator."


class OutcomeUnknown(AttachmentError):
    """The database did not say whether the commit happened; the file may have been accepted."""

    code = "outcome_unknown"
    status = 503
    sentence = "The service could not confirm that it has the file. Send it again with the same Idempotency-Key."


class KeyReused(AttachmentError):
    """The idempotency key was used before, for other bytes or parameters."""

    code = "idempotency_key_reused"
    status = 422
    sentence = "This Idempotency-Key was used for another file or other parameters. Use a new key."


class Deleted(AttachmentError):
    """The idempotency key led to an attachment that its owner has deleted since."""

    code = "deleted"
    status = 410
    sentence = "This file was accepted before and then deleted. Use a new Idempotency-Key to send it again."


class KeyTaken(AttachmentError):
    """An object is already stored, or being written, under this key; it was left as it is."""

    code = "key_taken"
