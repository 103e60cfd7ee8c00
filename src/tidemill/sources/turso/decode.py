"""Rows of the change table as changes. A transaction is a run of rows with one `change_txn_id`; its end may have more
than one commit record (Turso 0.8 writes one for each trigger, too), which is why these are not relied on.

Images are SQLite records. Quirks of Turso 0.8 that are met here: the INSERT half of a changed rowid has its record in
`before`; virtual generated columns are not in records; in modes `id` and `before` new rows have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.decoders.sqlite import (
    ABSENT,
    INTEGER,
    NULL,
    JoinedRecords,
    RowChanges,
    SchemaStatement,
    SqliteCells,
    SqliteTable,
    block_of,
    cells_of,
    ddl_block,
    differs,
    read_records,
    table_runs,
    write_record,
)
from tidemill.errors import DecodeError
from tidemill.model.block import Block, Op
from tidemill.model.columns import Ints, column
from tidemill.model.position import Position
from tidemill.sources._shared.sqlite_catalog import default_value
from tidemill.sources._shared.sqlite_names import full_name
from tidemill.sources.turso.errors import CdcKeyMissing
from tidemill.sources.turso.tables import CdcTable, CdcTables

COMMIT = 2
_OPS = {1: Op.INSERT, 0: Op.UPDATE, -1: Op.DELETE}
_MICROS = 1_000_000

Lookup = Callable[[SqliteTable, int], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class CdcRow:
    """One row of the change table, in the order of `CdcForm.columns`."""

    number: int
    second: int
    transaction: int
    kind: int
    table: str | None
    id: Any
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class _Image:
    """A row with its records completed. `gone`: of the new row only its key is known. `key`: likewise of the old.
    `lacking`: columns of the new row that are not known."""

    row: CdcRow
    op: Op
    old: bytes | None
    new: bytes | None
    key: bytes | None = None
    gone: bool = False
    lacking: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Which events share a position: those of a transaction, or of a row where transactions are not told apart."""

    of_row: Ints
    positions: list[str]


class CdcDecoder:
    """`lookup` finds the row that has a rowid now, as far as it still has the table's columns; `selected` says of a
    table whether it is captured."""

    def __init__(self, tables: CdcTables, selected: Callable[[str], bool], lookup: Lookup, where: str) -> None:
        self._tables, self._selected, self._lookup, self._where = tables, selected, lookup, where

    def blocks(
        self, rows: Sequence[CdcRow], position: Position | None, offset: int, ordinal: int
    ) -> tuple[list[Block], int, bool]:
        """Of rows of one transaction: blocks, their events, and whether a statement is among them. Without a position
        they are a piece of one that is spilled."""
        blocks: list[Block] = []
        events, statements = 0, False
        for part in self._parts(rows):
            if isinstance(part, SchemaStatement):
                second = rows[-1].second * _MICROS
                committed = (str(position), rows[-1].transaction, second) if position is not None else None
                blocks.append(ddl_block(part, offset + events, ordinal + events, committed))
                events, statements = events + 1, True
                continue
            groups = None if position is None else RowGroups(np.zeros(len(part), np.int64), [str(position)])
            made, counts = self._run(part, groups, offset + events, ordinal + events)
            blocks += made
            events += int(counts.sum())
        return blocks, events, statements

    def transactions(self, rows: Sequence[CdcRow], groups: RowGroups) -> tuple[list[Block], Ints]:
        """Of rows without a statement among them: blocks, and the events of each group."""
        chosen = [i for i, row in enumerate(rows) if row.kind != COMMIT and row.table and self._selected(row.table)]
        if not chosen:
            return [], np.zeros(len(groups.positions), np.int64)
        own = RowGroups(groups.of_row[chosen], groups.positions)
        return self._run([rows[i] for i in chosen], own, 0, 0)

    def _parts(self, rows: Sequence[CdcRow]) -> Iterator[list[CdcRow] | SchemaStatement]:
        """Runs of row changes, and what statements between them did."""
        run: list[CdcRow] = []
        for row in rows:
            if row.kind == COMMIT or row.table is None:
                continue
            if row.table != "sqlite_schema":
                if self._selected(row.table):
                    run.append(row)
                continue
            if run:
                yield run
                run = []
            if (statement := self._statement(row)) is not None:
                yield statement
        if run:
            yield run

    def find_created(self, rows: Sequence[CdcRow]) -> set[str]:
        """Tables that records among these make."""
        statements = [row for row in rows if row.table == "sqlite_schema" and row.kind == 1]
        return {names[1] for row in statements for names, _ in [self._table_names(row)]}

    def _table_names(self, row: CdcRow) -> tuple[list[str], SqliteCells]:
        """A row of sqlite_schema (type, name, tbl_name, rootpage, sql): the table's names before and after it, empty
        where it is none."""
        new = row.after or (row.before if row.kind == 1 else None)
        cells = read_records(JoinedRecords.of([row.before if row.kind != 1 else None, new]), 5, self._where)
        kinds = [cells.bytes_of(0, i) if cells.kind[0, i] != ABSENT else b"" for i in (0, 1)]
        return [cells.bytes_of(1, i).decode() if kinds[i] == b"table" else "" for i in (0, 1)], cells

    def _statement(self, row: CdcRow) -> SchemaStatement | None:
        names, cells = self._table_names(row)
        name = names[1] or names[0]
        if not name or not self._selected(name):
            return None
        place = Position(f"{row.number}@{row.second}")
        if row.kind == -1:
            return self._tables.apply(name, None, place)
        if not names[1]:  # it is gone by now
            return None
        return self._tables.apply(name, cells.bytes_of(4, 1).decode(), place)

    def _run(self, rows: list[CdcRow], groups: RowGroups | None, offset: int, ordinal: int) -> tuple[list[Block], Ints]:
        names = list(dict.fromkeys(str(row.table) for row in rows))
        number = {name: i for i, name in enumerate(names)}
        slot = np.array([number[str(row.table)] for row in rows], np.int32)
        known = [self._recall(name) for name in names]
        images = [self._image(row, known[slot[i]].described) for i, row in enumerate(rows)]
        twice = np.zeros(len(rows), np.bool_)
        cells: list[tuple[SqliteCells, SqliteCells]] = []
        places = [np.flatnonzero(slot == i) for i in range(len(names))]
        for own, table in zip(places, known, strict=True):
            mine = [images[i] for i in own.tolist()]
            old, new = (self._cells([getattr(m, side) for m in mine], mine, table) for side in ("old", "new"))
            cells.append((old, new))
            if keys := _keys(table.described):
                both = (old.kind != ABSENT).any(axis=0) & (new.kind != ABSENT).any(axis=0)
                twice[own] = both & np.array([not m.gone for m in mine]) & differs(old, new, keys)
        events = np.repeat(np.arange(len(rows)), 1 + twice)
        second = np.zeros(len(events), np.bool_)
        second[1:] = events[1:] == events[:-1]
        op = np.array([int(image.op) for image in images], np.uint8)[events]
        op[second] = int(Op.INSERT)
        op[np.flatnonzero(second) - 1] = int(Op.DELETE)
        group = groups.of_row[events] if groups else np.zeros(len(events), np.int64)
        ordinals = _within(group) + ordinal
        within = np.zeros(len(rows), np.int64)
        for own in places:
            within[own] = np.arange(len(own))
        made = []
        for i, at in table_runs(slot[events], lambda i: names[i]):
            take = within[events[at]]
            mine = [images[j] for j in events[at].tolist()]
            changes = self._changes(known[i], mine, op[at], cells[i][0].take(take), cells[i][1].take(take))
            committed = None
            if groups is not None:
                numbers = np.array([m.row.transaction for m in mine], np.int64)
                times = np.array([m.row.second for m in mine], np.int64) * _MICROS
                strings = pa.array(groups.positions, pa.string()).take(column(group[at], pa.int64()))
                committed = (strings, numbers, times)
            made.append(block_of(changes, at + offset, ordinals[at], committed))
        return made, np.bincount(group, minlength=len(groups.positions) if groups else 1)

    def _changes(
        self, known: CdcTable, images: list[_Image], op: npt.NDArray[np.uint8], old: SqliteCells, new: SqliteCells
    ) -> RowChanges:
        has_old = np.array([m.old is not None for m in images]) & (op != int(Op.INSERT))
        has_new = np.array([m.new is not None for m in images]) & (op != int(Op.DELETE))
        has_key = np.array([m.key is not None for m in images]) & (op != int(Op.INSERT))
        key = self._cells([m.key for m in images], images, known) if has_key.any() else None
        unsent = None
        if any(m.lacking for m in images):
            unsent = np.zeros((len(known.described.columns), len(images)), np.bool_)
            for i, image in enumerate(images):
                unsent[list(image.lacking), i] = True
        return RowChanges(known.table, op, old, new, has_old, has_new, key, has_key, unsent)

    def _image(self, row: CdcRow, table: SqliteTable) -> _Image:
        op = _OPS.get(row.kind)
        if op is None:
            raise DecodeError(f"change {row.number} is of an unknown type, {row.kind}", where=self._where)
        old = row.before if op is not Op.INSERT else None
        new = row.after or (row.before if op is Op.INSERT else None)
        if op is Op.DELETE:
            return _Image(row, op, old, None, None if old is not None else self._by_id(row, table))
        if new is not None:
            return _Image(row, op, old, new)
        found = self._lookup(table, row.id)
        if found is not None:
            lacking = tuple(j for j, c in enumerate(table.columns) if c.name not in found)
            return _Image(row, op, old, write_record([found.get(c.name) for c in table.columns]), lacking=lacking)
        others = tuple(j for j, c in enumerate(table.columns) if not c.key)
        return _Image(row, Op.UPDATE, old, self._by_id(row, table), gone=True, lacking=others)

    def _by_id(self, row: CdcRow, table: SqliteTable) -> bytes:
        at = table.rowid_column
        if at is None:
            raise CdcKeyMissing(
                f"change {row.number} of {full_name(table.name)} has only a rowid, which is not its key",
                where=self._where,
                fix="Record whole rows: PRAGMA capture_data_changes_conn('full') on every connection that writes."
                " To leave this change out: tidemill recover FILE --skip-transaction",
            )  # fmt: skip
        return write_record([row.id if j == at else None for j in range(len(table.columns))])

    def _recall(self, name: str) -> CdcTable:
        found = self._tables.known.get(name)
        if found is None:
            raise DecodeError(
                f"the change table has rows of {full_name(name)}, and no description of it was recorded",
                where=self._where,
                fix="doctor says if its statement cannot be read. Else it was renamed, which Turso does not record,"
                " written to, and renamed or dropped again. To leave it out: tidemill recover FILE --skip-transaction",
            )  # fmt: skip
        return found

    def _cells(self, records: list[bytes | None], images: list[_Image], known: CdcTable) -> SqliteCells:
        table = known.described
        where = f"{self._where}, {full_name(table.name)}"
        cells = read_records(JoinedRecords.of(records), len(table.columns), where)
        present = np.array([record is not None for record in records])
        cells = _with_defaults(cells, present, table)
        at = table.rowid_column
        if at is not None:
            lacking = present & (cells.kind[at] == NULL)
            if lacking.any():
                cells.kind[at, lacking] = INTEGER
                cells.number[at, lacking] = [images[i].row.id for i in np.flatnonzero(lacking).tolist()]
        return cells


def _with_defaults(cells: SqliteCells, present: npt.NDArray[np.bool_], table: SqliteTable) -> SqliteCells:
    """A record that is shorter than the table is of before its last columns: they have their defaults."""
    short = present & (cells.kind == ABSENT)
    if not short.any():
        return cells
    defaults = cells_of([[default_value(c) for c in table.columns]], len(table.columns))
    base = len(cells.heap)
    for j in np.flatnonzero(short.any(axis=1)).tolist():
        rows = short[j]
        kind = int(defaults.kind[j, 0])
        cells.kind[j, rows] = kind
        moved = base if kind not in (INTEGER, 2) else 0
        cells.number[j, rows] = defaults.number[j, 0] + moved
        cells.size[j, rows] = defaults.size[j, 0]
    return SqliteCells(cells.kind, cells.number, cells.size, np.concatenate([cells.heap, defaults.heap]))


def _keys(table: SqliteTable) -> list[int]:
    return [i for i, c in enumerate(table.columns) if c.key]


def _within(group: Ints) -> Ints:
    """The place of each event in its group; those of one stand together."""
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else np.zeros(0, np.int64)
    return np.arange(len(group)) - np.repeat(first, np.diff(np.append(first, len(group))))


def transaction_ends(rows: Sequence[CdcRow]) -> Ints:
    """Where each transaction of the rows ends, the last one too."""
    numbers = np.array([row.transaction for row in rows], np.int64)
    return np.append(np.flatnonzero(np.diff(numbers)) + 1, len(rows))
