"""Blocks of a delivery as windows: the rows of one table that are applied together, ready to be sent.

None of it asks the server, so it runs in a thread while the server is busy with the window before (`prefetch`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tidemill.model.block import Block, Op
from tidemill.model.position import Offset
from tidemill.model.table import Table
from tidemill.sinks._shared.images import has_table
from tidemill.sinks._shared.lines import WINDOW, windows
from tidemill.sinks.postgres.rows import RowStrings, Stretch, join, stretches, unwritable

_MOST_PENDING = 4 * WINDOW  # rows of all tables together that wait for their window to fill
_MOST_BYTES = 1 << 25  # of them


@dataclass(frozen=True, slots=True)
class Window:
    """`since` is the offset that its table's structure was first seen at. No stretches: only that was seen."""

    table: Table
    since: Offset
    stretches: tuple[Stretch, ...] = ()


@dataclass(slots=True)
class _PendingWindow:
    """Rows of one structure of a table that wait for their window to fill."""

    table: Table
    since: Offset
    parts: list[RowStrings] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, rows: RowStrings) -> None:
        self.parts.append(rows)
        self.rows += len(rows)
        self.bytes += rows.nbytes

    def full(self) -> bool:
        return self.rows >= WINDOW or self.bytes >= _MOST_BYTES

    def window(self) -> Window:
        numbers = {column.name: number for number, column in enumerate(self.table.columns)}
        key = [numbers[name] for name in self.table.key]
        return Window(self.table, self.since, tuple(stretches(join(self.parts), key)))


class Windows:
    """Of one delivery. `unwritable` are the rows seen so far that cannot be written as they are."""

    def __init__(self, *, keyless: bool) -> None:
        self.events = 0
        self.unwritable: dict[Offset, str] = {}
        self._keyless = keyless
        self._pending: dict[str, _PendingWindow] = {}

    def of(self, blocks: Iterator[Block]) -> Iterator[Window]:
        for block in blocks:
            self.events += block.rows
            if has_table(block, keyless=self._keyless):
                yield from self._take(block)
        yield from self._flush(*self._pending)

    def _take(self, block: Block) -> Iterator[Window]:
        table, name, since = block.table, block.table.full_name, int(block.offsets()[0])
        before = self._pending.get(name)
        if before is not None and _shape(before.table) != _shape(table):
            yield from self._flush(name)  # rows of the structure before this one go into the table as it was
        ops = block.batch.column("op").to_numpy()
        rowless = (ops == Op.MESSAGE) | (ops == Op.DDL)
        if rowless.any():
            yield Window(table, since)
            block = block.take(np.flatnonzero(~rowless))
        for window in windows(block):
            rows = RowStrings.of(window)
            self.unwritable.update(unwritable(window, rows))
            pending = self._pending.setdefault(name, _PendingWindow(table, since))
            pending.add(rows)
            if pending.full():
                yield from self._flush(name)
        waiting = self._pending.values()
        if sum(p.rows for p in waiting) >= _MOST_PENDING or sum(p.bytes for p in waiting) >= _MOST_BYTES:
            yield from self._flush(*self._pending)

    def _flush(self, *names: str) -> Iterator[Window]:
        for name in names:
            yield self._pending.pop(name).window()


def _shape(table: Table) -> object:
    return table.lineage
