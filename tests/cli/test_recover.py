"""`tidemill recover`: the way out that a lost position names, tried on a slot that is really gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from tests.capture.test_loop import capturing, query
from tests.support.capturing import Running, eventually
from tests.support.capturing import capturing as capturing_any
from tests.support.terminal import Terminal
from tidemill.capture.open_log import open_log
from tidemill.cli.recover import app
from tidemill.config import load
from tidemill.decoders import pgoutput
from tidemill.decoders.pgoutput.columns import PgOutputCells, convert, strings
from tidemill.errors import ConfigError, DecodeError, PositionLost, SourceError
from tidemill.lab.servers.postgres import Postgres
from tidemill.log import LogReader, Tail
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Position
from tidemill.model.types import DataType
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.postgres import PostgresConfig, PostgresSource, witness

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
    assert "tidemill recover" in caught.value.fix
    answer = CliRunner().invoke(app, [str(document), "--accept-gap", "--force", "--json"], catch_exceptions=False)
    assert orjson.loads(answer.output)["offset"] == 1
    query(database, "INSERT INTO t VALUES (3)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        eventually(lambda: running.log.tail().offset == 2)
        assert [row["after"]["id"] for row in running.rows()] == [1, 3]


@pytest.mark.usefixtures("lost_slot")
def test_what_the_source_remembers_of_its_server_goes_with_the_gap(document: Path, tmp_path: Path) -> None:
    registry = tmp_path / "state" / "shop" / "registry.sqlite"
    registry.parent.mkdir(parents=True)
    schemas = SchemaRegistry(registry)
    seen = witness.WitnessedTransaction(1, 2, 3, 4)
    before = witness.WitnessMemory(witness.ServerTimeline("1", 7), "", seen)
    schemas.remember(witness.NAME, before.to_json())
    CliRunner().invoke(app, [str(document), "--accept-gap", "--force", "--json"], catch_exceptions=False)
    memory = witness.recall(schemas.recall)
    assert memory is not None
    assert memory.last is None
    assert memory.server.system != "1"
    schemas.close()


def test_another_server_is_named_before_the_gap_is_accepted_and_is_the_one_from_then_on(
    database: str, document: Path, tmp_path: Path
) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with capturing_pipeline(database, tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
    with Postgres(durable=False) as server:
        other = server.create_database("other")
        query(other, "CREATE TABLE t (id int PRIMARY KEY)")
        document.write_text(document.read_text().replace(database, other))
        with pytest.raises(SourceError, match=r"is another server than the one that was captured.*; if it is"):
            CliRunner().invoke(app, [str(document), "--accept-gap"], catch_exceptions=False)
        with pytest.raises(PositionLost, match="is another server"):
            CliRunner().invoke(app, [str(document), "--after", "0/1", "--yes"], catch_exceptions=False)
        assert query(other, "SELECT count(*) FROM pg_replication_slots") == (0,), "nothing was changed"
        assert "is another server" in invoke(document, "--accept-gap", "--yes", "--json")["lost"]
        with capturing_pipeline(other, tmp_path) as running:
            query(other, "INSERT INTO t VALUES (1)")
            eventually(lambda: running.events == 1, running)
    with pytest.raises(PositionLost, match="is another server"), capturing_pipeline(database, tmp_path):
        pass


@pytest.mark.usefixtures("lost_slot")
def test_nothing_is_accepted_without_being_asked(document: Path) -> None:
    with pytest.raises(SourceError, match="never captured"):
        CliRunner().invoke(app, [str(document), "--accept-gap"], catch_exceptions=False)


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
    for nothing in ("public.t", "public.nosuch"):
        with pytest.raises(ConfigError, match=f"nothing is said of {nothing}"):
            CliRunner().invoke(app, [str(document), "--table", nothing, "--yes"], catch_exceptions=False)
    assert LogReader(str(tmp_path / "log")).tail() == tail


def test_the_source_is_closed_also_where_it_cannot_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(DOCUMENT.format(dsn="postgresql://127.0.0.1/x", log=tmp_path / "log", state=tmp_path / "state"))
    (chosen,) = load(path)
    with closing(SchemaRegistry(chosen.state_path / "registry.sqlite")) as schemas:
        schemas.remember("test", b"{}")
    closed: list[str] = []

    def refuse(*_: object) -> None:
        raise SourceError("not now")

    monkeypatch.setattr(PostgresSource, "accept", refuse)
    monkeypatch.setattr(PostgresSource, "close", lambda source: closed.append(source.config.id))
    with pytest.raises(SourceError, match="not now"):
        CliRunner().invoke(app, [str(path), "--table", "public.t", "--yes"], catch_exceptions=False)
    assert closed == ["test"]


def test_a_gap_that_was_accepted_for_a_log_that_was_moved_away_stays_accepted(
    database: str, document: Path, tmp_path: Path
) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        query(database, "INSERT INTO t VALUES (1)")
        eventually(lambda: running.log.tail().offset == 1)
    (pipeline,) = load(document)
    with closing(pipeline.build_checkpoints()) as store:
        store.save(pipeline.name, Checkpoint(1000, Position("0/1000"), base=990), expect=0)
    (tmp_path / "log").rename(tmp_path / "moved away")
    answer = invoke(document, "--accept-gap", "--yes", "--json")
    with closing(pipeline.build_state()) as state, closing(open_log(pipeline, state)) as log:
        assert log.tail == Tail(1000, answer["to"])


def test_a_recovery_has_one_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tidemill = Terminal(capsys)
    path = tmp_path / "shop.yaml"
    path.write_text(DOCUMENT.format(dsn="postgresql://127.0.0.1/x", log=tmp_path / "log", state=tmp_path / "state"))
    for options in ([], ["--snapshot", "--accept-gap"], ["--snapshot", "--table", "public.t"]):
        answer = tidemill("recover", path, *options, "--json")
        assert (answer.code, answer.json["error"]["code"]) == (2, "config-invalid")
    assert not (tmp_path / "state").exists()


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_poison(monkeypatch)


def refuse_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a value that the decoder cannot read: no version of PostgreSQL is known to send one."""

    def refusing(cells: PgOutputCells, kind: DataType) -> Any:
        if b"poison" in b"".join(strings(cells).cast("binary").drop_null().to_pylist()):
            raise DecodeError("a value that nobody can read")
        return convert(cells, kind)

    monkeypatch.setattr(pgoutput.blocks, "convert", refusing)


@contextmanager
def capturing_pipeline(database: str, tmp_path: Path, **settings: Any) -> Iterator[Running]:
    """As the capture process of `document`: with its log and its state directory."""
    options = {"tables": ("public.t",), **settings}
    config = PostgresConfig(id="test", dsn=database, feedback_seconds=0.1, heartbeat_seconds=0.2, **options)
    state = tmp_path / "state" / "shop"
    state.mkdir(parents=True, exist_ok=True)
    with capturing_any(PostgresSource(config), state, log=tmp_path / "log") as running:
        yield running


def stopped_at_poison(database: str, tmp_path: Path) -> DecodeError:
    """Capture was away; of what it finds, the third transaction cannot be decoded."""
    query(database, "CREATE TABLE t (id int, v text)", "CREATE TABLE other (id int)",
          "ALTER TABLE t REPLICA IDENTITY FULL")  # fmt: skip
    with capturing_pipeline(database, tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
    query(
        database, "INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (2, 'b')",
        "INSERT INTO t SELECT 3, 'poison' FROM generate_series(1, 3)", "INSERT INTO other VALUES (1)",
        "INSERT INTO t VALUES (4, 'c')",
    )  # fmt: skip
    with capturing_pipeline(database, tmp_path) as run:
        (error,) = eventually(lambda: run.failure)
    assert isinstance(error, DecodeError)
    assert [row["after"]["id"] for row in run.rows()] == [1, 2]
    return error


@pytest.mark.usefixtures("poison")
def test_one_transaction_is_left_out_once_and_everything_around_it_is_captured(
    database: str, document: Path, tmp_path: Path
) -> None:
    error = stopped_at_poison(database, tmp_path)
    assert "--skip-transaction" in error.fix
    with pytest.raises(SourceError, match=r"which changed public\.t is never captured; everything after it is"):
        CliRunner().invoke(app, [str(document), "--skip-transaction"], catch_exceptions=False)
    answer = invoke(document, "--skip-transaction", "--yes", "--json")
    assert str(answer["lost"]).split(",")[0] in error.where, "the transaction that the error names"
    with pytest.raises(ConfigError, match="did not stop at a transaction"):
        CliRunner().invoke(app, [str(document), "--skip-transaction", "--yes"], catch_exceptions=False)
    with capturing_pipeline(database, tmp_path) as running:
        eventually(lambda: running.events == 3, running)
        assert [row["after"]["id"] for row in running.rows()] == [1, 2, 4]


def test_no_transaction_is_left_out_where_capture_stopped_at_none(
    database: str, document: Path, tmp_path: Path
) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with capturing_pipeline(database, tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
    query(database, "INSERT INTO t VALUES (1)")
    with pytest.raises(ConfigError, match="did not stop at a transaction"):
        CliRunner().invoke(app, [str(document), "--skip-transaction", "--yes"], catch_exceptions=False)
    with capturing_pipeline(database, tmp_path) as running:
        eventually(lambda: running.events == 1, running)


def test_a_transaction_that_capture_got_past_since_is_not_left_out(
    database: str, document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        refuse_poison(patched)
        stopped_at_poison(database, tmp_path)
    with capturing_pipeline(database, tmp_path) as running:
        eventually(lambda: running.events == 6, running)
    query(database, "INSERT INTO t VALUES (5, 'd')")
    with pytest.raises(ConfigError, match="did not stop at a transaction"):
        CliRunner().invoke(app, [str(document), "--skip-transaction", "--yes"], catch_exceptions=False)


@pytest.mark.usefixtures("poison")
def test_capture_goes_on_after_a_named_position(database: str, document: Path, tmp_path: Path) -> None:
    stopped_at_poison(database, tmp_path)
    (middle,) = query(database, "SELECT pg_current_wal_lsn()::text")
    query(database, "INSERT INTO t VALUES (5, 'd')")
    for wrong in ("0/1", "FFFFFFFF/1"):
        with pytest.raises(ConfigError, match="is not in what slot"):
            CliRunner().invoke(app, [str(document), "--after", wrong, "--yes"], catch_exceptions=False)
    assert invoke(document, "--after", middle, "--yes", "--json")["to"] == middle
    with capturing_pipeline(database, tmp_path) as running:
        eventually(lambda: running.events == 3, running)
        assert [row["after"]["id"] for row in running.rows()] == [1, 2, 5]


def test_a_named_position_is_gone_on_after_though_capture_was_killed(
    database: str, document: Path, tmp_path: Path
) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int)")
    state = tmp_path / "state" / "shop"
    state.mkdir(parents=True)
    settings = PostgresConfig(id="test", dsn=database, tables=("public.t",), heartbeat_seconds=0)
    with capturing_any(PostgresSource(settings), state, log=tmp_path / "log") as running:
        query(database, "INSERT INTO t VALUES (1)")
        eventually(lambda: running.events == 1, running)
    with closing(SchemaRegistry(state / "registry.sqlite")) as schemas:
        kept = (schemas.recall(witness.NAME) or b"").replace(b'"closed":true', b'"closed":false')
        schemas.remember(witness.NAME, kept)
    query(database, "INSERT INTO t VALUES (2)", "INSERT INTO other VALUES (1)")
    (middle,) = query(database, "SELECT pg_current_wal_lsn()::text")
    query(database, "INSERT INTO t VALUES (3)")
    invoke(document, "--after", middle, "--yes", "--json")
    with capturing_any(PostgresSource(settings), state, log=tmp_path / "log") as running:
        eventually(lambda: running.events == 2, running)
        assert [row["after"]["id"] for row in running.rows()] == [1, 3]


def invoke(document: Path, *arguments: str) -> dict[str, Any]:
    answer = CliRunner().invoke(app, [str(document), *arguments], catch_exceptions=False)
    found: dict[str, Any] = orjson.loads(answer.output)
    return found
