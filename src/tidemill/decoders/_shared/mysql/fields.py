"""Reads the rare binlog events field by field; running past an end is a `DecodeError`."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.errors import DecodeError


class Bytes:
    """`what` names the event for the error."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise DecodeError(f"{self._what} ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def rest(self) -> bytes:
        return self.take(self.left)

    def number(self, size: int) -> int:
        """Little-endian, unsigned."""
        return int.from_bytes(self.take(size), "little")

    def packed(self) -> int:
        """A length-encoded integer of the protocol."""
        first = self.number(1)
        if first < 251:
            return first
        sizes = {252: 2, 253: 3, 254: 8}
        if first not in sizes:
            raise DecodeError(f"{self._what} has a length that is none")
        return self.number(sizes[first])

    def text(self, count: int) -> str:
        try:
            return self.take(count).decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"a name in {self._what} is not UTF-8") from error

    def varint(self) -> int:
        """MySQL's serialization library (8.3 on): as many bytes more as the first one has low bits set."""
        first = self.number(1)
        more = 0
        while more < 8 and first >> more & 1:
            more += 1
        if more == 8:
            return self.number(8)
        return first >> (more + 1) | int.from_bytes(self.take(more), "little") << (7 - more)

    def numbers(self) -> Iterator[int]:
        while self.left:
            yield self.packed()
