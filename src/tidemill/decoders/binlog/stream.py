"""What the parts of one connection's decoder share: the bytes under `scan`, what it noted there, and its errors.

`binlog` makes one per connection and hands it to every part. The state vector is `scan`'s own; a part that takes an
event from it moves POS after the event when it is done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.decoders._shared.calendar import NO_TIME
from tidemill.decoders._shared.mysql.place import BinlogPlace
from tidemill.decoders.binlog import scan as scanning
from tidemill.decoders.binlog.blocks import Blocks
from tidemill.decoders.binlog.rows import BinlogRows, Names, TableNumbers, TransactionName
from tidemill.errors import ConnectionLost, DecodeError, SourceError

_BROKEN = {
    scanning.BAD_FRAME: "a packet of the binlog stream is malformed",
    scanning.BAD_EVENT: "an event of the binlog does not follow the protocol, or stands where it cannot",
    scanning.BAD_CHECKSUM: "the checksum of a binlog event does not match",
    scanning.UNKNOWN_TABLE: "rows belong to a table that was never described",
    scanning.BAD_ROW: "a row does not fit its event",
}


class BinlogRefused(SourceError):
    """The server ended the stream with an error of its own; the source knows what to make of its number."""

    code = "binlog-refused"

    errno, state, message = 0, "", ""

    def __init__(self, errno: int, state: str, message: str) -> None:
        super().__init__(f"the server refused to send its binlog: {message} ({errno}, {state})")
        self.errno, self.state, self.message = errno, state, message


def read_server_packet(packet: bytes, where: str) -> BinlogRefused | ConnectionLost | None:
    """What a packet says that is no event, an ERR or an EOF of the protocol; None if it is neither."""
    if packet[0] == 0xFF and len(packet) >= 3:
        errno, rest = int.from_bytes(packet[1:3], "little"), packet[3:]
        state, text = (rest[1:6], rest[6:]) if rest[:1] == b"#" else (b"HY000", rest)
        return BinlogRefused(errno, state.decode("latin-1"), text.decode("utf-8", "replace"))
    if packet[0] == 0xFE and len(packet) < 9:
        return ConnectionLost("the server ended the binlog stream", where=where)
    return None


@dataclass(frozen=True, slots=True)
class BinlogTransaction:
    name: int
    number: int
    time: int

    def commit_time(self, seconds: int) -> int:
        """Its own, or that of the event which ends it."""
        return self.time if self.time != NO_TIME else seconds * 1_000_000


class BinlogStream:
    """`place` is how far whole transactions have come. `saved` are the open transaction's savepoints, with the number
    of rows noted before each; they are of the transaction whose OPEN_AT is `saved_at`."""

    def __init__(self, place: BinlogPlace, *, checksum: bool, null_zero_dates: bool, capacity: int) -> None:
        self.place = place
        self.rows = BinlogRows(capacity)
        self.known = TableNumbers()
        self.names = Names()
        self.blocks = Blocks(self.rows, self.known, self.names, null_zero_dates=null_zero_dates)
        self.buffer = np.empty(0, np.uint8)
        self.saved: dict[str, int] = {}
        self.saved_at = -1
        self.state = np.zeros(scanning.STATE_SIZE, np.int64)
        self.state[scanning.CHECKSUM] = checksum
        self.state[scanning.LOG_POS] = place.offset
        self.state[scanning.FILE] = self.names.number(TransactionName(f"{place.file}:"))

    def read(self, buffer: npt.NDArray[np.uint8], start: int, *, packets: bool) -> None:
        """Goes on in these bytes."""
        self.buffer = self.blocks.buffer = buffer
        self.state[scanning.PACKETS], self.state[scanning.POS] = packets, start
        self.saved_at = -1

    def scan(self) -> int:
        """Notes rows until something needs Python; answers what."""
        known, names, rows = self.known.vectors(), self.names.vectors(), self.rows.vectors()
        return int(scanning.scan(self.buffer, len(self.buffer), self.state, *known, *names, *rows))

    def grow(self) -> None:
        """One event has more rows than there is room for."""
        kept = self.rows
        self.rows = self.blocks.notes = BinlogRows(kept.capacity * 2)
        for now, before in zip(self.rows.vectors(), kept.vectors(), strict=True):
            now[: len(before)] = before

    def forget_rows(self, position: int) -> None:
        """All that was noted has left, or will be noted again from `position` on."""
        if self.known.crowded and not self.state[scanning.OPEN]:
            self.known.forget()
        self.state[[scanning.ROWS, scanning.TXS, scanning.EVENTS, scanning.BARRIER]] = 0
        self.state[scanning.POS] = position

    def begin(self, name: int, number: int, time: int, opened: int) -> None:
        """Begins a transaction as `scan` does."""
        state, notes, t = self.state, self.rows, int(self.state[scanning.TXS])
        notes.tx_name[t], notes.tx_no[t], notes.tx_time[t] = name, number, time
        notes.tx_xid[t], notes.tx_row[t] = 0, state[scanning.ROWS]
        state[scanning.TXS] += 1
        state[[scanning.OPEN, scanning.HELD]] = opened, 0
        state[[scanning.OPEN_AT, scanning.OPEN_ROW]] = state[scanning.POS], state[scanning.ROWS]

    def newest(self) -> BinlogTransaction:
        """The transaction that was noted last."""
        return self.noted(int(self.state[scanning.TXS]) - 1)

    def noted(self, i: int) -> BinlogTransaction:
        notes = self.rows
        return BinlogTransaction(int(notes.tx_name[i]), int(notes.tx_no[i]), int(notes.tx_time[i]))

    def server_packet(self, packet: bytes) -> None:
        """Raises what a packet says that is no event."""
        raise read_server_packet(packet, self.where()) or self.broken(scanning.BAD_FRAME)

    def where(self) -> str:
        return f"{self.place.file}:{self.state[scanning.LOG_POS]}"

    def broken(self, status: int) -> DecodeError:
        at = int(self.state[scanning.POS])
        # Header fields only, no row values.
        head = self.buffer[at : at + 24].tobytes().hex()
        return DecodeError(
            _BROKEN[status],
            where=f"{self.where()}, event {head}",
            fix="Restart the pipeline; if it repeats, report the event.",
        )
