"""The command line of the local stack: `python -m config.local up | demo | exec`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from config.local.demo import run_demo
from config.local.execution import run_command
from config.local.front import run_front, say
from config.local.stack import run_in_foreground


def main() -> int:
    """Runs the command of the command line; returns its exit code."""
    arguments = _parser().parse_args()
    return run_front(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "up":
        return run_in_foreground(say)
    if arguments.command == "demo":
        return run_demo(arguments.files, report=arguments.report, console=Console())
    return run_command(arguments.argv, durable=arguments.durable, with_management=arguments.management, say=say)


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


if __name__ == "__main__":
    sys.exit(main())
