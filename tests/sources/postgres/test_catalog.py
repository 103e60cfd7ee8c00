"""What the catalog adds to a relation of the stream, on real servers."""

from __future__ import annotations

import psycopg
import pyarrow as pa
import pytest

from tests.sources.support import config, end_session, execute, messages, opened, query
from tidemill.decoders.pgoutput.messages import Cursor, Relation, relation
from tidemill.model.table import Table
from tidemill.sources.postgres import PostgresSource


def describe(source: PostgresSource, dsn: str, statement: str, types: dict[int, str] | None = None) -> Table:
    """The table as it is announced before the rows that `statement` changes."""
    return source.catalog.describe(announced(source, dsn, statement), types or {})


def announced(source: PostgresSource, dsn: str, statement: str) -> Relation:
    execute(dsn, statement)
    return relation(Cursor(messages(source, "R", 1)[0][1:]))


def test_types_are_named_as_the_database_names_them(database: str) -> None:
    execute(
        database,
        "CREATE SCHEMA s",
        "CREATE TYPE s.mood AS ENUM ('good', 'bad')",
        "CREATE TYPE s.pair AS (a int, b text)",
        "CREATE DOMAIN s.amount AS numeric(12,2) CHECK (VALUE >= 0)",
        "CREATE DOMAIN s.small_amount AS s.amount",
        "CREATE TABLE t (id bigint PRIMARY KEY, n numeric(10,3), u numeric, a int[], na numeric(5,1)[],"
        " m s.mood, ms s.mood[], p s.pair, d s.small_amount, ds s.amount[], r int4range, c char(3),"
        " v varchar(9), iv int2vector, req text NOT NULL)",
    )
    with opened(config(database, "t")) as source:
        source.setup()
        source.start(None)
        table = describe(source, database, "INSERT INTO t (id, req) VALUES (1, '')")
    found = {c.name: (c.type.native, c.type.arrow) for c in table.columns}
    assert found == {
        "id": ("bigint", pa.int64()),
        "n": ("numeric(10,3)", pa.decimal128(10, 3)),
        "u": ("numeric", pa.string()),
        "a": ("integer[]", pa.list_(pa.int32())),
        "na": ("numeric(5,1)[]", pa.list_(pa.decimal128(5, 1))),
        "m": ("s.mood", pa.string()),
        "ms": ("s.mood[]", pa.list_(pa.string())),
        "p": ("s.pair", pa.string()),
        "d": ("s.small_amount", pa.decimal128(12, 2)),
        "ds": ("s.amount[]", pa.list_(pa.decimal128(12, 2))),
        "r": ("int4range", pa.string()),
        "c": ("character(3)", pa.string()),
        "v": ("character varying(9)", pa.string()),
        "iv": ("int2vector", pa.string()),
        "req": ("text", pa.string()),
    }
    assert [c.name for c in table.columns if not c.nullable] == ["id", "req"]
    assert (table.full_name, table.key, table.identity) == ("public.t", ("id",), "key")
    assert table.database == psycopg.conninfo.conninfo_to_dict(database)["dbname"]


@pytest.mark.parametrize(
    ("definition", "identity", "key", "said"),
    [
        ("b int, a int, v text, PRIMARY KEY (a, b)", "DEFAULT", ("b", "a"), "key"),
        ("b int, a int, v text, PRIMARY KEY (a, b)", "FULL", ("b", "a"), "full"),
        ("b int, a int, v text", "FULL", (), "full"),
        ("b int, a int PRIMARY KEY, v text", "NOTHING", ("a",), "nothing"),
        ("b int, a int, v text", "DEFAULT", (), "nothing"),
        ("b int NOT NULL UNIQUE, a int PRIMARY KEY, v text", "USING INDEX t_b_key", ("b",), "key"),
    ],
)
def test_the_key_follows_the_replica_identity(
    database: str, definition: str, identity: str, key: tuple[str, ...], said: str
) -> None:
    execute(
        database,
        f"CREATE TABLE t ({definition})",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "CREATE PUBLICATION mine FOR TABLE t WITH (publish_via_partition_root = true)",
    )
    with opened(config(database, "t", publication="mine", replica_identity="keep")) as source:
        source.setup()
        source.start(None)
        table = describe(source, database, "INSERT INTO t VALUES (1, 2, 'x')")
    assert (table.key, table.identity) == (key, said)


def test_a_generated_column_is_marked(database: str) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    with opened(config(database, "t")) as source:
        source.setup()
        source.start(None)
        table = describe(source, database, "INSERT INTO t VALUES (1)")
    new = query(database, "SELECT current_setting('server_version_num')::int >= 180000")[0][0]
    assert [(c.name, c.generated) for c in table.columns] == (
        [("id", False), ("twice", True)] if new else [("id", False)]
    )


def test_what_the_catalog_has_forgotten_still_gets_a_safe_answer(database: str) -> None:
    execute(database, "CREATE TYPE mood AS ENUM ('good')", "CREATE TABLE t (id int PRIMARY KEY, m mood)")
    with opened(config(database, "t")) as source:
        source.setup()
        source.start(None)
        relation = announced(source, database, "INSERT INTO t VALUES (1, 'good')")
        execute(database, "DROP TABLE t", "DROP TYPE mood")
        table = source.catalog.describe(relation, {relation.columns[1].type_oid: "public.mood"})
    assert [(c.name, c.type.native, c.nullable) for c in table.columns] == [
        ("id", "integer", False),
        ("m", "public.mood", True),
    ]
    assert table.columns[1].type.arrow == pa.string()
    assert table.key == ("id",)


def test_partitions_are_described_as_their_root(database: str) -> None:
    execute(
        database,
        "CREATE TABLE m (k int PRIMARY KEY, v text) PARTITION BY RANGE (k)",
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (10)",
    )
    with opened(config(database, "m")) as source:
        source.setup()
        source.start(None)
        table = describe(source, database, "INSERT INTO m VALUES (1, 'x')")
    assert (table.full_name, table.key) == ("public.m", ("k",))


def test_a_broken_catalog_connection_is_made_again(database: str) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with opened(config(database, "t")) as source:
        source.setup()
        source.start(None)
        relation = announced(source, database, "INSERT INTO t VALUES (1)")
        first = source.catalog.describe(relation, {})
        execute(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()",
        )
        assert source.catalog.describe(relation, {}) == first
        end_session(database, source.config)
