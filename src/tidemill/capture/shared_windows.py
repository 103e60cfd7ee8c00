"""One window for all chunks of a table that wait for adoption.

If each read its own, chunks would wait longer for it, have more changes in it, and wait even longer; and changes, which
the same loop captures, wait meanwhile. So what was read stays, and only what came since is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from tidemill.capture.window import ChunkWindow, Verdict
from tidemill.contracts import ChunkCopy
from tidemill.model.block import Block
from tidemill.model.position import Offset
from tidemill.model.table import Table


@dataclass(slots=True)
class _Shared:
    """What the log has of a table with this structure from `start` to `end`."""

    fingerprint: str
    start: Offset
    end: Offset
    window: ChunkWindow


class SharedWindows:
    """`events` reads the log's blocks of a table from an offset on, without what a snapshot brought."""

    def __init__(self, events: Callable[[Offset, str], Iterator[Block]]) -> None:
        self._events = events
        self._of: dict[str, _Shared] = {}

    def keep(self, tables: Collection[str]) -> None:
        """Of other tables no chunk waits."""
        self._of = {name: shared for name, shared in self._of.items() if name in tables}

    def window_of(self, chunk: ChunkCopy, structure: Table, start: Offset, end: Offset) -> ChunkWindow:
        """To the log's `end`, from `start` on, where the first window of the table's chunks that wait begins: it may
        begin too early (ADR 28), unless that sends a chunk back. Points are read after the event that they are read
        for, and must not meet it."""
        name = structure.full_name
        if chunk.chunk.seen >= 0:
            return ChunkWindow(self._events(chunk.since, name), structure)
        shared = self._of.get(name)
        if shared is None or shared.fingerprint != structure.fingerprint or start < shared.start:
            shared = self._of[name] = _Shared(structure.fingerprint, start, start, ChunkWindow((), structure))
        if shared.end < end:
            shared.window.extend(self._events(shared.end, name))
        if shared.start < start:
            shared.window.drop_before(start)
        shared.start, shared.end = start, end
        if shared.window.verdict is Verdict.AGAIN and start < chunk.since:
            return ChunkWindow(self._events(chunk.since, name), structure)
        return shared.window
