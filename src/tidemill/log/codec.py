"""A block as bytes: an Arrow IPC stream that describes itself, its table in the schema's metadata.

`offset` is stored relative to the append, so that an append's bytes do not depend on where in the log it lands
(invariant 5) and a spilled transaction can be adopted without rewriting it.
"""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa

from tidemill.log.entry import Constants
from tidemill.model.block import COMMIT_TIME, META, Block
from tidemill.model.columns import column, one_string, values
from tidemill.model.position import Offset
from tidemill.model.table import Table

_TABLE = b"tidemill.table"
_SPILL_ONLY = "subtx"


def dump(block: Block) -> list[pa.Buffer | bytes]:
    """The bytes in pieces, one after the other; those of columns are the block's own buffers, not copied."""
    batch = block.batch.replace_schema_metadata({_TABLE: block.table.to_json()})
    pieces = _Pieces()
    with pa.PythonFile(pieces, mode="w") as sink, pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return pieces.all


def load(
    buffer: pa.Buffer,
    base: Offset = 0,
    constants: Constants | None = None,
    *,
    first: Offset | None = None,
    last: Offset | None = None,
) -> Block:
    """The block with absolute offsets, and of it only `first <= offset < last`. Copies no column but `offset`."""
    table, batch = _open(buffer)
    offsets = values(batch.column("offset"), np.uint64)
    if first is not None and last is not None:
        bounds = np.array([max(first, base) - base, max(last, base) - base], np.uint64)
        low, high = (int(i) for i in offsets.searchsorted(bounds))
        batch, offsets = batch.slice(low, high - low), offsets[low:high]
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["offset"] = column(offsets + np.uint64(base), pa.uint64())
    if constants is not None:
        columns.pop(_SPILL_ONLY, None)
        columns |= _repeat(constants, batch.num_rows)
    meta = [name for name in META.names if name in columns]
    names = meta + [name for name in columns if name not in meta]
    fields = [META.field(name) if name in meta else batch.schema.field(name) for name in names]
    return Block(table, pa.record_batch([columns[name] for name in names], schema=pa.schema(fields)))


def load_spilled(buffer: pa.Buffer) -> Block:
    """As it was spilled: `subtx` still there, offsets counted from the transaction's first event."""
    table, batch = _open(buffer)
    return Block(table, batch.replace_schema_metadata(None))


class _Pieces:
    """As much of a file as Arrow's writer asks for."""

    closed = False

    def __init__(self) -> None:
        self.all: list[pa.Buffer | bytes] = []

    def write(self, piece: pa.Buffer | bytes) -> None:
        self.all.append(piece)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _open(buffer: pa.Buffer) -> tuple[Table, pa.RecordBatch]:
    with pa.ipc.open_stream(buffer) as stream:
        return _table(stream.schema.metadata[_TABLE]), stream.read_next_batch()


@functools.lru_cache(maxsize=256)
def _table(text: bytes) -> Table:
    return Table.from_json(text)


def _repeat(constants: Constants, rows: int) -> dict[str, pa.Array]:
    places = column(np.zeros(rows, np.int32), pa.int32())
    absent = np.full(rows, constants.tx_id == 0)
    return {
        "position": pa.DictionaryArray.from_arrays(places, one_string(constants.position)),
        "tx_id": column(np.full(rows, constants.tx_id, np.uint64), pa.uint64(), absent),
        "commit_time": column(np.full(rows, constants.commit_time, np.int64), COMMIT_TIME),
    }
