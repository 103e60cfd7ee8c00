"""How many bytes the stream has yet to deliver, in memory that does not grow with them."""

from __future__ import annotations

from collections import deque

from tidemill.model.position import Offset


class Backlog:
    """Appends are counted in heaps of at least `grain` bytes; a heap counts until the last of it is delivered."""

    def __init__(self, grain: int) -> None:
        self.bytes = 0
        self._grain = grain
        self._heaps: deque[tuple[Offset, int]] = deque()

    def add(self, end: Offset, size: int) -> None:
        self.bytes += size
        if self._heaps and self._heaps[-1][1] < self._grain:
            size += self._heaps.pop()[1]
        self._heaps.append((end, size))

    def deliver(self, offset: Offset) -> None:
        while self._heaps and self._heaps[0][0] <= offset:
            self.bytes -= self._heaps.popleft()[1]
