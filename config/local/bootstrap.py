"""Brings `.venv` up to date with the hashed locks, by whatever a bare Python finds: `bootstrap.py local|dev`.

Only wheels with the hashes of the lock are installed, and nothing is built but pyvips, which is plain Python.
uv does it in seconds; where uv cannot (it does not read pip's configuration), pip does the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
REQUIREMENTS = CHECKOUT / "requirements"
VENV = CHECKOUT / ".venv"
PYTHON = VENV / "bin" / "python"
#: A group is up to date as well when one that contains it is.
GROUPS = {"build": ("build", "local", "dev"), "local": ("local", "dev"), "dev": ("dev",)}
LOCKED = ("--no-deps", "--require-hashes", "--only-binary", ":all:")
BUILT_HERE = ("--no-binary", "pyvips", "--no-build-isolation")


def main(group: str) -> int:
    """Installs what is missing for `group`; does nothing when all is there."""
    if _is_current(group):
        return 0
    (CHECKOUT / ".local").mkdir(exist_ok=True)
    with (CHECKOUT / ".local" / "bootstrap.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_current(group):
            return 0
        began = time.monotonic()
        print(f"Setting up .venv ({group}) with Python {sys.version.split()[0]}", flush=True)
        if not _runs(PYTHON):
            venv.EnvBuilder(clear=True, symlinks=True, with_pip=False).create(VENV)
        if not _is_current("build"):
            _install_with_pip("build")
            _stamp("build").write_text(_digest("build"))
        if not _install_with_uv(group):
            print("uv could not install the packages (see above); pip does it now, which takes longer.", flush=True)
            _install_with_pip(group)
        _stamp(group).write_text(_digest(group))
        print(f"Set up in {time.monotonic() - began:.0f} s", flush=True)
    return 0


def _is_current(group: str) -> bool:
    return PYTHON.exists() and any(
        _stamp(larger).exists() and _stamp(larger).read_text() == _digest(larger) for larger in GROUPS[group]
    )


def _stamp(group: str) -> Path:
    return VENV / f"holdfast-{group}.sha256"


def _digest(group: str) -> str:
    locks = [REQUIREMENTS / "build.txt", REQUIREMENTS / f"{group}.txt"]
    return hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()


def _runs(python: Path) -> bool:
    try:
        subprocess.run([python, "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _install_with_uv(group: str) -> bool:
    command: list[str | Path] = [
        VENV / "bin" / "uv",
        "pip",
        "install",
        "--python",
        PYTHON,
        "--compile-bytecode",
        *LOCKED,
        *BUILT_HERE,
    ]
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    try:
        done = subprocess.run([*command, "--quiet", "-r", REQUIREMENTS / f"{group}.txt"], env=environment, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _install_with_pip(group: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PIP_TARGET", "PIP_PREFIX")}
    environment |= {"PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    built_here = () if group == "build" else BUILT_HERE
    command = [*_find_pip(), "install", "--quiet", *LOCKED, *built_here, "-r", REQUIREMENTS / f"{group}.txt"]
    if subprocess.run(command, env=environment, check=False).returncode != 0:
        sys.exit("The packages could not be installed; pip says above why.")


def _find_pip() -> list[str]:
    """A command that acts as the pip of `.venv`: Python's own bundled pip, the system's, or Debian's package of it."""
    if wheel := _find_wheel(_bundled_folder(), Path("/usr/share/python-wheels")):
        return [str(PYTHON), f"{wheel}/pip"]
    base = getattr(sys, "_base_executable", sys.executable)
    # Acts on another environment since pip 22.3.
    system = [base, "-m", "pip", "--python", str(PYTHON)]
    if subprocess.run([*system, "--version"], check=False, capture_output=True).returncode == 0:
        return system
    return [str(PYTHON), f"{_fetched_wheel()}/pip"]


def _bundled_folder() -> Path:
    try:
        import ensurepip
    except ImportError:
        return Path("/nonexistent")
    return Path(ensurepip.__file__).parent / "_bundled"


def _find_wheel(*folders: Path) -> Path | None:
    return next((wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"), reverse=True)), None)


def _fetched_wheel() -> Path:
    folder = CHECKOUT / ".local" / "pip"
    wheels = folder / "usr" / "share" / "python-wheels"
    if not _find_wheel(wheels):
        fetch = [sys.executable, str(Path(__file__).with_name("debian.py")), "python3-pip-whl", str(folder)]
        subprocess.run(fetch, check=False)
    if wheel := _find_wheel(wheels):
        return wheel
    sys.exit("There is no pip, and it could not be fetched. Install it (on Debian: apt-get install python3-pip).")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
