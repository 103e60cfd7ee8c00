"""A window of a block as rows of the destination: current rows for `upsert`, events for `changelog`. Columnar."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block, Op, Side
from tidemill.model.derived import sub_ordinals
from tidemill.model.table import Column
from tidemill.sinks._shared.images import Mask, OddValues, Verdicts, images, present
from tidemill.sinks._shared.upserts import ImageReader, Upsert, last_of_each_offset, upsert
from tidemill.sinks.clickhouse.server_table import IS_DELETED, SUB, VERSION
from tidemill.sinks.clickhouse.tables import AFTER, BEFORE, ClickHouseDestination
from tidemill.sinks.clickhouse.types import ClickHouseType
from tidemill.sinks.clickhouse.values import fit


def upsert_rows(block: Block, destination: ClickHouseDestination, verdicts: Verdicts) -> Upsert:
    return upsert(last_of_each_offset(block), destination.kinds, fit, verdicts, _refuses_null)


def _refuses_null(kind: ClickHouseType, column: Column) -> bool:
    return not kind.nullable and (kind.element is None or not column.nullable)


def insertable(rows: Upsert, base: int, keep: Mask | None = None) -> pa.Table:
    """What is inserted: the rows, and a deleted row under the old key of each that moved."""
    versions = pa.array(rows.offsets + np.uint64(base), pa.uint64())
    everything = {**rows.keys, **rows.columns, VERSION: versions, IS_DELETED: pa.array(rows.gone.astype(np.uint8))}
    ready = pa.table(everything)
    if keep is not None:
        ready = ready.filter(pa.array(keep))
    if not rows.moved.any():
        return ready
    moved = np.flatnonzero(rows.moved if keep is None else rows.moved & keep)
    at = pa.array(moved)
    left = {
        **{name: values.take(at) for name, values in rows.old_keys.items()},
        **{name: pa.nulls(len(moved), values.type) for name, values in rows.columns.items()},
        VERSION: versions.take(at),
        IS_DELETED: pa.array(np.ones(len(moved), np.uint8)),
    }
    return pa.concat_tables([ready, pa.table(left, schema=ready.schema)])


def changelog_rows(block: Block, destination: ClickHouseDestination, base: int, verdicts: Verdicts) -> pa.Table:
    """One row per event: what happened, where, and both images. Of a row known only by its key, `before` has that."""
    offsets, batch = block.offsets(), block.batch
    reader, sides = ImageReader(block, OddValues(block), offsets, fit, verdicts), images(block)
    labels = pa.array([None, *(op.label for op in Op)], pa.string())
    columns: dict[str, pa.Array] = {
        "_offset": pa.array(offsets + np.uint64(base), pa.uint64()),
        "_op": labels.take(batch.column("op")),
        "_position": batch.column("position").dictionary_decode().fill_null(""),
        "_tx_id": batch.column("tx_id"),
        "_ordinal": batch.column("ordinal"),
        "_commit_time": batch.column("commit_time"),
        "_unchanged": _names(block),
    }
    subs = sub_ordinals(block)
    if SUB in destination.kinds:
        columns[SUB] = pa.array(np.zeros(block.rows, np.uint16) if subs is None else subs)
    elif subs is not None:
        reason = f'processors made several events of one, and {destination.name.plain} has no column "{SUB}" for them'
        verdicts.condemn(offsets, subs > 0, reason)
    for number, column in enumerate(block.table.columns):
        kind = destination.kinds[BEFORE + column.name]
        olds = [
            reader.read(side, number, column, kind, present(block, side))
            for side in (Side.BEFORE, Side.KEY)
            if column.name in sides.get(side, {})
        ]
        kept = olds or [reader.read(Side.BEFORE, number, column, kind, np.zeros(block.rows, bool))]
        columns[BEFORE + column.name] = pc.coalesce(*kept) if len(kept) > 1 else kept[0]
        kind = destination.kinds[AFTER + column.name]
        columns[AFTER + column.name] = reader.read(Side.AFTER, number, column, kind, present(block, Side.AFTER))
    return pa.table(columns)


def _names(block: Block) -> pa.Array:
    lists = block.column("unchanged")
    if lists is None:
        return pa.ListArray.from_arrays(pa.array([0] * (block.rows + 1), pa.int32()), pa.array([], pa.string()))
    names = pa.array([c.name for c in block.table.columns], pa.string())
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(starts), names.take(lists.flatten()))
