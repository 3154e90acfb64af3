"""Debian packages unpacked into a folder of ours: no root, no installation, the system's apt left as it is.

Runs on a bare Python, also as a script, since the bootstrap needs it before anything is installed:

    python3 config/local/debian.py PACKAGE FOLDER
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The hooks of the system's configuration would act on the system; the sandbox user could not enter our folders.
APT_CONFIGURATION = """
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
APT::Sandbox::User "{user}";
APT::Install-Recommends "false";
APT::Get::Assume-Yes "true";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
Debug::NoLocking "true";
Dir::Cache "{folder}/cache";
Dir::Log "{folder}/log";
"""


class PackagesUnavailable(Exception):
    """The packages cannot be had here; the message holds apt's own words."""


def has_apt() -> bool:
    """Whether this is a system whose packages can be unpacked."""
    return all(shutil.which(command) for command in ("apt-get", "dpkg-deb"))


def unpack(package: str, folder: Path) -> None:
    """Unpacks a package, and those it needs that the system has not, below `folder`. Raises PackagesUnavailable."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="apt-", dir=folder.parent) as name:
        work = Path(name)
        _download(package, work)
        draft = work / "root"
        for archive in sorted((work / "cache" / "archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", str(archive), str(draft)], check=True)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)


def _download(package: str, work: Path) -> None:
    for name in ("cache/archives/partial", "lists/partial", "log"):
        (work / name).mkdir(parents=True)
    configuration = work / "apt.conf"
    configuration.write_text(APT_CONFIGURATION.format(user="root", folder=work))
    apt = ["apt-get", "-q", "-c", str(configuration)]
    # Reinstalled, or a package that the system already has would not be downloaded.
    install = ["install", "--reinstall", "--download-only", package]
    if _succeeds([*apt, *install]):
        return
    # The system's package lists are missing or old: fetch our own. A source that fails does not matter as
    # long as the package comes from another.
    private = [*apt, "-o", f"Dir::State::lists={work}/lists"]
    _succeeds([*private, "update"])
    if not _succeeds([*private, *install]):
        raise PackagesUnavailable(_output([*private, *install]))


def _succeeds(argv: list[str]) -> bool:
    return subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def _output(argv: list[str]) -> str:
    return subprocess.run(
        argv, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ).stdout.strip()


if __name__ == "__main__":
    if not has_apt():
        sys.exit(1)
    try:
        unpack(sys.argv[1], Path(sys.argv[2]).resolve())
    except PackagesUnavailable as problem:
        sys.exit(str(problem))
