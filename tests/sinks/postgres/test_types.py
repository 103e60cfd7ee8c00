"""Which type a column gets, and what counts as wider."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.sinks.postgres.support import Make, delivery_of, types, write
from tests.support.blocks import make_block
from tidemill.errors import Poisoned
from tidemill.model.block import ODD, Block, Side
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.sinks.postgres import copy_text as text
from tidemill.sinks.postgres.types import target_type, widens


def test_types_of_mysql_hold_every_value(target: psycopg.Connection[Any], make: Make) -> None:
    kinds = {
        "id": ("bigint unsigned", pa.uint64(), 2**64 - 1, "numeric(20,0)"),
        "tiny": ("tinyint unsigned", pa.uint8(), 255, "smallint"),
        "medium": ("int unsigned", pa.uint32(), 2**32 - 1, "bigint"),
        "small": ("tinyint", pa.int8(), -128, "smallint"),
        "label": ("enum('a','b')", pa.string(), "a", "text"),
        "doc": ("json", pa.string(), '{"a": 1.50}', "json"),
        "raw": ("varbinary(8)", pa.binary(), b"\x00\\\n\xff", "bytea"),
        "price": ("decimal(65,30)", pa.decimal256(65, 30), None, "numeric(65,30)"),
        "at": ("datetime(6)", pa.timestamp("us"), 5, "timestamp without time zone"),
        "stamp": ("timestamp(6)", pa.timestamp("us", "UTC"), 5, "timestamp with time zone"),
        "clock": ("time(1)", pa.string(), "-838:59:59.0", "interval"),
        "bits": ("bit(64)", pa.uint64(), 2**63, "numeric(20,0)"),
        "year": ("year", pa.uint16(), 2155, "integer"),
        "flag": ("bit(1)", pa.bool_(), True, "boolean"),
        "uid": ("uuid", pa.string(), "6ccd780c-baba-1026-9564-5b8c656024db", "uuid"),
        "near": ("vector(2)", pa.list_(pa.float32()), [0.5, -1.0], "real[]"),
        "place": ("point", pa.binary(), b"\x01", "bytea"),
    }
    columns = tuple(Column(name, DataType(k[0], k[1], JsonForm.STRING)) for name, k in kinds.items())
    table = Table("shop", "", "orders", columns, ("id",), version=1, sequence=1).with_fingerprint()
    row = pa.StructArray.from_arrays(
        [pa.array([k[2]], k[1]) for k in kinds.values()], fields=list(table.arrow_struct())
    )
    batch = make_block(1).batch
    batch = batch.set_column(batch.schema.get_field_index("after"), "after", row)
    write(make(), delivery_of(Block(table, batch)))
    target.execute("SET search_path = shop")
    assert types(target) == {name: k[3] for name, k in kinds.items()}
    found = target.execute("SELECT id, raw, doc::text, clock::text, bits FROM orders").fetchone()
    assert found == (2**64 - 1, b"\x00\\\n\xff", '{"a": 1.50}', "PT-838H-59M-59S", 2**63)


def test_a_change_of_a_document_is_not_taken_for_the_document_and_a_zero_date_not_for_null(
    target: psycopg.Connection[Any], make: Make
) -> None:
    columns = (
        Column("id", DataType("bigint", pa.int64(), JsonForm.NUMBER), nullable=False),
        Column("doc", DataType("json", pa.string(), JsonForm.RAW)),
        Column("day", DataType("date", pa.date32(), JsonForm.STRING)),
    )
    table = Table("shop", "", "orders", columns, ("id",), version=1, sequence=1).with_fingerprint()
    row = pa.StructArray.from_arrays(
        [pa.array([1, 2, 3]), pa.array(["{}", None, "[]"]), pa.array([0, 1, None], pa.date32())],
        fields=list(table.arrow_struct()),
    )
    change = {"side": int(Side.AFTER), "column": 1, "text": '[{"op": "remove", "path": "$.a"}]'}
    zero = {"side": int(Side.AFTER), "column": 2, "text": "0000-00-00"}
    batch = make_block(3).batch
    batch = batch.set_column(batch.schema.get_field_index("after"), "after", row)
    batch = batch.append_column("odd", pa.array([None, [change], [zero]], ODD))
    with pytest.raises(Poisoned) as caught:
        make().write(delivery_of(Block(table, batch)))
    assert set(caught.value.reasons) == {1, 2}
    assert "only a change of a JSON document" in caught.value.reasons[1]
    assert "column day" in caught.value.reasons[2]


def test_a_type_of_the_users_choice_is_used(target: psycopg.Connection[Any], make: Make) -> None:
    write(make(types={"numeric(12,2)": "text"}), delivery_of(make_block(1)))
    assert types(target)["price"] == "text"


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("smallint", "integer", True), ("bigint", "integer", False), ("integer", "numeric(10,0)", True),
        ("bigint", "numeric(12,2)", False), ("numeric(12,2)", "numeric(14,2)", True),
        ("numeric(12,2)", "numeric(13,4)", False), ("numeric(12,2)", "numeric", True),
        ("real", "double precision", True), ("double precision", "real", False),
        ("character varying(10)", "character varying(20)", True),
        ("character varying(20)", "character varying(10)", False),
        ("character varying", "character varying(9)", False),
        ("date", "text", True), ("bytea", "text", False), ("integer[]", "text", False), ("date", "boolean", False),
        ("timestamp(3) without time zone", "timestamp without time zone", True),
        ("timestamp(0) without time zone", "timestamp(3) without time zone", True),
    ],
)  # fmt: skip
def test_a_type_is_wider_only_if_it_holds_every_value(old: str, new: str, answer: bool) -> None:
    assert widens(old, new) is answer


def test_an_unknown_type_is_text() -> None:
    assert target_type(DataType("public.mood", pa.string(), JsonForm.STRING)) == "text"
    assert target_type(DataType("public.mood[]", pa.list_(pa.string()), JsonForm.ARRAY)) == "text[]"
    assert target_type(DataType("interval year to month", pa.string(), JsonForm.STRING)) == "interval year to month"


@pytest.mark.parametrize(
    "native", ["text(); DROP TABLE t; --)", "interval '1 day'); DROP TABLE t; --", "numeric(1);x(2)", "date\n;x"]
)
def test_a_type_of_another_database_is_no_statement(native: str) -> None:
    assert target_type(DataType(native, pa.string(), JsonForm.STRING)) == "text"


def test_text_for_copy_escapes_what_would_end_a_value() -> None:
    columns = [text.column(pa.array(["a\tb", "\\.", None, "\\N"])), text.column(pa.array([1, None, 3, 4]).slice(0, 4))]
    assert text.lines(columns).to_pybytes() == b"a\\tb\t1\n\\\\.\t\\N\n\\N\t3\n\\\\N\t4\n"
