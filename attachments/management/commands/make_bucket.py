"""`manage.py make_bucket`: create the bucket of attachments, or the local storage's folder, if it is not there yet."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from attachments import storage
from attachments.errors import StorageUnavailable


class Command(BaseCommand):
    help = "Creates STORAGE_BUCKET if it is not there yet."

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002  (Django's signature)
        try:
            storage.make_bucket(settings.STORAGE_BUCKET)
        except StorageUnavailable as error:
            raise CommandError(error.detail) from error
        self.stdout.write(f"The bucket {settings.STORAGE_BUCKET} is there.")
