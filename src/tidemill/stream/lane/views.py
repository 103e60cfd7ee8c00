"""Rows as a sink sees them whose tables do not follow every change of the source (schema/view.py). Runs in workers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tidemill.errors import Poisoned
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.derived import reshape
from tidemill.model.position import Offset
from tidemill.model.table import Table
from tidemill.schema.view import TableView
from tidemill.stream.lane.rows import unsent
from tidemill.stream.schema.structures import fit_images

Structures = Mapping[str, Sequence[tuple[Offset, Table]]]
"""By table: the structures that it has in a batch, each with the offset from which on."""


def seen_by(
    delivery: Delivery, views: Mapping[str, Sequence[Any]], left_out: Collection[Offset] = ()
) -> Delivery:  # fmt: skip
    """The delivery with the columns that a sink's tables have. `views` are by table, as in `Plan.views`. A value that
    does not fit the type that its column keeps is `Poisoned` when it is read; one that is `left_out` is not there."""
    if not views:
        return delivery
    known = _read(views)

    def blocks() -> Iterator[Block]:
        for block in delivery.blocks():
            view = _view(block, known.get(block.table.full_name, ()))
            yield block if view is None else project(block, view, left_out)

    newest = delivery.newest
    if newest is not None and (mine := known.get(newest.full_name)):
        newest = mine[-1][1].table
    return replace(delivery, blocks=blocks, newest=newest)


def structures_seen(structures: Structures, views: Mapping[str, Sequence[Any]]) -> Structures:
    """The structures of a batch as the sink sees them."""
    known = _read(views)
    return {
        name: [(since, _visible_table(table, _find(table, since, known.get(name, ())))) for since, table in mine]
        for name, mine in structures.items()
    }


def _read(views: Mapping[str, Sequence[Any]]) -> dict[str, list[tuple[Offset, TableView]]]:
    return {name: [(since, TableView.from_dict(view)) for since, view in mine] for name, mine in views.items()}


def _view(block: Block, views: Sequence[tuple[Offset, TableView]]) -> TableView | None:
    return _find(block.table, int(block.offsets()[0]) if block.rows else 0, views)


def _find(table: Table, first: Offset, views: Sequence[tuple[Offset, TableView]]) -> TableView | None:
    """The newest one for rows of this structure at this place; None: they are seen whole."""
    for since, view in reversed(views):
        if view.source.fingerprint == table.fingerprint and since <= first:
            return None if view.is_whole else view
    return None


def _visible_table(table: Table, view: TableView | None) -> Table:
    return table if view is None else view.table


def project(block: Block, view: TableView, left_out: Collection[Offset] = ()) -> Block:
    """Columns that have no values any more are null in new rows, and `unchanged` in updates."""
    table = view.table
    images, bad = fit_images(block, table, view.origins)
    if known := bad.keys() & set(left_out):
        block = block.take(np.flatnonzero(~np.isin(block.offsets(), np.array(sorted(known), np.uint64))))
        images, bad = fit_images(block, table, view.origins)
    if bad:
        raise Poisoned(bad, fix="The source changed the column's type, and the policy of that change is ignore.")
    if not images:
        return Block(table, block.batch)
    filled = [c for c, origin in zip(table.columns, view.origins, strict=True) if origin is not None]
    return unsent(reshape(block, table, images, view.origins), replace(table, columns=tuple(filled)))
