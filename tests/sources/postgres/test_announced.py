"""Changes of tables as the stream announces them, without event triggers: each is an event before the first row that
has it, once, and the same however often it is read. On real servers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import orjson
import psycopg

from tests.sources.statements import DDL, caught_up, shown
from tests.sources.support import config, end_session, execute, opened, query
from tests.support.capturing import capturing, eventually
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.barrier import Barrier
from tidemill.schema.registry import SchemaRegistry

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
ADDED = {"change": "add", "column": "n", "type": "integer", "nullable": True, "after": "v"}


def identities(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["position"], row["ordinal"], row["op"], row["ddl"] if row["op"] == DDL else row["after"])
            for row in rows]  # fmt: skip


def stream_everything(dsn: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    execute(dsn, f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")


def insert_many(db: psycopg.Connection[Any], first: int, last: int) -> None:
    """So many that the server streams them before the commit (`stream_everything`)."""
    db.execute(f"INSERT INTO t (id, v) SELECT n, repeat('x', 100) FROM generate_series({first}, {last}) n".encode())


def ids_and_ddl(rows: list[dict[str, Any]]) -> list[Any]:
    return ["ddl" if row["op"] == DDL else row["after"]["id"] for row in rows]


def test_a_change_is_an_event_before_the_first_row_that_has_it_also_inside_a_transaction(
    database: str, tmp_path: Path
) -> None:
    execute(database, TABLE, "CREATE TABLE other (id int PRIMARY KEY)")
    with opened(config(database, "t", "other")) as source, capturing(source, tmp_path) as running:
        with psycopg.connect(database, autocommit=True) as db:
            db.execute("INSERT INTO t VALUES (0, 'first')")
            with db.transaction():
                db.execute("INSERT INTO t VALUES (1, 'a')")
                db.execute("INSERT INTO other VALUES (1)")
                db.execute("ALTER TABLE t ADD COLUMN n int")
                db.execute("INSERT INTO t VALUES (2, 'b', 2)")
                db.execute("INSERT INTO other VALUES (2)")
                db.execute("ALTER TABLE t ALTER COLUMN n TYPE text USING n::text || '!', DROP COLUMN v")
                db.execute("INSERT INTO t VALUES (3, 'c')")
            with db.transaction(force_rollback=True):
                db.execute("ALTER TABLE t DROP COLUMN n")
                db.execute("INSERT INTO t VALUES (4)")
            db.execute("INSERT INTO t VALUES (5, 'e')")
        rows = caught_up(database, running)
        found = [entry for entry in running.log.between(0, running.events) if entry.barrier]
    assert [row["ordinal"] for row in rows] == [0, *range(7), 0]
    assert shown(rows) == [
        {"id": 0, "v": "first"},
        {"id": 1, "v": "a"},
        {"id": 1},
        ("t", "alter", [ADDED]),
        {"id": 2, "v": "b", "n": 2},
        {"id": 2},
        ("t", "alter", [
            {"change": "drop", "column": "v", "type": "text"},
            {"change": "modify", "column": "n", "from": {"type": "integer", "nullable": True},
             "to": {"type": "text", "nullable": True}},
        ]),
        {"id": 3, "n": "c"},
        {"id": 5, "n": "e"},
    ]  # fmt: skip
    assert [(entry.barrier, entry.rows) for entry in found] == [(Barrier.SCHEMA_CHANGE, 7)]  # an append of its own
    [first, _] = [orjson.loads(row["ddl"]) for row in rows if row["op"] == DDL]
    number, text = {"type": "integer", "nullable": False}, {"type": "text", "nullable": True}
    assert first["text"] is None
    assert first["before"] == {"columns": [{"name": "id", **number}, {"name": "v", **text}], "key": ["id"]}
    assert first["after"]["columns"][2] == {"name": "n", "type": "integer", "nullable": True}
    registry = SchemaRegistry(tmp_path / "registry.sqlite")
    versions = {each.table.version: each.position for each in registry.history("public.t")}
    registry.close()
    assert versions[2] == versions[3] == rows[1]["position"]  # of the transaction in which they were met


def test_a_rename_nullability_and_a_new_key_are_told_by_themselves(database: str, tmp_path: Path) -> None:
    execute(database, TABLE)
    with opened(config(database, "t")) as source, capturing(source, tmp_path) as running:
        execute(database, "INSERT INTO t VALUES (1, 'a')")
        for number, change in enumerate((
            "RENAME COLUMN v TO w",
            "ALTER COLUMN w SET NOT NULL",
            "DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, w)",
            "ALTER COLUMN w SET DEFAULT 'x'",  # no structure: nobody sees it
        )):  # fmt: skip
            execute(database, f"ALTER TABLE t {change}", f"INSERT INTO t VALUES ({number + 2}, 'b')")
            rows = caught_up(database, running)  # else the catalog is ahead
    assert [each for each in shown(rows) if isinstance(each, tuple)] == [
        ("t", "alter", [{"change": "rename", "column": "w", "from": "v"}]),
        ("t", "alter", [{"change": "modify", "column": "w", "from": {"type": "text", "nullable": True},
                         "to": {"type": "text", "nullable": False}}]),
        ("t", "alter", [{"change": "key", "from": ["id"], "to": ["id", "w"]}]),
    ]  # fmt: skip


def test_tables_that_were_not_written_to_before_new_ones_renamed_ones_and_partitions(
    database: str, tmp_path: Path
) -> None:
    execute(
        database, TABLE, "CREATE TABLE gone (id int PRIMARY KEY)", "CREATE TABLE moved (id int PRIMARY KEY)",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root)",
    )  # fmt: skip
    with opened(config(database, publication="everything")) as source, capturing(source, tmp_path) as running:
        execute(
            database,
            "ALTER TABLE t ADD COLUMN n int",
            "INSERT INTO t VALUES (1, 'a', 1)",
            "CREATE TABLE made (id int PRIMARY KEY)",
            "INSERT INTO made VALUES (1)",
            "DROP TABLE gone",
            "CREATE TABLE gone (id int PRIMARY KEY, z int)",
            "INSERT INTO gone VALUES (1, 1)",
            "ALTER TABLE moved RENAME TO renamed",
            "INSERT INTO renamed VALUES (1)",
            "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
            "INSERT INTO p VALUES (11)",
            "ALTER TABLE p DETACH PARTITION p1",
            "ALTER TABLE p ADD COLUMN q int",
            "INSERT INTO p VALUES (12, 12)",
        )
        rows = caught_up(database, running)
    identity = {"change": "add", "column": "id", "type": "integer", "nullable": False, "first": True}
    plain = {"type": "integer", "nullable": True, "after": "id"}
    assert shown(rows) == [
        ("t", "alter", [ADDED]),
        {"id": 1, "v": "a", "n": 1},
        ("made", "create", [identity]),
        {"id": 1},
        ("gone", "create", [{"change": "add", "column": "z", **plain}]),
        {"id": 1, "z": 1},
        ("renamed", "rename", [{"change": "rename_table", "from": "public.moved", "to": "public.renamed"}]),
        {"id": 1},
        {"id": 11},
        ("p", "alter", [{"change": "add", "column": "q", **plain}]),
        {"id": 12, "q": 12},
    ]


def test_what_is_streamed_before_its_commit_is_told_where_its_first_row_stays(database: str, tmp_path: Path) -> None:
    """A savepoint may be rolled back with the announcement, or with the change itself."""
    execute(database, TABLE)
    stream_everything(database)
    with opened(config(database, "t")) as source, capturing(source, tmp_path) as running:
        with psycopg.connect(database, autocommit=True) as db:
            db.execute("INSERT INTO t VALUES (0, 'a')")
            with db.transaction():
                insert_many(db, 1, 2000)
                db.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 3")
                with db.transaction(force_rollback=True):
                    insert_many(db, 2001, 4000)  # announced in here
                insert_many(db, 2001, 4000)
                with db.transaction(force_rollback=True):
                    db.execute("ALTER TABLE t ADD COLUMN gone int")
                    insert_many(db, 4001, 6000)
                insert_many(db, 4001, 6000)
                db.execute("ALTER TABLE t DROP COLUMN n")
                insert_many(db, 6001, 6001)
            with db.transaction(force_rollback=True):
                db.execute("ALTER TABLE t ADD COLUMN gone int")
                insert_many(db, 6002, 9000)
            insert_many(db, 6002, 6002)
        rows = caught_up(database, running)
    assert ids_and_ddl(rows) == [*range(2001), "ddl", *range(2001, 6001), "ddl", 6001, 6002]
    assert [each[2] for each in shown(rows) if isinstance(each, tuple)] == [
        [{**ADDED}], [{"change": "drop", "column": "n", "type": "integer"}],
    ]  # fmt: skip


def test_a_transaction_that_the_server_cannot_decode_while_it_is_open_is_asked_for_as_a_whole(
    database: str, tmp_path: Path
) -> None:
    """It says "pg_attribute catalog is missing 1 attribute(s)" and would say so for ever."""
    execute(database, TABLE)
    stream_everything(database)
    with opened(config(database, "t")) as source, capturing(source, tmp_path) as running:
        with psycopg.connect(database) as db:
            insert_many(db, 1, 2000)
            db.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 3")
            with db.transaction(force_rollback=True):
                insert_many(db, 2001, 4000)
            insert_many(db, 2001, 4000)
            with db.transaction(force_rollback=True):
                db.execute("ALTER TABLE t DROP COLUMN n")
                insert_many(db, 4001, 6000)
            insert_many(db, 4001, 6000)
            db.execute("ALTER TABLE t DROP COLUMN n")
            insert_many(db, 6001, 6001)
        rows = caught_up(database, running)
    assert ids_and_ddl(rows) == [*range(1, 2001), "ddl", *range(2001, 6001), "ddl", 6001]


def test_of_two_open_transactions_the_one_that_commits_first_tells_it(database: str, tmp_path: Path) -> None:
    execute(database, TABLE)
    stream_everything(database)
    with opened(config(database, "t")) as source, capturing(source, tmp_path) as running:
        execute(database, "INSERT INTO t VALUES (0, 'a')", "ALTER TABLE t ADD COLUMN n int")
        with psycopg.connect(database) as slow, psycopg.connect(database) as fast:
            insert_many(slow, 1, 3000)  # announced in a transaction that is still open
            fast.execute("INSERT INTO t VALUES (5000, 'b', 1)")
            fast.commit()
            caught_up(database, running)
            slow.execute("INSERT INTO t VALUES (5001, 'c', 2)")
            slow.commit()
        rows = caught_up(database, running)
    assert ids_and_ddl(rows) == [0, "ddl", 5000, *range(1, 3001), 5001]
    assert [row["ordinal"] for row in rows[-3001:]] == list(range(3001))


def test_a_connection_that_is_made_anew_tells_nothing_again_and_what_changed_meanwhile_once(
    database: str, tmp_path: Path
) -> None:
    execute(database, TABLE)
    settings = config(database, "t")
    with opened(settings) as source, capturing(source, tmp_path) as running:
        execute(
            database,
            "INSERT INTO t VALUES (1, 'a')",
            "ALTER TABLE t ADD COLUMN n int",
            "INSERT INTO t VALUES (2, 'b', 2)",
        )
        before = caught_up(database, running)
        end_session(database, settings)
        execute(database, "INSERT INTO t VALUES (3, 'c', 3)")
        caught_up(database, running)
    execute(database, "ALTER TABLE t DROP COLUMN n", "INSERT INTO t VALUES (4, 'd')")
    with opened(settings) as source, capturing(source, tmp_path) as running:
        caught_up(database, running)
    with opened(settings) as source, capturing(source, tmp_path) as running:
        execute(database, "INSERT INTO t VALUES (5, 'e')")
        rows = caught_up(database, running)
    assert rows[: len(before)] == before
    assert shown(rows) == [
        {"id": 1, "v": "a"}, ("t", "alter", [ADDED]), {"id": 2, "v": "b", "n": 2}, {"id": 3, "v": "c", "n": 3},
        ("t", "alter", [{"change": "drop", "column": "n", "type": "integer"}]), {"id": 4, "v": "d"},
        {"id": 5, "v": "e"},
    ]  # fmt: skip


def test_rows_from_before_a_column_became_not_null_are_of_a_structure_where_it_may_be_null(
    database: str, tmp_path: Path
) -> None:
    """The catalog is ahead of them: a sink that makes the table as it says there would refuse them."""
    execute(database, TABLE)
    settings = config(database, "t")
    with opened(settings) as source, capturing(source, tmp_path) as running:
        caught_up(database, running)
    execute(
        database,
        "INSERT INTO t VALUES (1, NULL)",
        "UPDATE t SET v = 'x'",
        "ALTER TABLE t ALTER v SET NOT NULL",
        "INSERT INTO t VALUES (2, 'y')",
    )
    with opened(settings) as source, capturing(source, tmp_path) as running:
        rows = caught_up(database, running)
        blocks = [running.log.read(ref) for ref in running.log.refs(0, running.events) if ref.table == "public.t"]
    changed = [row["after"] for row in rows if row["op"] != DDL]
    assert changed == [{"id": 1, "v": None}, {"id": 1, "v": "x"}, {"id": 2, "v": "y"}]
    assert all(block.table.columns[1].nullable for block in blocks if block.struct("after"))
    registry = SchemaRegistry(tmp_path / "registry.sqlite")
    known = {each.fingerprint for each in registry.versions("public.t")}
    registry.close()
    assert {block.table.fingerprint for block in blocks} <= known
    with opened(settings) as source, capturing(source, tmp_path) as running:
        execute(database, "INSERT INTO t VALUES (3, 'z')", "DELETE FROM t WHERE id = 1")
        caught_up(database, running)
        *_, block = [running.log.read(ref) for ref in running.log.refs(0, running.events) if ref.table == "public.t"]
    assert not block.table.columns[1].nullable  # a row that is gone has no NULL


def test_a_log_that_is_lost_is_captured_again_with_the_same_events(database: str, tmp_path: Path) -> None:
    """Invariant 4. The catalog is far ahead of the stream by then."""
    execute(database, TABLE)
    settings = config(database, "t", "u")
    with opened(settings) as source, capturing(source, tmp_path, log=tmp_path / "first") as running:
        for statements in (
            ["INSERT INTO t VALUES (1, 'a')"],
            ["ALTER TABLE t RENAME COLUMN v TO w", "INSERT INTO t VALUES (2, 'b')"],
            ["ALTER TABLE t ALTER COLUMN w SET NOT NULL", "INSERT INTO t VALUES (3, 'c')"],
            ["ALTER TABLE t ADD COLUMN n int", "INSERT INTO t VALUES (4, 'd', 4)", "ALTER TABLE t DROP COLUMN n",
             "INSERT INTO t VALUES (5, 'e')"],
            ["ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (6, 'f')"],
        ):  # fmt: skip
            with psycopg.connect(database) as db:
                for statement in statements:
                    db.execute(statement.encode())
            rows = caught_up(database, running)
    assert sum(row["op"] == DDL for row in rows) == 5
    with opened(settings) as source, capturing(source, tmp_path, log=tmp_path / "second") as running:
        again = caught_up(database, running)
    assert identities(again) == identities(rows)
    assert [row["table"] for row in again] == [row["table"] for row in rows]


def test_a_transaction_that_the_server_sends_before_others_see_it_is_described_once_they_do(
    private_postgres: Postgres, tmp_path: Path
) -> None:
    """With synchronous replication it is not seen until a standby has it."""
    with private_postgres.database("unseen") as database:
        settings = config(database, "t")
        execute(database, "CREATE TABLE t (id int PRIMARY KEY, v text)")

        def wait_for_standby(names: str) -> None:
            execute(database, f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", "SELECT pg_reload_conf()")
            eventually(lambda: query(database, "SHOW synchronous_standby_names") == [(names,)])
            execute(database, "CHECKPOINT")  # by the process that has commits wait or not

        with opened(settings) as source, capturing(source, tmp_path) as running:
            execute(database, "INSERT INTO t VALUES (1, 'a')")
            caught_up(database, running)
            wait_for_standby("nobody")
            statements = "RENAME v TO w; ALTER TABLE t ADD n int DEFAULT 7; INSERT INTO t VALUES (2, 'b', 2)"
            unseen = f"SET synchronous_commit = on; ALTER TABLE t {statements}"
            writer = threading.Thread(target=execute, args=(database, unseen))
            writer.start()
            eventually(lambda: query(database, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
            writer.join(1)  # it is sent meanwhile
            wait_for_standby("")
            writer.join()
            rows = caught_up(database, running)
        execute(database, f"SELECT pg_drop_replication_slot('{settings.slot_name}')")
    (changes,) = [orjson.loads(row["ddl"])["changes"] for row in rows if row["op"] == DDL]
    assert {(each["change"], each["column"], each.get("from")) for each in changes} == {
        ("rename", "w", "v"), ("add", "n", None),
    }  # fmt: skip


def test_with_capture_off_nothing_is_told(database: str, tmp_path: Path) -> None:
    execute(database, TABLE)
    settings = config(database, "t", ddl={"capture": "off"})
    with opened(settings) as source, capturing(source, tmp_path) as running:
        execute(
            database,
            "INSERT INTO t VALUES (1, 'a')",
            "ALTER TABLE t ADD COLUMN n int",
            "INSERT INTO t VALUES (2, 'b', 2)",
        )
        assert [row["op"] for row in caught_up(database, running)] == [1, 1]


def test_a_lock_on_a_partitioned_table_holds_up_neither_a_start_nor_rows_nor_a_scan(
    database: str, tmp_path: Path
) -> None:
    """pg_partition_tree would wait for it, and rows of all tables with it."""
    execute(
        database, TABLE, "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    )  # fmt: skip
    settings = config(database, "t", "p")
    with opened(settings) as source:
        source.setup()
    with psycopg.connect(database) as locker:
        execute(database, "INSERT INTO p VALUES (1)", "INSERT INTO t VALUES (1, 'a')")
        locker.execute("LOCK TABLE p IN ACCESS EXCLUSIVE MODE")
        with opened(settings) as source, capturing(source, tmp_path) as running:
            assert shown(caught_up(database, running)) == [{"id": 1}, {"id": 1, "v": "a"}]
            assert sorted(source.snapshot_reader().scan_catalog(30).tables) == ["public.p", "public.t"]
