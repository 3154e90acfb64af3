"""The bootstrap works with whatever a machine has: the right Python is found, and a pip where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from config.local import bootstrap
from config.local.debian import PackagesUnavailable, unpack
from config.local.places import CHECKOUT

SCRIPTS = CHECKOUT / "config" / "local"
BROKEN = "#!/bin/sh\nexit 127\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the bootstrap and locks, and nothing set up."""
    folder = tmp_path / "checkout"
    (folder / "config" / "local").mkdir(parents=True)
    (folder / "requirements").mkdir()
    for name in ("bootstrap.sh", "bootstrap.py", "debian.py"):
        shutil.copy(SCRIPTS / name, folder / "config" / "local")
    for name in ("build", "local", "dev"):
        (folder / "requirements" / f"{name}.txt").write_text(f"# {name}\n")
    monkeypatch.setattr(bootstrap, "CHECKOUT", folder)
    monkeypatch.setattr(bootstrap, "REQUIREMENTS", folder / "requirements")
    monkeypatch.setattr(bootstrap, "VENV", folder / ".venv")
    monkeypatch.setattr(bootstrap, "PYTHON", folder / ".venv" / "bin" / "python")
    return folder


def command(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def set_up(checkout: Path, group: str) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(sys.executable)
    bootstrap._stamp(group).write_text(bootstrap._digest(group))


def test_a_python_that_does_not_run_is_passed_over(checkout: Path, tmp_path: Path) -> None:
    path = tmp_path / "bin"
    command(path, "python3.13", BROKEN)
    command(path, "python3.12", BROKEN)
    command(path, "python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (checkout / "config/local/bootstrap.py").write_text("import sys; print(sys.argv[1], sys.version_info >= (3, 11))")
    told = subprocess.run(
        ["/bin/sh", str(checkout / "config/local/bootstrap.sh"), "local"],
        env={"PATH": f"{path}:/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout == "local True\n"


def test_a_warm_start_needs_no_package_and_does_nothing(checkout: Path) -> None:
    set_up(checkout, "local")
    script = str(checkout / "config/local/bootstrap.py")
    told = subprocess.run([sys.executable, "-I", "-S", script, "local"], check=True, capture_output=True, text=True)
    assert (told.stdout, told.stderr) == ("", "")
    assert not (checkout / ".local").exists()


@pytest.mark.parametrize(("installed", "wanted", "is_enough"), [("dev", "local", True), ("local", "dev", False)])
def test_the_developers_packages_hold_those_of_the_demo(
    checkout: Path, installed: str, wanted: str, is_enough: bool
) -> None:
    set_up(checkout, installed)
    assert bootstrap._is_current(wanted) is is_enough


def test_a_changed_lock_is_installed_again(checkout: Path) -> None:
    set_up(checkout, "local")
    (checkout / "requirements" / "local.txt").write_text("# other\n")
    assert not bootstrap._is_current("local")


def test_without_any_pip_debians_package_of_it_is_fetched(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = "usr/share/python-wheels"
    command(tmp_path / "bin", "apt-get", '#!/bin/sh\ntouch "$(dirname "$3")/cache/archives/pip.deb"\n')
    command(tmp_path / "bin", "dpkg-deb", f'#!/bin/sh\nmkdir -p "$3/{wheels}"; touch "$3/{wheels}/pip-25.0-py3.whl"\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    wheel = bootstrap._fetched_wheel()
    assert wheel == checkout / ".local/pip" / wheels / "pip-25.0-py3.whl"


def test_packages_come_from_lists_of_our_own_where_the_systems_do_not_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "calls"
    # Finds packages only in lists that an update of ours has fetched.
    command(
        tmp_path / "bin",
        "apt-get",
        f"""#!/bin/sh
echo "$@" >>{log}
lists=$(echo "$@" | sed -n 's/.*Dir::State::lists=\\([^ ]*\\).*/\\1/p')
case "$*" in
    *update) touch "$lists/fetched" ;;
    *) [ -n "$lists" ] && [ -e "$lists/fetched" ] && touch "$lists/../cache/archives/some.deb" ;;
esac
""",
    )
    command(tmp_path / "bin", "dpkg-deb", '#!/bin/sh\nmkdir -p "$3"; touch "$3/unpacked"\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    unpack("some-package", tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "unpacked").exists()
    assert len(log.read_text().splitlines()) == 3
    assert sorted(entry.name for entry in tmp_path.glob("apt-*")) == []


def test_packages_that_cannot_be_had_are_reported_in_apts_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(tmp_path / "bin", "apt-get", '#!/bin/sh\necho "E: Unable to locate package some-package"\nexit 100\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(PackagesUnavailable, match="Unable to locate package some-package"):
        unpack("some-package", tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()
