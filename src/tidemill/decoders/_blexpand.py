"""What `scan` cannot read where it stands: compressed events, and events of several packets, one behind the other."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tidemill.decoders import _blevents as events
from tidemill.errors import DecodeError

Bytes = npt.NDArray[np.uint8]
_PLAIN_BYTES = 1 << 18  # of ordinary events after a compressed one, before the direct way is taken again


def pieces(whole: Bytes, at: int, *, checksum: bool) -> Iterator[tuple[bytes, int, int]]:
    """Events from `at` on without packets and checksums: (bytes, where the event begins or -1 for a further piece
    of it, where it ends once it is complete or -1). Stops some way behind the last event that needed this."""
    plain = 0
    while plain < _PLAIN_BYTES:
        found = packet(whole, at)
        if found is None:
            return
        event, after = found
        if len(event) < events.HEADER or int.from_bytes(event[9:13], "little") != len(event):
            raise DecodeError("a packet of the binlog stream is malformed")
        joined = after - at > 0xFFFFFF
        kind = event[4]
        if checksum and kind not in (4, 15, 27, 41):
            if zlib.crc32(event[:-4]) != int.from_bytes(event[-4:], "little"):
                raise DecodeError("the checksum of a binlog event does not match")
            event = event[:9] + struct.pack("<I", len(event) - 4) + event[13:-4]
        if kind in (4, 15):
            return  # files change between transactions: the direct way takes them
        packed = kind == events.TRANSACTION_PAYLOAD or events.QUERY_COMPRESSED <= kind <= events.ROWS_COMPRESSED_LAST
        plain = 0 if packed or joined else plain + len(event)
        parts = events.expanded(event)
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


def packet(whole: Bytes, at: int) -> tuple[bytes, int] | None:
    """The event that begins at `at`, joined from its packets, and where the next begins; None if it is not all there
    or is no event."""
    spans: list[tuple[int, int]] = []
    while True:
        end = packet_end(whole, at)
        if end is None or (not spans and (end == at + 4 or whole[at + 4])):
            return None
        spans.append((at + (4 if spans else 5), end))
        if end - at < 4 + 0xFFFFFF:
            # Nothing is copied before all of it is there: it may be a gigabyte, asked about with every gulp.
            return b"".join(whole[first:last].tobytes() for first, last in spans), end
        at = end


def packet_end(whole: Bytes, at: int) -> int | None:
    """Where the packet that begins at `at` ends, None if it is not all there."""
    if at + 4 > len(whole):
        return None
    end = at + 4 + int.from_bytes(whole[at : at + 3].tobytes(), "little")
    return end if end <= len(whole) else None
