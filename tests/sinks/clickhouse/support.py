"""A sink, its server and the rows that are there."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import pyarrow as pa

from tests.sinks.benches import DELETE, ID, INSERT, UPDATE, SinkBench
from tests.support.changes import changes, column, delivery, structure
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.model.block import Op
from tidemill.model.delivery import Delivery
from tidemill.sinks.clickhouse import ClickHouseConfig, ClickHouseSink

D = decimal.Decimal


class Bench(SinkBench[ClickHouseSink]):
    """With the rows that a reader sees."""

    def __init__(self, server: ClickHouse, database: str) -> None:
        super().__init__()
        self.server = server
        self.database = database

    def _make(self, **options: Any) -> ClickHouseSink:
        settings = {
            "id": "ch", "url": f"http://default:secret@127.0.0.1:{self.server.port}", "database": self.database,
            "connect_timeout_seconds": 2, **options,
        }  # fmt: skip
        return ClickHouseSink(ClickHouseConfig(**settings))

    def rows(self, what: str = "*", table: str = "t", tail: str = "FINAL ORDER BY id") -> list[dict[str, Any]]:
        columns = "* EXCEPT (_version, _is_deleted)" if what == "*" else what
        return self.server.query(f"SELECT {columns} FROM {self.database}.{table} {tail}")

    def types(self, table: str = "t") -> dict[str, str]:
        rows = self.server.query(
            f"SELECT name, type FROM system.columns WHERE database = '{self.database}' AND table = '{table}'"
        )
        return {row["name"]: row["type"] for row in rows}


TYPES: list[tuple[str, pa.DataType, str, Any, Any]] = [
    ("boolean", pa.bool_(), "Bool", True, True),
    ("smallint", pa.int16(), "Int16", -32768, -32768),
    ("tinyint unsigned", pa.uint8(), "UInt8", 255, 255),
    ("bigint unsigned", pa.uint64(), "UInt64", 2**64 - 1, 2**64 - 1),
    ("bigint", pa.int64(), "Int64", -(2**63), -(2**63)),
    ("real", pa.float32(), "Float32", 0.5, 0.5),
    ("double precision", pa.float64(), "Float64", 1e300, 1e300),
    ("numeric(12,2)", pa.decimal128(12, 2), "Decimal(12, 2)", D("-9999999999.99"), "-9999999999.99"),
    ("numeric(76,3)", pa.decimal256(76, 3), "Decimal(76, 3)", D("9" * 73 + ".999"), "9" * 73 + ".999"),
    ("numeric", pa.string(), "String", "1.2300", "1.2300"),
    ("enum('a','b')", pa.string(), "LowCardinality(Nullable(String))", "b", "b"),
    ("public.mood", pa.string(), "String", "sad", "sad"),
    ("uuid", pa.string(), "UUID", str(uuid.UUID(int=1)), str(uuid.UUID(int=1))),
    ("date", pa.date32(), "Date32", datetime.date(1900, 1, 1), "1900-01-01"),
    ("date", pa.date32(), "Date32", datetime.date(2299, 12, 31), "2299-12-31"),
    ("datetime", pa.timestamp("us"), "DateTime64(0, 'UTC')", datetime.datetime(2026, 1, 2), "2026-01-02 00:00:00"),
    ("datetime(3)", pa.timestamp("us"), "DateTime64(3, 'UTC')", datetime.datetime(2026, 1, 2, 0, 0, 0, 123000),
     "2026-01-02 00:00:00.123"),
    ("timestamp without time zone", pa.timestamp("us"), "DateTime64(6, 'UTC')",
     datetime.datetime(1900, 1, 1, 0, 0, 0, 1), "1900-01-01 00:00:00.000001"),
    ("timestamp(2) with time zone", pa.timestamp("us", "UTC"), "DateTime64(2, 'UTC')",
     datetime.datetime(2299, 12, 31, 23, 59, 59, 990000, datetime.UTC), "2299-12-31 23:59:59.99"),
    ("time without time zone", pa.time64("us"), "String", datetime.time(1, 2, 3, 4), "01:02:03.000004"),
    ("time", pa.duration("us"), "Int64", -datetime.timedelta(hours=838), -838 * 3_600_000_000),
    ("integer[]", pa.list_(pa.int32()), "String", [1, None], "[1,null]"),
]  # fmt: skip


def every_type() -> Delivery:
    names = [f"c{i}" for i in range(len(TYPES))]
    columns = [column(name, native, arrow) for name, (native, arrow, *_) in zip(names, TYPES, strict=True)]
    full = {name: case[3] for name, case in zip(names, TYPES, strict=True)}
    rows = [{"id": i, **(full if i % 3 else {})} for i in range(70)]
    events: list[tuple[Op, dict[str, Any] | None, dict[str, Any] | None]] = [(INSERT, None, each) for each in rows]
    events += [(UPDATE, {"id": 5}, {"id": 105, **full}), (DELETE, {"id": 6}, None), (UPDATE, None, {"id": 7})]
    return delivery(changes(structure("t", ID, *columns), *events))
