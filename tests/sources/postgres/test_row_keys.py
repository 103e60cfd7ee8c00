"""Which key a row has: primary keys that change or go, and partitions with an identity of their own."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.sources.postgres.histories import has
from tests.sources.statements import DDL
from tests.sources.support import config, execute, opened, query
from tests.support.capturing import Running, capturing, eventually
from tidemill.model.block import Block
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.postgres import PostgresSource
from tidemill.sources.postgres.errors import NoReplicaIdentity
from tidemill.sources.postgres.publication.keys import KEYS


def row_blocks(run: Running) -> list[Block]:
    blocks = [run.log.read(ref) for ref in run.log.refs(0, run.log.tail().offset)]
    return [block for block in blocks if DDL not in block.batch.column("op").to_pylist()]


def has_rows(run: Running, rows: int) -> bool:
    return sum(block.rows for block in row_blocks(run)) >= rows


def keys_used(run: Running) -> list[tuple[str, ...]]:
    return [block.table.key for block in row_blocks(run)]


def test_a_primary_key_that_changes_under_full_holds_for_the_next_row(database: str, tmp_path: Path) -> None:
    execute(
        database,
        "CREATE TABLE t (id int NOT NULL, region text NOT NULL, v text, PRIMARY KEY (id))",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    with capturing(PostgresSource(config(database, "t")), tmp_path) as run:
        execute(database, "INSERT INTO t VALUES (1, 'a', 'x')")
        eventually(partial(has_rows, run, 1), run)
        execute(database, "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, region)")
        execute(database, "INSERT INTO t VALUES (1, 'b', 'y')")
        eventually(partial(has_rows, run, 2), run)
        assert keys_used(run) == [("id",), ("id", "region")]
        # A narrower one may be ahead of rows that only the wider one tells apart: it stays.
        execute(database, "DELETE FROM t WHERE region = 'a'")
        execute(database, "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)")
        execute(database, "UPDATE t SET v = 'z'")
        eventually(partial(has_rows, run, 4), run)
        assert set(keys_used(run)[1:]) == {("id", "region")}


@pytest.mark.parametrize("seen", ["at the setup", "by a look"])
def test_a_primary_key_that_changed_under_full_before_the_table_was_met_tells_its_rows_apart(
    database: str, tmp_path: Path, seen: str
) -> None:
    """The catalog has only the key of now; under it, the row that stays and the one that goes would be the same."""
    table = (
        "CREATE TABLE t (id int NOT NULL, region text NOT NULL, v text, PRIMARY KEY (id))",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    rekey = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY"
    settings = config(database, "t")
    if seen == "at the setup":
        execute(database, *table)
        with closing(SchemaRegistry(tmp_path / "registry.sqlite")) as schemas, opened(settings) as source:
            source.setup(None, schemas)
    else:
        with capturing(PostgresSource(settings), tmp_path) as run:
            execute(database, *table)
            eventually(lambda: KEY_OF_T in noted(tmp_path), run)
    execute(
        database,
        "INSERT INTO t VALUES (1, 'x', 'one'), (2, 'x', 'two')",
        "DELETE FROM t WHERE id = 2",
        f"{rekey} (region)",
        "INSERT INTO t VALUES (3, 'y', 'three')",
    )
    with capturing(PostgresSource(settings), tmp_path) as run:
        eventually(partial(has, run, 4), run)
        assert set(keys_used(run)) == {("id", "region")}


def test_a_primary_key_of_before_the_position_is_forgotten(database: str, tmp_path: Path) -> None:
    execute(database, "CREATE TABLE t (id int NOT NULL, region text NOT NULL, PRIMARY KEY (id))")
    with capturing(PostgresSource(config(database, "t", catalog_seconds=0.05, feedback_seconds=0.1)), tmp_path) as run:
        execute(database, "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (region)")
        eventually(lambda: b'[["region"],""]' in noted(tmp_path), run)
        assert b'[["id"],"' in noted(tmp_path)
        ((lsn,),) = query(database, "SELECT pg_current_wal_insert_lsn()::text")
        execute(database, "INSERT INTO t VALUES (1, 'x')")
        eventually(partial(has, run, 1), run)
        run.deliver()
        confirmed = (
            f"SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn > '{lsn}'"
        )
        eventually(lambda: query(database, confirmed), run)
        execute(database, "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, region)")
        eventually(lambda: b'[["id","region"],""]' in noted(tmp_path), run)
        assert b'[["id"],' not in noted(tmp_path)


KEY_OF_T = b'[["id"],""]'


def noted(directory: Path) -> bytes:
    with closing(SchemaRegistry(directory / "registry.sqlite")) as schemas:
        return schemas.recall(KEYS) or b""


@pytest.mark.parametrize("identity", ["FULL", "DEFAULT"])
def test_rows_of_a_table_whose_primary_key_is_gone_have_no_key(database: str, tmp_path: Path, identity: str) -> None:
    """Under the key that it had, rows that are two by now would become one."""
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
    )
    with capturing(PostgresSource(config(database, "t", replica_identity="keep")), tmp_path) as run:
        execute(database, "INSERT INTO t VALUES (1, 'a')")
        eventually(partial(has_rows, run, 1), run)
        execute(database, "ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t VALUES (1, 'b')")
        eventually(partial(has_rows, run, 2), run)
        assert keys_used(run) == [("id",), ()]


def test_a_partition_that_logs_only_its_key_brings_no_invented_nulls(database: str, tmp_path: Path) -> None:
    execute(
        database,
        "CREATE TABLE p (id int PRIMARY KEY, v text NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "ALTER TABLE p REPLICA IDENTITY FULL",
        "ALTER TABLE p1 REPLICA IDENTITY FULL",
    )
    with capturing(PostgresSource(config(database, "p", replica_identity="keep")), tmp_path) as run:
        execute(database, "INSERT INTO p VALUES (1, 'one')", "DELETE FROM p")
        eventually(partial(has, run, 2), run)
        execute(
            database, "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
            "INSERT INTO p VALUES (101, 'a'), (102, 'b')",
            "UPDATE p SET id = 103 WHERE id = 102", "DELETE FROM p WHERE id = 101",
        )  # fmt: skip
        eventually(partial(has, run, 7), run)
        images = [(row["op"], row["key"], row["before"]) for row in run.rows() if row["op"] == 3]
    assert images == [(3, None, {"id": 1, "v": "one"}), (3, {"id": 102}, None), (3, {"id": 101}, None)]


def test_a_partition_whose_identity_is_another_key_stops_capture(database: str, tmp_path: Path) -> None:
    execute(
        database,
        "CREATE TABLE p (id int PRIMARY KEY, code int NOT NULL) PARTITION BY RANGE (id)",
        "ALTER TABLE p REPLICA IDENTITY FULL",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE UNIQUE INDEX by_code ON p1 (code)",
        "ALTER TABLE p1 REPLICA IDENTITY USING INDEX by_code",
    )
    with capturing(PostgresSource(config(database, "p", replica_identity="auto")), tmp_path) as run:
        execute(database, "INSERT INTO p VALUES (1, 2)")
        eventually(lambda: run.failure)
        assert isinstance(run.failure[0], NoReplicaIdentity)
