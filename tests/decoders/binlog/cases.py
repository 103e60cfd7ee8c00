"""SQL, and the events it must become. `record.py` lets servers turn the SQL into bytes, kept in `golden/`.

The expected events are written here by hand from the SQL, never taken from the decoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.support.decoded import Row

BOTH = ("mysql", "mariadb")


@dataclass(frozen=True)
class Case:
    """A statement that begins with `[b] ` runs in a second session. `setup` runs before the recording, `undo` after it.

    `known` has columns (name, type, charset) of tables that the binlog does not describe. `ddls` are the statements, by
    their beginning, that concern a captured table, and whether they empty it. `filled` are
    defaults of a table's columns (`defaults`). `begun`: what the decoder starts from.
    """

    name: str
    setup: Sequence[str]
    sql: Sequence[str]
    expected: Sequence[Row]
    servers: Sequence[str] = BOTH
    known: Mapping[str, Sequence[tuple[str, str, str]]] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ddls: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    filled: Mapping[str, Sequence[str]] = field(default_factory=dict)
    undo: Sequence[str] = ()
    barrier: bool = False
    annotate: bool = False
    by_gtid: bool = True


def insert(tx: int, table: str, after: Row, **more: Any) -> Row:
    return {"tx": tx, "op": "insert", "table": f"golden.{table}", "after": after, **more}


def update(tx: int, table: str, after: Row, **more: Any) -> Row:
    return {"tx": tx, "op": "update", "table": f"golden.{table}", "after": after, **more}


def delete(tx: int, table: str, **image: Any) -> Row:
    return {"tx": tx, "op": "delete", "table": f"golden.{table}", **image}


def ddl(tx: int, table: str, text: str) -> Row:
    return {"tx": tx, "op": "ddl", "table": f"golden.{table}", "ddl": f'{{"text": "{text}"}}'}


T = "CREATE TABLE t (id int PRIMARY KEY, v varchar(20))"
HAVE_ONE = "INSERT INTO t VALUES (1, 'a')"
MINIMAL = "SET SESSION binlog_row_image = MINIMAL"
NOBLOB = "SET SESSION binlog_row_image = NOBLOB"


def t(id_: int, v: str | None = None) -> Row:
    return {"id": id_, "v": v}


MANY = 700
_MANY_ROWS = "INSERT INTO t VALUES " + ",".join(f"({i}, 'row {i}')" for i in range(1, MANY + 1))
_LONG = '"a rather long text that makes a diff worth it, longer and longer"'
_CELLS = (f"[{_LONG}, 1, 2]", f"[{_LONG}, 1, 2, 1.5]", f'["first", {_LONG}, 1, 2, 1.5]',
          f'["first", {_LONG}, 1, 2, "last"]', f'["first", {_LONG}, 1, "last"]')  # fmt: skip

CASES: tuple[Case, ...] = (
    Case(
        "insert_update_delete",
        [T],
        ["INSERT INTO t VALUES (1, 'a'), (2, NULL)", "UPDATE t SET v = 'b' WHERE id = 2", "DELETE FROM t WHERE id = 1"],
        [
            insert(0, "t", t(1, "a")),
            insert(0, "t", t(2)),
            update(1, "t", t(2, "b"), before=t(2)),
            delete(2, "t", before=t(1, "a")),
        ],
    ),
    Case(
        "one_transaction",
        [T, "CREATE TABLE u (id int PRIMARY KEY, n int unsigned)"],
        [
            "BEGIN",
            HAVE_ONE,
            "INSERT INTO u VALUES (5, 4000000000)",
            "SAVEPOINT s",
            "INSERT INTO u VALUES (6, 1)",
            "ROLLBACK TO s",
            "UPDATE t SET v = 'b'",
            "COMMIT",
            "BEGIN",
            "DELETE FROM t",
            "ROLLBACK",
        ],
        [
            insert(0, "t", t(1, "a")),
            insert(0, "u", {"id": 5, "n": 4_000_000_000}),
            update(0, "t", t(1, "b"), before=t(1, "a")),
        ],
    ),
    Case(
        "update_that_changes_the_key",
        [T, HAVE_ONE],
        ["UPDATE t SET id = 2, v = 'b'", "UPDATE t SET v = 'c'"],
        [delete(0, "t", before=t(1, "a")), insert(0, "t", t(2, "b")), update(1, "t", t(2, "c"), before=t(2, "b"))],
    ),
    Case(
        "composite_key",
        [
            "CREATE TABLE k (v varchar(9), a int, b varchar(9), PRIMARY KEY (b, a))",
            "INSERT INTO k VALUES ('x', 1, 'one'), ('y', 2, 'two')",
        ],
        ["UPDATE k SET v = 'z' WHERE a = 1", "UPDATE k SET b = 'uno' WHERE a = 1", "DELETE FROM k WHERE a = 2"],
        [
            update(0, "k", {"v": "z", "a": 1, "b": "one"}, before={"v": "x", "a": 1, "b": "one"}),
            delete(1, "k", before={"v": "z", "a": 1, "b": "one"}),
            insert(1, "k", {"v": "z", "a": 1, "b": "uno"}),
            delete(2, "k", before={"v": "y", "a": 2, "b": "two"}),
        ],
    ),
    Case(
        "table_without_a_key",
        ["CREATE TABLE n (id int, v varchar(20))", "INSERT INTO n VALUES (1, 'a')"],
        ["UPDATE n SET id = 2", "DELETE FROM n"],
        [update(0, "n", t(2, "a"), before=t(1, "a")), delete(1, "n", before=t(2, "a"))],
    ),
    Case(
        "minimal_images",
        ["CREATE TABLE m (id int PRIMARY KEY, v varchar(20), n int DEFAULT 7)", MINIMAL],
        [
            MINIMAL,
            "INSERT INTO m (id, v) VALUES (1, 'a')",
            "UPDATE m SET v = NULL",
            "UPDATE m SET n = 8, v = 'c'",
            "DELETE FROM m",
        ],
        [
            insert(0, "m", {"id": 1, "v": "a", "n": 7}),
            update(1, "m", {"id": 1, "v": None, "n": None}, key={"id": 1}, unchanged=["n"]),
            update(2, "m", {"id": 1, "v": "c", "n": 8}, key={"id": 1}),
            delete(3, "m", key={"id": 1}),
        ],
        filled={"golden.m": ["", "", "7"]},
    ),
    Case(
        "minimal_image_that_changes_the_key",
        [T, HAVE_ONE],
        [MINIMAL, "UPDATE t SET id = 2", "UPDATE t SET id = 3, v = 'b'"],
        [
            update(0, "t", t(2), key={"id": 1}, unchanged=["v"]),
            delete(1, "t", key={"id": 2}),
            insert(1, "t", t(3, "b")),
        ],
        barrier=True,
    ),
    Case(
        # Without a primary key the old image has the columns of a unique index that allows no NULL. Full metadata
        # calls such an index the key.
        "minimal_images_by_a_unique_index",
        [
            "CREATE TABLE q (v varchar(20), id int NOT NULL, UNIQUE KEY (id))",
            "INSERT INTO q VALUES ('a', 1)",
            "SET GLOBAL binlog_row_metadata = 'MINIMAL'",
        ],
        [MINIMAL, "UPDATE q SET v = 'b'", "DELETE FROM q"],
        [update(0, "q", {"v": "b", "id": 1}, before={"id": 1}), delete(1, "q", before={"id": 1})],
        known={"golden.q": [("v", "varchar(20)", "utf8mb4"), ("id", "int", "")]},
        undo=["SET GLOBAL binlog_row_metadata = 'FULL'"],
    ),
    Case(
        "image_without_blobs",
        ["CREATE TABLE b (id int PRIMARY KEY, v text, n int)", "INSERT INTO b VALUES (1, 'large', 1)"],
        [NOBLOB, "UPDATE b SET n = 2", "UPDATE b SET v = 'larger'", "DELETE FROM b"],
        [
            update(0, "b", {"id": 1, "v": None, "n": 2}, key={"id": 1}, unchanged=["v"]),
            update(1, "b", {"id": 1, "v": "larger", "n": 2}, key={"id": 1}),
            delete(2, "b", key={"id": 1}),
        ],
    ),
    Case(
        "no_row_metadata",
        [
            "CREATE TABLE w (id bigint unsigned PRIMARY KEY, v varchar(20) CHARACTER SET latin1, e enum('x','y'))",
            "SET GLOBAL binlog_row_metadata = 'MINIMAL'",
        ],
        ["INSERT INTO w VALUES (18446744073709551615, 'é', 'y')"],
        [insert(0, "w", {"id": 2**64 - 1, "v": "é", "e": "y"})],
        known={
            "golden.w": [
                ("id", "bigint(20) unsigned", ""),
                ("v", "varchar(20)", "latin1"),
                ("e", "enum('x','y')", "utf8mb4"),
            ]
        },
        keys={"golden.w": ["id"]},
        undo=["SET GLOBAL binlog_row_metadata = 'FULL'"],
    ),
    Case(
        "mariadb_without_any_metadata",
        [
            "CREATE TABLE w (id int unsigned PRIMARY KEY, v text CHARACTER SET gbk)",
            "SET GLOBAL binlog_row_metadata = 'NO_LOG'",
        ],
        ["INSERT INTO w VALUES (4000000000, '你好')"],
        [insert(0, "w", {"id": 4_000_000_000, "v": "你好"})],
        servers=["mariadb"],
        known={"golden.w": [("id", "int(10) unsigned", ""), ("v", "text", "gbk")]},
        keys={"golden.w": ["id"]},
        undo=["SET GLOBAL binlog_row_metadata = 'FULL'"],
    ),
    Case(
        "compressed_transactions",
        [T, "CREATE TABLE u (id int PRIMARY KEY, v varchar(20))"],
        [
            "SET SESSION binlog_transaction_compression = ON",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
            "UPDATE t SET v = 'c'",
            "SET SESSION binlog_transaction_compression = OFF",
            "DELETE FROM t WHERE id = 1",
            "SET SESSION binlog_transaction_compression = ON",
            "BEGIN",
            "INSERT INTO u VALUES (1, 'u')",
            "DELETE FROM t",
            "COMMIT",
        ],
        [
            insert(0, "t", t(1, "a")),
            insert(0, "t", t(2, "b")),
            update(1, "t", t(1, "c"), before=t(1, "a")),
            update(1, "t", t(2, "c"), before=t(2, "b")),
            delete(2, "t", before=t(1, "c")),
            insert(3, "u", t(1, "u")),
            delete(3, "t", before=t(2, "c")),
        ],
        servers=["mysql"],
    ),
    Case(
        "compressed_row_events",
        [
            "CREATE TABLE t (id int PRIMARY KEY, v varchar(400))",
            "SET GLOBAL log_bin_compress = ON",
            "SET GLOBAL log_bin_compress_min_len = 10",
        ],
        [
            "INSERT INTO t VALUES (1, REPEAT('x', 300)), (2, REPEAT('y', 300))",
            "UPDATE t SET v = REPEAT('z', 300) WHERE id = 2",
            "CREATE TABLE later (id int PRIMARY KEY COMMENT 'a comment that is long enough to be worth compressing, "
            "compressing, compressing')",
            "DELETE FROM t",
        ],
        [
            insert(0, "t", t(1, "x" * 300)),
            insert(0, "t", t(2, "y" * 300)),
            update(1, "t", t(2, "z" * 300), before=t(2, "y" * 300)),
            ddl(2, "later", "CREATE TABLE later"),
            delete(3, "t", before=t(1, "x" * 300)),
            delete(3, "t", before=t(2, "z" * 300)),
        ],
        servers=["mariadb"],
        ddls={"CREATE TABLE later": ("later", False)},
        barrier=True,
        undo=["SET GLOBAL log_bin_compress = OFF"],
    ),
    Case(
        # In the lists of character columns a VECTOR is one, of binary strings.
        "vector_before_texts",
        [
            "CREATE TABLE v (id int PRIMARY KEY, v vector(3), c text CHARACTER SET latin1, d text CHARACTER SET cp1251,"
            " w vector, e varchar(9) CHARACTER SET utf8mb4)"
        ],
        ["INSERT INTO v VALUES (1, TO_VECTOR('[1, -2.5, 1e10]'), 'é', 'Пр', NULL, '日本')"],
        [insert(0, "v", {"id": 1, "v": [1.0, -2.5, 1e10], "c": "é", "d": "Пр", "w": None, "e": "日本"})],
        servers=["mysql"],
    ),
    Case(
        "partial_json",
        [
            "CREATE TABLE j (id int PRIMARY KEY, doc json, other json)",
            """INSERT INTO j VALUES
            (1, '{"a": [1, 2, {"b": "a rather long text that makes a diff worth it"}], "c": null}', '[1]'),
            (2, '{"a": 1, "long": "another rather long text, long enough for a diff"}', NULL)""",
        ],
        [
            "SET SESSION binlog_row_value_options = PARTIAL_JSON",
            "UPDATE j SET doc = JSON_SET(doc, '$.a[1]', 2.5, '$.a[2].\"x y\"', 'new') WHERE id = 1",
            "UPDATE j SET doc = JSON_REMOVE(doc, '$.c'), other = JSON_ARRAY_APPEND(other, '$', 7) WHERE id = 1",
            "UPDATE j SET doc = JSON_REPLACE(doc, '$.a', 'longer than before') WHERE id = 2",
        ],
        [
            update(
                0,
                "j",
                {
                    "id": 1,
                    "doc": '{"a": [1, 2.5, {"b": "a rather long text that makes a diff worth it", "x y": "new"}], '
                    '"c": null}',
                    "other": "[1]",
                },
                before={
                    "id": 1,
                    "doc": '{"a": [1, 2, {"b": "a rather long text that makes a diff worth it"}], "c": null}',
                    "other": "[1]",
                },
            ),
            update(
                1,
                "j",
                {
                    "id": 1,
                    "doc": '{"a": [1, 2.5, {"b": "a rather long text that makes a diff worth it", "x y": "new"}]}',
                    "other": "[1, 7]",
                },
                before={
                    "id": 1,
                    "doc": '{"a": [1, 2.5, {"b": "a rather long text that makes a diff worth it", "x y": "new"}], '
                    '"c": null}',
                    "other": "[1]",
                },
            ),
            update(
                2,
                "j",
                {
                    "id": 2,
                    "doc": '{"a": "longer than before", "long": "another rather long text, long enough for a diff"}',
                    "other": None,
                },
                before={
                    "id": 2,
                    "doc": '{"a": 1, "long": "another rather long text, long enough for a diff"}',
                    "other": None,
                },
            ),
        ],
        servers=["mysql"],
    ),
    Case(
        # The server writes the path as the statement has it: behind the end, or counted from there.
        "partial_json_by_cells_that_are_not_there",
        [
            "CREATE TABLE j (id int PRIMARY KEY, doc json)",
            f"INSERT INTO j VALUES (1, '{_CELLS[0]}')",
        ],
        [
            "SET SESSION binlog_row_value_options = PARTIAL_JSON",
            "UPDATE j SET doc = JSON_SET(doc, '$[9]', 1.5)",
            "UPDATE j SET doc = JSON_SET(doc, '$[last-9]', 'first')",
            "UPDATE j SET doc = JSON_REPLACE(doc, '$[last]', 'last')",
            "UPDATE j SET doc = JSON_REMOVE(doc, '$[last-1]')",
        ],
        [
            update(i, "j", {"id": 1, "doc": after}, before={"id": 1, "doc": before})
            for i, (before, after) in enumerate(pairwise(_CELLS))
        ],
        servers=["mysql"],
    ),
    Case(
        "partial_json_without_the_old_value",
        [
            "CREATE TABLE j (id int PRIMARY KEY, doc json)",
            "INSERT INTO j VALUES "
            """(1, '{"a": 1, "long": "a rather long text that makes a diff worth it, longer and longer"}')""",
        ],
        [
            MINIMAL,
            "SET SESSION binlog_row_value_options = PARTIAL_JSON",
            "UPDATE j SET doc = JSON_SET(doc, '$.a', 2)",
            "UPDATE j SET doc = JSON_REMOVE(doc, '$.a')",
        ],
        [
            update(
                0,
                "j",
                {"id": 1, "doc": None},
                key={"id": 1},
                odd={"after.doc": '[{"op": "replace", "path": "$.a", "value": 2}]'},
            ),
            update(
                1, "j", {"id": 1, "doc": None}, key={"id": 1}, odd={"after.doc": '[{"op": "remove", "path": "$.a"}]'}
            ),
        ],
        servers=["mysql"],
    ),
    Case(
        "statements_beside_rows",
        [T],
        ["SET SESSION binlog_rows_query_log_events = ON", HAVE_ONE, "DELETE FROM t"],
        [insert(0, "t", t(1, "a")), delete(1, "t", before=t(1, "a"))],
        servers=["mysql"],
    ),
    Case(
        "annotated_rows",
        [T],
        ["SET SESSION binlog_annotate_row_events = ON", HAVE_ONE, "DELETE FROM t"],
        [insert(0, "t", t(1, "a")), delete(1, "t", before=t(1, "a"))],
        servers=["mariadb"],
        annotate=True,
    ),
    Case(
        "tagged_gtids",
        [T],
        [
            "SET gtid_next = 'AUTOMATIC:nightly'",
            HAVE_ONE,
            "SET gtid_next = 'AUTOMATIC'",
            "UPDATE t SET v = 'b'",
            "SET gtid_next = '9e2f1a3c-8000-11ee-a506-0242ac120002:tag_2:77'",
            "DELETE FROM t",
            "SET gtid_next = 'AUTOMATIC'",
        ],
        [insert(0, "t", t(1, "a")), update(1, "t", t(1, "b"), before=t(1, "a")), delete(2, "t", before=t(1, "b"))],
        servers=["mysql"],
    ),
    Case(
        "gtids_of_other_servers",
        [T],
        [
            "SET gtid_next = '9e2f1a3c-8000-11ee-a506-0242ac120002:9'",
            HAVE_ONE,
            "SET gtid_next = 'AUTOMATIC'",
            "UPDATE t SET v = 'b'",
        ],
        [insert(0, "t", t(1, "a")), update(1, "t", t(1, "b"), before=t(1, "a"))],
        servers=["mysql"],
    ),
    Case(
        "gtid_domains",
        [T],
        [
            "SET SESSION gtid_domain_id = 7",
            HAVE_ONE,
            "SET SESSION server_id = 12",
            "UPDATE t SET v = 'b'",
            "SET SESSION gtid_domain_id = 0",
            "DELETE FROM t",
        ],
        [insert(0, "t", t(1, "a")), update(1, "t", t(1, "b"), before=t(1, "a")), delete(2, "t", before=t(1, "b"))],
        servers=["mariadb"],
    ),
    Case(
        "without_gtids",
        [
            T,
            "SET GLOBAL gtid_mode = ON_PERMISSIVE",
            "SET GLOBAL gtid_mode = OFF_PERMISSIVE",
            "SET GLOBAL gtid_mode = OFF",
        ],
        [HAVE_ONE, "UPDATE t SET v = 'b'", "TRUNCATE TABLE t"],
        [
            insert(0, "t", t(1, "a")),
            update(1, "t", t(1, "b"), before=t(1, "a")),
            {"tx": 2, "op": "truncate", "table": "golden.t"},
        ],
        servers=["mysql"],
        by_gtid=False,
        ddls={"TRUNCATE TABLE t": ("t", True)},
        barrier=True,
        undo=[
            "SET GLOBAL gtid_mode = OFF_PERMISSIVE",
            "SET GLOBAL gtid_mode = ON_PERMISSIVE",
            "SET GLOBAL gtid_mode = ON",
        ],
    ),
    Case(
        "two_phases",
        [T, "CREATE TABLE u (id int PRIMARY KEY)"],
        [
            "XA START 'one', 'b', 3",
            HAVE_ONE,
            "XA END 'one', 'b', 3",
            "XA PREPARE 'one', 'b', 3",
            "[b] INSERT INTO u VALUES (1)",
            "XA COMMIT 'one', 'b', 3",
            "XA START 'two'",
            "INSERT INTO t VALUES (2, 'never')",
            "XA END 'two'",
            "XA PREPARE 'two'",
            "[b] INSERT INTO u VALUES (2)",
            "XA ROLLBACK 'two'",
            "XA START 'three'",
            "INSERT INTO t VALUES (3, 'c')",
            "XA END 'three'",
            "XA COMMIT 'three' ONE PHASE",
        ],
        [insert(0, "u", {"id": 1}), insert(1, "t", t(1, "a")), insert(2, "u", {"id": 2}), insert(3, "t", t(3, "c"))],
    ),
    Case(
        "engine_without_transactions",
        ["CREATE TABLE i (id int PRIMARY KEY, v varchar(20)) ENGINE = MyISAM"],
        ["BEGIN", "INSERT INTO i VALUES (1, 'kept')", "ROLLBACK", "DELETE FROM i"],
        [insert(0, "i", t(1, "kept")), delete(1, "i", before=t(1, "kept"))],
    ),
    Case(
        "rotation",
        [T],
        [HAVE_ONE, "FLUSH LOGS", "UPDATE t SET v = 'b'", "FLUSH LOGS", "FLUSH LOGS", "DELETE FROM t"],
        [insert(0, "t", t(1, "a")), update(1, "t", t(1, "b"), before=t(1, "a")), delete(2, "t", before=t(1, "b"))],
    ),
    Case(
        "ddl_between_changes",
        [T],
        [
            HAVE_ONE,
            "ALTER TABLE t ADD n int",
            "INSERT INTO t VALUES (2, 'b', 3)",
            "CREATE USER x IDENTIFIED BY 'secret'",
            "ALTER TABLE t DROP v, RENAME COLUMN n TO m",
            "UPDATE t SET m = 4 WHERE id = 1",
            "TRUNCATE TABLE t",
            "INSERT INTO t VALUES (3, 5)",
            "DROP USER x",
        ],
        [
            insert(0, "t", t(1, "a")),
            ddl(1, "t", "ALTER TABLE t ADD"),
            insert(2, "t", {"id": 2, "v": "b", "n": 3}),
            ddl(3, "t", "ALTER TABLE t DROP"),
            update(4, "t", {"id": 1, "m": 4}, before={"id": 1, "m": None}),
            {"tx": 5, "op": "truncate", "table": "golden.t"},
            insert(6, "t", {"id": 3, "m": 5}),
        ],
        ddls={"ALTER TABLE t ADD": ("t", False), "ALTER TABLE t DROP": ("t", False), "TRUNCATE TABLE t": ("t", True)},
        barrier=True,
    ),
    Case(
        "create_table_select",
        [T, "INSERT INTO t VALUES (1, 'a'), (2, 'b')"],
        ["CREATE TABLE s (PRIMARY KEY (id)) SELECT * FROM t", "DELETE FROM t WHERE id = 1"],
        [
            ddl(0, "s", "CREATE TABLE `s`"),
            insert(0, "s", t(1, "a")),
            insert(0, "s", t(2, "b")),
            delete(1, "t", before=t(1, "a")),
        ],
        ddls={"CREATE TABLE `s`": ("s", False)},
        barrier=True,
    ),
    Case(
        "temporary_tables",
        [T],
        [
            "CREATE TEMPORARY TABLE tmp (id int)",
            "BEGIN",
            HAVE_ONE,
            "INSERT INTO tmp VALUES (1)",
            "COMMIT",
            "DROP TEMPORARY TABLE tmp",
            "DELETE FROM t",
        ],
        [insert(0, "t", t(1, "a")), delete(1, "t", before=t(1, "a"))],
    ),
    Case(
        "no_checksums",
        [T, "SET GLOBAL binlog_checksum = NONE"],
        [HAVE_ONE, "DELETE FROM t"],
        [insert(0, "t", t(1, "a")), delete(1, "t", before=t(1, "a"))],
        undo=["SET GLOBAL binlog_checksum = CRC32"],
    ),
    Case(
        "checksums_that_begin_in_the_middle",
        [T, "SET GLOBAL binlog_checksum = NONE"],
        [
            HAVE_ONE,
            "SET GLOBAL binlog_checksum = CRC32",
            "UPDATE t SET v = 'b'",
            "SET GLOBAL binlog_checksum = NONE",
            "DELETE FROM t",
        ],
        [insert(0, "t", t(1, "a")), update(1, "t", t(1, "b"), before=t(1, "a")), delete(2, "t", before=t(1, "b"))],
        undo=["SET GLOBAL binlog_checksum = CRC32"],
    ),
    Case(
        "tables_that_are_not_captured",
        [T, "CREATE DATABASE IF NOT EXISTS elsewhere", "CREATE TABLE elsewhere.x (id int PRIMARY KEY)"],
        [
            "INSERT INTO elsewhere.x VALUES (1)",
            "BEGIN",
            "INSERT INTO elsewhere.x VALUES (2)",
            HAVE_ONE,
            "DELETE FROM elsewhere.x",
            "COMMIT",
            "INSERT INTO elsewhere.x VALUES (3)",
        ],
        [insert(0, "t", t(1, "a"))],
        undo=["DROP DATABASE elsewhere"],
    ),
    Case(
        "several_tables_at_once",
        [
            T,
            "CREATE TABLE log (n int AUTO_INCREMENT PRIMARY KEY, what varchar(20))",
            "CREATE TRIGGER after_t AFTER INSERT ON t FOR EACH ROW "
            "INSERT INTO log (what) VALUES (CONCAT('saw ', NEW.v))",
        ],
        ["INSERT INTO t VALUES (1, 'a'), (2, 'b')", "DELETE t, log FROM t JOIN log ON t.id = log.n WHERE t.id = 2"],
        [
            insert(0, "t", t(1, "a")),
            insert(0, "log", {"n": 1, "what": "saw a"}),
            insert(0, "t", t(2, "b")),
            insert(0, "log", {"n": 2, "what": "saw b"}),
            delete(1, "t", before=t(2, "b")),
            delete(1, "log", before={"n": 2, "what": "saw b"}),
        ],
    ),
    Case(
        "generated_and_invisible_columns",
        [
            "CREATE TABLE g (id int PRIMARY KEY, n int, twice int AS (n * 2) STORED, thrice int AS (n * 3) VIRTUAL, "
            "h int INVISIBLE)"
        ],
        ["INSERT INTO g (id, n, h) VALUES (1, 21, 5)"],
        [insert(0, "g", {"id": 1, "n": 21, "twice": 42, "thrice": 63, "h": 5})],
    ),
    Case(
        "names_and_statements_in_other_alphabets",
        ["CREATE TABLE `Größe ✓` (`Ключ` int PRIMARY KEY, `a b` varchar(9))"],
        [
            "INSERT INTO `Größe ✓` VALUES (1, 'é')",
            "SET NAMES latin1",
            "CREATE TABLE `é` (id int)",
            "SET NAMES utf8mb4",
            "DELETE FROM `Größe ✓`",
        ],
        [
            insert(0, "Größe ✓", {"Ключ": 1, "a b": "é"}),
            ddl(1, "é", "CREATE TABLE `é`"),
            delete(2, "Größe ✓", before={"Ключ": 1, "a b": "é"}),
        ],
        ddls={"CREATE TABLE `é`": ("é", False)},
        barrier=True,
    ),
    Case(
        "zero_dates",
        ["CREATE TABLE z (id int PRIMARY KEY, d date, dt datetime(2), ts timestamp(3) NULL)"],
        [
            "INSERT INTO z VALUES (1, '0000-00-00', '2024-00-00 10:00:00.25', '0000-00-00'), (2, '2024-02-29', "
            "'2024-02-29 01:02:03.45', '2024-02-29 01:02:03.456')"
        ],
        [
            insert(
                0,
                "z",
                {"id": 1, "d": None, "dt": None, "ts": None},
                odd={
                    "after.d": "0000-00-00",
                    "after.dt": "2024-00-00 10:00:00.25",
                    "after.ts": "0000-00-00 00:00:00.000",
                },
            ),
            insert(
                0,
                "z",
                {
                    "id": 2,
                    "d": "2024-02-29",
                    "dt": "2024-02-29T01:02:03.450000",
                    "ts": "2024-02-29T01:02:03.456000+00:00",
                },
            ),
        ],
    ),
    Case(
        "many_rows",
        [T],
        ["BEGIN", _MANY_ROWS, "UPDATE t SET v = 'x' WHERE id % 100 = 0", "COMMIT", "DELETE FROM t WHERE id < 4"],
        [
            *(insert(0, "t", t(i, f"row {i}")) for i in range(1, MANY + 1)),
            *(update(0, "t", t(i, "x"), before=t(i, f"row {i}")) for i in range(100, MANY + 1, 100)),
            *(delete(1, "t", before=t(i, f"row {i}")) for i in range(1, 4)),
        ],
    ),
    Case(
        "many_rows_compressed",
        [T],
        ["SET SESSION binlog_transaction_compression = ON", _MANY_ROWS, "DELETE FROM t WHERE id < 4"],
        [
            *(insert(0, "t", t(i, f"row {i}")) for i in range(1, MANY + 1)),
            *(delete(1, "t", before=t(i, f"row {i}")) for i in range(1, 4)),
        ],
        servers=["mysql"],
    ),
    Case(
        "old_temporal_formats",
        [
            "SET GLOBAL mysql56_temporal_format = OFF",
            "CREATE TABLE o (id int PRIMARY KEY, d datetime, ts timestamp NULL, t time)",
            "SET GLOBAL mysql56_temporal_format = ON",
            "SET time_zone = '+00:00'",
        ],
        [
            "INSERT INTO o VALUES (1, '2024-02-29 23:59:58', '2024-02-29 01:02:03', '-12:34:56'), "
            "(2, '0000-00-00', '0000-00-00', '838:59:59'), (3, NULL, NULL, NULL)"
        ],
        [
            insert(0, "o", {"id": 1, "d": "2024-02-29T23:59:58", "ts": "2024-02-29T01:02:03+00:00", "t": "-12:34:56"}),
            insert(
                0,
                "o",
                {"id": 2, "d": None, "ts": None, "t": "838:59:59"},
                odd={"after.d": "0000-00-00 00:00:00", "after.ts": "0000-00-00 00:00:00"},
            ),
            insert(0, "o", {"id": 3, "d": None, "ts": None, "t": None}),
        ],
        servers=["mariadb"],
    ),
    Case(
        # The binlog has no word of the digits: the catalog has.
        "old_temporal_formats_with_fractions",
        [
            "SET GLOBAL mysql56_temporal_format = OFF",
            "CREATE TABLE f (id int PRIMARY KEY, d datetime(6), e datetime(1), ts timestamp(3) NULL, t time(2),"
            " v text)",
            "SET GLOBAL mysql56_temporal_format = ON",
        ],
        [
            "INSERT INTO f VALUES (1, '2024-02-29 23:59:58.123456', '0001-01-01 00:00:00.9', '2024-02-29 01:02:03.456',"
            " '-12:34:56.78', 'a'), (2, '0000-00-00', '2024-02-00 00:00:00.5', '0000-00-00', '-00:00:00.01', 'b'),"
            " (3, NULL, NULL, NULL, '838:59:59.99', 'c')"
        ],
        [
            insert(
                0,
                "f",
                {
                    "id": 1,
                    "d": "2024-02-29T23:59:58.123456",
                    "e": "0001-01-01T00:00:00.900000",
                    "ts": "2024-02-29T01:02:03.456000+00:00",
                    "t": "-12:34:56.78",
                    "v": "a",
                },
            ),
            insert(
                0,
                "f",
                {"id": 2, "d": None, "e": None, "ts": None, "t": "-00:00:00.01", "v": "b"},
                odd={
                    "after.d": "0000-00-00 00:00:00.000000",
                    "after.e": "2024-02-00 00:00:00.5",
                    "after.ts": "0000-00-00 00:00:00.000",
                },
            ),
            insert(0, "f", {"id": 3, "d": None, "e": None, "ts": None, "t": "838:59:59.99", "v": "c"}),
        ],
        servers=["mariadb"],
        known={
            "golden.f": [
                ("id", "int(11)", ""),
                ("d", "datetime(6)", ""),
                ("e", "datetime(1)", ""),
                ("ts", "timestamp(3)", ""),
                ("t", "time(2)", ""),
                ("v", "text", "utf8mb4"),
            ]
        },
        keys={"golden.f": ["id"]},
    ),
)
