"""What the local stack needs before its processes start: the schema, the bucket and a login."""

from __future__ import annotations

import json
import secrets
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from rest_framework.authtoken.models import Token

USERNAME = "admin"


class Command(BaseCommand):
    """Prints {"username", "password", "token"} as JSON; the password is new each time, the token stays."""

    help = "Migrates, makes the bucket, and gives the administrator of the local stack a login, printed as JSON."
    # One process for all three: most of the time of each is its start.
    requires_migrations_checks = False

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002  (Django's signature)
        if not settings.LOCAL_STACK:
            raise CommandError("Only the local stack gives itself a login; use migrate and createsuperuser.")
        call_command("migrate", interactive=False, verbosity=0)
        call_command("make_bucket", stdout=self.stderr)
        self.stdout.write(json.dumps(_login()))


def _login() -> dict[str, str]:
    password = secrets.token_urlsafe(12)
    admin, _ = get_user_model().objects.get_or_create(
        username=USERNAME, defaults={"is_staff": True, "is_superuser": True}
    )
    admin.set_password(password)
    admin.save(update_fields=["password"])
    token, _ = Token.objects.get_or_create(user=admin)
    return {"username": USERNAME, "password": password, "token": token.key}
