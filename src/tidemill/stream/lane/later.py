"""Rows from before a schema change, in the transaction that made it, under the names that their columns have after it.

A transaction is delivered wholly (invariant 3), and the driver has made its changes at the sinks before any lane writes
(schema_barrier.py). So a row that was written before the statement finds a table without the column that was renamed or
dropped: it goes where its columns are now, and what is dropped is not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import pairwise

from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.model.schema_change import SchemaChangeKind
from tidemill.model.table import Table
from tidemill.schema.diff import diff
from tidemill.schema.view import TableView
from tidemill.stream.lane.views import Structures, project


def follow_changes(delivery: Delivery, structures: Structures, made: Set[SchemaChangeKind]) -> Delivery:
    """`structures` and the delivery are as the sink sees them. `made` are the kinds of change that it makes at its
    tables: others leave a column as it was."""
    if not structures or not made:
        return delivery

    def blocks() -> Iterator[Block]:
        for block in delivery.blocks():
            view = _later_view(block, structures.get(block.table.full_name, ()), made)
            yield block if view is None else project(block, view)

    return replace(delivery, blocks=blocks)


def _later_view(
    block: Block, structures: Sequence[tuple[Offset, Table]], made: Set[SchemaChangeKind]
) -> TableView | None:
    """None where the rows fit as they are, or where no names tell which column is which: the sink judges then."""
    if not structures or not block.rows:
        return None
    first = int(block.offsets()[0])
    known = [table for since, table in structures if since <= first]
    names: dict[str, str] = {c.name: c.name for c in block.table.columns}
    for old, new in pairwise(table for _, table in structures[max(0, len(known) - 1) :]):
        found = diff(old, new)
        if SchemaChangeKind.DROP_COLUMN in made:
            gone = {c.name for c in found.dropped} | {column.name for column, _ in found.replaced}
            names = {column: now for column, now in names.items() if now not in gone}
        if SchemaChangeKind.RENAME_COLUMN in made:
            renamed = {was.name: now.name for was, now in found.renamed}
            names = {column: renamed.get(now, now) for column, now in names.items()}
    if names == {c.name: c.name for c in block.table.columns}:
        return None
    if len(set(names.values())) < len(names) or not set(block.table.key) <= names.keys():
        return None
    columns = tuple(replace(c, name=names[c.name]) for c in block.table.columns if c.name in names)
    table = replace(block.table, columns=columns, key=tuple(names[k] for k in block.table.key), renamed=())
    return TableView(
        block.table, table.with_fingerprint(), tuple(c.name for c in block.table.columns if c.name in names)
    )
