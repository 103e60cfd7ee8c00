"""A private MariaDB, from the binaries that the distribution installed (Debian: `mariadb-server`)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.mysql_family import Server, Setting


def find(tool: str) -> Path:
    """`mariadbd`, `mariadb-binlog`, ... Servers are in sbin, which an ordinary user's PATH may lack."""
    found = shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if found is None:
        raise EnvironmentProblem("MariaDB is not installed", where=tool, fix="Run: apt-get install mariadb-server")
    return Path(found)


class Mariadb(Server):
    name: ClassVar[str] = "MariaDB"

    def flavor_settings(self) -> dict[str, Setting]:
        return {"gtid_strict_mode": True}

    def initialize(self, data: Path) -> Sequence[str | Path]:
        # Two that begin at once in one folder for temporary files remove each other's.
        return [
            find("mariadb-install-db"), "--no-defaults", f"--datadir={data}", f"--tmpdir={data.parent}",
            "--skip-test-db", "--auth-root-authentication-method=normal",
        ]  # fmt: skip

    def command(self) -> Sequence[str | Path]:
        return [find("mariadbd"), "--no-defaults"]
