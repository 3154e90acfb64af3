"""Registers the checks between settings and the commands of the stack."""

from django.apps import AppConfig


class ConfigApp(AppConfig):
    name = "config"

    def ready(self) -> None:
        from config import checks  # noqa: F401  (registers itself with Django's check framework)
