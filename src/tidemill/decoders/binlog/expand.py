"""What `scan` cannot read where it stands: compressed events, and events of several packets, one after the other.

`binlog` calls `expand` where `scan` returned EXPAND; the unpacked events go through the same walk as all others.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidemill.decoders.binlog import events
from tidemill.decoders.binlog import scan as scanning
from tidemill.decoders.binlog.events import EventType
from tidemill.decoders.binlog.stream import BinlogStream
from tidemill.errors import DecodeError
from tidemill.model.change import Change

Bytes = npt.NDArray[np.uint8]
_EXPAND_BYTES = 16 << 20
#: Not checked: events that are made for the stream, and the one whose checksum does not follow the file's setting.
_NO_CHECKSUM = (EventType.ROTATE, EventType.FORMAT_DESCRIPTION, EventType.HEARTBEAT, EventType.HEARTBEAT_2)
_PLAIN_BYTES = 1 << 18  # of ordinary events after a compressed one, before the direct way is taken again


class Walk(Protocol):
    """`BinlogDecoder._walk`: scans one buffer."""

    def __call__(
        self, buffer: Bytes, start: int, *, packets: bool, spill: bool = False
    ) -> Generator[Change, None, int]: ...


def expand(stream: BinlogStream, walk: Walk, whole: Bytes, at: int) -> Generator[Change, None, int | None]:
    """Unpacks events from `at` on and scans them. Answers where to go on, None if more must arrive first."""
    state = stream.state
    places: dict[int, int] = {}  # where an event begins in the expanded bytes -> in the stream
    held, end = bytearray(), at
    for piece, start, stop in _pieces(whole, at, checksum=bool(state[scanning.CHECKSUM])):
        if start >= 0:
            places[len(held)] = start
        held += piece
        end = max(end, stop)
        if len(held) >= _EXPAND_BYTES:
            yield from walk(read_only(bytes(held)), 0, packets=False, spill=True)
            del held[: int(state[scanning.POS])]
            places.clear()
    if end == at:
        return None
    places[len(held)] = end
    reached = yield from _walk_expanded(stream, walk, bytes(held), places, spill=False)
    if reached > at:
        return reached
    if _packet(whole, end) is not None:  # there is more, but not of what must be unpacked: it goes on without us
        return (yield from _walk_expanded(stream, walk, bytes(held), places, spill=True))
    last = _packet_end(whole, end)
    if last is not None and last > end + 4 and whole[end + 4]:
        stream.server_packet(whole[end + 4 : last].tobytes())
    return None


def _walk_expanded(
    stream: BinlogStream, walk: Walk, held: bytes, places: dict[int, int], *, spill: bool
) -> Generator[Change, None, int]:
    yield from walk(read_only(held), 0, packets=False, spill=spill)
    reached = int(stream.state[scanning.POS])
    if reached not in places:
        raise stream.broken(scanning.BAD_FRAME)
    return places[reached]


def _pieces(whole: Bytes, at: int, *, checksum: bool) -> Iterator[tuple[bytes, int, int]]:
    """Events from `at` on without packets and checksums: (bytes, where the event begins or -1 for a further piece
    of it, where it ends once it is complete or -1). Stops some way after the last event that needed this."""
    plain = 0
    while plain < _PLAIN_BYTES:
        found = _packet(whole, at)
        if found is None:
            return
        event, after = found
        if len(event) < events.HEADER or int.from_bytes(event[9:13], "little") != len(event):
            raise DecodeError("a packet of the binlog stream is malformed")
        joined = after - at > 0xFFFFFF
        kind = event[4]
        if checksum and kind not in _NO_CHECKSUM:
            if zlib.crc32(event[:-4]) != int.from_bytes(event[-4:], "little"):
                raise DecodeError("the checksum of a binlog event does not match")
            event = event[:9] + struct.pack("<I", len(event) - 4) + event[13:-4]
        if kind in (EventType.ROTATE, EventType.FORMAT_DESCRIPTION):
            return  # files change between transactions: the direct way takes them
        packed = kind == EventType.TRANSACTION_PAYLOAD or kind in events.COMPRESSED
        plain = 0 if packed or joined else plain + len(event)
        parts = events.expand(event)
        before = next(parts)
        start = at
        for piece in parts:
            yield before, start, -1
            before, start = piece, -1
        yield before, start, after
        at = after


def read_only(data: memoryview | bytes | Bytes) -> Bytes:
    """One kind of array for the kernels, whoever owns the memory."""
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def _packet(whole: Bytes, at: int) -> tuple[bytes, int] | None:
    """The event that begins at `at`, joined from its packets, and where the next begins; None if it is not all there
    or is no event."""
    spans: list[tuple[int, int]] = []
    while True:
        end = _packet_end(whole, at)
        if end is None or (not spans and (end == at + 4 or whole[at + 4])):
            return None
        spans.append((at + (4 if spans else 5), end))
        if end - at < 4 + 0xFFFFFF:
            # Nothing is copied before all of it is there: it may be a gigabyte, asked about with every read.
            return b"".join(whole[first:last].tobytes() for first, last in spans), end
        at = end


def _packet_end(whole: Bytes, at: int) -> int | None:
    """Where the packet that begins at `at` ends, None if it is not all there."""
    if at + 4 > len(whole):
        return None
    end = at + 4 + int.from_bytes(whole[at : at + 3].tobytes(), "little")
    return end if end <= len(whole) else None
