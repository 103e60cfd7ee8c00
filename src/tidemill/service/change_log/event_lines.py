"""Events of a log as JSON lines in the order of their offsets: `log cat`, and whatever shows events to people.

For the eye, not for throughput: a few thousand rows at a time become Python objects.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.json import JsonFormat
from tidemill.model.block import Block, Op

if TYPE_CHECKING:
    from tidemill.log.entry import BlockRef
    from tidemill.log.reader import LogReader
    from tidemill.model.position import Offset

_WINDOW = 4096


def events(
    reader: LogReader,
    first: Offset = 0,
    last: Offset | None = None,
    wanted: Callable[[str], bool] = lambda table: True,
    source: str = "log",
    only: Op | None = None,
) -> Iterator[tuple[Offset, str]]:
    """(offset, JSON document), of `wanted` tables, of one op if one is given. Reads append by append, so stopping early
    costs only what was read."""
    first = max(first, reader.head())
    last = reader.tail().offset if last is None else min(last, reader.tail().offset)
    for entry in reader.entries(first):
        if entry.base >= last:
            return
        start, end = max(first, entry.base), min(last, entry.base + entry.rows)
        refs = [ref for ref in reader.refs(start, end) if wanted(ref.table)]
        yield from _merge(refs, lambda ref: _block(reader, ref, source, only))


def _merge(
    refs: list[BlockRef], opened: Callable[[BlockRef], Iterator[tuple[Offset, str]]]
) -> Iterator[tuple[Offset, str]]:
    """The tables of one transaction interleave: their blocks come back into one order.

    A block is opened when its first offset is due, not before: an append may have thousands.
    """
    waiting = sorted(refs, key=lambda ref: ref.first, reverse=True)
    heap: list[tuple[Offset, int, str, Iterator[tuple[Offset, str]]]] = []
    number = 0
    while waiting or heap:
        if waiting and (not heap or waiting[-1].first <= heap[0][0]):
            rows, number = opened(waiting.pop()), number + 1
        else:
            offset, _, line, rows = heapq.heappop(heap)
            yield offset, line
        for offset, line in rows:
            heapq.heappush(heap, (offset, number, line, rows))
            break


def _block(reader: LogReader, ref: BlockRef, source: str, only: Op | None) -> Iterator[tuple[Offset, str]]:
    block = reader.read(ref)
    if only is not None:
        block = Block(
            block.table, block.batch.filter(pc.equal(block.batch.column(1), pa.scalar(only.value, pa.uint8())))
        )
    encode = JsonFormat(envelope="native").encode
    for at in range(0, block.rows, _WINDOW):
        window = Block(block.table, block.batch.slice(at, _WINDOW))
        lines = encode(window, source).to_pylist()
        offsets = window.batch.column(0).to_pylist()
        yield from zip(offsets, (line.decode() for line in lines), strict=True)
