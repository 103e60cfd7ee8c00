"""Fixtures every test may use: real servers of known versions, a fresh database, one Spark session.

Servers start on first use and live as long as the run. A test that restarts or kills one asks for `private_postgres`.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.kafka import kafka, kafka_label, private_kafka, topic
from tests.servers.mysql import mariadb, mysql, mysql_labels, mysql_server
from tests.support import kafka_start, seed, spark_start
from tests.support.quick import NoServers, complaint, is_quick, keep_files_in_memory
from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.kafka import JAVA_OPTIONS
from tidemill.lab.servers.postgres import Postgres, embedded_bin, installed_bin
from tidemill.telemetry.events import LOGGER

__all__ = ["kafka", "mariadb", "mysql", "mysql_server", "private_kafka", "topic"]  # fixtures of tests/servers

_VERSIONS: dict[str, Callable[[], Path]] = {"18": embedded_bin, "15": lambda: installed_bin(15)}
_names = itertools.count(1)
_no_servers = NoServers()


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault(spark_start.VARIABLE, spark_start.java_options())
    os.environ.setdefault(JAVA_OPTIONS, kafka_start.java_options())
    if config.getoption("markexpr") == "quick":
        keep_files_in_memory()


def pytest_report_header() -> list[str]:
    """Which real components this run is about."""
    from importlib.metadata import version

    found = [f"PostgreSQL {_postgres_version(name)}" for name in _VERSIONS]
    found += [f"{name} {version(package)}" for name, package in (("Spark", "pyspark"), ("Arrow", "pyarrow"))]
    found += mysql_labels()
    return [
        "servers: " + ", ".join([*found, f"Java {_java_version()}"]),
        f"kafka: {kafka_label()}",
        f"seed: {seed.run_seed()}, {'whole matrices' if seed.WHOLE else 'samples of matrices'}",
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("seed", f"TIDEMILL_SEED={seed.run_seed()} runs it with the same chances"))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: the collector of garbage need not look at it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_quick(item):
            item.add_marker("quick")
    if hasattr(config, "workerinput"):
        # Files are given out in this order. What takes long comes first: a long file at the end would be waited for.
        slow = {item.path for item in items if not item.get_closest_marker("quick")}
        items.sort(key=lambda item: ("crash" not in item.path.parts, item.path not in slow))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not item.get_closest_marker("quick"):
        return (yield)
    _no_servers.begin(item.nodeid)
    try:
        return (yield)
    finally:
        _no_servers.end()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    done = yield
    if _no_servers.started and pyfuncitem.get_closest_marker("quick"):
        pytest.fail(complaint(_no_servers.started))
    return done


@pytest.fixture(autouse=True)
def _fresh_logger() -> None:
    """What a command or a worker in this process did to the log of events before counts no more: `caplog` hears each
    event, once."""
    os.environ.pop("TIDEMILL_LOG_LEVEL", None)
    LOGGER.handlers[:], LOGGER.propagate = [], True
    LOGGER.setLevel(logging.INFO)


@pytest.fixture(autouse=True)
def _signals_stay() -> Iterator[None]:
    """A command that runs in this process must not keep signals for itself: the run of tests could not be ended."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    changed = [number.name for number in numbers if signal.getsignal(number) != before[number]]
    for number in numbers:
        signal.signal(number, before[number])
    assert not changed, f"the test leaves handlers of {', '.join(changed)}"


@pytest.fixture(scope="session")
def postgres18() -> Iterator[Postgres]:
    yield from _server("18")


@pytest.fixture(scope="session")
def postgres15() -> Iterator[Postgres]:
    yield from _server("15")


@pytest.fixture(params=list(_VERSIONS), ids=lambda name: f"pg{name}")
def postgres(request: pytest.FixtureRequest) -> Postgres:
    """Each version in turn: a test that asks for it runs once per version."""
    server: Postgres = request.getfixturevalue(f"postgres{request.param}")
    return server


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """DSN of an empty database, dropped afterwards with its slots."""
    with postgres.database(f"test_{next(_names)}") as dsn:
        yield dsn


@pytest.fixture
def private_postgres() -> Iterator[Postgres]:
    """A PostgreSQL 18 of the test's own, to be restarted or killed."""
    with Postgres(durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One local Spark session for the whole run: it takes seconds to start."""
    from tidemill.stream.spark.session import create_session

    # Lanes that stand hold a slot each; how many lanes a batch gets stays a matter of two cores.
    with spark_start.long_life():
        built = create_session(
            "tidemill-tests",
            master="local[12]",
            conf={"spark.default.parallelism": "2"},
            scratch=tmp_path_factory.mktemp("spark"),
        )
    yield built
    built.stop()


def _server(name: str) -> Iterator[Postgres]:
    try:
        bin_dir = _VERSIONS[name]()
    except EnvironmentProblem as problem:
        pytest.skip(f"{problem.what}: make services installs it (as root)")
    with Postgres(bin_dir, durable=False, max_replication_slots=100, max_wal_senders=100) as server:
        yield server


def _postgres_version(name: str) -> str:
    try:
        done = subprocess.run([_VERSIONS[name]() / "postgres", "--version"], capture_output=True, text=True)
    except EnvironmentProblem:
        return f"{name} (missing)"
    return done.stdout.split()[2] if done.returncode == 0 else f"{name} (does not run)"


def _java_version() -> str:
    if not shutil.which("java"):
        return "(missing)"
    done = subprocess.run(["java", "-version"], capture_output=True, text=True)
    return done.stderr.split('"')[1] if '"' in done.stderr else "(does not run)"
