"""`tidemill run` and `recover` over a real MySQL and a real MariaDB: capture process, log, Spark, files."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from tests.cli.test_run import PATIENCE, lines_of, running, until
from tests.servers.mysql import KINDS, private_server
from tests.sources.mysupport import purge
from tests.support.capturing import capturing, eventually
from tidemill.capture.status import read_status
from tidemill.cli.recover import app as recover
from tidemill.config import load
from tidemill.errors import PositionLost
from tidemill.lab.servers.mysql_family import Server

DOCUMENT = """
metadata: {{name: orders}}
spec:
  source:
    type: {kind}
    config: {{id: shop, dsn: "{dsn}", tables: [shop.t]}}
  sinks: [{{type: files, config: {{id: files, path: {files}}}}}]
  log: {{uri: {log}}}
  state_dir: {state}
"""


def document(directory: Path, server: Server) -> Path:
    path = directory / "orders.yaml"
    path.write_text(
        DOCUMENT.format(
            kind=server.name.lower(), dsn=server.dsn(), files=directory / "files", log=directory / "log",
            state=directory / "state",
        )
    )  # fmt: skip
    return path


def rows_of(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What the delivered events make, taken in the order of their offsets."""
    rows: dict[int, dict[str, Any]] = {}
    for event in sorted(events, key=lambda event: int(event["offset"])):
        match event["op"]:
            case "insert" | "update":
                rows[event["after"]["id"]] = event["after"]
            case "delete":
                del rows[event["before"]["id"]]
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_rows_delivered_by_a_run_are_those_of_the_server(kind: str, tmp_path: Path) -> None:
    with private_server(kind) as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id int unsigned PRIMARY KEY, v varchar(50))")
        path, files = document(tmp_path, server), tmp_path / "files"
        with running(path) as process:
            until(process, lambda: getattr(read_status(tmp_path / "state" / "orders"), "streaming_since", 0))
            values = ",".join(f"({n}, 'x{n}')" for n in range(500))
            server.execute(f"INSERT INTO shop.t VALUES {values}", "UPDATE shop.t SET v = 'y' WHERE id < 100")
            until(process, lambda: len(lines_of(files)) == 600)
            server.restart()
            server.execute("FLUSH BINARY LOGS", "DELETE FROM shop.t WHERE id >= 490",
                           "INSERT INTO shop.t VALUES (4294967295, 'größer')")  # fmt: skip
            until(process, lambda: len(lines_of(files)) == 611)
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, error.decode()[-2000:]
        assert orjson.loads(out.splitlines()[-1])["state"] == "stopped"
        events = lines_of(files)
        assert len({event["event_id"] for event in events}) == len(events)
        there = {id: {"id": id, "v": v} for id, v in server.query("SELECT id, v FROM shop.t")}
        assert rows_of(events) == there


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_purge_recover_goes_on_with_the_tables_as_they_are_now(kind: str, tmp_path: Path) -> None:
    """Without names in the binlog: the table changed in the gap, and only the catalog of today knows how."""
    with private_server(kind, binlog_row_metadata="MINIMAL") as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id int PRIMARY KEY, v varchar(50))")
        (pipeline,) = load(document(tmp_path, server))
        state = pipeline.state_path
        state.mkdir(parents=True)
        with capturing(pipeline.build_source(), state, log=tmp_path / "log") as running:
            eventually(lambda: running.log.tail().position, running)
            server.query("INSERT INTO shop.t VALUES (1, 'a')")
            eventually(lambda: running.events == 1, running)
        server.execute("ALTER TABLE shop.t ADD COLUMN w int FIRST", "INSERT INTO shop.t VALUES (7, 2, 'b')")
        purge(server)
        with capturing(pipeline.build_source(), state, log=tmp_path / "log") as running:
            failure = eventually(lambda: running.failure)[0]
        assert isinstance(failure, PositionLost)
        assert "tidemill recover" in failure.fix
        answer = CliRunner().invoke(
            recover, [str(tmp_path / "orders.yaml"), "--accept-gap", "--force", "--json"], catch_exceptions=False
        )
        assert orjson.loads(answer.output)["offset"] == 1
        with capturing(pipeline.build_source(), state, log=tmp_path / "log") as running:
            server.query("INSERT INTO shop.t VALUES (8, 3, 'c')")
            eventually(lambda: running.events == 2, running)
            assert running.rows()[-1]["after"] == {"w": 8, "id": 3, "v": "c"}
