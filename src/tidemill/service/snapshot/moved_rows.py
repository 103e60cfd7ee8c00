"""Rows that moved to another key and left columns out: they may be in no chunk, and are read again at the end.

While the ranges of a table come into the log, that is every row that moves so. Afterwards the log has each row whole
under its old key, and the move says the rest, unless that key is itself one that is still to be read. Without that rule
a table whose rows never stop moving would never be ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.contracts import ChunkCopy, SnapshotRecord, SnapshotStore, TableCopy
from tidemill.log.reader import LogReader
from tidemill.model.barrier import Barrier
from tidemill.model.block import Block
from tidemill.model.position import Offset
from tidemill.model.rowkeys import key_strings, moved_with_holes, old_key_strings
from tidemill.model.snapshot import Bound, ChunkState, SnapshotTable
from tidemill.model.table import Table

_ALL = 1 << 30


class MovedRows:
    """Of one snapshot. In memory only: after a restart the first look takes every move for one that counts."""

    def __init__(self, log: LogReader) -> None:
        self._log, self._cursor = log, -1
        self._left: dict[str, set[Bound]] = {}  # of tables whose ranges are in the log: keys that are to be read

    def search(self, store: SnapshotStore, pipeline: str, record: SnapshotRecord, tables: Sequence[TableCopy]) -> bool:
        """Rows that moved to another key with a hole may be in no chunk: they are read again at the end. Whether there
        are new ones."""
        # Those that are staged before those that are planned, and before the log's end.
        staged = store.chunks(pipeline, record.id, ChunkState.STAGED, _ALL)
        left = keys_left(tables, staged, store.chunks(pipeline, record.id, ChunkState.PLANNED, _ALL))
        tail, start = self._log.tail().offset, record.cursor
        if start < 0:
            start = record.recovers_from if record.recovers_from >= 0 else 0 if self._log.head() == 0 else tail
        points, tail = self.find(start, tail, left, {table.name: table.structure.table for table in tables})
        self._cursor = tail
        if points or tail != record.cursor:
            store.save_points(pipeline, record.id, tail, points)
        return bool(points)

    def find(
        self, start: Offset, tail: Offset, left: Mapping[str, set[Bound]], tables: Mapping[str, Table]
    ) -> tuple[dict[str, Sequence[Bound]], Offset]:
        """Keys to read, by table, and how far the log was looked through: `tail` or further. `left` are the `keys_left`
        as they were when the log ended at `tail` or before: they are for moves that the next look meets. For those of
        this one counts what was left at the look before: a key may have been read since, and its row have moved on
        before that. Of a key that the table has not, as `tables` has it, all of the table is read again."""
        points: dict[str, list[Bound]] = {}
        for entry in self._log.entries(start) if start < tail else ():
            if entry.barrier & (Barrier.KEY_CHANGE | Barrier.UNNAMED):
                for ref in entry.blocks:
                    block = self._log.read(ref)
                    read_by = tables.get(ref.table)
                    same = read_by is None or _same_key(read_by, block.table)
                    for old, new in _moves(block):
                        known = self._left.get(ref.table) if same else None
                        new = new if same else ()
                        if known is None or not old or old in known:
                            points.setdefault(ref.table, []).append(new)
                            if known is not None:
                                known.add(new)
            tail = max(tail, entry.end)
        self._left = {name: keys.union(points.get(name, ())) for name, keys in left.items()}
        return dict(points), tail

    def forget(
        self, store: SnapshotStore, pipeline: str, record: SnapshotRecord, before: Table, found: SnapshotTable
    ) -> None:
        """A table's ranges are read anew, as it is by now. With another key its rows that moved are not to be looked up
        any more: all of it is read again at the end."""
        self._left.pop(found.name, None)
        if not _same_key(before, found.table):
            store.save_points(pipeline, record.id, max(self._cursor, record.cursor), {found.name: [()]})


def keys_left(
    tables: Sequence[TableCopy], staged: Sequence[ChunkCopy], planned: Sequence[ChunkCopy]
) -> dict[str, set[Bound]]:
    """Of tables whose ranges are in the log, the keys that are still to be read again. `staged` was asked for before
    `planned`: a chunk that is thrown away in between is in both."""
    chunks: dict[int, list[ChunkCopy]] = {}
    for chunk in (*staged, *planned):
        chunks.setdefault(chunk.table, []).append(chunk)
    found = {}
    for table in tables:
        mine = chunks.get(table.number, ())
        if table.part < len(table.structure.parts) or () in table.points or not all(c.chunk.points for c in mine):
            continue
        found[table.name] = {*table.points, *(point for each in mine for point in each.chunk.points)}
    return found


def _same_key(one: Table, other: Table) -> bool:
    """Whether keys of the one can be looked up in the other."""
    return _key_columns(one) == _key_columns(other)


def _key_columns(table: Table) -> list[tuple[str, str]]:
    kinds = {column.name: column.type.native for column in table.columns}
    return [(name, kinds.get(name, "")) for name in table.key]


def _moves(block: Block) -> list[tuple[Bound, Bound]]:
    """From which key and to which; empty ones where a key has no text."""
    if not (rows := moved_with_holes(block)):
        return []
    return list(zip(old_key_strings(block, rows), key_strings(block, rows), strict=True))
