"""A private RabbitMQ node: of an installed `rabbitmq-server`, or of Debian's packages unpacked under `.local`.

Everything of the node is its own: name server (epmd), ports, cookie, data and logs; it listens on the
loopback address only. Works alike with RabbitMQ 3.10 and 4.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from amqp.exceptions import AMQPError
from kombu import Connection

from config.local import debian
from config.local.places import LOCAL, free_port, one_at_a_time, outside_folder, write_whole
from config.local.supervision import NotStarted, Program

NAME = "holdfast"
NODE = f"{NAME}@localhost"
ORDER = 100
USED_APPLICATIONS = ("rabbit", "rabbitmq_prelaunch", "rabbitmq_management")
INSTALLED = (
    "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server",
    "/opt/rabbitmq*/sbin/rabbitmq-server",
)
INSTALLERS = {
    "apt-get": "sudo apt-get install rabbitmq-server",
    "dnf": "sudo dnf install rabbitmq-server",
    "zypper": "sudo zypper install rabbitmq-server",
    "pacman": "sudo pacman -S rabbitmq",
    "apk": "sudo apk add rabbitmq-server",
}


class RabbitMQUnavailable(Exception):
    """There is no RabbitMQ to be had; the message says what to install or set."""


@dataclass(frozen=True)
class Server:
    """Where a RabbitMQ lies: its `sbin/rabbitmq-server`, and what its processes need in their environment."""

    script: Path
    environment: dict[str, str]


@dataclass(frozen=True)
class RabbitMQ:
    """A prepared node: `programs` run it, `url` reaches its virtual host `/`, `management_url` its HTTP API."""

    programs: list[Program]
    url: str
    management_url: str
    home: Path


def prepare_rabbitmq(folder: Path, *, keep_data: bool, with_management: bool, say: Callable[[str], None]) -> RabbitMQ:
    """Says how to run a node that belongs to `folder`; without `keep_data` it is simply killed at the end.

    Raises RabbitMQUnavailable.
    """
    server = find_installed() or _unpacked(say)
    home = _plainly_named(folder, record=folder / "outside") / "rabbitmq"
    _forget_data_of_another(server, home)
    home.mkdir(parents=True, exist_ok=True)
    password = _secret(home / "password")
    _secret(home / ".erlang.cookie")
    ports = {use: free_port() for use in ("amqp", "management", "names", "distribution")}
    (home / "rabbitmq.conf").write_text(_configuration(password, ports))
    (home / "rabbitmq-env.conf").write_text("")
    (home / "enabled_plugins").write_text("[rabbitmq_management]." if with_management else "[].")
    environment = _environment(server, home, ports)
    login = f"{NAME}:{quote(password)}"
    return RabbitMQ(
        programs=_programs(
            server,
            home,
            environment,
            names_port=ports["names"],
            stop_signal="TERM" if keep_data else "KILL",
        ),
        url=f"amqp://{login}@127.0.0.1:{ports['amqp']}//",
        management_url=f"http://{login}@127.0.0.1:{ports['management']}" if with_management else "",
        home=home,
    )


def wait_for_rabbitmq(url: str, *, name: str, seconds: float) -> None:
    """Returns once a client can log in. Raises NotStarted."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with Connection(url, connect_timeout=5) as connection:
                connection.connect()
                return
        except (OSError, AMQPError) as error:
            if time.monotonic() > deadline:
                raise NotStarted(f"{name} does not answer after {seconds:.0f} s: {error}") from error
            time.sleep(0.1)


def remember_data(rabbitmq: RabbitMQ) -> None:
    """Marks a node that came up whole, so that the next run may go on with its data."""
    write_whole(rabbitmq.home / "made-by", (rabbitmq.home / "run-by").read_text())


def find_installed() -> Server | None:
    """The RabbitMQ of this system, if there is one with its Erlang."""
    if not shutil.which("erl"):
        return None
    found = sorted(path for pattern in INSTALLED for path in Path("/").glob(pattern.removeprefix("/")))
    on_path = shutil.which("rabbitmq-server")
    # Debian's command in /usr/sbin is a wrapper that changes the user and the folders.
    if not found and on_path and Path(on_path).resolve().parent.name == "sbin":
        found = [Path(on_path).resolve()]
    return Server(found[-1], {}) if found else None


def find_unpacked(root: Path) -> Server:
    """The RabbitMQ below an unpacked `root`. Raises RabbitMQUnavailable where the packages hold another layout."""
    scripts = sorted(root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"))
    if not scripts or not (root / "usr/bin/erl").exists():
        raise RabbitMQUnavailable(f"The packages unpacked in {root} hold no RabbitMQ with Erlang. {_advice()}")
    libraries = sorted({str(path.parent) for path in root.glob("**/*-linux-*/lib*.so*")})
    path = os.pathsep.join([str(root / "usr/bin"), str(root / "usr/sbin"), os.environ.get("PATH", "")])
    return Server(scripts[-1], {"PATH": path, "LD_LIBRARY_PATH": os.pathsep.join(libraries)})


def use_own_erlang(root: Path) -> None:
    """Turns Erlang's start scripts, written for /usr/lib/erlang, to the Erlang below `root`."""
    for script in root.glob("usr/lib/erlang/**/bin/*"):
        if script.is_symlink() or not script.is_file() or not script.read_bytes().startswith(b"#!"):
            continue
        script.write_text(
            re.sub(
                r"(?<=ROOTDIR=)/usr/lib/erlang",
                str(root / "usr/lib/erlang"),
                script.read_text(),
            )
        )


def drop_unused_plugins(root: Path) -> None:
    """Removes the plugins that nothing here uses: their mere presence slows a node's start by a third."""
    for plugins in root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins"):
        descriptions = {file.stem: file for file in plugins.glob("*/ebin/*.app")}
        needed, waiting = set[str](), list(USED_APPLICATIONS)
        while waiting:
            name = waiting.pop()
            if name not in needed and name in descriptions:
                needed.add(name)
                waiting += re.findall(r"\w+", descriptions[name].read_text())
        for name, file in descriptions.items():
            if name.startswith("rabbitmq_") and name not in needed:
                shutil.rmtree(file.parents[1])


def _unpacked(say: Callable[[str], None]) -> Server:
    root = (_plainly_named(LOCAL, record=LOCAL / "rabbitmq-folder") / "rabbitmq").resolve()
    with one_at_a_time(LOCAL / "rabbitmq.lock"):
        stamp = root / "unpacked-as"
        if not stamp.exists() or stamp.read_text() != str(root):
            _unpack(root, say=say)
            stamp.write_text(str(root))
    return find_unpacked(root)


def _unpack(root: Path, *, say: Callable[[str], None]) -> None:
    if not debian.has_apt():
        raise RabbitMQUnavailable(f"RabbitMQ was not found. {_advice()}")
    say("Fetching RabbitMQ (once; unpacked for this checkout, not installed)")
    try:
        debian.unpack("rabbitmq-server", root)
    except debian.PackagesUnavailable as error:
        raise RabbitMQUnavailable(f"RabbitMQ could not be fetched:\n{error}\n{_advice()}") from error
    use_own_erlang(root)
    drop_unused_plugins(root)


def _plainly_named(folder: Path, *, record: Path) -> Path:
    # RabbitMQ's scripts do not quote the paths that they make of their own place and of the data's.
    is_plain = re.fullmatch(r"[\w./@+-]+", str(folder), re.ASCII)
    return folder if is_plain else outside_folder(record)


def _advice() -> str:
    command = next(
        (advice for tool, advice in INSTALLERS.items() if shutil.which(tool)),
        "install rabbitmq-server",
    )
    return f"Install it ({command}), or set CELERY_BROKER_URL to a RabbitMQ that you may use."


def _forget_data_of_another(server: Server, home: Path) -> None:
    # A node starts neither from another version's data nor from what an interrupted first start left. Nothing
    # is lost with it: a message only nudges, the work is in PostgreSQL.
    made_by = home / "made-by"
    if home.exists() and not (made_by.exists() and made_by.read_text() == str(server.script)):
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / "run-by").write_text(str(server.script))


def _secret(file: Path) -> str:
    if not file.exists():
        write_whole(file, secrets.token_hex(20))
    return file.read_text()


def _configuration(password: str, ports: dict[str, int]) -> str:
    return f"""\
listeners.tcp.1 = 127.0.0.1:{ports["amqp"]}
default_user = {NAME}
default_pass = {password}
management.tcp.ip = 127.0.0.1
management.tcp.port = {ports["management"]}
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 100MB
log.file = false
log.console = true
"""


def _environment(server: Server, home: Path, ports: dict[str, int]) -> dict[str, str]:
    return {
        **server.environment,
        "HOME": str(home),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(ports["names"]),
        "RABBITMQ_NODENAME": NODE,
        "RABBITMQ_DIST_PORT": str(ports["distribution"]),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "rabbitmq-env.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_PLUGINS_EXPAND_DIR": str(home / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_FEATURE_FLAGS_FILE": str(home / "feature_flags"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        # The start script then becomes the node itself instead of staying beside it.
        "RUNNING_UNDER_SYSTEMD": "true",
    }


def _programs(
    server: Server,
    home: Path,
    environment: dict[str, str],
    *,
    names_port: int,
    stop_signal: str,
) -> list[Program]:
    epmd = shutil.which("epmd", path=environment.get("PATH")) or "epmd"
    names = Program(
        name="epmd",
        argv=(epmd, "-port", str(names_port), "-address", "127.0.0.1"),
        directory=home,
        order=ORDER,
        environment=environment,
    )
    node = Program(
        name="rabbitmq",
        argv=(str(server.script),),
        directory=home,
        order=ORDER,
        environment=environment,
        stop_signal=stop_signal,
        stop_seconds=20,
    )
    return [names, node]
