"""SQL, and the events it must become. `record.py` lets real servers turn the SQL into bytes, kept in `golden/`.

The expected events are written here by hand from the SQL, never taken from the decoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.decoded import Row

#: (server, protocol, streaming)
PLAIN = ((15, 1, "off"), (18, 4, "off"))
STREAMED = ((15, 2, "on"), (18, 4, "on"))
ABORTED = (*STREAMED, (18, 4, "parallel"))  # "parallel" adds to what an abort says
EVERY_PROTOCOL = tuple(
    (server, protocol, "off") for server, last in ((15, 3), (18, 4)) for protocol in range(1, last + 1)
)

LONG = "x" * 3000
LARGE = "repeat('x', 3000)"
MANY = 600  # rows that do not fit into logical_decoding_work_mem = 64kB


@dataclass(frozen=True)
class Case:
    """A statement that begins with `[b] ` runs in a second session, with `[fails] ` it must be refused; at `[wait]`
    the server sends what it can, pieces of open transactions too.

    `setup` runs before the slot exists. `keys` are keys of tables with REPLICA IDENTITY FULL, which the stream
    does not tell.
    """

    name: str
    setup: Sequence[str]
    sql: Sequence[str]
    expected: Sequence[Row]
    streams: Sequence[tuple[int, int, str]] = PLAIN
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    publication: str = ""
    barrier: bool = False


def insert(tx: int, table: str, after: Row, **more: Any) -> Row:
    return {"tx": tx, "op": "insert", "table": f"public.{table}", "after": after, **more}


def update(tx: int, table: str, after: Row, **more: Any) -> Row:
    return {"tx": tx, "op": "update", "table": f"public.{table}", "after": after, **more}


def delete(tx: int, table: str, **image: Any) -> Row:
    return {"tx": tx, "op": "delete", "table": f"public.{table}", **image}


def truncate(tx: int, table: str) -> Row:
    return {"tx": tx, "op": "truncate", "table": f"public.{table}"}


def message(tx: int, prefix: str, base64: str) -> Row:
    return {"tx": tx, "op": "message", "table": "message", "after": {"prefix": prefix, "content": base64}}


T = "CREATE TABLE t (id int PRIMARY KEY, v text)"
FULL = "ALTER TABLE t REPLICA IDENTITY FULL"
EXTERNAL = "ALTER TABLE t ALTER v SET STORAGE EXTERNAL"
HAVE_ONE = "INSERT INTO t VALUES (1, 'a')"


def t(id_: int, v: str | None = None) -> Row:
    return {"id": id_, "v": v}


def many(tx: int, table: str, first: int = 1, count: int = MANY) -> list[Row]:
    return [insert(tx, table, {"id": i, "v": f"row {i}"}) for i in range(first, first + count)]


def insert_many(table: str, first: int = 1, count: int = MANY) -> str:
    return f"INSERT INTO {table} SELECT i, 'row ' || i FROM generate_series({first}, {first + count - 1}) i"


CASES: tuple[Case, ...] = (
    Case(
        "insert",
        ["CREATE TABLE kinds (id bigint PRIMARY KEY, n smallint, price numeric(8,2), ok boolean, f float8, "
         "v varchar(9), at timestamptz, day date, tod time, raw bytea, doc jsonb, ints int[], words text[])"],
        ["INSERT INTO kinds VALUES (9223372036854775807, -32768, 12.50, true, 0.1, 'Zürich €', "
         "'2024-02-29 23:59:59.5+01', '2024-02-29', '12:34:56.789', '\\xdeadbeef', '{\"a\": [1, null]}', "
         "'{1,NULL,-3}', '{\"a \\\"b\\\" \\\\ c\",NULL,\"NULL\",\"\"}'), "
         "(-2, NULL, NULL, NULL, NULL, '', NULL, NULL, NULL, '', NULL, '{}', NULL)",
         "INSERT INTO kinds (id, f) VALUES (3, 'Infinity')"],
        [insert(0, "kinds", {"id": 2**63 - 1, "n": -32768, "price": "12.50", "ok": True, "f": 0.1, "v": "Zürich €",
                             "at": "2024-02-29T22:59:59.500000+00:00", "day": "2024-02-29", "tod": "12:34:56.789000",
                             "raw": "3q2+7w==", "doc": '{"a": [1, null]}', "ints": [1, None, -3],
                             "words": ['a "b" \\ c', None, "NULL", ""]}),
         insert(0, "kinds", {"id": -2, "n": None, "price": None, "ok": None, "f": None, "v": "", "at": None,
                             "day": None, "tod": None, "raw": "", "doc": None, "ints": [], "words": None}),
         insert(1, "kinds", {"id": 3, "n": None, "price": None, "ok": None, "f": "inf", "v": None, "at": None,
                             "day": None, "tod": None, "raw": None, "doc": None, "ints": None, "words": None})],
    ),
    Case(
        "values_that_arrow_cannot_hold",
        ["CREATE TABLE odd (id int PRIMARY KEY, price numeric(8,2), at timestamp, day date, tod time, ints int[], "
         "prices numeric(6,2)[])"],
        ["INSERT INTO odd VALUES (1, 'NaN', '-infinity', 'infinity', '24:00', '{{1,2},{3,4}}', '{1,NaN}'), "
         "(2, 1, NULL, '2024-01-01', NULL, '[0:1]={5,6}', '{1}')"],
        [insert(0, "odd", {"id": 1, "price": None, "at": None, "day": None, "tod": None, "ints": None, "prices": None},
                odd={"after.price": "NaN", "after.at": "-infinity", "after.day": "infinity", "after.tod": "24:00:00",
                     "after.ints": "{{1,2},{3,4}}", "after.prices": "{1.00,NaN}"}),
         insert(0, "odd", {"id": 2, "price": "1.00", "at": None, "day": "2024-01-01", "tod": None, "ints": None,
                           "prices": ["1.00"]}, odd={"after.ints": "[0:1]={5,6}"})],
    ),
    Case(
        "update_with_the_default_identity", [T, HAVE_ONE],
        ["UPDATE t SET v = 'b'", "UPDATE t SET v = NULL"],
        [update(0, "t", t(1, "b")), update(1, "t", t(1))],
    ),
    Case(
        "update_that_changes_the_key", [T, HAVE_ONE],
        ["UPDATE t SET id = 2, v = 'b'", "UPDATE t SET v = 'c'"],
        [delete(0, "t", key={"id": 1}), insert(0, "t", t(2, "b")), update(1, "t", t(2, "c"))],
    ),
    Case(
        "update_with_the_full_row", [T, FULL, HAVE_ONE],
        ["UPDATE t SET v = 'b'", "UPDATE t SET v = NULL"],
        [update(0, "t", t(1, "b"), before=t(1, "a")), update(1, "t", t(1), before=t(1, "b"))],
        keys={"public.t": ["id"]},
    ),
    Case(
        "update_that_changes_the_key_with_the_full_row", [T, FULL, HAVE_ONE],
        ["UPDATE t SET id = 2"],
        [delete(0, "t", before=t(1, "a")), insert(0, "t", t(2, "a"))],
        keys={"public.t": ["id"]},
    ),
    Case(
        "identity_by_index",
        ["CREATE TABLE c (id int PRIMARY KEY, code text NOT NULL, v text)", "CREATE UNIQUE INDEX by_code ON c (code)",
         "ALTER TABLE c REPLICA IDENTITY USING INDEX by_code", "INSERT INTO c VALUES (1, 'one', 'a')"],
        ["UPDATE c SET id = 7, v = 'b'", "UPDATE c SET code = 'seven'", "DELETE FROM c"],
        [update(0, "c", {"id": 7, "code": "one", "v": "b"}),
         delete(1, "c", key={"code": "one"}), insert(1, "c", {"id": 7, "code": "seven", "v": "b"}),
         delete(2, "c", key={"code": "seven"})],
    ),
    Case(
        "identity_nothing", [T, "ALTER TABLE t REPLICA IDENTITY NOTHING"],
        [HAVE_ONE, "[fails] DELETE FROM t", "[fails] UPDATE t SET v = 'b'"],
        [insert(0, "t", t(1, "a"))],
    ),
    Case(
        "delete_by_key", [T, "INSERT INTO t VALUES (1, 'a'), (2, 'b')"],
        ["DELETE FROM t WHERE id = 2", "DELETE FROM t"],
        [delete(0, "t", key={"id": 2}), delete(1, "t", key={"id": 1})],
    ),
    Case(
        "delete_with_the_full_row", [T, FULL, "INSERT INTO t VALUES (1, NULL), (2, 'b')"],
        ["DELETE FROM t"],
        [delete(0, "t", before=t(1)), delete(0, "t", before=t(2, "b"))],
        keys={"public.t": ["id"]},
    ),
    Case(
        "composite_key",
        ["CREATE TABLE k (v text, a int, b text, PRIMARY KEY (b, a))",
         "INSERT INTO k VALUES ('x', 1, 'one'), ('y', 2, 'two')"],
        ["UPDATE k SET v = 'z' WHERE a = 1", "UPDATE k SET b = 'uno' WHERE a = 1", "DELETE FROM k WHERE a = 2"],
        [update(0, "k", {"v": "z", "a": 1, "b": "one"}),
         delete(1, "k", key={"a": 1, "b": "one"}), insert(1, "k", {"v": "z", "a": 1, "b": "uno"}),
         delete(2, "k", key={"a": 2, "b": "two"})],
    ),
    Case(
        "table_without_a_key",
        ["CREATE TABLE t (id int, v text)", FULL, HAVE_ONE],
        ["UPDATE t SET id = 2", HAVE_ONE, "DELETE FROM t WHERE id = 1"],
        [update(0, "t", t(2, "a"), before=t(1, "a")), insert(1, "t", t(1, "a")), delete(2, "t", before=t(1, "a"))],
    ),
    Case(
        "truncate_of_two_tables", [T, "CREATE TABLE u (id int PRIMARY KEY)", HAVE_ONE],
        ["BEGIN; INSERT INTO u VALUES (5); TRUNCATE t, u RESTART IDENTITY CASCADE; "
         "INSERT INTO t VALUES (6, 'f'); COMMIT"],
        [insert(0, "u", {"id": 5}), truncate(0, "t"), truncate(0, "u"), insert(0, "t", t(6, "f"))],
        barrier=True,
    ),
    Case(
        "messages", [T],
        ["BEGIN; INSERT INTO t VALUES (1, 'a'); SELECT pg_logical_emit_message(true, 'préfix', 'inside'); "
         "INSERT INTO t VALUES (2, 'b'); COMMIT",
         "SELECT pg_logical_emit_message(false, 'p', '\\x00ff'::bytea)",
         "BEGIN; SELECT pg_logical_emit_message(false, '', ''); ROLLBACK",
         "BEGIN; SELECT pg_logical_emit_message(true, 'never', 'seen'); ROLLBACK"],
        [insert(0, "t", t(1, "a")), message(0, "préfix", "aW5zaWRl"), insert(0, "t", t(2, "b")),
         message(1, "p", "AP8="), message(2, "", "")],
    ),
    Case(
        "unchanged_toast", ["CREATE TABLE t (id int PRIMARY KEY, v text, n int, w text)", EXTERNAL,
                            f"INSERT INTO t VALUES (1, {LARGE}, 1, 'w')"],
        ["UPDATE t SET n = 2", "UPDATE t SET v = v || 'y', w = NULL", "UPDATE t SET v = NULL"],
        [update(0, "t", {"id": 1, "v": None, "n": 2, "w": "w"}, unchanged=["v"]),
         update(1, "t", {"id": 1, "v": LONG + "y", "n": 2, "w": None}),
         update(2, "t", {"id": 1, "v": None, "n": 2, "w": None})],
    ),
    Case(
        "unchanged_toast_with_the_full_row",
        ["CREATE TABLE t (id int PRIMARY KEY, v text, n int)", FULL, EXTERNAL,
         f"INSERT INTO t VALUES (1, {LARGE}, NULL)"],
        ["UPDATE t SET n = 2", "UPDATE t SET id = 3"],
        [update(0, "t", {"id": 1, "v": LONG, "n": 2}, before={"id": 1, "v": LONG, "n": None}),
         delete(1, "t", before={"id": 1, "v": LONG, "n": 2}), insert(1, "t", {"id": 3, "v": LONG, "n": 2})],
        keys={"public.t": ["id"]},
    ),
    Case(
        "key_change_with_unchanged_toast", [T, EXTERNAL, f"INSERT INTO t VALUES (1, {LARGE})"],
        ["UPDATE t SET id = 2"],
        [update(0, "t", t(2), key={"id": 1}, unchanged=["v"])],
        barrier=True,
    ),
    Case(
        # The server sends the old key whenever a part of it is stored out of line, changed or not.
        "toasted_key",
        ["CREATE TABLE k (id int, v text, n int, PRIMARY KEY (id, v))", "ALTER TABLE k ALTER v SET STORAGE EXTERNAL",
         "INSERT INTO k VALUES (1, repeat('k', 2400), 1)"],
        ["UPDATE k SET n = 2", "UPDATE k SET id = 2", "DELETE FROM k"],
        [update(0, "k", {"id": 1, "v": "k" * 2400, "n": 2}, key={"id": 1, "v": "k" * 2400}),
         delete(1, "k", key={"id": 1, "v": "k" * 2400}), insert(1, "k", {"id": 2, "v": "k" * 2400, "n": 2}),
         delete(2, "k", key={"id": 2, "v": "k" * 2400})],
    ),
    Case(
        "table_changed_inside_a_transaction", [T],
        ["BEGIN; INSERT INTO t VALUES (1, 'a'); ALTER TABLE t ADD n int DEFAULT 5; INSERT INTO t VALUES (2, 'b', 6); "
         "ALTER TABLE t DROP v; ALTER TABLE t RENAME n TO m; UPDATE t SET m = 7 WHERE id = 1; COMMIT",
         "INSERT INTO t VALUES (3, 8)"],
        [insert(0, "t", t(1, "a")), insert(0, "t", {"id": 2, "v": "b", "n": 6}), update(0, "t", {"id": 1, "m": 7}),
         insert(1, "t", {"id": 3, "m": 8})],
        barrier=True,
    ),
    Case(
        "identity_changed_between_transactions", [T, HAVE_ONE],
        ["UPDATE t SET v = 'b'", FULL, "UPDATE t SET v = 'c'", "ALTER TABLE t REPLICA IDENTITY DEFAULT",
         "DELETE FROM t"],
        [update(0, "t", t(1, "b")), update(1, "t", t(1, "c"), before=t(1, "b")), delete(2, "t", key={"id": 1})],
        keys={"public.t": ["id"]},
        barrier=True,
    ),
    Case(
        "quoted_and_foreign_names",
        ['CREATE SCHEMA "Größe.1"',
         'CREATE TABLE "Größe.1"."Tab ""le"" ✓" ("Ключ" int PRIMARY KEY, "a b" text, "select" int)'],
        ['INSERT INTO "Größe.1"."Tab ""le"" ✓" VALUES (1, \'é\', 2)', 'DELETE FROM "Größe.1"."Tab ""le"" ✓"'],
        [{"tx": 0, "op": "insert", "table": 'Größe.1.Tab "le" ✓', "after": {"Ключ": 1, "a b": "é", "select": 2}},
         {"tx": 1, "op": "delete", "table": 'Größe.1.Tab "le" ✓', "key": {"Ключ": 1}}],
    ),
    Case(
        "generated_columns_published",
        ["CREATE TABLE g (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)"],
        ["INSERT INTO g VALUES (1, 21)", "UPDATE g SET n = NULL"],
        [insert(0, "g", {"id": 1, "n": 21, "twice": 42}), update(1, "g", {"id": 1, "n": None, "twice": None})],
        streams=[(18, 4, "off")], publication="FOR ALL TABLES WITH (publish_generated_columns = stored)",
    ),
    Case(
        "generated_columns_not_published",
        ["CREATE TABLE g (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (n * 2) STORED, n int)"],
        ["INSERT INTO g (id, n) VALUES (1, 21)"],
        [insert(0, "g", {"id": 1, "n": 21})],
    ),
    Case(
        "partitions_as_their_root",
        ["CREATE TABLE p (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
         "CREATE TABLE p_eu PARTITION OF p FOR VALUES IN ('eu')",
         "CREATE TABLE p_us (v text, region text NOT NULL, id int NOT NULL)",  # another order of columns
         "ALTER TABLE p ATTACH PARTITION p_us FOR VALUES IN ('us')"],
        ["INSERT INTO p VALUES (1, 'eu', 'a'), (2, 'us', 'b')", "UPDATE p SET v = 'c' WHERE id = 2",
         "UPDATE p SET region = 'us' WHERE id = 1", "DELETE FROM p WHERE id = 2"],
        [insert(0, "p", {"id": 1, "region": "eu", "v": "a"}), insert(0, "p", {"id": 2, "region": "us", "v": "b"}),
         update(1, "p", {"id": 2, "region": "us", "v": "c"}),
         delete(2, "p", key={"id": 1, "region": "eu"}), insert(2, "p", {"id": 1, "region": "us", "v": "a"}),
         delete(3, "p", key={"id": 2, "region": "us"})],
        publication="FOR TABLE p WITH (publish_via_partition_root = true)",
    ),
    Case(
        "partitions_as_themselves",
        ["CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
         "CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (10)",
         "CREATE TABLE p_high PARTITION OF p FOR VALUES FROM (10) TO (20)"],
        ["INSERT INTO p VALUES (1, 'a'), (11, 'b')", "UPDATE p SET id = 12 WHERE id = 1"],
        [insert(0, "p_low", t(1, "a")), insert(0, "p_high", t(11, "b")),
         delete(1, "p_low", key={"id": 1}), insert(1, "p_high", t(12, "a"))],
    ),
    Case(
        "column_list_and_row_filter", ["CREATE TABLE t (id int PRIMARY KEY, secret text, v text)"],
        ["INSERT INTO t VALUES (1, 'x', 'a'), (-2, 'x', 'a')", "UPDATE t SET id = -id", "UPDATE t SET v = 'b'"],
        [insert(0, "t", t(1, "a")), delete(1, "t", key={"id": 1}), insert(1, "t", t(2, "a")),
         update(2, "t", t(2, "b"))],
        publication="FOR TABLE t (id, v) WHERE (id > 0)",
    ),
    Case(
        "types_of_the_user", ["CREATE TYPE mood AS ENUM ('sad', 'happy')", "CREATE TYPE pair AS (a int, b text)",
                              "CREATE TABLE m (id int PRIMARY KEY, mood mood, pair pair, net inet)"],
        ["INSERT INTO m VALUES (1, 'happy', '(1,\"a b\")', '10.0.0.1/8')"],
        [insert(0, "m", {"id": 1, "mood": "happy", "pair": '(1,"a b")', "net": "10.0.0.1/8"})],
    ),
    Case(
        "forwarded_by_an_origin", [T, "SELECT pg_replication_origin_create('elsewhere')"],
        ["SELECT pg_replication_origin_session_setup('elsewhere')", HAVE_ONE,
         "SELECT pg_replication_origin_session_reset()", "SELECT pg_replication_origin_drop('elsewhere')"],
        [insert(0, "t", t(1, "a"))],
    ),
    Case(
        "every_protocol_version", [T, "CREATE TABLE u (id int PRIMARY KEY, v text)"],
        ["BEGIN; INSERT INTO t VALUES (1, 'a'); INSERT INTO u VALUES (1, 'b'); UPDATE t SET v = 'c'; "
         "DELETE FROM u; COMMIT",
         "BEGIN; SAVEPOINT s; INSERT INTO t VALUES (2, 'gone'); ROLLBACK TO s; INSERT INTO t VALUES (3, 'd'); COMMIT",
         "BEGIN; INSERT INTO t VALUES (4, 'gone'); ROLLBACK"],
        [insert(0, "t", t(1, "a")), insert(0, "u", t(1, "b")), update(0, "t", t(1, "c")), delete(0, "u", key={"id": 1}),
         insert(1, "t", t(3, "d"))],
        streams=EVERY_PROTOCOL,
    ),
    Case(
        "streamed_and_committed", [T],
        ["INSERT INTO t VALUES (0, 'before')", f"BEGIN; {insert_many('t')}; UPDATE t SET v = 'a' WHERE id = 1; COMMIT",
         "DELETE FROM t WHERE id = 1"],
        [insert(0, "t", t(0, "before")), *many(1, "t"), update(1, "t", t(1, "a")), delete(2, "t", key={"id": 1})],
        streams=STREAMED,
    ),
    Case(
        "streamed_and_rolled_back", [T],
        [f"BEGIN; {insert_many('t')}", "[wait]", "ROLLBACK", HAVE_ONE],
        [insert(0, "t", t(1, "a"))],
        streams=ABORTED,
    ),
    Case(
        "streamed_with_savepoints_rolled_back", [T],
        [f"BEGIN; INSERT INTO t VALUES (0, 'first'); SAVEPOINT a; {insert_many('t', 1)}; SAVEPOINT b; "
         f"{insert_many('t', 1001, 600)}", "[wait]", "ROLLBACK TO a; INSERT INTO t VALUES (-1, 'kept'); SAVEPOINT c; "
         f"{insert_many('t', 2001)}; RELEASE c; COMMIT"],
        [insert(0, "t", t(0, "first")), insert(0, "t", t(-1, "kept")), *many(0, "t", 2001)],
        streams=ABORTED,
    ),
    Case(
        "two_streamed_at_once", [T, "CREATE TABLE u (id int PRIMARY KEY, v text)"],
        ["BEGIN", "[b] BEGIN", insert_many("t", 1, 300), f"[b] {insert_many('u', 1, 500)}", insert_many("t", 301, 500),
         f"[b] {insert_many('u', 501, 300)}", "[b] COMMIT", "INSERT INTO t VALUES (0, 'last')", "COMMIT"],
        [*many(0, "u", 1, 800), *many(1, "t", 1, 800), insert(1, "t", t(0, "last"))],
        streams=STREAMED,
    ),
    Case(
        "streamed_with_everything",
        [T, EXTERNAL, "CREATE TABLE u (id int PRIMARY KEY, v text)", f"INSERT INTO t VALUES (0, {LARGE})"],
        [f"BEGIN; {insert_many('u')}; UPDATE t SET id = -5; SELECT pg_logical_emit_message(true, 'p', 'm'); "
         f"TRUNCATE u; ALTER TABLE u ADD n int; INSERT INTO u VALUES (1, 'a', 2); {insert_many('u', 2, 400)}; COMMIT"],
        [*many(0, "u"), update(0, "t", t(-5), key={"id": 0}, unchanged=["v"]), message(0, "p", "bQ=="),
         truncate(0, "u"), insert(0, "u", {"id": 1, "v": "a", "n": 2}),
         *[insert(0, "u", {"id": i, "v": f"row {i}", "n": None}) for i in range(2, 402)]],
        streams=STREAMED, barrier=True,
    ),
    Case(
        "large_but_not_streamed", [T],
        ["INSERT INTO t VALUES (0, 'before')", f"BEGIN; {insert_many('t')}; COMMIT", "DELETE FROM t WHERE id = 1"],
        [insert(0, "t", t(0, "before")), *many(1, "t"), delete(2, "t", key={"id": 1})],
        streams=[(18, 4, "off")],
    ),
)  # fmt: skip
