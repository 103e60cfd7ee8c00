"""The full document (tests/config/test_shipped.py), and one whose script changes events: run over a real MySQL."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis

from tests.cli.test_run import PATIENCE, lines_of, running, until
from tests.config.test_shipped import FULL
from tests.servers.kafka import consume
from tests.servers.mysql import private_server
from tests.support.terminal import Terminal
from tidemill.capture.status import read_status
from tidemill.lab.servers.kafka import Broker, Mock
from tidemill.lab.servers.mysql_family import Server
from tidemill.lab.servers.valkey import Valkey

CHANGING = """\
metadata: {name: changed}
spec:
  source: {type: mysql, config: {id: orders, dsn: "${MYSQL_DSN}", tables: [shop.orders], server_id: 4711}}
  processors:
    - type: javascript
      id: enrich
      inline: |
        function process(ev) {
          if (ev.op === "delete") return ev;
          if (ev.after.status === "test") return null;
          if (ev.after.status === "bad") throw new Error(ev.after.status);
          ev.after.big = ev.after.total.length > 5;
          return ev.after.status === "twice" ? [ev, {...ev, after: {...ev.after, status: "again"}}] : ev;
        }
      on_error: dead_letter
    - {type: sql, id: shout, config: {query: "SELECT * REPLACE (upper(status) AS status) FROM events"}}
  sinks: [{type: files, config: {id: files, path: "${OUT}"}}]
  dlq: {}
"""


TABLE = "CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer_id int, status varchar(20), total decimal(12,2))"
STATEMENTS = (
    "INSERT INTO shop.orders VALUES " + ",".join(f"({n}, {n % 7}, 'new', {n}.50)" for n in range(1, 301)),
    "INSERT INTO shop.orders VALUES (9007199254740993, 1, 'twice', 1.10), (1001, 1, 'test', 1), (1002, 1, 'bad', 1)",
    "UPDATE shop.orders SET status = 'paid' WHERE id = 1",
    "DELETE FROM shop.orders WHERE id = 2",
)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("tests.cli.test_run.PATIENCE", 2 * PATIENCE)  # servers start beside it
    with private_server("mysql") as server:
        server.execute("CREATE DATABASE shop", TABLE)
        monkeypatch.setenv("MYSQL_DSN", server.dsn("shop"))
        yield server


def test_the_full_document_runs_as_it_stands(
    shop: Server, kafka: Broker | Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Valkey() as valkey:
        monkeypatch.setenv("KAFKA_BROKERS", kafka.bootstrap)
        monkeypatch.setenv("REDIS_URI", valkey.uri)
        client = redis.Redis.from_url(valkey.uri)
        _run(FULL, "orders-mysql-to-kafka", shop, tmp_path, lambda: client.xlen("orders") == 305)
        client.close()
    _check_as_it_stands([orjson.loads(m.value() or b"null") for m in consume(kafka.bootstrap, "orders")])


def test_scripts_and_queries_change_events_on_their_way_and_on_their_second(
    shop: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tidemill = Terminal(capsys)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    _run(CHANGING, "changed", shop, tmp_path, lambda: len(lines_of(tmp_path / "out")) == 304)
    _check_changed(lines_of(tmp_path / "out"))
    file = tmp_path / "pipeline.yaml"
    (letter,) = tidemill("dlq", "ls", file, "--json").json["dead_letters"]
    assert letter["stage"] == "processor:enrich"
    event = tidemill("dlq", "show", file, letter["id"], "--json").json["event"]
    assert event["after"] == {"id": 1002, "customer_id": 1, "status": "bad", "total": "1.00"}, "as it was captured"
    assert "enrich.js:4" in letter["reason"]
    file.write_text(file.read_text().replace("throw new Error(ev.after.status)", 'ev.after.status = "mended"'))
    assert tidemill("dlq", "replay", file, "--yes", "--json").json["replayed"] == 1
    events: list[Any] = list(lines_of(tmp_path / "out"))
    (row,) = (each["after"] for each in events if each["after"] and each["after"]["id"] == 1002)
    assert row == {"id": 1002, "customer_id": 1, "status": "MENDED", "total": "1.00", "big": False}


def _run(document: str, name: str, server: Server, directory: Path, arrived: Callable[[], bool]) -> None:
    file = directory / "pipeline.yaml"
    file.write_text(document + f"  state_dir: {directory}/state\n")
    with running(file) as process:
        until(process, lambda: _streams(directory / "state" / name))
        server.execute(*STATEMENTS)
        until(process, arrived)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error.decode()[-2000:]


def _streams(state: Path) -> bool:
    return bool(getattr(read_status(state), "streaming_since", 0))


def _check_as_it_stands(events: list[dict[str, Any]]) -> None:
    assert len({event["event_id"] for event in events if event}) == 305
    inserted = {e["after"]["id"]: e["after"] for e in events if e and e["op"] == "insert"}
    assert inserted[9007199254740993] == {"id": 9007199254740993, "customer_id": 1, "status": "twice", "total": "1.10"}
    assert inserted[300]["total"] == "300.50"


def _check_changed(events: list[Any]) -> None:
    assert len({event["event_id"] for event in events}) == 304, "an added event has an id of its own"
    rows = [event["after"] for event in events if event["op"] == "insert"]
    assert sorted(row["status"] for row in rows if row["id"] == 9007199254740993) == ["AGAIN", "TWICE"]
    assert not [row for row in rows if row["id"] in (1001, 1002)]
    assert [row["big"] for row in rows if row["id"] in (5, 300)] == [False, True]
    assert {event["op"] for event in events} == {"insert", "update", "delete"}
