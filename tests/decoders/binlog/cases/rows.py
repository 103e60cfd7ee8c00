"""Rows and their images: what an INSERT, an UPDATE and a DELETE bring, whole, minimal, compressed or many."""

from __future__ import annotations

from tests.decoders.binlog.cases.case import HAVE_ONE, MINIMAL, NOBLOB, Case, T, ddl, delete, insert, t, update

MANY = 700
_MANY_ROWS = "INSERT INTO t VALUES " + ",".join(f"({i}, 'row {i}')" for i in range(1, MANY + 1))

ROWS: tuple[Case, ...] = (
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
        "generated_and_invisible_columns",
        [
            "CREATE TABLE g (id int PRIMARY KEY, n int, twice int AS (n * 2) STORED, thrice int AS (n * 3) VIRTUAL, "
            "h int INVISIBLE)"
        ],
        ["INSERT INTO g (id, n, h) VALUES (1, 21, 5)"],
        [insert(0, "g", {"id": 1, "n": 21, "twice": 42, "thrice": 63, "h": 5})],
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
)
