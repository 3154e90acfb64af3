"""Whether the commands of our services exist, with the options they are given."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import flower.options  # noqa: F401  (defines Flower's options in tornado's table)
from celery.app.utils import find_app
from celery.bin.celery import celery
from django.core.management import get_commands
from tornado.options import options as flower_options

from config.env import BASE_DIR


def command_problems(words: list[str]) -> Iterator[str]:
    """What is wrong with one command."""
    match words:
        case ["python", "manage.py", name, *_]:
            if name not in get_commands():
                yield f"manage.py has no command {name}"
        case ["celery", "-A", app, name, *options]:
            yield from _celery_problems(app, name, options)
        case ["gunicorn", application, "--config", file]:
            for path in (f"{application.replace('.', '/')}.py", file):
                if not (BASE_DIR / path).is_file():
                    yield f"gunicorn is given {path}, which is not there"
        case ["python", "-c", code]:
            yield from _code_problems(code)
        case _:
            yield f"unknown command: {shlex.join(words)}"


def is_flower_option(word: str) -> bool:
    """Whether `--some-option=…` or `FLOWER_SOME_OPTION` is one of Flower's."""
    return word.partition("=")[0].removeprefix("--").removeprefix("FLOWER_").lower() in flower_options


def _celery_problems(app: str, name: str, options: list[str]) -> Iterator[str]:
    try:
        find_app(app)
    except (ImportError, AttributeError):
        yield f"there is no Celery app {app}"
    command = celery.commands.get(name)
    if command is None:
        yield f"celery has no command {name}"
    elif name == "flower":
        yield from (f"flower has no option {word}" for word in options if not is_flower_option(word))
    else:
        try:
            command.make_parser(click.Context(command)).parse_args(list(options))
        except click.UsageError as error:
            yield f"celery {name}: {error.message}"


def _code_problems(code: str) -> Iterator[str]:
    try:
        compile(code, "<health check>", "exec")
    except SyntaxError as error:
        yield f"python -c: {error.msg}"
