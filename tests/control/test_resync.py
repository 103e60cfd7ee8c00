"""`tidemill resync`: the way out that a lost position names, tried on a slot that is really gone."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from tests.capture.test_loop import capturing, query
from tests.support.capturing import capturing as capturing_any
from tests.support.capturing import eventually
from tidemill.control.resync import app
from tidemill.errors import PositionLost, SourceError
from tidemill.log import LogReader
from tidemill.sources.postgres import PostgresConfig, PostgresSource

DOCUMENT = """
metadata: {{name: shop}}
spec:
  source: {{type: postgres, config: {{id: test, dsn: "{dsn}", tables: [public.t]}}}}
  sinks: [{{type: blackhole, config: {{id: nowhere}}}}]
  log: {{uri: {log}}}
  state_dir: {state}
"""


@pytest.fixture
def document(database: str, tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(DOCUMENT.format(dsn=database, log=tmp_path / "log", state=tmp_path / "state"))
    return path


@pytest.fixture
def lost_slot(database: str, tmp_path: Path) -> None:
    """One event is in the log; the slot was dropped; the next change is gone for ever."""
    query(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        query(database, "INSERT INTO t VALUES (1)")
        eventually(lambda: running.log.tail().offset == 1)
    query(database, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                    "WHERE database = current_database()")  # fmt: skip
    query(database, "INSERT INTO t VALUES (2)")


@pytest.mark.usefixtures("lost_slot")
def test_a_lost_slot_stops_capture_until_somebody_accepts_the_gap(
    database: str, document: Path, tmp_path: Path
) -> None:
    with pytest.raises(PositionLost, match="gone") as caught, capturing(database, tmp_path, tables=("public.t",)):
        pass
    assert "tidemill resync" in caught.value.fix
    answer = CliRunner().invoke(app, [str(document), "--force", "--json"], catch_exceptions=False)
    assert orjson.loads(answer.output)["offset"] == 1
    query(database, "INSERT INTO t VALUES (3)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        eventually(lambda: running.log.tail().offset == 2)
        assert [row["after"]["id"] for row in running.rows()] == [1, 3]


@pytest.mark.usefixtures("lost_slot")
def test_nothing_is_accepted_without_being_asked(document: Path) -> None:
    with pytest.raises(SourceError, match="never captured"):
        CliRunner().invoke(app, [str(document)], catch_exceptions=False)


def test_what_is_said_of_a_table_is_accepted_by_name_and_the_position_stays(
    database: str, document: Path, tmp_path: Path
) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)")
    state = tmp_path / "state" / "shop"
    state.mkdir(parents=True)
    config = PostgresConfig(id="test", dsn=database, tables=("public.t",))
    for statement in ("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)"):
        source = PostgresSource(config)
        with capturing_any(source, state, log=tmp_path / "log") as running:
            eventually(lambda source=source: source.began, running)  # type: ignore[misc]
        query(database, statement)
    tail = LogReader(str(tmp_path / "log")).tail()
    answer = CliRunner().invoke(app, [str(document), "--table", "public.t", "--yes"], catch_exceptions=False)
    assert "accepted: table-dropped public.t" in answer.output
    again = CliRunner().invoke(
        app, [str(document), "--table", "public.t", "--yes", "--json"], catch_exceptions=False
    )  # fmt: skip
    assert orjson.loads(again.output)["accepted"] == []
    assert LogReader(str(tmp_path / "log")).tail() == tail
