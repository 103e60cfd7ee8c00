"""Rows that `scan` noted, as blocks: all rows of a table at once, and statements one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.decoders._shared.mysql.fill import fill as filling
from tidemill.decoders._shared.mysql.table_lookup import DdlChange
from tidemill.decoders._shared.sides import commits, list_unchanged, meta, runs, side_values, table_runs
from tidemill.decoders.binlog import cells
from tidemill.decoders.binlog import images as row_images
from tidemill.decoders.binlog import scan as scanning
from tidemill.decoders.binlog.column import BinlogCells
from tidemill.decoders.binlog.json import documents
from tidemill.decoders.binlog.rows import BinlogRows, Names, TableNumbers, TableShape
from tidemill.errors import DecodeError
from tidemill.model.block import COMMIT_TIME, DDL, POSITION, Block, Op, Side
from tidemill.model.change import SUBTX
from tidemill.model.columns import Ints, booleans, column
from tidemill.model.position import Position


class Blocks:
    """Of one connection. `buffer` and `notes` are what `scan` ran over last, and what it noted there."""

    def __init__(self, notes: BinlogRows, tables: TableNumbers, names: Names, *, null_zero_dates: bool) -> None:
        self.buffer = np.empty(0, np.uint8)
        self.notes = notes
        self._tables = tables
        self._names = names
        self._null_zero_dates = null_zero_dates

    def rows(self, first: int, last: int, offset: Ints, ordinal: Ints, *, committed: bool) -> tuple[Block, ...]:
        slot = self.notes.slot[first:last]
        blocks = []
        for number, here in table_runs(slot, lambda number: self._tables.slots[number].table.full_name):
            known = self._tables.slots[number]
            own = self._meta(first + here, offset[here], ordinal[here], committed=committed)
            batch = pa.RecordBatch.from_pydict({**own, **self._images(known, first + here)})
            blocks.append(Block(known.table, batch))
        return tuple(blocks)

    def _meta(self, rows: Ints, offset: Ints, ordinal: Ints, *, committed: bool) -> dict[str, pa.Array]:
        notes = self.notes
        own = meta(offset, notes.op[rows], ordinal)
        if not committed:
            return {**own, "subtx": column(np.zeros(len(rows), np.uint64), SUBTX)}
        txs, index = runs(notes.tx[rows])
        names = self._names.positions(notes.tx_name[txs], notes.tx_no[txs])
        return {**own, **commits(names, notes.tx_xid[txs], notes.tx_time[txs], index)}

    def _images(self, known: TableShape, rows: Ints) -> dict[str, pa.Array]:
        """`key`, `before`, `after`, and the side columns, each only if some row has it.

        An old image with every column is `before`. One with fewer (binlog_row_image MINIMAL or NOBLOB) is `key`: of the
        other columns nobody could tell what was NULL from what was not sent. Where the table has no key, `before` has
        the columns that were sent (those of a unique index). What the image of an INSERT lacks is filled with its
        default: of a new row nothing can be `unchanged`.
        """
        notes, table = self.notes, known.table
        event = notes.event[rows]
        old, new, fill = notes.old[rows], notes.new[rows], notes.fill[rows]
        keys = [i for i, c in enumerate(table.columns) if c.name in table.key]
        whole = (notes.ev_flags[event] & row_images.OLD_WHOLE != 0) | (not keys)
        every = list(range(len(table.columns)))
        nothing = np.full(len(rows), -1, np.int32)
        columns: dict[str, pa.Array] = {}
        odd: list[tuple[Ints, Side, int, pa.Array]] = []
        images = (
            ("key", Side.KEY, np.where(whole, nothing, old), nothing, keys),
            ("before", Side.BEFORE, np.where(whole, old, nothing), nothing, every),
            ("after", Side.AFTER, new, fill, every),
        )
        for name, side, start, completed, wanted in images:
            present = start >= 0
            if not wanted or not present.any():
                continue
            column_cells = self._cut(known, start, completed, event, after=side is Side.AFTER)
            if side is Side.BEFORE:
                wanted = [j for j in wanted if not (column_cells[j].kind == cells.UNSENT).any()]
                if not wanted:
                    raise DecodeError(f"old rows of {table.full_name} have no column that all of them were sent with")
            lacking = self._find_lacking(rows, event) if side is Side.AFTER else None
            children = []
            for j in wanted:
                array, bad = self._column(known, j, column_cells[j], fill, event)
                if lacking is not None and (empty := lacking & (column_cells[j].kind == cells.UNSENT)).any():
                    column_cells[j].kind[empty] = cells.NULL
                    array, strings = self._fill(known, j, array, empty)
                    if strings is not None:
                        odd.append((np.flatnonzero(empty), side, j, strings))
                children.append(array)
                if bad is not None:
                    where = np.flatnonzero(bad)
                    size = known.converters[j].step
                    values = [column_cells[j].value(i, size) for i in where.tolist()]
                    strings = pa.array([known.converters[j].odd_text(value) for value in values], pa.string())
                    odd.append((where, side, j, strings))
            fields = [pa.field(table.columns[j].name, table.columns[j].type.arrow) for j in wanted]
            mask = None if present.all() else booleans(~present)
            columns[name] = pa.StructArray.from_arrays(children, fields=fields, mask=mask)
            if side is Side.AFTER:
                unsent = np.stack([c.kind for c in column_cells]) == cells.UNSENT
                if unsent.any():
                    columns["unchanged"] = list_unchanged(unsent)
        if odd:
            columns["odd"] = side_values(odd, len(rows))
        return columns

    def _find_lacking(self, rows: Ints, event: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_] | None:
        """INSERTs whose image has not every column; None where all have, as always with binlog_row_image=FULL."""
        some = self.notes.ev_flags[event] & row_images.NEW_WHOLE == 0
        if not some.any():
            return None
        lacking: npt.NDArray[np.bool_] = some & (self.notes.op[rows] == scanning.OP_INSERT)
        return lacking

    def _fill(
        self, known: TableShape, j: int, array: pa.Array, empty: npt.NDArray[np.bool_]
    ) -> tuple[pa.Array, pa.Array | None]:
        """The column with its default in the rows that are empty, or the default's text for `odd`."""
        made = filling(known.table, known.table.columns[j], known.defaults[j])
        if made.odd:
            kept = not (known.converters[j].is_temporal and self._null_zero_dates)
            return array, pa.array([made.odd] * int(empty.sum()), pa.string()) if kept else None
        if made.value is None:
            return array, None
        return pc.if_else(booleans(empty), pa.scalar(made.value, array.type), array), None

    def _column(
        self, known: TableShape, j: int, own: BinlogCells, fill: npt.NDArray[np.int32], event: npt.NDArray[np.int32]
    ) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
        made = known.converters[j]
        if made.is_document and (own.kind == cells.DIFF).any():
            old = self._cut(known, fill, np.full(len(fill), -1, np.int32), event, after=False)[j]
            return documents.merge(own, old)
        array, bad = made.convert(own)
        if bad is not None and made.is_temporal and self._null_zero_dates:
            return array, None
        return array, bad

    def _cut(
        self,
        known: TableShape,
        start: npt.NDArray[np.int32],
        fill: npt.NDArray[np.int32],
        event: npt.NDArray[np.int32],
        *,
        after: bool,
    ) -> list[BinlogCells]:
        notes, tables, count = self.notes, self._tables, len(known.converters)
        own, other = (notes.ev_new, notes.ev_old) if after else (notes.ev_old, notes.ev_new)
        shape = (count, len(start))
        at, size, kind = np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.uint8)
        cells.cut(
            self.buffer, len(self.buffer), start, fill, event, own, other, notes.ev_flags,
            row_images.NEW_WHOLE if after else row_images.OLD_WHOLE, tables.program, known.first, count, at, size, kind,
        )  # fmt: skip
        return [BinlogCells(self.buffer, at[j], size[j], kind[j]) for j in range(count)]


def statements(changes: Sequence[DdlChange], ordinal: Ints, known: tuple[Position, int] | None) -> tuple[Block, ...]:
    """One row each: the effect of a statement on a table. `known`: position and time, if the transaction has ended."""
    blocks = []
    for i, change in enumerate(changes):
        op = Op.TRUNCATE if change.truncate else Op.DDL
        columns = {"offset": pa.array([int(ordinal[i])], pa.uint64()), "op": pa.array([int(op)], pa.uint8())}
        if known is not None:
            position, time = known
            columns["position"] = pa.array([position], pa.string()).dictionary_encode().cast(POSITION)
            columns["tx_id"] = pa.nulls(1, pa.uint64())
            columns["commit_time"] = pa.array([time], pa.int64()).cast(COMMIT_TIME)
        else:
            columns["subtx"] = pa.array([0], SUBTX)
        columns["ordinal"] = pa.array([int(ordinal[i])], pa.uint32())
        if not change.truncate:
            columns["ddl"] = pa.array([change.document], DDL)
        blocks.append(Block(change.table, pa.RecordBatch.from_pydict(columns)))
    return tuple(blocks)
