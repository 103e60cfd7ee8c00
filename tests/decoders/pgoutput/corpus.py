"""Damaged streams, and what a decoder may make of them: events, or a `DecodeError`; nothing else.

`python -m tests.decoders.pgoutput.corpus SEED COUNT` decodes COUNT of them with `NUMBA_DISABLE_JIT=1` set: the kernels
then run as plain Python over arrays that refuse every index outside their bounds, which compiled kernels would read.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator

import numpy as np

from tests.decoders.damage import ANY_STREAM, Harm, damage, feed, move_part
from tests.decoders.pgoutput import goldens
from tests.support.pgstream import Tables, tables_of
from tidemill.decoders.pgoutput import DescribedBy, PgOutputDecoder
from tidemill.errors import DecodeError


def _change_kind(stream: bytes, pick: random.Random) -> bytes:
    """A cell that says it is of another kind than its bytes are."""
    found = [at for at, byte in enumerate(stream) if byte in b"tnu"]
    if not found:
        return stream
    at = pick.choice(found)
    return stream[:at] + bytes([pick.choice(b"tnub")]) + stream[at + 1 :]


def _move_frame(stream: bytes, pick: random.Random) -> bytes:
    """Whole frames in an order that no server has."""
    return move_part(list(_frames(stream)), pick)


def _shorten_message(stream: bytes, pick: random.Random) -> bytes:
    """A message that ends too early in a frame that says so: only the message's own checks are left."""
    found = list(_frames(stream))
    i = pick.randrange(len(found))
    if len(found[i]) > 6:
        body = found[i][5 : pick.randrange(5, len(found[i]))]
        found[i] = found[i][:1] + struct.pack(">I", len(body) + 4) + body
    return b"".join(found)


HARMS: tuple[Harm, ...] = (*ANY_STREAM, _change_kind, _move_frame, _shorten_message)


def _frames(stream: bytes) -> Iterator[bytes]:
    """Frames of a stream that may already be damaged; the rest is the last."""
    at = 0
    while at < len(stream):
        size = struct.unpack_from(">I", stream, at + 1)[0] if at + 5 <= len(stream) else 0
        end = at + 1 + size if 4 <= size < len(stream) - at else len(stream)
        yield stream[at:end]
        at = end


def survive(
    stream: bytes, tables: Tables, chunk: int, *, spill_bytes: int, capacity: int, checked: bool = False
) -> bool:
    """Decodes; True if nothing was found wrong."""
    decoder = PgOutputDecoder(
        DescribedBy(tables), lambda _kind, _body: None, spill_bytes=spill_bytes, capacity=capacity
    )
    try:
        feed(decoder, stream, chunk, checked=checked)
    except DecodeError:
        return False
    return True


def run_unjitted(seed: int, count: int) -> None:
    pick = random.Random(seed)
    streams = [pair for pair in goldens.load() if len(pair[1].data) < 10_000]
    with np.errstate(over="ignore"):  # compiled code wraps around without a word
        for i in range(count):
            golden, stream = pick.choice(streams)
            broken = damage(stream.data, pick, HARMS)
            chunk = pick.choice((len(broken) + 1, 50, 300))
            try:
                survive(broken, tables_of(golden.keys), chunk, spill_bytes=pick.choice((0, 1 << 20)),
                        capacity=pick.choice((2, 64)), checked=True)  # fmt: skip
            except BaseException:
                sys.stderr.write(f"seed {seed}, stream {i}, {goldens.label((golden, stream))}: {broken.hex()}\n")
                raise


if __name__ == "__main__":
    run_unjitted(int(sys.argv[1]), int(sys.argv[2]))
