"""Transactions of XADD for many events in one buffer, and their replies counted, without a Python object per event.

redis-py packs a command of six arguments in about 10 µs and makes an object of every reply; these kernels take about
a tenth of a microsecond each (RESP: https://redis.io/docs/latest/develop/reference/protocol-spec/).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from tidemill.model.columns import Ints

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_TRANSACTION_ROWS = 2048
_TRANSACTION_BYTES = 4 << 20
_ROOM = 96  # of one command: digits, lengths and line ends


@dataclass(frozen=True, slots=True)
class OptionalStrings:
    """`data[ends[i]:ends[i + 1]]` is text number i; `there[i]` is 0 where there is none."""

    data: Bytes
    ends: Ints
    there: Bytes

    @classmethod
    def of(cls, strings: list[bytes]) -> OptionalStrings:
        ends = np.concatenate([[0], np.cumsum([len(t) for t in strings])]).astype(np.int64)
        return cls(np.frombuffer(b"".join(strings), np.uint8), ends, np.ones(len(strings), np.uint8))

    @classmethod
    def of_array(cls, array: pa.LargeBinaryArray) -> OptionalStrings:
        buffers = array.buffers()
        data = np.frombuffer(buffers[2] or b"", np.uint8)
        ends = np.frombuffer(buffers[1], np.int64)[array.offset : array.offset + len(array) + 1]
        return cls(data, ends, np.asarray(array.is_valid()).view(np.uint8))

    @property
    def sizes(self) -> Ints:
        return np.diff(self.ends)


@dataclass(frozen=True, slots=True)
class Entries:
    """Rows to send; `heads[head[i]]` begins row i's command up to its entry id, `kinds[kind[i]]` follows the id."""

    heads: OptionalStrings
    head: Ints
    kinds: OptionalStrings
    kind: Ints
    offsets: Ints
    subs: Ints
    ids: OptionalStrings
    keys: OptionalStrings
    events: OptionalStrings

    def transactions(self, rows: Ints) -> list[Ints]:
        """The rows in pieces that a server runs in a few milliseconds and holds in a few megabytes. Rows that share an
        offset are in one piece: a stream that has the offset has all of them."""
        size = self.ids.sizes[rows] + self.keys.sizes[rows] + self.events.sizes[rows]
        piece = np.cumsum(size) // _TRANSACTION_BYTES
        count = np.arange(len(rows)) // _TRANSACTION_ROWS
        cuts = np.flatnonzero((np.diff(piece) != 0) | (np.diff(count) != 0)) + 1
        starts = np.flatnonzero(np.diff(self.offsets[rows]) != 0) + 1
        if len(starts) < len(rows) - 1:
            after = np.searchsorted(starts, cuts)
            cuts = np.unique(starts[after[after < len(starts)]])
        return np.split(rows, cuts) if len(rows) else []

    def pack(self, rows: Ints, more: bytes) -> memoryview:
        """One transaction that adds these rows, in this order, and then does `more`."""
        longest = int(self.heads.sizes.max(initial=0) + self.kinds.sizes.max(initial=0)) + _ROOM
        sizes = self.ids.sizes[rows] + self.keys.sizes[rows] + self.events.sizes[rows]
        tail = np.frombuffer(more + _EXEC, np.uint8)
        out = np.empty(int(sizes.sum()) + longest * len(rows) + len(_MULTI) + len(tail), np.uint8)
        out[: len(_MULTI)] = _MULTI
        end = _pack(
            out, len(_MULTI), rows, self.offsets, self.subs, self.head, self.heads.data, self.heads.ends, self.kind,
            self.kinds.data, self.kinds.ends, self.ids.data, self.ids.ends, self.keys.data, self.keys.ends,
            self.keys.there, self.events.data, self.events.ends,
        )  # fmt: skip
        out[end : end + len(tail)] = tail
        return memoryview(out.data)[: end + len(tail)]


def replies(commands: int) -> int:
    """What a transaction of so many answers: OK, QUEUED for each, and the result of each."""
    return 2 * commands + 1


def head(stream: str, fields: int, maxlen: int | None) -> bytes:
    """`*<n> XADD <stream> [MAXLEN ~ <maxlen>]`."""
    limit = [] if maxlen is None else [b"MAXLEN", b"~", b"%d" % maxlen]
    arguments = [b"XADD", stream.encode(), *limit]
    return b"*%d\r\n" % (len(arguments) + 1 + 2 * fields) + b"".join(map(bulk, arguments))


def command(*arguments: str) -> bytes:
    return b"*%d\r\n" % len(arguments) + b"".join(bulk(word.encode()) for word in arguments)


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


def scan(data: Bytes, used: int) -> tuple[int, int, int, int]:
    """Whole replies at the front of `data[:used]`: bytes they take, how many, and where the first error stands
    (start and end; both 0 if there is none). An array counts as its elements."""
    consumed, replies, start, end = _scan(data, used)
    return int(consumed), int(replies), int(start), int(end)


_MULTI = np.frombuffer(b"*1\r\n$5\r\nMULTI\r\n", np.uint8)
_EXEC = b"*1\r\n$4\r\nEXEC\r\n"
_KEY = np.frombuffer(bulk(b"key"), np.uint8)
_EVENT = np.frombuffer(bulk(b"event"), np.uint8)
_CR, _LF, _DOLLAR, _MINUS, _ZERO, _STAR = 13, 10, 36, 45, 48, 42


@njit(cache=True, nogil=True)
def _digits(out: Any, p: Any, number: Any) -> Any:
    size = 1
    rest = number // 10
    while rest > 0:
        size += 1
        rest //= 10
    rest = number
    for at in range(p + size - 1, p - 1, -1):
        out[at] = _ZERO + rest % 10
        rest //= 10
    return p + size


@njit(cache=True, nogil=True)
def _line_end(out: Any, p: Any) -> Any:
    out[p] = _CR
    out[p + 1] = _LF
    return p + 2


@njit(cache=True, nogil=True)
def _copy(out: Any, p: Any, data: Any, start: Any, end: Any) -> Any:
    for at in range(end - start):
        out[p + at] = data[start + at]
    return p + end - start


@njit(cache=True, nogil=True)
def _bulk(out: Any, p: Any, data: Any, start: Any, end: Any) -> Any:
    out[p] = _DOLLAR
    p = _line_end(out, _digits(out, p + 1, end - start))
    return _line_end(out, _copy(out, p, data, start, end))


@njit(cache=True, nogil=True)
def _pack(
    out: Any, p: Any, rows: Any, offsets: Any, subs: Any, head: Any, heads: Any, head_ends: Any, kind: Any, kinds: Any,
    kind_ends: Any, ids: Any, id_ends: Any, keys: Any, key_ends: Any, has_key: Any, events: Any, event_ends: Any,
) -> Any:  # fmt: skip
    for row in rows:
        h = head[row]
        p = _copy(out, p, heads, head_ends[h], head_ends[h + 1])
        number = offsets[row] + 1  # 0-0 is no entry id
        size = _digits(out, p, number) - p + 1
        size += _digits(out, p, subs[row]) - p
        out[p] = _DOLLAR
        p = _line_end(out, _digits(out, p + 1, size))
        p = _digits(out, p, number)
        out[p] = _MINUS
        p = _line_end(out, _digits(out, p + 1, subs[row]))
        k = kind[row]
        p = _copy(out, p, kinds, kind_ends[k], kind_ends[k + 1])
        p = _bulk(out, p, ids, id_ends[row], id_ends[row + 1])
        if has_key[row]:
            p = _copy(out, p, _KEY, 0, len(_KEY))
            p = _bulk(out, p, keys, key_ends[row], key_ends[row + 1])
        p = _copy(out, p, _EVENT, 0, len(_EVENT))
        p = _bulk(out, p, events, event_ends[row], event_ends[row + 1])
    return p


@njit(cache=True, nogil=True)
def _scan(data: Any, used: Any) -> Any:
    p = replies = error_start = error_end = 0
    while p < used:
        end = p + 1
        while end + 1 < used and not (data[end] == _CR and data[end + 1] == _LF):
            end += 1
        if end + 1 >= used:
            break
        after = end + 2
        if data[p] == _DOLLAR and data[p + 1] != _MINUS:
            size = 0
            for at in range(p + 1, end):
                size = size * 10 + data[at] - _ZERO
            after += size + 2
            if after > used:
                break
        elif data[p] == _MINUS and error_end == 0:
            error_start, error_end = p + 1, end
        if data[p] != _STAR:  # the elements of an array follow, and count for themselves
            replies += 1
        p = after
    return p, replies, error_start, error_end


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """Entries, and the streams that they go to: `of` has the number of each entry's in `streams`. `rows` are the
    entries that are meant, in the order of their offsets."""

    streams: list[str]
    entries: Entries
    of: Ints
    rows: Ints

    def of_rows(self, rows: Ints) -> EncodedGroup:
        return replace(self, rows=rows)

    def by_stream(self) -> Iterator[tuple[str, Ints]]:
        """The rows of each stream, in the order they come."""
        numbers = self.of[self.rows]
        by = np.argsort(numbers, kind="stable")
        met, starts = np.unique(numbers[by], return_index=True)
        parts = np.split(self.rows[by], starts[1:])
        for number, rows in zip(met.tolist(), parts, strict=False):  # no rows split into one empty part
            yield self.streams[number], rows
