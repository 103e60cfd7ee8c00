"""A pipeline's processors over the source's rows: what a sink should have of each, for `tidemill verify`.

It holds for chains that make one event of each event and leave its table and key alone (mask, rename, flatten, keep,
drop columns, most of javascript, python and sql). A processor that drops events makes a sink depend on the history of a
row, not on the row: an update that is filtered leaves the row that was there. Such tables are refused.
"""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from tidemill.config import Pipeline
from tidemill.config.secrets import reveal
from tidemill.errors import Refused
from tidemill.model.block import Block
from tidemill.model.rowkeys import keys_of
from tidemill.model.table import Table
from tidemill.model.unlogged import with_place
from tidemill.service.schema.structures import KeptStructures, PrivateStructures, run_until_known
from tidemill.stream.lane.chain import Chain

_OPS = {"insert", "update", "read"}
_FIX = "verify works with processors that make one event of each, under the same table and key. Name other tables."


class RowChain:
    """Keeps what it learns to itself. For one thread."""

    def __init__(self, pipeline: Pipeline) -> None:
        specs = pipeline.spec.processors
        self._partial = [spec.config.id for spec in specs if spec.config.ops and not set(spec.config.ops) >= _OPS]
        self._chain = Chain([(spec.type, reveal(spec.config)) for spec in specs], pipeline.source_id)
        self._changes_nothing = not specs
        self._structures = PrivateStructures(KeptStructures(pipeline).load() if specs else {})

    def structure(self, table: Table) -> Table:
        """As the sink has it; `Refused` where the rows alone do not say what it should have."""
        if self._changes_nothing:
            return table
        if self._partial:
            raise Refused(f'the processor "{self._partial[0]}" does not see all of insert, update and read', fix=_FIX)
        found = self._chain.begin(self._structures.load()).structure(table)
        if (found.full_name, found.key) != (table.full_name, table.key):
            raise Refused(f"processors change the name or the key of {table.full_name}", fix=_FIX)
        return found

    def rows(self, block: Block) -> Block:
        """One row for each of the block's, in its place."""
        if self._changes_nothing or not block.rows:
            return block
        placed = with_place(block)
        _, made = run_until_known(
            self._chain, self._structures, lambda run: [each for each in run.blocks(iter([placed])) if each.rows]
        )
        if len(made) != 1 or not _are_the_same(placed, made[0]):
            raise Refused(f"processors drop, add or rename rows of {block.table.full_name}", fix=_FIX)
        return made[0]

    def close(self) -> None:
        self._chain.close()


def _are_the_same(before: Block, after: Block) -> bool:
    if before.table.full_name != after.table.full_name or before.rows != after.rows:
        return False
    if after.column("route") is not None or not np.array_equal(before.offsets(), after.offsets()):
        return False
    return bool(pc.all(pc.equal(keys_of(before, "after"), keys_of(after, "after")), skip_nulls=False).as_py())
