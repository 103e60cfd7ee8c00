"""Rows that never change again get what a change of the table gave them, or it is said that they lack it."""

from __future__ import annotations

import orjson

from tests.sinks.state.following import Origin, said, same, write
from tests.sinks.state.support import Destination
from tidemill.contracts import Notice
from tidemill.sinks._shared.unfollowed import Looks
from tidemill.sinks.clickhouse import ClickHouseSink


def test_rows_that_never_change_again_get_the_default_of_a_new_column(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    origin.do(
        "ALTER TABLE t ADD COLUMN level int NOT NULL DEFAULT 5, ADD COLUMN word text DEFAULT 'it''s \\ \"it\"', "
        "ADD COLUMN price numeric(10,2) DEFAULT 1.25, ADD COLUMN hollow text",
        "ALTER TABLE t ALTER COLUMN level SET DEFAULT 6, ALTER COLUMN hollow SET DEFAULT 'later'",
        "UPDATE t SET note = 'changed' WHERE id = 2",
    )
    receipts = write(there, *origin.blocks())
    assert same(origin, there, "id, name, note, level, word, price, hollow")
    assert not any(said(receipts).values())


def test_a_value_of_any_type_is_the_one_that_the_source_has(postgres_origin: Origin, there: Destination) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    origin.do(
        "ALTER TABLE t ADD COLUMN d date DEFAULT '2024-02-29',"
        " ADD COLUMN at timestamp DEFAULT '2024-02-29 12:34:56.789',"
        " ADD COLUMN z timestamptz DEFAULT '2024-02-29 12:34:56+02',"
        " ADD COLUMN big bigint DEFAULT -9007199254740993, ADD COLUMN f double precision DEFAULT 0.1,"
        " ADD COLUMN u uuid DEFAULT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', ADD COLUMN yes boolean DEFAULT true,"
        " ADD COLUMN wide numeric(38,10) DEFAULT 12345678901234567890.5"
    )
    assert not any(said(write(there, *origin.blocks())).values())
    columns = ["d", "at", "z", "big", "f", "u", "yes", "wide"]
    old, new = (
        {str(r[0]): r[1:] for r in there.rows(f"id, {', '.join(columns)}")}[key] for key in ("1", str(_last(there)))
    )
    assert old == new  # what the stream brought for a row that was inserted afterwards


def _last(there: Destination) -> int:
    return max(int(row[0]) for row in there.rows("id"))


def test_a_value_that_each_row_has_of_its_own_is_said_to_be_missing_until_somebody_mends_it(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    origin.do("ALTER TABLE t ADD COLUMN dice double precision DEFAULT random()")
    receipts = write(there, *origin.blocks())
    (what,) = said(receipts)["public.t"]
    assert 'column "dice"' in what
    assert "keep NULL" in what
    assert dict(there.rows("id, dice"))[1] is None
    # A worker that starts later says it again, also with the next structure, until the comment is gone.
    origin.do("ALTER TABLE t ADD COLUMN more int")
    receipts = write(there, *origin.blocks())
    assert len(said(receipts)["public.t"]) == 1
    fix = orjson.loads(receipts[-1].notices)["public.t"][0]["fix"]
    there.run(fix.partition("run ")[2].partition(" at the destination")[0])
    origin.do("INSERT INTO t VALUES (3)")
    assert said(write(there, *origin.blocks())) == {"public.t": []}


def test_an_empty_target_has_no_rows_to_be_missed(postgres_origin: Origin, there: Destination) -> None:
    origin = postgres_origin
    origin.do("DELETE FROM t")
    write(there, *origin.blocks())
    origin.do("DELETE FROM t", "ALTER TABLE t ADD COLUMN dice double precision DEFAULT random()")
    notices = said(write(there, *origin.blocks()))["public.t"]
    if isinstance(there.sink(), ClickHouseSink):  # keeps deleted rows until they are merged: the table is not empty
        (what,) = notices
        assert 'column "dice"' in what
    else:
        assert notices == []


def test_what_is_wrong_is_said_with_every_receipt_and_that_nothing_is_wrong_once() -> None:
    looks, wrong = Looks(), (Notice("rows-left-behind", "public.t", "what", "fix"),)
    looks.record("public.t", wrong)
    looks.record("public.u", ())
    assert orjson.loads(looks.pack()).keys() == {"public.t", "public.u"}
    assert orjson.loads(looks.pack()).keys() == {"public.t"}
    looks.record("public.t", ())
    assert orjson.loads(looks.pack()) == {"public.t": []}
    assert looks.pack() == ""


def test_what_mysql_and_mariadb_do_to_rows_that_never_change_again_is_done(
    mysql_origin: Origin, target: Destination
) -> None:
    origin = mysql_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(target, *origin.blocks())
    origin.do(
        "ALTER TABLE t ADD COLUMN level int NOT NULL DEFAULT 5, ADD COLUMN word varchar(20) DEFAULT 'it''s', "
        "ADD COLUMN price decimal(10,2) DEFAULT 1.25, ADD COLUMN hollow text, ADD COLUMN zero int NOT NULL, "
        "ADD COLUMN blank varchar(10) NOT NULL, ADD COLUMN at datetime(3) DEFAULT '2024-02-29 12:34:56.789', "
        "ADD COLUMN mood enum('good', 'bad') NOT NULL",
        "ALTER TABLE t ALTER COLUMN level SET DEFAULT 6",
        "UPDATE t SET note = 'changed' WHERE id = 2",
        "INSERT INTO t (id, zero, blank, mood) VALUES (3, 1, 'x', 'bad')",
        mark="zero, blank, mood) VALUES ({}, 0, '', 'good')",
    )
    receipts = write(target, *origin.blocks())
    assert same(origin, target, "id, name, note, level, word, price, hollow, zero, blank, at, mood")
    origin.do(
        "ALTER TABLE t RENAME COLUMN name TO note, RENAME COLUMN note TO name",
        "ALTER TABLE t RENAME COLUMN word TO words, ADD COLUMN word varchar(20) DEFAULT 'new'",
        mark="zero, blank, mood) VALUES ({}, 0, '', 'good')",
    )
    receipts += write(target, *origin.blocks())
    assert same(origin, target, "id, name, note, level, word, words, price, zero, blank, mood")
    assert not any(said(receipts).values())


def test_a_default_that_mysql_or_mariadb_computes_is_said_to_be_missing(
    mysql_origin: Origin, target: Destination
) -> None:
    origin = mysql_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(target, *origin.blocks())
    origin.do(
        "ALTER TABLE t ADD COLUMN token char(36) DEFAULT (concat(id, 'x')), "
        "ADD COLUMN at timestamp DEFAULT CURRENT_TIMESTAMP"
    )
    notices = next(iter(said(write(target, *origin.blocks())).values()))
    assert ["token" in what or '"at"' in what for what in notices] == [True, True]
