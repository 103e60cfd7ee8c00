from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.blocks import EPOCH, make_block, make_change, make_table
from tidemill.errors import ConfigError
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.block import ODD, UNCHANGED, Block, Op
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.stream import register
from tidemill.stream.spark.rowtypes import convert, spark_type
from tidemill.stream.spark.rowview import newest, rows

NEW_YEAR = datetime.datetime(2026, 1, 1)
NESTED = pa.list_(pa.list_(pa.string()))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    writer = LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({"fsync": False}))
    yield writer
    writer.close()


@pytest.fixture
def view(spark: Any, tmp_path: Path, log: LogWriter) -> Any:
    """A reader of `public.orders`, not loaded yet."""
    register(spark)
    return lambda how: how.format("tidemill").option("log", str(tmp_path / "log")).option("table", "public.orders")


def committed(*blocks: Block) -> Committed:
    events = sum(block.rows for block in blocks)
    return Committed(blocks, events, ((events, Position("0/900")),))


def test_a_batch_read_has_typed_columns_and_what_is_known_of_each_change(spark: Any, view: Any, log: LogWriter) -> None:
    log.append(make_change(4, tables=[make_table(), make_table("other")]))
    log.append(committed(make_block(2, ops=[Op.UPDATE, Op.DELETE], positions="0/900")))
    frame = view(spark.read).load()
    assert dict(frame.dtypes) == {
        "_op": "string", "_offset": "bigint", "_position": "string", "_tx_id": "bigint", "_ordinal": "bigint",
        "_commit_time": "timestamp", "_unchanged": "array<string>", "_odd": "map<string,string>",
        "id": "bigint", "customer": "string", "quantity": "int", "price": "decimal(12,2)", "paid": "boolean",
        "weight": "double", "note": "string", "placed_at": "timestamp",
    }  # fmt: skip
    found = frame.orderBy("_offset").collect()
    assert [(r["_offset"], r["_op"], r["id"]) for r in found] == [
        (0, "insert", 0), (2, "insert", 1), (4, "update", 0), (5, "delete", 1),
    ]  # fmt: skip
    assert found[1]["price"] == decimal.Decimal("0.25")
    assert found[1]["placed_at"].astimezone(datetime.UTC) == EPOCH + datetime.timedelta(seconds=1)
    assert (found[2]["_position"], found[2]["_tx_id"], found[2]["_ordinal"]) == ("0/900", 700, 0)
    assert (found[3]["customer"], found[3]["_unchanged"]) == (None, None), "a DELETE brings its key only"


def test_older_changes_have_null_in_columns_that_came_later(spark: Any, view: Any, log: LogWriter) -> None:
    log.append(make_change(2))
    log.append(make_change(2, tables=[make_table(version=2)], number=2, barrier=True))
    frame = view(spark.read).load()
    assert frame.columns[-1] == "added_in_2"
    assert frame.count() == 4
    assert view(spark.read).option("start", "2").load().count() == 2
    assert view(spark.read).option("end", "3").load().count() == 3


def test_a_stream_gets_every_change_once(spark: Any, view: Any, log: LogWriter, tmp_path: Path) -> None:
    log.append(make_change(3, 3))
    frame = view(spark.readStream).option("max_events", "4").load()
    sink = frame.writeStream.format("memory").queryName("seen").option("checkpointLocation", str(tmp_path / "c"))
    sink.trigger(availableNow=True).start().awaitTermination(120)
    assert [r["_offset"] for r in spark.sql("select _offset from seen order by _offset").collect()] == list(range(6))


def test_a_table_that_is_not_there_is_named_with_the_nearest_one(log: LogWriter, tmp_path: Path) -> None:
    log.append(make_change(1))
    with pytest.raises(ConfigError, match=r"public\.order") as raised:
        newest(LogReader(str(tmp_path / "log")), "public.order")
    assert 'Did you mean "public.orders"?' in raised.value.fix


def test_columns_the_source_did_not_send_and_values_without_a_place_are_told_apart_from_null() -> None:
    block = make_block(2)
    unchanged = pa.array([[6], None], UNCHANGED)
    odd = pa.array([None, [{"side": 2, "column": 3, "text": "NaN"}]], ODD)
    batch = block.batch.append_column("unchanged", unchanged).append_column("odd", odd)
    target = pa.schema(
        [("_unchanged", pa.list_(pa.string())), ("_odd", pa.map_(pa.string(), pa.string())), ("id", pa.int64())]
    )
    assert rows(replace(block, batch=batch), target, "_").to_pylist() == [
        {"_unchanged": ["note"], "_odd": None, "id": 0},
        {"_unchanged": None, "_odd": [("price", "NaN")], "id": 1},
    ]


@pytest.mark.parametrize(
    ("kind", "value", "expected", "target", "shown"),
    [
        (pa.uint64(), 2**64 - 1, "decimal(20,0)", pa.decimal128(20, 0), decimal.Decimal(2**64 - 1)),
        (pa.uint32(), 2**32 - 1, "bigint", pa.int64(), 2**32 - 1),
        (pa.decimal256(50, 2), decimal.Decimal("1.25"), "string", pa.string(), "1.25"),
        (pa.time64("us"), datetime.time(1, 2, 3), "string", pa.string(), "01:02:03.000000"),
        (pa.timestamp("us"), NEW_YEAR, "timestamp_ntz", pa.timestamp("us"), NEW_YEAR),
        (pa.dictionary(pa.int32(), pa.string()), "x", "string", pa.string(), "x"),
        (pa.binary(2), b"ab", "binary", pa.binary(), b"ab"),
        (pa.list_(pa.uint32()), [1, None], "array<bigint>", pa.list_(pa.int64()), [1, None]),
        (NESTED, [["a"], None], "array<array<string>>", NESTED, [["a"], None]),
        (pa.struct([("a", pa.int32())]), {"a": 1}, "string", pa.string(), "{'a': 1}"),
    ],
)  # fmt: skip
def test_types_without_an_equal_in_spark_keep_their_value(
    kind: pa.DataType, value: object, expected: str, target: pa.DataType, shown: object
) -> None:
    assert spark_type(kind) == expected
    assert convert(pa.array([None, value], kind), target).to_pylist() == [None, shown]
