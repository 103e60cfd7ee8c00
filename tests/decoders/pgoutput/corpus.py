"""Damaged streams, and what a decoder may make of them: events, or a `DecodeError`; nothing else.

`python -m tests.decoders.pgoutput.corpus SEED COUNT` decodes COUNT of them with `NUMBA_DISABLE_JIT=1` set: the kernels
then run as plain Python over arrays that refuse every index outside their bounds, which compiled kernels would read.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.decoders.pgoutput import goldens
from tests.support.pgstream import Tables, tables_of
from tidemill.decoders.pgoutput import DescribedBy, PgOutputDecoder
from tidemill.errors import DecodeError


def damaged(stream: bytes, pick: random.Random) -> bytes:
    """The stream with one to three kinds of harm done to it."""
    for _ in range(pick.choice((1, 1, 1, 2, 3))):
        if stream:
            stream = pick.choice(_HARMS)(stream, pick)
    return stream


def _cut(stream: bytes, pick: random.Random) -> bytes:
    return stream[: pick.randrange(len(stream))]


def _flip_bit(stream: bytes, pick: random.Random) -> bytes:
    at = pick.randrange(len(stream))
    return stream[:at] + bytes([stream[at] ^ 1 << pick.randrange(8)]) + stream[at + 1 :]


def _set_byte(stream: bytes, pick: random.Random) -> bytes:
    at = pick.randrange(len(stream))
    return stream[:at] + bytes([pick.choice(b'\x00\xff\x7f\x80tnubBCIUDTMRYSEcAOKNw"{}\\-.,')]) + stream[at + 1 :]


def _change_kind(stream: bytes, pick: random.Random) -> bytes:
    """A cell that says it is of another kind than its bytes are."""
    found = [at for at, byte in enumerate(stream) if byte in b"tnu"]
    if not found:
        return stream
    at = pick.choice(found)
    return stream[:at] + bytes([pick.choice(b"tnub")]) + stream[at + 1 :]


def _set_number(stream: bytes, pick: random.Random) -> bytes:
    """A length or a count that is not true."""
    at = pick.randrange(len(stream))
    value = pick.choice((0, 1, 3, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1, pick.randrange(2**16)))
    return stream[:at] + struct.pack(">I", value) + stream[at + 4 :]


def _lose(stream: bytes, pick: random.Random) -> bytes:
    at, size = pick.randrange(len(stream)), pick.randrange(1, 60)
    return stream[:at] + stream[at + size :]


def _repeat(stream: bytes, pick: random.Random) -> bytes:
    at, size = pick.randrange(len(stream)), pick.randrange(1, 60)
    return stream[: at + size] + stream[at:]


def _move_frame(stream: bytes, pick: random.Random) -> bytes:
    """Whole frames in an order that no server has."""
    found = list(_frames(stream))
    if len(found) > 1:
        frame = found.pop(pick.randrange(len(found)))
        if pick.random() < 0.7:
            found.insert(pick.randrange(len(found)), frame)
    return b"".join(found)


def _shorten_message(stream: bytes, pick: random.Random) -> bytes:
    """A message that ends too early in a frame that says so: only the message's own checks are left."""
    found = list(_frames(stream))
    i = pick.randrange(len(found))
    if len(found[i]) > 6:
        body = found[i][5 : pick.randrange(5, len(found[i]))]
        found[i] = found[i][:1] + struct.pack(">I", len(body) + 4) + body
    return b"".join(found)


#: Harm that can be done to any stream of bytes.
ANY_STREAM = (_cut, _flip_bit, _flip_bit, _set_byte, _set_number, _lose, _repeat)
_HARMS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _cut, _flip_bit, _flip_bit, _set_byte, _change_kind, _set_number, _lose, _repeat, _move_frame, _shorten_message,
)  # fmt: skip


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
    """Decodes; True if nothing was found wrong. Every array that comes out is valid."""
    decoder = PgOutputDecoder(
        DescribedBy(tables), lambda _kind, _body: None, spill_bytes=spill_bytes, capacity=capacity
    )
    consumed = received = 0
    try:
        while received < len(stream):
            received = min(len(stream), received + chunk)
            data: Any = memoryview(stream)[consumed:received]
            for change in decoder.feed(Checked(data) if checked else data):
                for block in getattr(change, "blocks", ()):
                    block.batch.validate(full=True)
            consumed += decoder.consumed
    except DecodeError:
        return False
    return True


class Checked(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes that may be read only where they are: numpy itself takes -1 for the last one."""

    def __new__(cls, data: Any) -> Checked:
        return np.frombuffer(data, np.uint8).view(cls)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int | np.integer) and not 0 <= key < len(self):
            raise IndexError(f"byte {key} of {len(self)}")
        found = super().__getitem__(key)
        return found if isinstance(key, int | np.integer) else found.view(np.ndarray)


def run_unjitted(seed: int, count: int) -> None:
    pick = random.Random(seed)
    streams = [pair for pair in goldens.load() if len(pair[1].data) < 10_000]
    with np.errstate(over="ignore"):  # compiled code wraps around without a word
        for i in range(count):
            golden, stream = pick.choice(streams)
            broken = damaged(stream.data, pick)
            chunk = pick.choice((len(broken) + 1, 50, 300))
            try:
                survive(broken, tables_of(golden.keys), chunk, spill_bytes=pick.choice((0, 1 << 20)),
                        capacity=pick.choice((2, 64)), checked=True)  # fmt: skip
            except BaseException:
                sys.stderr.write(f"seed {seed}, stream {i}, {goldens.label((golden, stream))}: {broken.hex()}\n")
                raise


if __name__ == "__main__":
    run_unjitted(int(sys.argv[1]), int(sys.argv[2]))
