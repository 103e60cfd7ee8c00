"""Scans beside capture: reported once, confirmed by a second scan, and never in the way of the stream."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.blocks import make_table
from tidemill import config
from tidemill.capture.__main__ import run
from tidemill.capture.catalog_scan import CatalogScanner, ScanSettings
from tidemill.capture.lease import CaptureLease, CaptureTask
from tidemill.capture.status import StatusFile, read_status
from tidemill.contracts.catalog_scan import CatalogScan, ScannedTable
from tidemill.disk.private import make_directory
from tidemill.errors import SourceError
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.servers.process import free_port
from tidemill.log import LogReader
from tidemill.model.position import Position
from tidemill.schema.registry import RegistryFile, SchemaRegistry
from tidemill.telemetry import events

ORDERS = make_table()
SECONDS = 120.0


class ScriptedCatalog:
    """Answers what the test says it has."""

    def __init__(self) -> None:
        self.table, self.defaults = ORDERS, {"quantity": "1"}
        self.error: Exception | None = None

    def scan(self, seconds: float) -> CatalogScan:
        if self.error is not None:
            raise self.error
        found = ScannedTable("public.orders", self.table, dict(self.defaults), {}, (("id",),))
        return CatalogScan({found.name: found})


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[SchemaRegistry]:
    with closing(SchemaRegistry(tmp_path / "registry.sqlite")) as made:
        made.register(ORDERS, Position("0/1"))
        yield made


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    heard: list[tuple[str, str]] = []

    def hear(name: str, **fields: Any) -> None:
        heard.append((name, fields.get("kind", "")))

    monkeypatch.setattr(events, "warn", hear)
    monkeypatch.setattr(events, "emit", hear)
    return heard


def scanner_of(catalog: ScriptedCatalog, registry: SchemaRegistry) -> CatalogScanner:
    return CatalogScanner(catalog.scan, RegistryFile(Path(registry.where)), "shop", ScanSettings(0.01, 5))


def test_a_finding_is_reported_once_after_two_scans_and_again_when_it_ends(
    registry: SchemaRegistry, said: list[tuple[str, str]]
) -> None:
    catalog = ScriptedCatalog()
    scanner = scanner_of(catalog, registry)
    assert not scanner.scan_once(registry)
    catalog.defaults = {"quantity": "2"}
    assert scanner.scan_once(registry), "another scan comes soon"
    assert (said, scanner.notices()) == ([], ())
    assert not scanner.scan_once(registry)
    assert said == [("catalog.drifted", "default")]
    assert [(notice.code, notice.subject) for notice in scanner.notices()] == [("catalog-default", "public.orders")]
    for _ in range(3):
        scanner.scan_once(registry)
    after_restart = scanner_of(catalog, registry)
    after_restart.scan_once(registry)
    assert said == [("catalog.drifted", "default")], "once, also over a restart"
    assert after_restart.notices() == scanner.notices()
    catalog.defaults = {"quantity": "1"}
    after_restart.scan_once(registry)
    assert said[1:] == [("catalog.drift_ended", "default")]
    assert after_restart.notices() == ()


def test_what_the_stream_tells_in_the_meantime_is_no_finding(
    registry: SchemaRegistry, said: list[tuple[str, str]]
) -> None:
    catalog = ScriptedCatalog()
    scanner = scanner_of(catalog, registry)
    catalog.table = make_table(version=2)
    assert scanner.scan_once(registry)
    registry.register(catalog.table, Position("0/2"))
    assert not scanner.scan_once(registry)
    registry.register(ORDERS, Position("0/3"))  # an earlier structure came back: it is in force, though not the newest
    catalog.table = replace(ORDERS)
    assert not scanner.scan_once(registry)
    assert said == []


def test_scans_that_fail_are_said_once_and_go_on(registry: SchemaRegistry, said: list[tuple[str, str]]) -> None:
    catalog = ScriptedCatalog()
    catalog.error = SourceError("the database is away", fix="Start it.")
    scanner = scanner_of(catalog, registry)
    scanner.start()
    try:
        until(lambda: [notice.code for notice in scanner.notices()] == ["catalog-scan-failed"])
        assert scanner.has_news()
        assert not scanner.has_news()
        catalog.error = ZeroDivisionError("a defect")
        until(lambda: "a defect" in scanner.notices()[0].what)
        catalog.error = None
        until(lambda: scanner.notices() == ())
    finally:
        scanner.close()
    assert said == [("catalog.scan_failed", ""), ("catalog.scan_failed", "")]


@contextmanager
def silent_server() -> Iterator[int]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def refusing_server() -> Iterator[int]:
    yield free_port()


@pytest.mark.parametrize("server", [refusing_server, silent_server], ids=["refused", "silent"])
def test_capture_goes_on_while_the_scanner_cannot_reach_its_database(
    server: Callable[[], Any], postgres18: Postgres, tmp_path: Path
) -> None:
    """Scans go where snapshots are read: here to a standby that does not answer."""
    name = f"scan_{server.__name__.split('_')[0]}"
    with postgres18.database(name) as dsn, server() as port, psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        path = tmp_path / "p.yaml"
        path.write_text(f"""
metadata: {{name: {name}}}
spec:
  source:
    type: postgres
    config:
      {{id: {name}, dsn: "{dsn}", tables: [t], connect_timeout_seconds: 2, network_timeout_seconds: 2,
       snapshot: {{mode: never, dsn: "postgresql://127.0.0.1:{port}/nowhere"}}}}
  sinks: [{{type: stdout, config: {{id: out}}}}]
  catalog_scan: {{interval_seconds: 1, timeout_seconds: 1}}
  state_dir: {tmp_path / "state"}
""")
        (pipeline,) = config.load(path)
        make_directory(pipeline.state_path)
        stop, log = threading.Event(), LogReader(pipeline.log_uri)
        task, status = CaptureTask(pipeline), StatusFile(pipeline.state_path)
        capture = threading.Thread(target=run, args=(task, stop, status, CaptureLease(None)))
        capture.start()
        try:
            until(lambda: (found := read_status(pipeline.state_path)) is not None and found.stage == "cdc")

            def is_said() -> bool:
                found = read_status(pipeline.state_path)
                return found is not None and "catalog-scan-failed" in [notice["code"] for notice in found.notices]

            until(is_said)
            for number in range(3):
                db.execute("INSERT INTO t VALUES (%s)", [number])
                until(lambda wanted=number + 1: log.tail().offset >= wanted)  # type: ignore[misc]
        finally:
            stop.set()
            capture.join(SECONDS)
        assert not capture.is_alive()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)
