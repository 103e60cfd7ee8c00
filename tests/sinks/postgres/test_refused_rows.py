"""Rows that the target can never take are named by their offsets, and nothing is changed in silence."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.sinks.benches import ID, T
from tests.sinks.postgres.support import Make, delivery_of, write
from tests.support.blocks import make_block, make_table
from tests.support.changes import changes, column, structure
from tests.support.origin import rows
from tidemill.errors import DeliveryError, Poisoned
from tidemill.model.block import Op
from tidemill.model.table import Table
from tidemill.sinks.postgres.exact import comparison_type


@pytest.mark.parametrize("size", [1, 300])
def test_rows_that_a_constraint_refuses_are_named_by_offset_and_never_quoted(
    target: psycopg.Connection[Any], make: Make, size: int
) -> None:
    table = make_table()
    write(make(), delivery_of(make_block(1, table=table, first_id=10_000)))
    target.execute("ALTER TABLE orders ADD CONSTRAINT few CHECK (quantity <> 7)")
    target.execute("CREATE UNIQUE INDEX one_customer ON orders (customer) WHERE id % 50 = 49")
    block = make_block(size, table=table, first_id=7, offsets=range(10, 10 + size))
    delivery = delivery_of(block, start=10)
    with pytest.raises(Poisoned) as caught:
        make().write(delivery)
    sevens = {10 + i - 7 for i in range(7, 7 + size) if i % 13 == 7}
    assert set(caught.value.reasons) == sevens
    assert "few" in caught.value.reasons[min(sevens)]
    assert "check violation (SQLSTATE 23514)" in str(caught.value)
    assert "Zürich" not in repr(caught.value.reasons) + str(caught.value)
    assert target.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    write(make(), delivery.without(caught.value.reasons))
    assert target.execute("SELECT count(*) FROM orders").fetchone() == (1 + size - len(sevens),)


@pytest.mark.parametrize("there", [True, False])
def test_a_sink_that_refused_rows_goes_on_with_others(target: psycopg.Connection[Any], make: Make, there: bool) -> None:
    """Tables and temporary tables of the transaction that was taken back are not there any more."""
    if there:
        target.execute("CREATE TABLE t (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'), note text)")
    sink, bad = make(), "bad" if there else "nul \0"
    delivery = delivery_of(
        changes(T, *[(Op.UPDATE, None, {"id": i, "name": bad if i == 7 else "ok"}) for i in range(20)])
    )
    for _ in range(2):
        with pytest.raises(Poisoned) as caught:
            sink.write(delivery)
        assert list(caught.value.reasons) == [7]
    assert write(sink, delivery.without([7])) == 19
    dead_letter = changes(T, (Op.UPDATE, None, {"id": 7, "name": bad}), first=7)
    with pytest.raises(Poisoned):
        sink.write(dataclasses.replace(delivery_of(dead_letter, start=7), redelivered=True))
    assert write(sink, delivery_of(changes(T, (Op.UPDATE, None, {"id": 20, "name": "ok"}), first=20), start=20)) == 1
    assert len(rows(target, "t")) == 20


def test_values_that_rows_swap_need_a_deferred_constraint_and_the_refusal_says_so(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, name text CONSTRAINT one_name UNIQUE, note text)")
    sink = make()
    write(
        sink,
        delivery_of(changes(T, (Op.INSERT, None, {"id": 1, "name": "a"}), (Op.INSERT, None, {"id": 2, "name": "b"}))),
    )
    swapped = changes(
        T, (Op.UPDATE, None, {"id": 1, "name": "tmp"}), (Op.UPDATE, None, {"id": 2, "name": "a"}),
        (Op.UPDATE, None, {"id": 1, "name": "b"}), first=2,
    )  # fmt: skip
    with pytest.raises(Poisoned, match=r"one_name; .* unless the constraint is DEFERRABLE INITIALLY DEFERRED"):
        sink.write(delivery_of(swapped, start=2))
    target.execute(
        "ALTER TABLE t DROP CONSTRAINT one_name, ADD CONSTRAINT one_name UNIQUE (name) DEFERRABLE INITIALLY DEFERRED"
    )
    write(sink, delivery_of(swapped, start=2))
    assert rows(target, "t", "id, name") == [("(1,b)",), ("(2,a)",)]
    twice = changes(T, (Op.INSERT, None, {"id": 3, "name": "a"}), first=5)
    with pytest.raises(DeliveryError, match=r"a unique constraint of the target is not kept.*one_name"):
        sink.write(delivery_of(twice, start=5))


def test_values_that_the_targets_type_refuses_are_poison(target: psycopg.Connection[Any], make: Make) -> None:
    target.execute(
        "CREATE TABLE orders (id smallint PRIMARY KEY, customer varchar(11), quantity int, price numeric, paid bool, "
        "weight float8, note text, placed_at timestamptz)"
    )
    block = make_block(3, table=make_table(), first_id=32766)
    with pytest.raises(Poisoned) as caught:
        make().write(delivery_of(block))
    assert set(caught.value.reasons) == {0, 1, 2}
    assert "column customer" in caught.value.reasons[0]
    assert "column id" in caught.value.reasons[2]
    assert "32768" not in str(caught.value.reasons)


def _kinds(*pairs: tuple[str, pa.DataType]) -> Table:
    return structure("t", ID, *(column(f"c{n}", native, arrow) for n, (native, arrow) in enumerate(pairs)))


_MICROS = pa.timestamp("us")

_LOSSY: list[tuple[str, pa.DataType, str, Any, Any]] = [
    ("numeric", pa.string(), "numeric(10,2)", "1.500", "1.505"),
    ("numeric(12,4)", pa.decimal128(12, 4), "numeric(10,2)", Decimal("7.2500"), Decimal("7.2501")),
    ("numeric(12,4)[]", pa.list_(pa.decimal128(12, 4)), "numeric(10,2)[]", [None, Decimal(1)], [Decimal("0.0001")]),
    ("numeric(12,4)", pa.decimal128(12, 4), "money", Decimal("1000.25"), Decimal("0.0001")),
    ("numeric(12,4)", pa.decimal128(12, 4), "cents", Decimal("1.25"), Decimal("1.2501")),
    ("numeric", pa.string(), "double precision", "0.1", "0.12345678901234567890"),
    ("bigint", pa.int64(), "double precision", 10**15, 2**53 + 1),
    ("double precision", pa.float64(), "real", 0.5, 0.1 + 0.2),
    ("text", pa.string(), "varchar(3)", "ab ", "abc "),
    ("text", pa.string(), "char(3)", "ab", "ab "),
    ("text", pa.string(), "name", "ab", "x" * 64),
    ("text", pa.string(), "numeric(10,2)", "1.5", "1.505"),
    ("timestamp without time zone", _MICROS, "timestamp(0)", datetime(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6)),
    ("timestamp without time zone", _MICROS, "timestamptz(3)", datetime(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6)),
    ("timestamp without time zone", _MICROS, "date", datetime(2026, 1, 2), datetime(2026, 1, 2, 3)),
    ("time", pa.string(), "time(0)", "12:00:00", "12:00:00.6"),
    ("time with time zone", pa.string(), "time", "12:00:00+00", "12:00:00+02"),
    ("interval", pa.string(), "interval hour to minute", "02:03:00", "02:03:04"),
]  # fmt: skip


@pytest.mark.parametrize("keyless", [False, True])
def test_a_value_that_the_targets_type_would_change_is_poison(
    target: psycopg.Connection[Any], make: Make, keyless: bool
) -> None:
    """PostgreSQL itself rounds and cuts without a word."""
    target.execute("CREATE DOMAIN penny AS numeric(10,2); CREATE DOMAIN cents AS penny CHECK (value > 0)")
    table = _kinds(*[(native, arrow) for native, arrow, *_ in _LOSSY])
    listed = ", ".join(f"c{n} {kind}" for n, (_, _, kind, *_) in enumerate(_LOSSY))
    target.execute(f"CREATE TABLE t (id bigint {'' if keyless else 'PRIMARY KEY'}, {listed})".encode())
    table = dataclasses.replace(table, key=() if keyless else ("id",)).with_fingerprint()
    good = {f"c{n}": each[3] for n, each in enumerate(_LOSSY)}
    bad = [good | {f"c{n}": each[4]} for n, each in enumerate(_LOSSY)]
    block = changes(table, *[(Op.INSERT, None, row | {"id": i}) for i, row in enumerate([*bad, good])])
    sink = make(keyless="append")
    with pytest.raises(Poisoned) as caught:
        sink.write(delivery_of(block))
    assert caught.value.reasons.keys() == set(range(len(_LOSSY)))
    for n, (_, _, kind, *_) in enumerate(_LOSSY):
        assert f"column c{n} is " in caught.value.reasons[n], kind
    write(sink, delivery_of(block).without(caught.value.reasons))
    assert rows(target, "t", "id") == [(f"({len(_LOSSY)})",)]
    if not keyless:
        tail = changes(
            table, (Op.UPDATE, None, good | {"id": 18, "c0": "2.0"}), (Op.DELETE, {"id": 18}, None), first=19
        )
        write(sink, delivery_of(tail, start=19))
        assert rows(target, "t", "id") == []


def test_a_text_that_only_loses_spaces_is_seen_among_rows_that_are_new(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, name varchar(3), note text)")
    block = changes(T, *[(Op.INSERT, None, {"id": i, "name": "abc  " if i == 70 else "ab "}) for i in range(100)])
    sink = make()
    with pytest.raises(Poisoned, match=r"column name is character varying\(3\)") as caught:
        sink.write(delivery_of(block))
    assert list(caught.value.reasons) == [70]
    assert write(sink, delivery_of(block).without([70])) == 99


@pytest.mark.parametrize(
    ("wanted", "kind", "compared"),
    [
        ("integer", "smallint", ""), ("bigint", "numeric(10,2)", ""), ("numeric(12,2)", "numeric(5,2)", ""),
        ("numeric(12,2)", "integer", ""), ("smallint", "real", ""), ("integer", "double precision", ""),
        ("smallint", "boolean", ""), ("text", "uuid", ""), ("text", "mood", ""), ("text[]", "mood[]", ""),
        ("text", "character varying", ""), ("character varying(9)", "text", ""), ("json", "jsonb", ""),
        ("timestamp(3) with time zone", "timestamp(6) without time zone", ""),
        ("date", "timestamp(0) with time zone", ""), ("interval", "interval", ""),
        ("double precision", "numeric", ""), ("bytea", "text", ""), ("character(4)", "character(6)", ""),
        ("character(9)", "character varying(3)", "bpchar"), ("real", "numeric(4,1)", "numeric"),
    ],
)  # fmt: skip
def test_a_type_is_in_doubt_only_if_it_may_change_a_value(wanted: str, kind: str, compared: str) -> None:
    assert comparison_type(wanted, kind) == compared


def test_a_domain_that_wants_a_value_does_not_keep_rows_from_being_deleted(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE DOMAIN label AS text NOT NULL CHECK (length(value) < 9)")
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, name label, note text)")
    sink = make()
    write(sink, delivery_of(changes(T, *[(Op.INSERT, None, {"id": i, "name": "a", "note": "n"}) for i in (1, 2)])))
    later = changes(
        T, (Op.DELETE, {"id": 1}, None), (Op.UPDATE, None, {"id": 2, "note": "m"}), first=2, unchanged={1: ["name"]}
    )
    write(sink, delivery_of(later, start=2))
    assert rows(target, "t") == [("(2,a,m)",)]
    with pytest.raises(Poisoned, match="check violation"):
        sink.write(delivery_of(changes(T, (Op.UPDATE, None, {"id": 2, "name": "too long a label"}), first=4), start=4))
