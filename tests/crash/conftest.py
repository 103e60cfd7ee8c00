"""One durable server of each kind for all crash tests, a database for each test, and evidence that stays on failure."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.crash.harness import SourceHarness
from tests.crash.mysql import MysqlHarness, crash_server
from tests.crash.postgres import PostgresHarness
from tests.crash.sqlite import SqliteHarness
from tests.crash.turso import TursoHarness
from tidemill.lab.servers.mysql_family import Server
from tidemill.lab.servers.postgres import Postgres

EVIDENCE = Path(__file__).parents[2] / "build" / "crash"
_names = itertools.count(1)
_failed = pytest.StashKey[bool]()
_account: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _account:
        terminalreporter.section("killed and compared")
        for line in _account:
            terminalreporter.write_line(line)


@pytest.fixture
def account(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Takes what a test counted; shown at the end of the run."""

    def take(**counted: object) -> None:
        _account.append(f"{request.node.name}: " + ", ".join(f"{name} {value}" for name, value in counted.items()))

    return take


@pytest.fixture(scope="session")
def crash_postgres() -> Iterator[Postgres]:
    """fsync on, since it is killed; 64 kB, so that a thousand rows already are sent before their commit."""
    with Postgres(
        durable=True,
        logical_decoding_work_mem="64kB",
        wal_keep_size="64MB",
        checkpoint_timeout="30s",
        max_wal_size="256MB",
    ) as server:
        yield server


@pytest.fixture(scope="session")
def crash_mysql() -> Iterator[Server]:
    with crash_server("mysql") as server:
        yield server


@pytest.fixture(scope="session")
def crash_mariadb() -> Iterator[Server]:
    with crash_server("mariadb") as server:
        yield server


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Iterator[SourceHarness]:
    """A PostgreSQL, unless the test is parametrised with another: `sqlite`, `turso`, `mysql`, `mariadb`, or one of the
    last two with `-file` for positions that are places in a file."""
    kind, _, positions = getattr(request, "param", "postgres").partition("-")
    if kind in ("sqlite", "turso"):  # no server: a file
        with tempfile.TemporaryDirectory(prefix="tidemill-crash-") as folder:
            path = Path(folder) / "proof.db"
            file: SourceHarness = SqliteHarness(path) if kind == "sqlite" else TursoHarness(path)
            file.create()
            yield file
        return
    server = request.getfixturevalue(f"crash_{kind}")
    server.start()
    name = f"crash_{os.getpid()}_{next(_names)}"
    with server.database(name):
        harness: SourceHarness = (
            PostgresHarness(server, name)
            if kind == "postgres"
            else MysqlHarness(server, name, positions=positions or "auto")
        )
        harness.create()
        yield harness


@pytest.fixture
def target(source: PostgresHarness, crash_postgres: Postgres) -> Iterator[PostgresHarness]:
    """An empty database on the source's server."""
    name = f"{source.database}_target"
    with crash_postgres.database(name):
        yield PostgresHarness(crash_postgres, name)


@pytest.fixture
def evidence(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Everything a run writes. Removed when the test passes; its place is printed when it does not."""
    EVIDENCE.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=EVIDENCE))  # another run may be at the same test
    yield directory
    if request.node.stash.get(_failed, False):
        request.node.add_report_section("teardown", "evidence", f"kept in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
