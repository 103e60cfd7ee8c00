"""Rows that `scan` noted, as blocks: all rows of a table at once, a column at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.decoders._shared.calendar import NO_TIME
from tidemill.decoders._shared.sides import commits, list_unchanged, meta, runs, side_values, table_runs
from tidemill.decoders.pgoutput import cells, messages
from tidemill.decoders.pgoutput import scan as scanning
from tidemill.decoders.pgoutput.columns import PgOutputCells, convert, strings
from tidemill.decoders.pgoutput.rows import PgOutputRows, Slots
from tidemill.errors import DecodeError
from tidemill.model.block import DDL, Block, Side
from tidemill.model.change import SUBTX
from tidemill.model.columns import Ints, booleans, column
from tidemill.model.table import Table

Buffer = npt.NDArray[np.uint8]

TWO_THOUSAND = 946_684_800_000_000  # microseconds from 1970 to 2000, where PostgreSQL's clock starts


def table_blocks(
    notes: PgOutputRows, slots: Slots, buffer: Buffer, first: int, last: int, offset: Ints, ordinal: Ints,
    *, committed: bool, admit_nulls: Callable[[int, Sequence[str]], Table],
) -> tuple[Block, ...]:  # fmt: skip
    """Rows `first` to `last` of the notes, a block a table. `offset` and `ordinal` number them. `admit_nulls` gives
    the structure of a slot whose rows hold NULL in columns that it has as not null."""
    slot = notes.slot[first:last]
    made = []
    for number, here in table_runs(slot, lambda number: slots.tables[number].full_name):
        own = _meta(notes, first + here, offset[here], ordinal[here], committed=committed)
        table = slots.tables[number]
        if number == scanning.MESSAGE_SLOT:
            columns = _message(notes, buffer, first + here)
        elif number in slots.statements:
            columns = {"ddl": pa.array([slots.documents[place] for place in notes.fill[first + here]], DDL)}
        else:
            columns, nulls = _images(notes, buffer, table, first + here)
            if nulls:
                table = admit_nulls(number, nulls)
        batch = pa.RecordBatch.from_pydict({**own, **columns})
        made.append(Block(table, batch))
    return tuple(made)


def _meta(notes: PgOutputRows, rows: Ints, offset: Ints, ordinal: Ints, *, committed: bool) -> dict[str, pa.Array]:
    own = meta(offset, notes.op[rows], ordinal)
    if not committed:
        return {**own, "subtx": column(notes.sub[rows].astype(np.uint64), SUBTX)}
    txs, index = runs(notes.tx[rows])
    time = notes.tx_time[txs]
    since_1970 = np.where(time == NO_TIME, time, time + TWO_THOUSAND)
    return {**own, **commits(_lsns(notes, txs), notes.tx_id[txs], since_1970, index)}


def _lsns(notes: PgOutputRows, txs: npt.NDArray[np.int32]) -> pa.Array:
    offsets, data = np.empty(len(txs) + 1, np.int32), np.empty(17 * len(txs), np.uint8)
    size = cells.positions(notes.tx_lsn[txs], offsets, data)
    return pa.Array.from_buffers(pa.string(), len(txs), [None, pa.py_buffer(offsets), pa.py_buffer(data[:size].copy())])


def _images(notes: PgOutputRows, buffer: Buffer, table: Table, rows: Ints) -> tuple[dict[str, pa.Array], list[str]]:
    """`key`, `before`, `after`, and the side columns, each only if some row has it. Second, columns in which a new row
    holds NULL against the table's structure."""
    nothing = np.full(len(rows), -1, np.int64)
    # A partition that logs only its key comes under a root that is FULL as a whole row, with NULLs that are none.
    old, whole = notes.old[rows], (notes.full[rows] == 1) & (table.identity == "full")
    columns: dict[str, pa.Array] = {}
    odd: list[tuple[Ints, Side, int, pa.Array]] = []
    nulls: list[str] = []
    keys = [i for i, c in enumerate(table.columns) if c.name in table.key]
    every = list(range(len(table.columns)))
    images = (
        ("key", Side.KEY, np.where(whole, -1, old), nothing, keys),
        ("before", Side.BEFORE, np.where(whole, old, -1), nothing, every),
        ("after", Side.AFTER, notes.new[rows], notes.fill[rows], every),
    )
    for name, side, start, fill, wanted in images:
        present = start >= 0
        if not wanted or not present.any():
            continue
        at, size, kind = _cut(buffer, start, fill, len(table.columns))
        children = []
        for j in wanted:
            found = PgOutputCells(buffer, at[j], size[j], kind[j])
            array, bad = convert(found, table.columns[j].type)
            children.append(array)
            known = table.columns[j]
            declared = side is Side.AFTER and not known.nullable and known.name not in table.key
            if declared and array.null_count and ((kind[j] == cells.NULL) & present).any():
                nulls.append(known.name)
            if bad is not None:
                where = np.nonzero(bad)[0]
                odd.append((where, side, j, strings(found.take(where))))
        fields = [pa.field(table.columns[j].name, table.columns[j].type.arrow) for j in wanted]
        mask = None if present.all() else booleans(~present)
        columns[name] = pa.StructArray.from_arrays(children, fields=fields, mask=mask)
        if side is Side.AFTER and (kind == cells.UNSENT).any():
            columns["unchanged"] = list_unchanged(kind == cells.UNSENT)
    if odd:
        columns["odd"] = side_values(odd, len(rows))
    return columns, nulls


def _cut(buffer: Buffer, start: Ints, fill: Ints, columns: int) -> tuple[Ints, Ints, npt.NDArray[np.uint8]]:
    shape = (columns, len(start))
    at, size, kind = np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape, np.uint8)
    cells.cut(buffer, start, fill, columns, at, size, kind)
    return at, size, kind


def _message(notes: PgOutputRows, buffer: Buffer, rows: Ints) -> dict[str, pa.Array]:
    """Logical messages: prefix and content. They are few, so one by one is fine."""
    prefixes, contents = [], []
    for at, end in zip(notes.new[rows], notes.end[rows], strict=True):
        body = buffer[at + 9 : end].tobytes()  # after flags and LSN
        cursor = messages.Cursor(body)
        prefixes.append(cursor.text())
        size = cursor.number("I")
        content = body[len(body) - size :] if size else b""
        if len(prefixes[-1].encode()) + 5 + size != len(body):
            raise DecodeError("a logical message does not end where its length says")
        contents.append(content)
    return {"after": pa.StructArray.from_arrays([pa.array(prefixes, pa.string()), pa.array(contents, pa.binary())],
                                                names=["prefix", "content"])}  # fmt: skip
