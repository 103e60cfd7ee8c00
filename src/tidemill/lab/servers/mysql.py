"""A private MySQL 9: Debian's `mysql-server-core`, fetched into a folder and run from there, nothing installed.

Only Debian's unstable branch has MySQL, built for a newer C library than a stable machine's. So the package and all it
needs are unpacked beside each other and started with the C library's own loader. `fetch` does that once.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.mysql_family import Server, Setting

_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_UNUSED = ("perl", "libperl", "libc-gconv")  # needed by scripts of the package, not by the server
_FOLDER = "server"


def fetch(cache: Path) -> Path:
    """The folder with `usr/sbin/mysqld`. Asks the machine's own package mirror once (60 MB); the folder appears under
    its name only when complete."""
    root = cache.absolute() / _FOLDER
    if root.is_dir():
        return root
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise EnvironmentProblem(f"no MySQL without {tool}", fix="MySQL is fetched on Debian and its kin only.")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.absolute(), prefix=".fetch-") as work:
        archives = _download(Path(work))
        made = Path(work) / _FOLDER
        for archive in archives:
            if not archive.name.startswith(_UNUSED):
                _run("dpkg", "-x", archive, made)
        if not (made / "usr" / "sbin" / "mysqld").exists():
            raise EnvironmentProblem("the package mysql-server-core has no mysqld", fix="Look at its file list.")
        with contextlib.suppress(OSError):  # another process was faster: its folder is as good as ours
            os.rename(made, root)
    return root


def _download(work: Path) -> list[Path]:
    """A private apt: an empty list of what is installed makes it bring every dependency, down to the C library."""
    try:
        stable = _SOURCES.read_text()
    except OSError as error:
        raise EnvironmentProblem("no Debian package source to fetch MySQL from", where=str(_SOURCES)) from error
    mirror = re.search(r"^URIs:\s*(\S+)", stable, re.MULTILINE)
    signed = re.search(r"^Signed-By:\s*(\S+)", stable, re.MULTILINE)
    if not mirror or not signed:
        raise EnvironmentProblem("the Debian package source names no mirror", where=str(_SOURCES))
    for folder in ("parts", "state", "lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "parts" / "unstable.sources").write_text(
        f"Types: deb\nURIs: {mirror[1]}\nSuites: sid\nComponents: main\nSigned-By: {signed[1]}\n"
    )
    places = {
        "Dir::State": work / "state", "Dir::State::status": work / "status", "Dir::State::lists": work / "lists",
        "Dir::Cache": work / "cache", "Dir::Etc::sourcelist": "/dev/null", "Dir::Etc::sourceparts": work / "parts",
        "Debug::NoLocking": 1, "APT::Sandbox::User": "", "Acquire::Languages": "none",
    }  # fmt: skip
    options = [part for name, value in places.items() for part in ("-o", f"{name}={value}")]
    _run("apt-get", *options, "update")
    _run("apt-get", *options, "install", "-y", "--no-install-recommends", "--download-only", "mysql-server-core")
    return sorted((work / "cache" / "archives").glob("*.deb"))


def _run(*command: str | Path) -> None:
    try:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblem(f"{command[0]} did not bring MySQL within 5 minutes") from error
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if line.startswith("E:")), done.stderr.strip()[:200])
        raise EnvironmentProblem(
            f"MySQL could not be fetched: {reason}", fix="Give apt a Debian mirror that has the unstable branch."
        )


def tool(root: Path, name: str) -> list[str | Path]:
    """The command that runs a program of the folder (`usr/sbin/mysqld`, `usr/bin/mysqlbinlog`) with its libraries."""
    libraries = next(iter((root / "usr" / "lib").glob("*-linux-gnu")))
    loader = next(iter(libraries.glob("ld-linux-*.so.*")))
    return [loader, "--library-path", libraries, root / name]


class Mysql(Server):
    """`root` is what `fetch` answered."""

    name: ClassVar[str] = "MySQL"

    def __init__(self, root: Path, *, directory: Path | None = None, ssl: bool = False, durable: bool = False,
                 **settings: Setting) -> None:  # fmt: skip
        self._root = root
        super().__init__(directory=directory, ssl=ssl, durable=durable, **settings)

    def flavor_settings(self) -> dict[str, Setting]:
        # Without these two it takes a third of the memory and half of the time to start.
        lean: dict[str, Setting] = {"performance_schema": False, "mysqlx": False}
        return lean | {"gtid_mode": True, "enforce_gtid_consistency": True}

    def initialize(self, data: Path) -> Sequence[str | Path]:
        small = "--innodb-redo-log-capacity=8M"
        return [*self.command(), "--initialize-insecure", f"--datadir={data}", "--secure-file-priv=", small]

    def fill(self, data: Path) -> None:
        """A copy of one that was made before, beside the binaries: that takes a fifth of the time."""
        template = self._root.parent / "empty"
        if not template.is_dir():
            with tempfile.TemporaryDirectory(dir=self._root.parent, prefix=".empty-") as work:
                made = Path(work) / "data"
                super().fill(made)
                (made / "auto.cnf").unlink(missing_ok=True)  # the server's uuid: each copy gets its own
                with contextlib.suppress(OSError):  # another process was faster
                    os.rename(made, template)
        shutil.copytree(template, data)

    def command(self) -> Sequence[str | Path]:
        share = self._root / "usr" / "share" / "mysql"
        paths = [
            f"--basedir={self._root / 'usr'}",
            f"--lc-messages-dir={share}",
            f"--character-sets-dir={share}/charsets",
        ]
        plugins = f"--plugin-dir={self._root / 'usr' / 'lib' / 'mysql' / 'plugin'}"
        return [*tool(self._root, "usr/sbin/mysqld"), "--no-defaults", *paths, plugins]
