"""Columns whose names come back, are exchanged or were at the target before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest

from tests.sinks.state.following import Origin, said, same, write
from tests.sinks.state.support import Destination
from tests.support.changes import delivery
from tidemill.model.delivery import Receipt
from tidemill.sinks.clickhouse import ClickHouseSink
from tidemill.sinks.postgres import PostgresSink
from tidemill.sinks.starrocks import StarRocksSink


def test_a_renamed_column_keeps_the_values_of_rows_that_never_change_again(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    origin.do("ALTER TABLE t RENAME COLUMN name TO label", "UPDATE t SET note = 'changed' WHERE id = 2")
    receipts = write(there, *origin.blocks())
    assert same(origin, there, "id, label, note")
    origin.do("ALTER TABLE t RENAME COLUMN label TO title", "ALTER TABLE t RENAME COLUMN title TO name")
    receipts += write(there, *origin.blocks())
    assert same(origin, there, "id, name, note")
    assert not any(said(receipts).values())


def test_a_new_column_under_the_name_of_a_renamed_one_is_another_column(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    origin.do("ALTER TABLE t RENAME COLUMN name TO label", "ALTER TABLE t ADD COLUMN name text DEFAULT 'new'")
    receipts = write(there, *origin.blocks())
    assert same(origin, there, "id, name, label, note")
    assert not any(said(receipts).values())


def test_a_column_is_renamed_whatever_its_earlier_names_are_now(postgres_origin: Origin, there: Destination) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    for statements in (
        ["ALTER TABLE t RENAME COLUMN name TO label"],
        ["ALTER TABLE t ADD COLUMN name text DEFAULT 'new'"],
        ["ALTER TABLE t RENAME COLUMN label TO title"],  # it was called as the new column is now
        ["ALTER TABLE t RENAME COLUMN note TO remark", "ALTER TABLE t RENAME COLUMN name TO note"],
    ):
        origin.do(*statements, "UPDATE t SET id = id WHERE id = 2")
        receipts = write(there, *origin.blocks())
        assert not any(said(receipts).values())
    assert same(origin, there, "id, title, note, remark")


def test_a_column_that_is_added_filled_and_renamed_in_one_transaction_keeps_its_values(
    postgres_origin: Origin, there: Destination
) -> None:
    """When its first rows come the catalog has it under its last name only."""
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL), (3, 'c', NULL)")
    write(there, *origin.blocks())
    origin.do(
        "ALTER TABLE t ADD COLUMN first int DEFAULT 5; UPDATE t SET first = 7 WHERE id = 1;"
        "ALTER TABLE t RENAME COLUMN first TO second; ALTER TABLE t RENAME COLUMN name TO label;"
        "UPDATE t SET note = 'later' WHERE id = 2; ALTER TABLE t RENAME COLUMN second TO third"
    )
    receipts = write(there, *origin.blocks())
    assert same(origin, there, "id, label, note, third")
    assert not any(said(receipts).values())


def test_columns_that_are_filled_while_they_exchange_their_names_in_one_transaction_keep_their_values(
    postgres_origin: Origin, there: Destination
) -> None:
    """One of their names is the other's by the time that the catalog is asked."""
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL), (3, 'c', NULL)")
    write(there, *origin.blocks())
    origin.do(
        "ALTER TABLE t RENAME COLUMN name TO label; UPDATE t SET label = 'x' WHERE id = 1;"
        "ALTER TABLE t RENAME COLUMN note TO third; ALTER TABLE t RENAME COLUMN label TO note;"
        "ALTER TABLE t RENAME COLUMN third TO label; ALTER TABLE t RENAME COLUMN note TO name"
    )
    receipts = write(there, *origin.blocks())
    assert same(origin, there, "id, name, label")
    assert not any(said(receipts).values())


def test_where_another_was_dropped_it_is_not_known_which_column_was_renamed_and_that_is_said(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    options = {} if isinstance(there.sink(), StarRocksSink) else {"allow_destructive_ddl": True}
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks(), **options)
    origin.do(
        "ALTER TABLE t DROP COLUMN note; ALTER TABLE t ADD COLUMN first int DEFAULT 5;"
        "UPDATE t SET first = 7 WHERE id = 1; ALTER TABLE t RENAME COLUMN first TO second;"
        "UPDATE t SET name = 'later' WHERE id = 2"
    )
    receipts = write(there, *origin.blocks(), **options)
    assert any(
        'column "second"' in what and 'it may be "first", renamed' in what for what in said(receipts)["public.t"]
    )


def test_a_column_that_came_twice_before_the_catalog_was_asked_is_named(
    postgres_origin: Origin, there: Destination
) -> None:
    """Rows of both look the same, and the number is that of the last."""
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    origin.do(
        "ALTER TABLE t ADD COLUMN first text DEFAULT 'x'; UPDATE t SET name = 'later' WHERE id = 1;"
        "ALTER TABLE t DROP COLUMN first; ALTER TABLE t ADD COLUMN first text DEFAULT 'y'"
    )
    receipts = write(there, *origin.blocks())
    assert any('column "first"' in what and "dropped since" in what for what in said(receipts)["public.t"])


@pytest.mark.parametrize("there", ["clickhouse", "postgres"], indirect=True)
def test_a_column_that_takes_the_name_of_one_that_was_dropped_at_once_is_followed(
    postgres_origin: Origin, there: Destination
) -> None:
    """As a column is replaced by another: the new one is filled, the old one dropped, and the new one gets its name."""
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks(), allow_destructive_ddl=True)
    origin.do("ALTER TABLE t DROP COLUMN note; ALTER TABLE t RENAME COLUMN name TO note")
    receipts = write(there, *origin.blocks(), allow_destructive_ddl=True)
    assert same(origin, there, "id, note")
    assert not any(said(receipts).values())


def test_columns_that_exchange_their_names_are_followed_or_named(postgres_origin: Origin, there: Destination) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    origin.do(
        "ALTER TABLE t RENAME COLUMN name TO third",
        "ALTER TABLE t RENAME COLUMN note TO name",
        "ALTER TABLE t RENAME COLUMN third TO note",
    )
    receipts = write(there, *origin.blocks())
    if isinstance(there.sink(), PostgresSink):
        assert same(origin, there, "id, name, note")
        assert not any(said(receipts).values())
    else:
        assert any("name" in what and "note" in what for what in said(receipts)["public.t"])


def test_a_column_that_was_dropped_and_added_again_is_not_renamed(postgres_origin: Origin, there: Destination) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    origin.do("ALTER TABLE t DROP COLUMN note, ADD COLUMN remark text")
    write(there, *origin.blocks())
    assert same(origin, there, "id, name, remark")
    origin.do("ALTER TABLE t DROP COLUMN remark, ADD COLUMN remark text DEFAULT 'other'")
    receipts = write(there, *origin.blocks())
    if not isinstance(there.sink(), StarRocksSink):  # which has no place to note what a column is known by
        assert any("dropped" in what for what in said(receipts)["public.t"])


def test_a_change_that_the_catalog_was_ahead_of_is_followed_by_the_numbers_of_columns(
    postgres_origin: Origin, there: Destination
) -> None:
    """Rows of one structure are read when the table has another one already."""
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    origin.run(
        "ALTER TABLE t RENAME COLUMN name TO label",
        "ALTER TABLE t ADD COLUMN extra int DEFAULT 7",
        "INSERT INTO t (id) VALUES (2)",
        "ALTER TABLE t RENAME COLUMN label TO title",
        "INSERT INTO t (id) VALUES (3)",
    )
    origin.do()
    write(there, *origin.blocks())
    assert same(origin, there, "id, title, note, extra")


def test_several_lanes_may_meet_the_new_structure_at_once(postgres_origin: Origin, there: Destination) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t SELECT i, 'a' || i, 'n' FROM generate_series(1, 40) i")
    write(there, *origin.blocks())
    origin.do(
        "ALTER TABLE t RENAME COLUMN name TO label",
        "ALTER TABLE t ADD COLUMN name text DEFAULT 'new', ADD COLUMN level int DEFAULT 5",
        "UPDATE t SET note = 'changed' WHERE id % 2 = 0",
    )
    blocks = [block for block in origin.blocks() if "after" in block.batch.schema.names]
    start, end = int(blocks[0].offsets()[0]), int(blocks[-1].offsets()[-1]) + 1
    lanes = 4

    def deliver(lane: int) -> Receipt:
        shares = []
        for block in blocks:
            ids = block.batch.column("after").field("id").to_pylist()
            if mine := [row for row, number in enumerate(ids) if number % lanes == lane]:
                shares.append(block.take(mine))
        sink = there.sink()
        return sink.write(delivery(*shares, start=start, end=end, lane=lane, lanes=lanes))

    with ThreadPoolExecutor(lanes) as workers:
        receipts = list(workers.map(deliver, range(lanes)))
    assert same(origin, there, "id, label, note, name, level")
    assert not any(said(receipts).values())


def test_a_name_that_comes_back_within_one_connection_is_followed_or_named(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do(
        "INSERT INTO t VALUES (1, 'a', 'n')",
        "ALTER TABLE t RENAME COLUMN name TO label",
        "INSERT INTO t VALUES (2, 'b', 'n')",
        "ALTER TABLE t RENAME COLUMN label TO name",
        "INSERT INTO t VALUES (3, 'c', 'n')",
    )
    receipts = write(there, *origin.blocks())
    notices = [what for each in said(receipts).values() for what in each]
    same_names = there.rows("id, name") == origin.rows("id, name")
    assert same_names or any('column "name"' in what or 'column "label"' in what for what in notices)


def test_a_column_that_comes_again_within_one_connection_is_named(postgres_origin: Origin, there: Destination) -> None:
    """To the stream it looks the same: names and types are those of before."""
    origin = postgres_origin
    with origin.connected() as wait_for:
        origin.run("INSERT INTO t VALUES (1, 'a', 'n')")
        wait_for(1)
        origin.run("ALTER TABLE t DROP COLUMN note, ADD COLUMN note text", "INSERT INTO t VALUES (2, 'b', 'other')")
        wait_for(2)
    receipts = write(there, *origin.blocks())
    if not isinstance(there.sink(), StarRocksSink):  # which has no place to note what a column is known by
        assert any("dropped" in what for what in said(receipts)["public.t"])


def _add_first(there: Destination, column: str) -> str:
    """What somebody who migrates the target before the source runs there."""
    kind = {"level": "int", "label": "text"}[column]
    if isinstance(sink := there.sink(), ClickHouseSink):
        kind = {"int": "Nullable(Int32)", "text": "Nullable(String)"}[kind]
        return f"ALTER TABLE {sink.config.database}.t ADD COLUMN {column} {kind}"
    return f"ALTER TABLE t ADD COLUMN {column} {kind}"


@pytest.mark.parametrize("there", ["clickhouse", "postgres"], indirect=True)
def test_a_column_that_the_target_had_before_the_source_added_it_is_named(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    there.run(_add_first(there, "level"))
    origin.do("ALTER TABLE t ADD COLUMN level int DEFAULT 5")
    receipts = write(there, *origin.blocks())
    assert dict(there.rows("id, level"))[1] is None
    (what,) = said(receipts)["public.t"]
    assert 'column "level"' in what
    origin.do("INSERT INTO t VALUES (3)")
    assert len(said(write(there, *origin.blocks()))["public.t"]) == 1
    origin.do("ALTER TABLE t ADD COLUMN more int")  # the next structure says nothing new of it
    receipts = write(there, *origin.blocks())
    fix = orjson.loads(receipts[-1].notices)["public.t"][0]["fix"]
    there.run(fix.partition("run ")[2].partition(" at the destination")[0])
    origin.do("ALTER TABLE t ADD COLUMN still_more int")
    assert said(write(there, *origin.blocks())) == {"public.t": []}


@pytest.mark.parametrize("there", ["clickhouse", "postgres"], indirect=True)
def test_a_column_that_the_target_had_with_the_right_values_is_none_to_speak_of(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    there.run(f"{_add_first(there, 'level')} DEFAULT 5")
    origin.do("ALTER TABLE t ADD COLUMN level int DEFAULT 5")
    receipts = write(there, *origin.blocks())
    assert same(origin, there, "id, name, level")
    assert not any(said(receipts).values())


@pytest.mark.parametrize("there", ["clickhouse", "postgres"], indirect=True)
def test_a_column_that_is_renamed_to_one_that_the_target_had_is_named(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    there.run(_add_first(there, "label"))
    origin.do("ALTER TABLE t RENAME COLUMN name TO label")
    receipts = write(there, *origin.blocks())
    assert dict(there.rows("id, label"))[1] is None
    assert dict(there.rows("id, name"))[1] == "a"
    (what,) = said(receipts)["public.t"]
    assert 'column "label"' in what
    assert '"name"' in what
    origin.do("ALTER TABLE t ADD COLUMN more int")
    assert len(said(write(there, *origin.blocks()))["public.t"]) == 1
    assert dict(there.rows("id, name"))[1] == "a"


def test_a_column_of_a_table_that_is_not_the_sinks_own_is_named_all_the_same(
    postgres_origin: Origin, target: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(target, *origin.blocks(), create_tables=True)
    target.run("ALTER TABLE t ADD COLUMN level int")
    origin.do("ALTER TABLE t ADD COLUMN level int DEFAULT 5")
    (what,) = said(write(target, *origin.blocks(), create_tables=False))["public.t"]
    assert 'column "level"' in what
