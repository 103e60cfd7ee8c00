"""A table with JSON documents, and blocks of it for tests that need no database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tests.support.blocks import EPOCH_US
from tidemill.model.block import COMMIT_TIME, META, ODD, POSITION, UNCHANGED, Block, Op
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

BIGINT = DataType("bigint", pa.int64(), JsonForm.NUMBER)
TEXT = DataType("text", pa.string(), JsonForm.STRING)
JSON = DataType("jsonb", pa.string(), JsonForm.RAW)
NUMERIC = DataType("numeric(12,2)", pa.decimal128(12, 2), JsonForm.STRING)
DOUBLE = DataType("double precision", pa.float64(), JsonForm.NUMBER)
TIMESTAMP = DataType("timestamp with time zone", pa.timestamp("us", tz="UTC"), JsonForm.STRING)


def table(*columns: Column, name: str = "events", sequence: int = 1) -> Table:
    given = columns or (Column("id", BIGINT, nullable=False), Column("doc", JSON), Column("note", TEXT))
    return Table("shop", "public", name, tuple(given), ("id",), version=sequence, sequence=sequence).with_fingerprint()


def block(
    of: Table,
    rows: Sequence[dict[str, Any]],
    *,
    first: int = 0,
    unchanged: Sequence[Sequence[int]] | None = None,
    odd: Sequence[Sequence[dict[str, Any]]] | None = None,
) -> Block:
    """Inserts with offsets from `first`; a document that is no string is written as JSON."""
    offsets = range(first, first + len(rows))
    arrays = []
    for column in of.columns:
        found = [row.get(column.name) for row in rows]
        if column.type.json is JsonForm.RAW:
            found = [each if each is None or isinstance(each, str) else json.dumps(each) for each in found]
        arrays.append(pa.array(found, column.type.arrow))
    meta = {
        "offset": pa.array(offsets, pa.uint64()),
        "op": pa.array([int(Op.INSERT)] * len(rows), pa.uint8()),
        "position": pa.array([f"0/{n:X}" for n in offsets], pa.string()).dictionary_encode().cast(POSITION),
        "tx_id": pa.array([1] * len(rows), pa.uint64()),
        "ordinal": pa.array(range(len(rows)), pa.uint32()),
        "commit_time": pa.array([EPOCH_US + n for n in offsets], pa.int64()).cast(COMMIT_TIME),
    }
    names = [META.field(name) for name in meta]
    columns = [*meta.values(), pa.StructArray.from_arrays(arrays, fields=list(of.arrow_struct()))]
    names.append(pa.field("after", columns[-1].type))
    for name, kind, lists in (("unchanged", UNCHANGED, unchanged), ("odd", ODD, odd)):
        if lists is not None:
            columns.append(pa.array(lists, kind))
            names.append(pa.field(name, kind))
    return Block(of, pa.record_batch(columns, schema=pa.schema(names)))
