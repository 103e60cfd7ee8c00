"""Whose offsets are the versions in a table: what keeps a lost state directory from losing updates in silence.

A version is an offset of one change log. A log that begins anew begins at offset 0, below the versions that are there,
and a server that keeps the row with the higher version would keep the old rows for the newer ones. So each table's
first event of a log is noted in `_tidemill_history`, before its first row: the offset, and what the source calls that
position. A log that has another event at that offset, or that starts before it, is another log, and is refused with the
way out: `offset_base`, a number above all versions that are there. Where the notes are kept is a `Notebook`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from tidemill.errors import Refused
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.sinks._shared.table_name import TableName

TABLE = "_tidemill_history"


@dataclass(frozen=True, slots=True)
class WriterNote:
    table: str
    source_table: str
    pipeline: str
    sink: str
    base: int
    start: int
    offset: int
    position: str


NameT = TypeVar("NameT", bound=TableName)
NameT_contra = TypeVar("NameT_contra", bound=TableName, contravariant=True)


@dataclass(frozen=True, slots=True)
class TableBlock(Generic[NameT]):
    """A block, and the table that it goes into."""

    name: NameT
    block: Block


class Notebook(Protocol[NameT_contra]):
    """Where the notes are kept, beside the tables. Errors are those of the sink."""

    def create(self, database: str) -> None:
        """The table of notes, if it is missing."""

    def read(self, database: str) -> list[WriterNote]: ...

    def write(self, database: str, note: WriterNote) -> None:
        """Durable when it returns."""

    def greatest(self, name: NameT_contra) -> int | None:
        """The highest version in a table; None if it has no rows."""


@dataclass(slots=True)
class WriterHistory(Generic[NameT]):
    """`shared`: a table may have several writers, known or not; `joined`: several that are known."""

    notebook: Notebook[NameT]
    sink: str
    base: int
    shared: bool
    version: str  # the column that has the versions
    where: str
    joined: bool = False
    _notes: dict[str, list[WriterNote]] = field(default_factory=dict)  # by database
    _admitted: set[tuple[NameT, str]] = field(default_factory=set)  # targets, each with a table that fills it

    def admit(self, name: NameT, block: Block, delivery: Delivery) -> None:
        """Before the first row of a block is written: `Refused` if the table's versions are of another log."""
        if (name, block.table.full_name) not in self._admitted:
            self._look(name, block, delivery)
            self._admitted.add((name, block.table.full_name))
        own = [note for note in self._notes[name.database] if self._is_ours(note, delivery)]
        if own and delivery.start < min(note.start for note in own):
            raise self._other_log(
                name, f"events come from offset {delivery.start} on, before the first one that was written here"
            )
        for note in own:
            if delivery.start <= note.offset < delivery.end:
                now = _position_at(block, note.offset)
                if now is not None and (now, block.table.full_name) != (note.position, note.source_table):
                    raise self._other_log(name, f"offset {note.offset} is another event now")

    def _look(self, name: NameT, block: Block, delivery: Delivery) -> None:
        if name.database not in self._notes:
            self.notebook.create(name.database)
        notes = self.notebook.read(name.database)
        if not any(self._is_ours(n, delivery) and n.table == name.table for n in notes) and not self._joins(
            name, notes
        ):
            greatest = self.notebook.greatest(name)
            if greatest is not None and greatest > self.base + delivery.start:
                notes = self.notebook.read(name.database)  # another lane of this batch may have been first
                if not any(self._is_ours(n, delivery) and n.table == name.table for n in notes) and not self.shared:
                    raise self._other_log(name, f"it has versions up to {greatest} that this log did not write")
        others = {
            (n.pipeline, n.sink, n.source_table)
            for n in notes
            if n.table == name.table and n.base >= self.base
            and (n.pipeline, n.sink, n.source_table) != (delivery.pipeline, self.sink, block.table.full_name)
        }  # fmt: skip
        if others and not (self.shared or self.joined):
            who = ", ".join(f'{source} by "{sink}" of "{pipeline}"' for pipeline, sink, source in sorted(others))
            raise Refused(
                f"{name.plain} is already written from {who}", where=self.where,
                fix='Give each its own "table", or set shared_tables: true if their keys can never be the same.',
            )  # fmt: skip
        mine = [n for n in notes if self._is_ours(n, delivery) and n.table == name.table]
        if not any(n.source_table == block.table.full_name for n in mine) if self.joined else not mine:
            first = _first(name, block, delivery, self)
            self.notebook.write(name.database, first)
            notes.append(first)
        self._notes[name.database] = notes

    def require_one_writer(self, name: NameT, what: str) -> None:
        """`Refused`, with `what` cannot be done, where several tables fill this one."""
        notes = [note for note in self.notebook.read(name.database) if note.table == name.table]
        writers = sorted({f'{note.source_table} by "{note.sink}" of "{note.pipeline}"' for note in notes})
        if len(writers) > 1:
            raise Refused(
                f"{what}: {name.plain} is written from {', '.join(writers)}", where=self.where,
                fix="Whose a row is, is not known. Compare them, and remove what is left over, yourself.",
            )  # fmt: skip

    def _is_ours(self, note: WriterNote, delivery: Delivery) -> bool:
        return (note.pipeline, note.sink, note.base) == (delivery.pipeline, self.sink, self.base)

    def _joins(self, name: NameT, notes: list[WriterNote]) -> bool:
        return self.joined and any(n.table == name.table for n in notes)

    def _other_log(self, name: NameT, what: str) -> Refused:
        return Refused(
            f"{name.plain} holds another history: {what}", where=self.where,
            fix="Was the state directory lost, or the checkpoint moved back? To go on with a new log, set offset_base "
            f"above every version (SELECT max({self.version}) FROM {name.plain}), or empty the tables and "
            f"{name.database}.{TABLE}. To write old events again on purpose, delete this pipeline's rows there.",
        )  # fmt: skip


class VersionedResumption(Generic[NameT]):
    """One delivery into tables whose rows have versions. Nothing is left out: a row that comes again meets its own
    version, and the server keeps one of both. So the table's versions must be of this log, which is noted before its
    first row, and nothing is left to be noted after the last."""

    skipped = 0

    def __init__(self, history: WriterHistory[NameT], delivery: Delivery) -> None:
        self._history, self._delivery = history, delivery

    def fresh(self, unit: TableBlock[NameT]) -> TableBlock[NameT]:
        self._history.admit(unit.name, unit.block, self._delivery)
        return unit

    def note(self) -> None:
        """Each row carries its version."""


def _first(name: NameT, block: Block, delivery: Delivery, history: WriterHistory[NameT]) -> WriterNote:
    offset = int(block.offsets()[0])
    position = _position_at(block, offset) or ""
    return WriterNote(
        name.table, block.table.full_name, delivery.pipeline, history.sink, history.base, delivery.start, offset,
        position,
    )  # fmt: skip


def _position_at(block: Block, offset: int) -> str | None:
    """What the source calls the place of this offset; None if it is not in the block."""
    offsets = block.offsets()
    at = int(offsets.searchsorted(np.uint64(offset)))
    if at >= block.rows or int(offsets[at]) != offset:
        return None
    column = block.column("position")
    return "" if column is None else str(column[at].as_py() or "")
