"""Tables follow the source's structure, or are refused with what to do."""

from __future__ import annotations

import datetime
import threading

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tests.sinks.benches import ID, INSERT, NAME, NOTE, T, row
from tests.sinks.clickhouse.support import Bench, D
from tests.support.changes import changes, column, delivery, structure
from tidemill.contracts import Outcome
from tidemill.errors import Refused


def test_columns_that_come_change_and_are_renamed_are_followed(bench: Bench) -> None:
    first = structure("t", ID, column("n", "integer", pa.int32()), column("old", "text", pa.string()), NOTE)
    second = structure(
        "t", ID, column("n", "bigint", pa.int64()), column("new", "text", pa.string()),
        column("price", "numeric(12,2)", pa.decimal128(12, 2)), version=2, renamed=[("old", "new")],
    )  # fmt: skip
    old = {"id": 1, "n": 5, "old": "kept", "note": "x"}
    new = {"id": 2, "n": 2**40, "new": "v", "price": D("1.25")}
    sink = bench.sink()
    sink.write(delivery(changes(first, (INSERT, None, old))))
    sink.write(delivery(changes(second, (INSERT, None, new), first=1), start=1))
    assert bench.rows("id, n, new, note, price") == [
        {"id": 1, "n": 5, "new": "kept", "note": "x", "price": None},
        {"id": 2, "n": 2**40, "new": "v", "note": None, "price": "1.25"},
    ]
    bench.write(delivery(changes(second, (INSERT, None, new), first=1), start=1))
    assert bench.types()["note"] == "Nullable(String)"  # dropped at the source: it stays


def test_with_leave_dropped_columns_are_dropped_and_types_narrowed(bench: Bench) -> None:
    first = structure("t", ID, column("n", "bigint", pa.int64()), NOTE)
    second = structure("t", ID, column("n", "integer", pa.int32()), version=2)
    bench.write(delivery(changes(first, (INSERT, None, {"id": 1, "n": 5, "note": "x"}))))
    bench.server.query(f"ALTER TABLE {bench.database}.t ADD COLUMN theirs String DEFAULT 'mine'")
    block = changes(second, (INSERT, None, {"id": 2, "n": 6}), first=1)
    bench.write(delivery(block, start=1), allow_destructive_ddl=True)
    assert "note" not in bench.types()
    assert bench.types()["n"] == "Nullable(Int32)"
    assert bench.rows("id, n, theirs") == [{"id": 1, "n": 5, "theirs": "mine"}, {"id": 2, "n": 6, "theirs": "mine"}]


def test_a_column_that_becomes_not_null_stays_nullable_for_the_rows_that_are_there(bench: Bench) -> None:
    first = structure("t", ID, column("n", "integer", pa.int32()))
    second = structure("t", ID, column("n", "bigint", pa.int64(), nullable=False), version=2)
    bench.write(delivery(changes(first, (INSERT, None, {"id": 1, "n": 5}), (INSERT, None, {"id": 2, "n": None}))))
    block = changes(second, (INSERT, None, {"id": 2, "n": 6}), first=2)
    bench.write(delivery(block, start=2), allow_destructive_ddl=True)
    assert bench.types()["n"] == "Nullable(Int64)"
    assert bench.rows("id, n") == [{"id": 1, "n": 5}, {"id": 2, "n": 6}]


def test_decimals_that_change_both_ways_get_a_type_that_holds_both(bench: Bench) -> None:
    first = structure("t", ID, column("p", "numeric(12,2)", pa.decimal128(12, 2)))
    second = structure("t", ID, column("p", "numeric(10,4)", pa.decimal128(10, 4)), version=2)
    bench.write(delivery(changes(first, (INSERT, None, {"id": 1, "p": D("9999999999.99")}))))
    bench.write(delivery(changes(second, (INSERT, None, {"id": 2, "p": D("999999.9999")}), first=1), start=1))
    assert bench.types()["p"] == "Nullable(Decimal(14, 4))"
    assert bench.rows("p") == [{"p": "9999999999.99"}, {"p": "999999.9999"}]


def test_a_column_that_becomes_text_takes_text_and_one_that_was_text_stays_it(bench: Bench) -> None:
    first = structure("t", ID, column("a", "integer", pa.int32()), column("b", "text", pa.string()))
    second = structure(
        "t", ID, column("a", "text", pa.string()), column("b", "numeric(5,2)", pa.decimal128(5, 2)), version=2
    )
    bench.write(delivery(changes(first, (INSERT, None, {"id": 1, "a": 5, "b": "x"}))))
    bench.write(delivery(changes(second, (INSERT, None, {"id": 2, "a": "y", "b": D("1.50")}), first=1), start=1))
    assert bench.rows("a, b") == [{"a": "5", "b": "x"}, {"a": "y", "b": "1.50"}]


def test_a_type_that_cannot_become_the_new_one_is_refused_with_what_to_do(bench: Bench) -> None:
    first = structure("t", ID, column("d", "date", pa.date32()))
    second = structure("t", ID, column("d", "integer", pa.int32()), version=2)
    bench.write(delivery(changes(first, (INSERT, None, {"id": 1, "d": None}))))
    with pytest.raises(Refused, match="does not fit the source") as caught:
        bench.write(delivery(changes(second, (INSERT, None, {"id": 2, "d": 5}), first=1), start=1))
    assert "allow_destructive_ddl" in caught.value.fix


def test_lanes_that_change_a_table_at_once_do_it_once(bench: Bench) -> None:
    first = structure("t", ID, NAME)
    second = structure("t", ID, column("renamed", "text", pa.string()), NOTE, version=2, renamed=[("name", "renamed")])
    bench.write(delivery(changes(first, (INSERT, None, {"id": 99, "name": "a"}))))
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def work(lane: int) -> None:
        block = changes(second, (INSERT, None, {"id": lane, "renamed": "b", "note": "n"}), first=1 + lane)
        start.wait()
        try:
            bench.write(delivery(block, start=1, end=5, lane=lane, lanes=4))
        except BaseException as error:  # noqa: BLE001  any failure of a lane fails the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [r["renamed"] for r in bench.rows("renamed")] == ["b"] * 4 + ["a"]


def test_a_batch_whose_transaction_changed_the_table_can_be_replayed(bench: Bench) -> None:
    first = structure("t", ID, NAME)
    second = structure("t", ID, column("label", "text", pa.string()), version=2, renamed=[("name", "label")])
    batch = delivery(
        changes(first, (INSERT, None, {"id": 1, "name": "a"})),
        changes(second, (INSERT, None, {"id": 2, "label": "b"}), first=7),
    )
    for _ in range(2):
        bench.write(batch)
        assert bench.rows("id, label") == [{"id": 1, "label": "a"}, {"id": 2, "label": "b"}]
    assert "name" not in bench.types()
    with pytest.raises(Refused, match="no longer has columns that older events bring: name"):
        bench.write(delivery(changes(first, (INSERT, None, {"id": 5, "name": "z"}), first=6), start=0))


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("CREATE TABLE {}.t (id Int64) ENGINE = MergeTree ORDER BY id", "has engine MergeTree"),
        ("CREATE TABLE {}.t (id Int64, name String, _version UInt64, _is_deleted UInt8) "
         "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY name", "is ordered by"),
    ],
)  # fmt: skip
def test_a_table_that_was_there_must_be_of_the_right_kind(bench: Bench, statement: str, complaint: str) -> None:
    bench.server.query(f"CREATE DATABASE {bench.database}")
    bench.server.query(statement.format(bench.database))
    with pytest.raises(Refused, match=complaint):
        bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    checks = {c.name: c.outcome for c in bench.sink(table="t").doctor()}
    assert checks["table t"] is (Outcome.FAIL if "engine" in complaint else Outcome.PASS)


def test_after_a_new_log_the_structure_is_followed_anew(bench: Bench) -> None:
    later = structure("t", ID, NAME, NOTE, version=7)
    bench.write(delivery(changes(later, (INSERT, None, row(1)))))
    wider = structure("t", ID, NAME, NOTE, column("more", "text", pa.string()), version=1)
    block = changes(wider, (INSERT, None, {**row(2), "more": "x"}), position="9/")
    bench.write(delivery(block), offset_base=100)
    assert bench.rows("id, more") == [{"id": 1, "more": None}, {"id": 2, "more": "x"}]


def test_a_time_without_a_zone_is_not_written_where_the_server_would_shift_it(bench: Bench) -> None:
    bench.server.query(f"CREATE DATABASE {bench.database}")
    bench.server.query(
        f"CREATE TABLE {bench.database}.t (id Int64, at DateTime64(6), _version UInt64, _is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    table = structure("t", ID, column("at", "timestamp without time zone", pa.timestamp("us"), nullable=False))
    with pytest.raises(Refused, match="without a zone needs"):
        bench.write(delivery(changes(table, (INSERT, None, {"id": 1, "at": datetime.datetime(2026, 1, 1)}))))


def test_a_setting_that_does_not_exist_is_refused(bench: Bench) -> None:
    with pytest.raises(Refused):
        bench.write(delivery(changes(T, (INSERT, None, row(1)))), settings={"no_such_setting": "1"})


@pytest.mark.parametrize(
    "name",
    ["async_insert", "wait_for_async_insert", "insert_deduplicate", "insert_deduplication_token",
     "max_insert_block_size", "input_format_null_as_default"],
)  # fmt: skip
def test_a_setting_that_the_sink_depends_on_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(ValidationError, match=f"leave them out: {name}"):
        bench.sink(settings={name: "1", "insert_quorum": "2"})


def test_reads_that_decide_what_is_written_ask_for_what_was_written_last(bench: Bench) -> None:
    """The engine takes the setting for every table; what it does among replicas cannot be seen with one."""
    sink = bench.sink()
    sink.write(delivery(changes(T, (INSERT, None, row(1)))))
    asked = sink._open().client.query("SELECT getSetting('select_sequential_consistency')").result_rows
    assert asked == [(1,)]


def test_a_table_made_by_hand_with_wider_types_is_taken(bench: Bench) -> None:
    bench.server.query(f"CREATE DATABASE {bench.database}")
    bench.server.query(
        f"CREATE TABLE {bench.database}.t (id Int128, name LowCardinality(Nullable(String)), extra UInt8 DEFAULT 7, "
        "_version UInt64, _is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    bench.write(
        delivery(changes(structure("t", ID, NAME), (INSERT, None, {"id": 1, "name": "a"}))), create_tables=False
    )
    assert bench.rows("name, extra") == [{"name": "a", "extra": 7}]
    with pytest.raises(Refused, match="does not exist") as caught:
        bench.write(
            delivery(changes(structure("new", ID), (INSERT, None, {"id": 1}), first=1), start=1), create_tables=False
        )
    assert "CREATE TABLE IF NOT EXISTS" in caught.value.fix


def test_a_table_without_a_key_is_refused_in_upsert_mode(bench: Bench) -> None:
    with pytest.raises(Refused, match="has no key") as caught:
        bench.write(delivery(changes(structure("t", ID, key=()), (INSERT, None, {"id": 1}))))
    assert "changelog" in caught.value.fix
