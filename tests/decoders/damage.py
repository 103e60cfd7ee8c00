"""Harm done to streams of bytes, and a decoder that is fed with them: it may stumble, but never read outside."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

Harm = Callable[[bytes, random.Random], bytes]


def damage(stream: bytes, pick: random.Random, harms: Sequence[Harm]) -> bytes:
    """The stream with one to three kinds of harm done to it."""
    for _ in range(pick.choice((1, 1, 1, 2, 3))):
        if stream:
            stream = pick.choice(harms)(stream, pick)
    return stream


def _cut(stream: bytes, pick: random.Random) -> bytes:
    return stream[: pick.randrange(len(stream))]


def _flip_bit(stream: bytes, pick: random.Random) -> bytes:
    at = pick.randrange(len(stream))
    return stream[:at] + bytes([stream[at] ^ 1 << pick.randrange(8)]) + stream[at + 1 :]


def _set_byte(stream: bytes, pick: random.Random) -> bytes:
    at = pick.randrange(len(stream))
    return stream[:at] + bytes([pick.choice(b'\x00\xff\x7f\x80tnubBCIUDTMRYSEcAOKNw"{}\\-.,')]) + stream[at + 1 :]


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


def move_part(parts: list[bytes], pick: random.Random) -> bytes:
    """Whole parts in an order that no server has, or without one of them."""
    if len(parts) > 1:
        part = parts.pop(pick.randrange(len(parts)))
        if pick.random() < 0.7:
            parts.insert(pick.randrange(len(parts)), part)
    return b"".join(parts)


#: Harm that can be done to any stream of bytes.
ANY_STREAM: tuple[Harm, ...] = (_cut, _flip_bit, _flip_bit, _set_byte, _set_number, _lose, _repeat)


class Fed(Protocol):
    @property
    def consumed(self) -> int: ...

    def feed(self, data: Any) -> Iterable[object]: ...


def feed(decoder: Fed, stream: bytes, chunk: int, *, checked: bool) -> None:
    """As it arrives, `chunk` bytes at a time. Every array that comes out is valid. `checked`: see `Checked`."""
    consumed = received = 0
    while received < len(stream):
        received = min(len(stream), received + chunk)
        data: Any = memoryview(stream)[consumed:received]
        for change in decoder.feed(Checked(data) if checked else data):
            for block in getattr(change, "blocks", ()):
                block.batch.validate(full=True)
        consumed += decoder.consumed


class Checked(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes that may be read only where they are: numpy itself takes -1 for the last one."""

    def __new__(cls, data: Any) -> Checked:
        return np.frombuffer(data, np.uint8).view(cls)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int | np.integer) and not 0 <= key < len(self):
            raise IndexError(f"byte {key} of {len(self)}")
        found = super().__getitem__(key)
        return found if isinstance(key, int | np.integer) else found.view(np.ndarray)
