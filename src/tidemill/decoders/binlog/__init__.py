"""The binlog of MySQL and MariaDB to blocks. The capture loop feeds it the replication stream as it arrives.

How an UPDATE passes through: `scan` notes where its before and after images start; when the buffer is used up, `blocks`
takes all rows of one table at once, `cut` finds their cells, each column's converter turns them into an Arrow
array, and the rows of whole transactions leave as one `Committed`. No step makes a Python object for a row.
In files: `feed` here, `scan` in `scan`, `flush` in `emit`, `blocks`, `cells`, `columns`, `strings`.

What is rare turns off that road and comes back to it: `control` (tables not met before, files, names), from there
`statements` (DDL) and `ends` (XA, rollbacks); `expand` (what is compressed).

A transaction larger than `spill_bytes`, and one that XA has only prepared, leaves in pieces (`Spilled`) and becomes
visible only with `SpillCommitted` (invariant 3); memory stays bounded.

scan        one pass over the stream; images walks rows for it, wire reads numbers
rows        what scan noted; stream the bytes under it, progress how far it is, emit what leaves
blocks      rows as blocks: cells of a column, columns to Arrow: strings, temporal, old_temporal, json
control     what scan leaves to Python: events by one, statements, ends of transactions; expand what is compressed
result_set  rows of a SELECT, for snapshots
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidemill.decoders._shared.mysql.gtid import Flavor, GtidSet, MariadbGtids, MysqlGtids
from tidemill.decoders._shared.mysql.place import BinlogPlace, BinlogWitness, file_number
from tidemill.decoders._shared.mysql.table_lookup import DdlChange, TableLookup
from tidemill.decoders._shared.mysql.table_map import TableMap
from tidemill.decoders.binlog import scan as scanning
from tidemill.decoders.binlog.control import Control
from tidemill.decoders.binlog.emit import Emitter
from tidemill.decoders.binlog.ends import TransactionEnds
from tidemill.decoders.binlog.events import HEADER as EVENT_HEADER
from tidemill.decoders.binlog.events import EventType, TaggedGtid, read_query, read_tagged_gtid
from tidemill.decoders.binlog.expand import expand, read_only
from tidemill.decoders.binlog.progress import Progress
from tidemill.decoders.binlog.result_set.rows import ResultRows, expression, result_types
from tidemill.decoders.binlog.stream import BinlogRefused, BinlogStream, read_server_packet
from tidemill.errors import TidemillError
from tidemill.model.change import Change
from tidemill.model.position import Position

__all__ = [
    "EVENT_HEADER",
    "BinlogDecoder",
    "BinlogPlace",
    "BinlogRefused",
    "BinlogWitness",
    "DdlChange",
    "EventType",
    "Flavor",
    "GtidSet",
    "MariadbGtids",
    "MysqlGtids",
    "ResultRows",
    "TableLookup",
    "TableMap",
    "TaggedGtid",
    "expression",
    "file_number",
    "read_query",
    "read_server_packet",
    "read_tagged_gtid",
    "result_types",
]

_LARGEST = np.iinfo(np.int32).max


class BinlogDecoder:
    """One connection's stream. `feed` it the unconsumed bytes, take the changes, then drop `consumed` bytes.

    `began` is where the stream begins; `place` is how far whole transactions have come. `mark_events` is how far apart
    the places are at which a batch may end. `checksum` is what the session asked for; what counts is what each binlog
    file says of itself. `server` is whose binlog it is (`BinlogPlace.server`).
    """

    def __init__(
        self,
        tables: TableLookup,
        *,
        flavor: Flavor,
        began: Position,
        server: str = "",
        checksum: bool = True,
        mark_events: int = 1000,
        zero_dates: Literal["keep", "null"] = "keep",
        spill_bytes: int = 16 << 20,
        capacity: int = 1 << 17,
    ) -> None:
        self.place = BinlogPlace.parse(began, flavor)
        self.place.server = self.place.server or server
        self.consumed = 0
        self.sent_at = 0  # unknown: events have the second in which their statement began
        self._spill_bytes = spill_bytes
        self._stream = BinlogStream(
            self.place, checksum=checksum, null_zero_dates=zero_dates == "null", capacity=capacity
        )
        progress = Progress(self._stream)
        self._emitter = Emitter(self._stream, progress, mark_events=mark_events)
        self._ends = TransactionEnds(self._stream, progress, self._emitter)
        self._control = Control(self._stream, tables, flavor, progress, self._emitter, self._ends)
        # Kernels are loaded, the first time compiled (seconds), before a server sends anything.
        self._stream.read(read_only(np.empty(0, np.uint8)), 0, packets=True)
        self._stream.scan()

    @property
    def idle(self) -> bool:
        """Nothing is half received and no XA transaction waits, so `place` is all that was sent."""
        return not self._stream.state[scanning.OPEN] and not self._ends.waiting

    def feed(self, data: memoryview | npt.NDArray[np.uint8]) -> Iterator[Change]:
        """Changes of all that is complete in `data`. Take them all before looking at `consumed`.

        An error comes after the changes of every transaction before the one that cannot be decoded, and names that one.
        """
        try:
            yield from self._decode(data)
        except TidemillError as error:
            yield from self._emitter.before(error)
            raise

    def _decode(self, data: memoryview | npt.NDArray[np.uint8]) -> Iterator[Change]:
        whole = read_only(data)
        if len(whole) > _LARGEST:
            whole = whole[:_LARGEST]
        at = 0
        while True:
            status = yield from self._walk(whole, at, packets=True)
            at = int(self._stream.state[scanning.POS])
            if status == scanning.MORE:
                break
            reached = yield from expand(self._stream, self._walk, whole, at)
            if reached is None:
                break
            at = reached
        self.consumed = at

    def _walk(
        self, buffer: npt.NDArray[np.uint8], start: int, *, packets: bool, spill: bool = False
    ) -> Generator[Change, None, int]:
        """Scans one buffer; MORE when it is used up, EXPAND at an event that must be unpacked first."""
        stream, state = self._stream, self._stream.state
        stream.read(buffer, start, packets=packets)
        while True:
            status = stream.scan()
            match status:
                case scanning.MORE | scanning.EXPAND:
                    break
                case scanning.FULL:
                    if not state[scanning.ROWS] and state[scanning.TXS] <= 1:
                        stream.grow()
                    yield from self._emitter.flush(spill_open=int(state[scanning.OPEN_ROW]) == 0)
                case scanning.CONTROL:
                    yield from self._control.event()
                case scanning.SERVER:
                    at, end = int(state[scanning.POS]), int(state[scanning.FRAME_END])
                    stream.server_packet(buffer[at + 4 : end].tobytes())
                case _:
                    raise stream.broken(status)
        large = len(buffer) - int(state[scanning.OPEN_AT]) > self._spill_bytes
        yield from self._emitter.flush(spill_open=spill or (large and status == scanning.MORE))
        return status
