"""Tables whose newest copy has come to its end, and from where on: what a source may have said of rows that it missed
before is over then."""

from __future__ import annotations

from collections.abc import Collection

from tidemill.contracts import SnapshotStore
from tidemill.model.position import Position
from tidemill.model.snapshot import SnapshotTable, TableState


def is_filtered(table: SnapshotTable, filtered: Collection[str]) -> bool:
    """Whether a copy leaves rows out; `filtered` are the tables with a filter in the document."""
    return table.name in filtered if table.where is None else bool(table.where)


def find_copied(store: SnapshotStore, pipeline: str, filtered: Collection[str] = ()) -> dict[str, Position]:
    """By name: a position that the table was there at before any of its rows was read; an empty one where not all rows
    were copied."""
    newest: dict[str, tuple[TableState, Position]] = {}
    for record in store.records(pipeline):
        for table in store.tables(pipeline, record.id):
            whole = not record.where and not is_filtered(table.structure, filtered)
            newest.setdefault(table.name, (table.state, table.structure.high if whole else Position("")))
    return {name: high for name, (state, high) in newest.items() if state is TableState.READY}
