"""Finding a RabbitMQ, and making one that was only unpacked run where it lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from config.local import rabbitmq
from config.local.rabbitmq import RabbitMQUnavailable, drop_unused_plugins, find_unpacked, use_own_erlang

SERVER = "usr/lib/rabbitmq/lib/rabbitmq_server-4.0.5"
ERL = """#!/bin/sh
if [ -z "$ERL_ROOTDIR" ]
then
    ROOTDIR=/usr/lib/erlang
else
    ROOTDIR=/usr/lib/erlang
fi
BINDIR="$ROOTDIR/erts-15/bin"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folders of Debian's packages, as far as they matter here."""
    for script in ("usr/lib/erlang/bin/erl", "usr/lib/erlang/erts-15/bin/erl"):
        _write(tmp_path / script, ERL)
    _write(tmp_path / "usr/lib/erlang/erts-15/bin/beam.smp", "\x7fELF ROOTDIR=/usr/lib/erlang")
    _write(tmp_path / f"{SERVER}/sbin/rabbitmq-server", "#!/bin/sh\n")
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/erl").symlink_to("../lib/erlang/bin/erl")
    return tmp_path


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _plugin(root: Path, name: str, *needs: str) -> Path:
    folder = root / SERVER / "plugins" / f"{name}-4.0.5"
    applications = ",".join(["kernel", "stdlib", *needs])
    _write(folder / f"ebin/{name}.app", f"{{application,{name},[{{applications,[{applications}]}}]}}.")
    return folder


def test_unpacked_start_scripts_find_their_own_erlang(root: Path) -> None:
    use_own_erlang(root)
    for script in ("usr/lib/erlang/bin/erl", "usr/lib/erlang/erts-15/bin/erl"):
        text = (root / script).read_text()
        assert text.count(f"ROOTDIR={root}/usr/lib/erlang\n") == 2
        assert "ROOTDIR=/usr/lib/erlang" not in text
    assert (root / "usr/lib/erlang/erts-15/bin/beam.smp").read_text() == "\x7fELF ROOTDIR=/usr/lib/erlang"


def test_turning_the_scripts_twice_changes_nothing_more(root: Path) -> None:
    use_own_erlang(root)
    once = (root / "usr/lib/erlang/bin/erl").read_text()
    use_own_erlang(root)
    assert (root / "usr/lib/erlang/bin/erl").read_text() == once


def test_an_unpacked_server_runs_with_its_own_erlang_and_libraries(root: Path) -> None:
    _write(root / "usr/lib/x86_64-linux-gnu/libodd.so.1", "")
    server = find_unpacked(root)
    assert server.script == root / SERVER / "sbin/rabbitmq-server"
    assert server.environment["PATH"].split(os.pathsep)[0] == str(root / "usr/bin")
    assert server.environment["LD_LIBRARY_PATH"] == str(root / "usr/lib/x86_64-linux-gnu")


def test_packages_of_another_layout_are_not_taken_for_a_server(tmp_path: Path) -> None:
    with pytest.raises(RabbitMQUnavailable, match="CELERY_BROKER_URL"):
        find_unpacked(tmp_path)


def test_only_plugins_that_nothing_needs_are_dropped(root: Path) -> None:
    kept = [
        _plugin(root, "rabbit", "rabbitmq_prelaunch", "ra"),
        _plugin(root, "rabbitmq_prelaunch"),
        _plugin(root, "ra"),
        _plugin(root, "rabbitmq_management", "rabbitmq_web_dispatch"),
        _plugin(root, "rabbitmq_web_dispatch", "cowboy"),
        _plugin(root, "prometheus"),
    ]
    dropped = [_plugin(root, "rabbitmq_mqtt", "rabbit"), _plugin(root, "rabbitmq_shovel", "rabbit")]
    drop_unused_plugins(root)
    assert all(plugin.exists() for plugin in kept)
    assert not any(plugin.exists() for plugin in dropped)


@pytest.mark.parametrize(
    ("tool", "command"), [("dnf", "dnf install rabbitmq-server"), ("pacman", "pacman -S rabbitmq")]
)
def test_where_there_is_none_the_message_says_what_to_install_or_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, command: str
) -> None:
    _write(tmp_path / "bin" / tool, "#!/bin/sh\n")
    (tmp_path / "bin" / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(rabbitmq, "LOCAL", tmp_path / "local")
    with pytest.raises(RabbitMQUnavailable) as caught:
        rabbitmq.prepare_rabbitmq(tmp_path / "data", keep_data=False, with_management=False, say=pytest.fail)
    assert command in str(caught.value)
    assert "CELERY_BROKER_URL" in str(caught.value)
