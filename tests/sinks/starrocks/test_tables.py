"""Types, tables and values that no column can hold."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.benches import DELETE, ID, INSERT, NAME, NOTE, UPDATE, T, row
from tests.sinks.starrocks.support import Bench
from tests.support.changes import changes, column, delivery, structure
from tidemill.errors import Poisoned, Refused
from tidemill.model.block import Side
from tidemill.sinks.starrocks.tables import text_of
from tidemill.sinks.starrocks.types import holds, plain, timestamps

D = decimal.Decimal


def test_every_type_of_the_sources_is_exact_and_nullable(bench: Bench) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    cases: list[tuple[str, pa.DataType, str, Any, Any]] = [
        ("boolean", pa.bool_(), "boolean", True, "1"),
        ("tinyint unsigned", pa.uint8(), "smallint", 255, "255"),
        ("int unsigned", pa.uint32(), "bigint", 2**32 - 1, str(2**32 - 1)),
        ("bigint unsigned", pa.uint64(), "largeint", 2**64 - 1, str(2**64 - 1)),
        ("double precision", pa.float64(), "double", 0.1, "0.1"),
        ("numeric(38,4)", pa.decimal128(38, 4), "decimal(38,4)", D("9" * 34 + ".9999"), "9" * 34 + ".9999"),
        ("numeric(60,4)", pa.decimal256(60, 4), "varchar(1048576)", D("9" * 50 + ".5000"), "9" * 50 + ".5000"),
        ("date", pa.date32(), "date", datetime.date(9999, 12, 31), "9999-12-31"),
        ("timestamp with time zone", pa.timestamp("us", "UTC"), "datetime", moment, "2026-01-02 03:04:05.678901"),
        ("time", pa.time64("us"), "varchar(1048576)", datetime.time(1, 2, 3), "01:02:03.000000"),
        ("bytea", pa.binary(), "varchar(1048576)", b"\x00\xff", "AP8="),
        ("text[]", pa.list_(pa.string()), "array<varchar(1048576)>", ["a", None, 'q"'], '["a",null,"q\\""]'),
        ("text", pa.string(), "varchar(1048576)", "tab\t'quote' \"x\" \\ ü\n", "tab\t'quote' \"x\" \\ ü\n"),
    ]
    columns = [column(f"c{i}", native, arrow) for i, (native, arrow, *_) in enumerate(cases)]
    table = structure("t", ID, *columns, column("doc", "jsonb", pa.string(), raw=True))
    full = {"id": 1, "doc": '{"a": [1, {"b": null}]}', **{f"c{i}": case[3] for i, case in enumerate(cases)}}
    bench.write(delivery(changes(table, (INSERT, None, full), (INSERT, None, {"id": 2}))))
    there = bench.server.query(
        "SELECT column_name, column_type FROM information_schema.columns "
        f"WHERE table_schema = '{bench.database}' AND table_name = 't'"
    )
    types = {r["column_name"]: r["column_type"] for r in there}
    found, empty = bench.rows("*")
    for i, (native, _, made, _, shown) in enumerate(cases):
        assert types[f"c{i}"] == made, native
        assert found[f"c{i}"] == shown, native
        assert empty[f"c{i}"] is None, native
    assert found["doc"] == '{"a":[1,{"b":null}]}'


def test_values_that_no_column_can_hold_are_poisoned_all_at_once(bench: Bench) -> None:
    table = structure(
        "t", ID, column("f", "double precision", pa.float64()), column("p", "numeric(5,2)", pa.decimal128(5, 2)),
        column("d", "date", pa.date32()), column("n", "numeric", pa.string()),
    )  # fmt: skip
    block = changes(
        table, (INSERT, None, {"id": 0}), (INSERT, None, {"id": 1, "f": float("nan")}), (INSERT, None, {"id": 2}),
        (INSERT, None, {"id": 3}), odd={2: [(Side.AFTER, "p", "NaN")], 3: [(Side.AFTER, "n", "NaN")]},
    )  # fmt: skip
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block))
    assert caught.value.reasons.keys() == {1, 2}
    bench.write(delivery(block).without([1, 2]))
    assert bench.rows("id, n") == [{"id": 0, "n": None}, {"id": 3, "n": "NaN"}]


@pytest.mark.parametrize("bad", [{7}, {3, 60, 99}, set(range(0, 100, 2))], ids=["one", "some", "more than reported"])
def test_rows_that_the_server_filters_are_named_and_their_values_are_not(bench: Bench, bad: set[int]) -> None:
    bench.server.query(
        f"CREATE TABLE IF NOT EXISTS `{bench.database}`.`t` (\n  `id` BIGINT NOT NULL,\n  `name` VARCHAR(5) NULL\n)\n"
        "PRIMARY KEY (`id`)\nDISTRIBUTED BY HASH(`id`)"
    )
    table = structure("t", ID, NAME)
    block = changes(
        table, *((INSERT, None, {"id": i, "name": "hidden word" if i in bad else "ok"}) for i in range(100))
    )
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block))
    assert caught.value.reasons.keys() == bad
    assert "hidden" not in str(caught.value)
    bench.write(delivery(block).without(bad))
    assert len(bench.rows("id")) == 100 - len(bad)


def test_columns_that_come_and_are_renamed_are_followed_and_others_stay(bench: Bench) -> None:
    second = structure(
        "t", ID, column("label", "text", pa.string()), column("added", "integer", pa.int32()), version=2,
        renamed=[("name", "label")],
    )  # fmt: skip
    bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    later = changes(
        second, (INSERT, None, {"id": 2, "label": "b", "added": 5}), (UPDATE, None, {"id": 1, "label": "c"}), first=1
    )
    bench.write(delivery(later, start=1))
    found = bench.rows("id, label, note, added")
    assert [tuple(r.values()) for r in found] == [(1, "c", "n", None), (2, "b", None, "5")]


def test_a_table_made_by_hand_is_validated_and_given_the_audit_columns(bench: Bench) -> None:
    create = (
        "CREATE TABLE IF NOT EXISTS `{}`.`{}` (\n  `id` BIGINT NOT NULL,\n  `name` VARCHAR(65533) NULL,\n"
        "  `mine` INT NULL\n)\nPRIMARY KEY (`id`)\nDISTRIBUTED BY HASH(`id`)"
    )
    bench.server.query(create.format(bench.database, "t"))
    bench.write(
        delivery(changes(structure("t", ID, NAME), (INSERT, None, {"id": 1, "name": "a"}))), create_tables=False
    )
    assert bench.rows("id, name, tidemill_cdc_version")[0]["tidemill_cdc_version"] == "0"
    bench.server.query(create.format(bench.database, "u"))
    with pytest.raises(Refused, match="has the key"):
        bench.write(delivery(changes(structure("u", ID, NAME, key=("name",)), (INSERT, None, row(1)))))
    with pytest.raises(Refused, match="does not fit the source"):
        bench.write(delivery(changes(structure("u", ID, column("mine", "bigint", pa.int64())), (INSERT, None, row(1)))))
    with pytest.raises(Refused, match="does not exist") as caught:
        bench.write(delivery(changes(structure("v", ID), (INSERT, None, {"id": 1}))), create_tables=False)
    assert "PRIMARY KEY (`id`)" in caught.value.fix


def test_keys_of_several_columns_and_kinds(bench: Bench) -> None:
    table = structure(
        "t", NOTE, column("d", "date", pa.date32(), nullable=False), column("p", "numeric(5,2)", pa.decimal128(5, 2)),
        ID, key=("d", "p"),
    )  # fmt: skip
    day = datetime.date(2026, 1, 1)
    base = [(INSERT, None, {"id": i, "d": day, "p": D(i), "note": "n"}) for i in range(3)]
    bench.write(delivery(changes(table, *base)))
    later = changes(
        table, (UPDATE, None, {"id": 9, "d": day, "p": D(1)}), (DELETE, {"d": day, "p": D(2)}, None), first=3,
        unchanged={0: ["note"]},
    )  # fmt: skip
    bench.write(delivery(later, start=3))
    assert [(r["p"], r["id"], r["note"]) for r in bench.rows("p, id, note")] == [("0.00", 0, "n"), ("1.00", 9, "n")]


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (structure("t", ID, key=()), "has no key"),
        (structure("t", ID, column("__op", "text", pa.string())), "uses itself"),
        (structure("t", ID, NAME, column("NAME", "text", pa.string())), "cannot tell apart: name, NAME"),
        (structure("t", column("id", "double precision", pa.float64())), "cannot be"),
    ],
)
def test_tables_that_cannot_be_are_refused(bench: Bench, table: Any, complaint: str) -> None:
    with pytest.raises(Refused, match=complaint):
        bench.write(delivery(changes(table, (INSERT, None, {"id": 1}))))


@pytest.mark.parametrize("name", ["a`b", 'a"b', "a\r\nlabel: x", "a\\b"])
def test_a_name_that_no_load_can_give_is_refused_and_not_sent(bench: Bench, name: str) -> None:
    table = structure("t", ID, column(name, "text", pa.string()))
    with pytest.raises(Refused, match="names no load can give"):
        bench.write(delivery(changes(table, (INSERT, None, {"id": 1, name: "x"}))))


def test_a_row_that_is_marked_as_deleted_lends_its_values_to_none(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1, "a", "old")))), deletes="mark")
    bench.write(delivery(changes(T, (DELETE, {"id": 1}, None), first=1), start=1), deletes="mark")
    partial = changes(T, (INSERT, None, {"id": 1, "name": "b"}), first=2, unchanged={0: ["note"]})
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(partial, start=2), deletes="mark")
    assert set(caught.value.reasons) == {2}


def test_moments_of_a_key_are_compared_as_they_are_loaded() -> None:
    whole, part = datetime.datetime(2026, 1, 2, 3, 4, 5), datetime.datetime(2026, 1, 2, 3, 4, 5, 60)
    assert [text_of(v) for v in (whole, part)] == ["2026-01-02 03:04:05.000000", "2026-01-02 03:04:05.000060"]
    ours = timestamps(pa.array([whole, part], pa.timestamp("us"))).to_pylist()
    assert ours == [text_of(v) for v in (whole, part)]
    assert [text_of(v) for v in (True, 2**64 - 1, datetime.date(2026, 1, 2))] == ["1", str(2**64 - 1), "2026-01-02"]


def test_types_as_the_server_prints_them_are_understood() -> None:
    assert plain("bigint(20)") == "BIGINT"
    assert plain("decimal(12, 2)") == "DECIMAL(12,2)"
    assert plain("tinyint(1)") == "BOOLEAN"
    assert holds("bigint(20)", "INT")
    assert not holds("int(11)", "BIGINT")
    assert holds("decimal(14, 4)", "DECIMAL(12,4)")
    assert not holds("decimal(12, 2)", "DECIMAL(12,4)")
