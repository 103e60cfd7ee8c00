"""A MySQL 9 and a MariaDB for tests, each started on first use and shared by the whole run.

A test that asks for `mysql_server` runs once on each. One that restarts a server, purges its binlog or changes its
settings makes its own with `private_server`.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.mariadb import Mariadb, find
from tidemill.lab.servers.mysql import Mysql, fetch, tool
from tidemill.lab.servers.mysql_family import Server

CACHE = Path(__file__).parents[2] / ".services" / "mysql"
KINDS = ("mysql", "mariadb")


def private_server(kind: str, **options: Any) -> Server:
    """Not started yet; skips the test if the server cannot be had."""
    try:
        if kind == "mysql":
            return Mysql(fetch(CACHE), **options)
        find("mariadbd")
        return Mariadb(**options)
    except EnvironmentProblem as problem:
        pytest.skip(f"{problem.what}: make services fetches it")


@functools.cache
def mysql_labels() -> list[str]:
    """For the header of a run."""
    return [f"MySQL {_version('mysql')}", f"MariaDB {_version('mariadb')}"]


@pytest.fixture(scope="session")
def mysql() -> Iterator[Server]:
    with private_server("mysql") as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    with private_server("mariadb") as server:
        yield server


@pytest.fixture(params=KINDS)
def mysql_server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


def _version(kind: str) -> str:
    try:
        command = [find("mariadbd")] if kind == "mariadb" else tool(fetch(CACHE), "usr/sbin/mysqld")
    except EnvironmentProblem:
        return "(missing)"
    done = subprocess.run([*map(str, command), "--no-defaults", "--version"], capture_output=True, text=True)
    return done.stdout.partition("Ver ")[2].split(" ")[0] or "(does not run)"
