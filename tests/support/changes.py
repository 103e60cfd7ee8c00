"""Blocks from plain Python rows: for tests of destinations with columns of their own, of any types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidemill.model.block import COMMIT_TIME, ODD, POSITION, UNCHANGED, Block, Op, Side
from tidemill.model.delivery import Delivery
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

Row = Mapping[str, Any]
Change = tuple[Op, Row | None, Row | None]
"""(what, old row or key, new row). An old row of key columns only is a `key` image."""

COMMITTED_US = 1_767_225_600_000_000  # 2026-01-01


def column(name: str, native: str, arrow: pa.DataType, *, nullable: bool = True, raw: bool = False) -> Column:
    form = JsonForm.RAW if raw else JsonForm.ARRAY if pa.types.is_list(arrow) else JsonForm.STRING
    return Column(name, DataType(native, arrow, form), nullable=nullable)


def structure(
    name: str, *columns: Column, key: Sequence[str] = ("id",), version: int = 1, renamed: Sequence[tuple[str, str]] = ()
) -> Table:
    plain = Table(
        "shop", "public", name, columns, tuple(key), version=version, sequence=version, renamed=tuple(renamed)
    )
    return plain.with_fingerprint()


def changes(
    table: Table,
    *rows: Change,
    first: int = 0,
    unchanged: Mapping[int, Sequence[str]] | None = None,
    odd: Mapping[int, Sequence[tuple[Side, str, str]]] | None = None,
    position: str = "0/",
) -> Block:
    """Events at offsets from `first` on. `unchanged` and `odd` go by the row's number in the block."""
    count = len(rows)
    offsets = range(first, first + count)
    numbers = {c.name: i for i, c in enumerate(table.columns)}
    names = [c.name for c in table.columns]
    columns: dict[str, pa.Array] = {
        "offset": pa.array(offsets, pa.uint64()),
        "op": pa.array([int(op) for op, _, _ in rows], pa.uint8()),
        "position": pa.array([f"{position}{o:X}" for o in offsets]).dictionary_encode().cast(POSITION),
        "tx_id": pa.array([700] * count, pa.uint64()),
        "ordinal": pa.array(range(count), pa.uint32()),
        "commit_time": pa.array([COMMITTED_US + o for o in offsets], pa.int64()).cast(COMMIT_TIME),
    }
    olds = [old for _, old, _ in rows]
    is_key = [old is not None and set(old) == set(table.key) and set(table.key) != set(names) for old in olds]
    columns["key"] = _struct(table, [old if k else None for old, k in zip(olds, is_key, strict=True)], table.key)
    columns["before"] = _struct(table, [None if k else old for old, k in zip(olds, is_key, strict=True)], names)
    columns["after"] = _struct(table, [new for _, _, new in rows], names)
    if unchanged:
        lists = [[numbers[name] for name in unchanged[i]] if i in unchanged else None for i in range(count)]
        columns["unchanged"] = pa.array(lists, UNCHANGED)
    if odd:
        entries = [
            [{"side": int(side), "column": numbers[name], "text": text} for side, name, text in odd[i]]
            if i in odd
            else None
            for i in range(count)
        ]
        columns["odd"] = pa.array(entries, ODD)
    kept = {name: array for name, array in columns.items() if array.null_count < count or name == "offset"}
    return Block(table, pa.record_batch(list(kept.values()), names=list(kept)))


def delivery(
    *blocks: Block, start: int = 0, end: int | None = None, lane: int = 0, lanes: int = 1, pipeline: str = "shop"
) -> Delivery:
    last = max((int(b.offsets()[-1]) for b in blocks if b.rows), default=start - 1) + 1
    return Delivery(pipeline, "orders", start, last if end is None else end, lane, lanes, lambda: iter(blocks))


def _struct(table: Table, rows: Sequence[Row | None], names: Sequence[str]) -> pa.Array:
    fields = [pa.field(c.name, c.type.arrow) for c in table.columns if c.name in names]
    children = [pa.array([None if row is None else row.get(f.name) for row in rows], f.type) for f in fields]
    return pa.StructArray.from_arrays(children, fields=fields, mask=pa.array([row is None for row in rows]))
