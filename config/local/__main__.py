"""The command line of the local stack: `python -m config.local up | demo | exec`."""

from __future__ import annotations

import argparse
import os
import resource
import sys
from pathlib import Path

from rich.console import Console

from config.local.demo import run_demo
from config.local.execution import run_command
from config.local.postgres import OtherVersion
from config.local.rabbitmq import RabbitMQUnavailable
from config.local.runs import AlreadyRunning, die_with_parent
from config.local.stack import run_in_foreground
from config.local.stopping import Stopped, stopped_by_signals
from config.local.supervision import NotStarted


def main() -> int:
    """Runs the command of the command line; returns its exit code."""
    arguments = _parser().parse_args()
    _raise_open_files()
    if "MAKELEVEL" in os.environ:
        # A make that is killed must not leave us behind.
        die_with_parent()
    try:
        with stopped_by_signals():
            return _run(arguments)
    except Stopped as stopped:
        return stopped.code
    except (AlreadyRunning, NotStarted, OtherVersion, RabbitMQUnavailable) as problem:
        _say(str(problem))
        return 1


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "up":
        return run_in_foreground(_say)
    if arguments.command == "demo":
        return run_demo(arguments.files, report=arguments.report, console=Console())
    return run_command(arguments.argv, durable=arguments.durable, with_management=arguments.management, say=_say)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m config.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="run the whole stack until Ctrl-C")
    demo = commands.add_parser("demo", help="send files through a stack of its own and show what comes back")
    demo.add_argument("files", nargs="*", type=Path, metavar="FILE", help="instead of the samples")
    demo.add_argument("--report", type=Path, help="write the outcome of every file to this JSON file")
    execute = commands.add_parser("exec", help="run a command with a private PostgreSQL and RabbitMQ")
    execute.add_argument("--durable", action="store_true", help="let PostgreSQL flush to disk")
    execute.add_argument("--management", action="store_true", help="with RabbitMQ's management API")
    execute.add_argument("argv", nargs="+", metavar="COMMAND")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    if soft == resource.RLIM_INFINITY or soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main())
