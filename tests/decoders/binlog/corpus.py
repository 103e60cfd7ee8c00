"""Damaged binlog streams, and what the decoder may make of them: events, or an error that is ours; nothing else.

Checksums would find nearly all harm before anything else does, so streams are damaged without them.

`python -m tests.decoders.binlog.corpus SEED COUNT` decodes COUNT of them with `NUMBA_DISABLE_JIT=1` set: the kernels
then run as plain Python over arrays that refuse every index outside their bounds, which compiled kernels would read.
"""

from __future__ import annotations

import random
import struct
import sys

import numpy as np

from tests.decoders.binlog import goldens as mygoldens
from tests.decoders.damage import ANY_STREAM, Harm, damage, feed, move_part
from tests.support.binlogstream import MapTables, packets
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders.binlog import BinlogDecoder
from tidemill.errors import DecodeError, SourceError
from tidemill.model.position import Position

Pair = tuple[mygoldens.Golden, mygoldens.Stream]
_FORMAT, _ROTATE = 15, 4


def unchecked(stream: bytes) -> bytes:
    """The stream as a server with binlog_checksum=NONE sends it."""
    done, checksums = [], True
    for packet in packets(stream):
        event = packet[5:]
        if event[4] == _FORMAT:
            checksums = bool(event[-5])
            event = event[:-5] + b"\0" + event[-4:]
        elif event[4] != _ROTATE and checksums:
            event = event[:9] + struct.pack("<I", len(event) - 4) + event[13:-4]
        done.append(_packet(event))
    return b"".join(done)


def _packet(event: bytes) -> bytes:
    return struct.pack("<I", len(event) + 1)[:3] + b"\0\0" + event


def _move_event(stream: bytes, pick: random.Random) -> bytes:
    """Whole events in an order that no server has."""
    return move_part(list(packets(stream)), pick)


def _shorten_event(stream: bytes, pick: random.Random) -> bytes:
    """An event that ends too early, with a length that says so: only its own checks are left."""
    found = list(packets(stream))
    if not found:
        return stream
    i = pick.randrange(len(found))
    event = found[i][5:]
    if len(event) > 20:
        event = event[: pick.randrange(19, len(event))]
        found[i] = _packet(event[:9] + struct.pack("<I", len(event)) + event[13:])
    return b"".join(found)


def _change_body(stream: bytes, pick: random.Random) -> bytes:
    """A byte behind the header: lengths, bitmaps, numbers of columns, values."""
    found = [packet for packet in packets(stream) if len(packet) > 26]
    if not found:
        return stream
    packet = pick.choice(found)
    at = pick.randrange(24, len(packet))
    changed = packet[:at] + bytes([pick.choice((0, 1, 2, 127, 128, 255, pick.randrange(256)))]) + packet[at + 1 :]
    return stream.replace(packet, changed, 1)


def _change_kind(stream: bytes, pick: random.Random) -> bytes:
    found = list(packets(stream))
    if not found:
        return stream
    packet = pick.choice(found)
    kind = pick.choice(
        (2, 3, 4, 15, 16, 19, 23, 24, 25, 26, 27, 30, 31, 32, 33, 34, 38, 39, 40, 42, 162, 165, 166, 167, 200)
    )
    return stream.replace(packet, packet[:9] + bytes([kind]) + packet[10:], 1)


_HARMS: tuple[Harm, ...] = (
    *ANY_STREAM, _move_event, _shorten_event, _change_body, _change_body, _change_body, _change_kind,
)  # fmt: skip


def survive(
    stream: bytes, tables: MapTables, flavor: Flavor, began: str, chunk: int, *, spill_bytes: int, capacity: int,
    checked: bool = False,
) -> bool:  # fmt: skip
    """Decodes; True if nothing was found wrong."""
    decoder = BinlogDecoder(tables, flavor=flavor, began=Position(began), spill_bytes=spill_bytes, capacity=capacity)
    try:
        feed(decoder, stream, chunk, checked=checked)
    except (DecodeError, SourceError):
        return False
    return True


def attempt(pair: Pair, pick: random.Random, *, checked: bool = False) -> bool:
    golden, stream = pair
    broken = damage(unchecked(stream.data), pick, _HARMS)
    chunk = pick.choice((len(broken) + 1, 300))
    spill, capacity = pick.choice((0, 1 << 20)), pick.choice((2, 64))
    try:
        return survive(broken, golden.tables(stream.flavor), stream.flavor, stream.began, chunk, spill_bytes=spill,
                       capacity=capacity, checked=checked)  # fmt: skip
    except BaseException:
        sys.stderr.write(f"{mygoldens.label(pair)}, {chunk=} {spill=} {capacity=}: {broken.hex()}\n")
        raise


def run_unjitted(seed: int, count: int) -> None:
    pick = random.Random(seed)
    streams = [pair for pair in mygoldens.load() if len(pair[1].data) < 3_000]
    with np.errstate(over="ignore"):  # compiled code wraps around without a word
        for _ in range(count):
            attempt(pick.choice(streams), pick, checked=True)


if __name__ == "__main__":
    run_unjitted(int(sys.argv[1]), int(sys.argv[2]))
