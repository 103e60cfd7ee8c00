"""Recorded changes as appends of the log.

A trigger cannot tell which transaction it runs in. But a read sees whole transactions only, so the changes between two
reads, a window, are whole transactions: a window becomes visible in the log at once (invariant 3). An event's position
is its change's own number, which no other way of cutting windows can alter (invariant 4).

A window that is too large for memory is spilled to the log in pieces, and then its events share one position. So that
they are the same after a replay, its end is remembered first, beside the log: a file whose disk is full can be read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.contracts import Schemas
from tidemill.decoders.sqlite import (
    RowChanges,
    SchemaStatement,
    SqliteCells,
    SqliteColumn,
    SqliteTable,
    block_of,
    column_changes,
    ddl_block,
    differs,
    table_runs,
    truncate_block,
)
from tidemill.errors import DecodeError
from tidemill.model.barrier import Barrier
from tidemill.model.block import Block, Op
from tidemill.model.change import Change, Committed, SpillCommitted, Spilled
from tidemill.model.columns import Ints, column
from tidemill.model.table import Table
from tidemill.sources._shared.sqlite_catalog import initial_values
from tidemill.sources._shared.sqlite_names import is_selected
from tidemill.sources.sqlite.errors import RECOVER, ChangesRemoved, translate
from tidemill.sources.sqlite.native import CellReader
from tidemill.sources.sqlite.resume import SqlitePlace
from tidemill.sources.sqlite.setup import width
from tidemill.sources.sqlite.triggers import CHANGES, DDL, SHAPES, TRUNCATE, UPDATE, values

if TYPE_CHECKING:
    from tidemill.sources.sqlite import SqliteFileConfig

_WINDOW = "sqlite window"  # [file, after, through] of the last that was spilled
_META = 4  # change_id, shape, op, at
_MILLI = 1000
_NO_SHAPE = -1
_MADE_UP = "SELECT 1, ?1, 2, ?2, 1, 1.5, 'a', x'00', 1, 2.5, 'b', x'01'"  # an UPDATE
_MADE_UP_TABLE = SqliteTable("made up", tuple(SqliteColumn(kind, kind) for kind in ("INT", "REAL", "TEXT", "BLOB")))


@dataclass(frozen=True, slots=True)
class RecordedShape:
    """What the rows with this number were recorded with. `statement` is what made it so, None for the first one."""

    columns: int
    keys: list[int]
    table: Table
    selected: bool
    statement: SchemaStatement | None


class ChangeWindows:
    """Of one connection. `place` is the end of what was handed out."""

    def __init__(
        self, db: sqlite3.Connection, reader: CellReader, schemas: Schemas, place: SqlitePlace, config: SqliteFileConfig
    ) -> None:
        self.place = place
        self._db, self._reader, self._schemas, self._config = db, reader, schemas, config
        self._shapes: dict[int, RecordedShape] = {}
        document = schemas.recall(_WINDOW)
        self._spilled: list[str | int] = orjson.loads(document) if document else []
        self._width = -1
        self._spills = 0

    def warm_up(self) -> None:
        """Loads the compiled kernels with a change that nobody made, which takes up to half a second: it is over before
        the stream begins, and no event waits for it."""
        place, count = self.place, len(_MADE_UP_TABLE.columns)
        self._shapes[_NO_SHAPE] = RecordedShape(count, [0], _MADE_UP_TABLE.to_table(""), True, None)
        self._commit_of(self._reader.read(_MADE_UP, (_NO_SHAPE, 0), _META + 2 * count))
        self.place = place
        del self._shapes[_NO_SHAPE]

    def forget_width(self) -> None:
        """The change table may have more columns now."""
        self._width = -1

    def changes(self, through: int) -> Iterator[Change]:
        """Everything after `place` up to `through`, which a read has seen as the end."""
        while self.place.number < through:
            noted = self._noted_end()
            cells = self._read(noted or through)
            whole = cells.rows
            if int(cells.number[0, -1]) < through:  # there is more, but a statement ends what stands before it
                statements = np.flatnonzero(_statements(cells))
                whole = int(statements[-1]) + 1 if len(statements) else 0
            if noted or not whole:
                yield from self._spill(noted or through, cells)
                continue
            for first, stop in _between_statements(cells, whole):
                part = cells if stop - first == cells.rows else cells.take(np.arange(first, stop))
                yield self._commit_of(part)

    def _read(self, through: int) -> SqliteCells:
        if self._width < 0:
            with translate(self._config.where):
                self._width = width(self._db)
        sql = (
            f"SELECT change_id, shape, op, at{', ' if self._width else ''}{values(self._width)} FROM {CHANGES}"
            " WHERE change_id > ?1 AND change_id <= ?2 ORDER BY change_id"
        )
        cells = self._reader.read(sql, (self.place.number, through), _META + self._width)
        numbers = cells.number[0]
        expected = self.place.number + 1
        if not cells.rows or int(numbers[0]) != expected or int(numbers[-1]) != expected + cells.rows - 1:
            raise ChangesRemoved(
                f"changes after {self.place.number} are missing from the change table", where=self._config.where,
                fix=f"Somebody deleted rows of {CHANGES}. {RECOVER}",
            )  # fmt: skip
        return cells

    def _commit_of(self, cells: SqliteCells) -> Committed:
        numbers, times = cells.number[0], cells.number[3]
        place = SqlitePlace(int(numbers[-1]), int(times[-1]), self.place.file)
        barrier = Barrier.NONE
        if _statements(cells)[0]:
            shape, committed = self._shape(int(cells.number[1, 0])), (str(place.text()), 0, place.witness * _MILLI)
            blocks: tuple[Block, ...] = ()
            if shape.selected and int(cells.number[2, 0]) == TRUNCATE:
                barrier, blocks = Barrier.TRUNCATE, (truncate_block(shape.table, committed),)
            elif shape.selected and shape.statement is not None:
                barrier, blocks = Barrier.SCHEMA_CHANGE, (ddl_block(shape.statement, 0, 0, committed),)
        else:
            strings = (column(np.ascontiguousarray(each), pa.int64()).cast(pa.string()) for each in (numbers, times))
            names = pc.binary_join_element_wise(*strings, "/")  # as `SqlitePlace.text`
            names = pc.binary_join_element_wise(names, f"@{place.file}", "")
            blocks = self._blocks(cells, 0, (names, times * _MILLI))
        count = sum(block.rows for block in blocks)
        self.place = place
        return Committed(blocks, count, ((count, place.text()),), barrier)

    def _spill(self, end: int, cells: SqliteCells) -> Iterator[Change]:
        """One window in pieces. The end is remembered first: after a replay it must be the same (invariant 4)."""
        begin = self.place
        if not self._noted_end():
            self._spilled = [begin.file, begin.number, end]
            self._schemas.remember(_WINDOW, orjson.dumps(self._spilled))
        self._spills += 1
        handed = 0
        while True:
            stop = np.flatnonzero(_statements(cells))
            if len(stop):  # a statement is a transaction of its own: the window ends before it
                cells = cells.part(0, cells.columns, np.arange(int(stop[0])))
            if cells.rows:
                blocks = self._blocks(cells, handed, None)
                count = sum(block.rows for block in blocks)
                handed += count
                self.place = SqlitePlace(int(cells.number[0, -1]), int(cells.number[3, -1]), begin.file)
                if count:
                    yield Spilled(self._spills, blocks, count)
            if len(stop) or self.place.number >= end:
                break
            cells = self._read(end)
        if self.place != begin:
            place, unknown = self.place, 0  # it may be several transactions
            yield SpillCommitted(self._spills, place.text(), unknown, place.witness * _MILLI, place.text())
        if len(stop):
            yield self._commit_of(self._read(self.place.number + 1))

    def _blocks(self, cells: SqliteCells, handed: int, committed: tuple[pa.Array, Ints] | None) -> tuple[Block, ...]:
        """One for each table, in order. Without `committed` it is a piece of a spilled window, of which so many events
        have left."""
        rows, second = self._events(cells)
        offset = np.arange(len(rows)) + handed
        ordinal = offset if committed is None else second.astype(np.int64)
        op = cells.number[2][rows].astype(np.uint8)
        op[second] = int(Op.INSERT)
        op[np.flatnonzero(second) - 1] = int(Op.DELETE)
        shapes, slot = np.unique(cells.number[1][rows], return_inverse=True)
        runs = table_runs(slot.astype(np.int32), lambda number: self._shape(int(shapes[number])).table.full_name)
        return tuple(self._block(cells, rows[own], op[own], offset[own], ordinal[own], committed) for _, own in runs)

    def _events(self, cells: SqliteCells) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The row of each event, and whether it is the second of its row: an UPDATE that changes the key is a DELETE
        and an INSERT (ADR 3). Tables that are not ours have none."""
        counts = np.ones(cells.rows, np.int64)
        shapes = cells.number[1]
        for number in np.unique(shapes).tolist():
            shape, mine = self._shape(number), shapes == number
            if not shape.selected:
                counts[mine] = 0
                continue
            rows = np.flatnonzero(mine & (cells.number[2] == UPDATE))
            if len(rows) and shape.keys:
                old = cells.part(_META, _META + shape.columns, rows)
                new = cells.part(_META + shape.columns, _META + 2 * shape.columns, rows)
                counts[rows] += differs(old, new, shape.keys)
        events = np.repeat(np.arange(cells.rows), counts)
        second = np.zeros(len(events), np.bool_)
        second[1:] = events[1:] == events[:-1]
        return events, second

    def _block(
        self,
        cells: SqliteCells,
        rows: Ints,
        op: npt.NDArray[np.uint8],
        offset: Ints,
        ordinal: Ints,
        committed: tuple[pa.Array, Ints] | None,
    ) -> Block:
        """An UPDATE has the old row in the first half of its values and the new one in the second, others have one."""
        shape = self._shape(int(cells.number[1, rows[0]]))
        count, updated = shape.columns, cells.number[2][rows] == UPDATE
        low = high = cells.part(_META, _META + count, rows)
        if updated.any():
            high = cells.part(_META + count, _META + 2 * count, rows).where(updated, low)
        has_old, has_new = op != int(Op.INSERT), op != int(Op.DELETE)
        changes = RowChanges(shape.table, op, low, high, has_old, has_new)
        if committed is None:
            return block_of(changes, offset, ordinal, None)
        names, micros = committed
        none = np.zeros(len(rows), np.int64)
        return block_of(changes, offset, ordinal, (names.take(column(rows, pa.int64())), none, micros[rows]))

    def _noted_end(self) -> int:
        """Of a window that begins here, and of which a part may have been handed out before a crash; else 0."""
        begins_here = self._spilled[:2] == [self.place.file, self.place.number]
        return int(self._spilled[2]) if begins_here else 0

    def _shape(self, number: int) -> RecordedShape:
        known = self._shapes.get(number)
        if known is None:
            known = self._shapes[number] = self._load(number)
        return known

    def _load(self, number: int) -> RecordedShape:
        with translate(self._config.where):
            row = self._db.execute(
                f"SELECT kind, text, document, renamed, previous FROM {SHAPES} WHERE shape = ?", [number]
            ).fetchone()
        if row is None:
            raise DecodeError(f"no description {number} of a table is in {SHAPES}", where=self._config.where)
        kind, text, document, renamed, previous = row
        described = SqliteTable.from_json(document)
        pairs = tuple((was, now) for was, now in orjson.loads(renamed))
        old = self._describe(previous) if previous is not None and kind == "alter" else None
        table = described.to_table(
            self._config.database_name, renamed=pairs, initial=initial_values(old, described, pairs) if old else None
        )
        table = self._schemas.register(table, self.place.text())
        statement = None
        if kind != "first":
            changes = [] if kind == "drop" else column_changes(old, described, pairs)
            sides = (described, None) if kind == "drop" else (old, described)
            statement = SchemaStatement(table, text, kind, changes, *sides)
        keys = [i for i, c in enumerate(described.columns) if c.key]
        chosen = is_selected(self._config.patterns, described.name)
        return RecordedShape(len(described.columns), keys, table, chosen, statement)

    def _describe(self, number: int) -> SqliteTable:
        (document,) = self._db.execute(f"SELECT document FROM {SHAPES} WHERE shape = ?", [number]).fetchone()
        return SqliteTable.from_json(document)


def _statements(cells: SqliteCells) -> npt.NDArray[np.bool_]:
    """What is no change of a row."""
    found: npt.NDArray[np.bool_] = np.isin(cells.number[2], (DDL, TRUNCATE))
    return found


def _between_statements(cells: SqliteCells, count: int) -> Iterator[tuple[int, int]]:
    """Runs of the first `count` rows; each statement is a run of its own."""
    first = 0
    for at in np.flatnonzero(_statements(cells)[:count]).tolist():
        if at > first:
            yield first, at
        yield at, at + 1
        first = at + 1
    if first < count:
        yield first, count
