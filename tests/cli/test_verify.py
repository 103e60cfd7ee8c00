"""`tidemill verify`: rows of a sink that are not the source's are found, named, and nothing else is."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.decoders.binlog.kinds import KINDS as TYPES
from tests.servers.mysql import KINDS
from tests.support.seed import run_seed
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.lab.servers.mysql_family import Server
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.block import COMMIT_TIME, POSITION, Block
from tidemill.model.delivery import Delivery
from tidemill.model.snapshot import Chunk

_COLUMNS = 20
DOCUMENT = """
metadata: {{name: orders}}
spec:
  source: {{type: {kind}, config: {{id: shop, dsn: "{dsn}", tables: {tables}}}}}
  sinks: [{{type: postgres, config: {{id: copy, dsn: "{target}"}}}}]
  state_dir: {folder}/state
"""


@dataclass
class Pair:
    """A source and a sink; `copy` brings what the source has now, as a snapshot of one batch."""

    pipeline: config.Pipeline
    sink: psycopg.Connection[Any]

    def copy(self) -> None:
        blocks = []
        with closing(self.pipeline.build_source().snapshot_reader()) as reader:
            for table in reader.tables():
                with reader.read(Chunk(table.name, 0), table, []) as reading:
                    blocks += list(reading.blocks())
        (spec,) = self.pipeline.spec.sinks
        with closing(self.pipeline.build_sink(spec)) as sink:
            for block in map(_logged, blocks):
                blocks_of = partial(iter, [block])
                sink.write(Delivery("orders", "shop", 0, 1 << 30, 0, 1, blocks_of, redelivered=True))


def _logged(block: Block) -> Block:
    """With what the log adds to a chunk's rows."""
    batch = block.batch.append_column("position", pa.array(["x"] * block.rows).dictionary_encode().cast(POSITION))
    batch = batch.append_column("tx_id", pa.nulls(block.rows, pa.uint64()))
    return Block(block.table, batch.append_column("commit_time", pa.array([0] * block.rows).cast(COMMIT_TIME)))


@contextmanager
def _pair(kind: str, dsn: str, tables: str, target: Postgres, folder: Path) -> Iterator[Pair]:
    path = folder / "orders.yaml"
    with target.database(f"verified_{kind}") as sink, psycopg.connect(sink, autocommit=True) as db:
        path.write_text(DOCUMENT.format(kind=kind, dsn=dsn, tables=tables, target=sink, folder=folder))
        (pipeline,) = config.load(path)
        yield Pair(pipeline, db)


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def test_missing_extra_and_different_rows_are_named_with_their_columns(
    tidemill: Terminal, mysql_server: Server, postgres18: Postgres, tmp_path: Path
) -> None:
    with mysql_server.database("audited") as dsn:
        mysql_server.execute(
            "CREATE TABLE t (a varchar(20), b int, v decimal(10,2), w text, PRIMARY KEY (a, b))",
            "INSERT INTO t VALUES " + ", ".join(f"('k{n}', {n}, {n}.5, 'text {n}')" for n in range(100)),
            database="audited",
        )
        with _pair(mysql_server.name.lower(), dsn, "[audited.t]", postgres18, tmp_path) as pair:
            missing = tidemill("verify", pair.pipeline.file, "--wait", 0, "--json")
            (lacking,) = missing.json["tables"]
            assert (missing.code, lacking["equal"], lacking["compared"], lacking["rows"]) == (4, False, False, None)
            assert "the sink has no table" in lacking["error"]
            assert missing.json["not_compared"] == ["audited.t"]
            shown = tidemill("verify", pair.pipeline.file, "--wait", 0)
            assert shown.code == 4
            assert "not compared: the sink has no table" in shown.out
            assert " 0 " not in shown.out, "nothing is known of its rows"
            pair.copy()
            answer = tidemill("verify", pair.pipeline.file, "--wait", 0, "--json")
            assert answer.code == 0, answer
            (found,) = answer.json["tables"]
            assert (found["table"], found["rows"], found["equal"]) == ("audited.t", 100, True)
            pair.sink.execute("DELETE FROM audited.t WHERE b = 7")
            pair.sink.execute("UPDATE audited.t SET v = 0, w = NULL WHERE b = 8")
            pair.sink.execute("INSERT INTO audited.t VALUES ('nobody', 1, 1, '')")
            answer = tidemill("verify", pair.pipeline.file, "--wait", 1, "--json")
            assert answer.code == 1
            (found,) = answer.json["tables"]
            assert (found["missing"], found["extra"], found["different"], found["moving"]) == (1, 1, 1, 0)
            assert sorted((key["fault"], key["key"], key["columns"]) for key in found["keys"]) == [
                ("different", ["k8", "8"], ["v", "w"]),
                ("extra", ["nobody", "1"], []),
                ("missing", ["k7", "7"], []),
            ]
            shown = tidemill("verify", pair.pipeline.file, "--wait", 0)
            assert "audited.t (k8, 8): different in v, w" in shown.out + shown.err
            assert "text 8" not in shown.out + shown.err, "no values"
            short = tidemill("verify", pair.pipeline.file, "--wait", 0, "--limit", 1)
            assert "audited.t: and 2 more rows; --limit shows more of them" in short.out
            misspelt = tidemill("verify", pair.pipeline.file, "--table", "audited.t", "--table", "audited.tt")
            assert (misspelt.code, 'Did you mean "audited.t"?' in misspelt.err) == (2, True), "not left out in silence"
            told = tidemill("verify", pair.pipeline.file, "--table", "audited.t", "--wait", 1, "--repair")
            assert "Run it again while the pipeline runs" in told.out, "nothing is deleted while it is stopped"


def test_a_table_with_a_filter_is_not_compared_whatever_the_mode(
    tidemill: Terminal, postgres18: Postgres, tmp_path: Path
) -> None:
    """A copy that is asked for has the filter, too: what it leaves out is not missing."""
    with (
        postgres18.database("verified_filter") as dsn,
        psycopg.connect(dsn, autocommit=True) as db,
        _pair("postgres", dsn, "[public.t]", postgres18, tmp_path) as pair,
    ):
        db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        pair.pipeline.build_source().setup()
        pair.copy()
        db.execute("INSERT INTO t VALUES (1)")
        path = Path(str(pair.pipeline.file))
        filtered = 'snapshot: {mode: never, filters: {public.t: "id > 1"}}'
        path.write_text(path.read_text().replace("tables: [public.t]", f"tables: [public.t], {filtered}"))
        answer = tidemill("verify", path, "--wait", 0, "--json")
        assert (answer.code, answer.json["not_compared"]) == (4, ["public.t"])


@pytest.mark.parametrize("kind", KINDS)
def test_no_type_gives_a_false_alarm(
    tidemill: Terminal, kind: str, request: pytest.FixtureRequest, postgres18: Postgres, tmp_path: Path
) -> None:
    """Every type of the source that a table of PostgreSQL takes: floats, times, padding, unsigned, sets, bits, JSON."""
    server: Server = request.getfixturevalue(kind)
    kinds = [each for each in TYPES if server.name in each.servers]
    pick, nul = random.Random(run_seed()), b"null\0".hex()
    statements = ["SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'"]
    for n in range(0, len(kinds), _COLUMNS):
        some = kinds[n : n + _COLUMNS]
        columns = ", ".join(f"v{i} {each.type}" for i, each in enumerate(some))
        # PostgreSQL has no text with a NUL; its own sink refuses that.
        values = [[value for value in each.values(pick) if nul not in value] for each in some]
        rows = [", ".join([str(i), *(each[i % len(each)] for each in values)]) for i in range(12)]
        statements += [f"CREATE TABLE t{n} (id int PRIMARY KEY, {columns})"]
        statements += [f"INSERT IGNORE INTO t{n} VALUES ({row})" for row in rows]
    with server.database("typed") as dsn:
        server.execute(*statements, database="typed")
        with _pair(kind, dsn, '["typed.*"]', postgres18, tmp_path) as pair:
            pair.copy()
            answer = tidemill("verify", pair.pipeline.file, "--wait", 0, "--json")
            wrong = {
                table["table"]: (table["error"], table["keys"]) for table in answer.json["tables"] if not table["equal"]
            }
            assert not wrong, {table: [k.type for k in kinds[int(table[7:]) :][:_COLUMNS]] for table in wrong}
            assert answer.code == 0
            assert sum(table["rows"] for table in answer.json["tables"]) == 12 * len(answer.json["tables"])


def test_a_row_that_arrives_while_it_is_looked_at_is_no_difference(
    tidemill: Terminal, mysql: Server, postgres18: Postgres, tmp_path: Path
) -> None:
    """The sink lags: it gets a row a second after the source, and one that the source has dropped goes as late."""
    with mysql.database("late") as dsn:
        mysql.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2)", database="late"
        )
        with _pair("mysql", dsn, "[late.t]", postgres18, tmp_path) as pair:
            pair.copy()
            mysql.execute("UPDATE t SET v = 5 WHERE id = 1", "DELETE FROM t WHERE id = 2", database="late")
            mysql.execute("INSERT INTO t VALUES (3, 3)", database="late")

            def arrive() -> None:
                time.sleep(1.5)
                pair.copy()
                pair.sink.execute("DELETE FROM late.t WHERE id = 2")

            late = threading.Thread(target=arrive)
            late.start()
            answer = tidemill("verify", pair.pipeline.file, "--wait", 30, "--json")
            late.join()
            assert (answer.code, answer.json["tables"][0]["equal"]) == (0, True), answer


def test_rows_of_postgresql_are_compared_with_their_copy(
    tidemill: Terminal, postgres18: Postgres, tmp_path: Path
) -> None:
    with postgres18.database("origin") as dsn, psycopg.connect(dsn, autocommit=True) as db:
        db.execute(
            "CREATE TABLE t (id uuid PRIMARY KEY, n numeric, f float8, at timestamptz, c char(9), j jsonb, a int[],"
            " b bytea)"
        )
        db.execute(
            "INSERT INTO t SELECT gen_random_uuid(), i / 7.0, i / 7.0, now(), 'x', '{\"a\": 1.50}', '{1,null}',"
            " '\\x00ff' FROM generate_series(1, 50) i"
        )
        with _pair("postgres", dsn, "[public.t]", postgres18, tmp_path) as pair:
            pair.pipeline.build_source().setup()
            pair.copy()
            answer = tidemill("verify", pair.pipeline.file, "--wait", 0, "--json")
            assert (answer.code, answer.json["tables"][0]["rows"]) == (0, 50), answer
            pair.sink.execute("UPDATE t SET f = f + 1e-9 WHERE ctid = '(0,1)'")
            answer = tidemill("verify", pair.pipeline.file, "--wait", 0, "--json")
            (found,) = answer.json["tables"]
            assert (answer.code, found["different"], found["keys"][0]["columns"]) == (1, 1, ["f"])
