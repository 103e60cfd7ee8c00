"""One scan over a column of JSON documents: where each member's value stands, and what kind it is."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

Ints = npt.NDArray[np.int64]


class Kind(enum.IntEnum):
    NULL = 0
    STRING = 1
    INTEGER = 2
    NUMBER = 3
    BOOLEAN = 4
    LIST = 5  # or an object deeper than is flattened
    LARGE = 6  # a number with more digits than 64 bits have


@dataclass(frozen=True, slots=True)
class ScannedMembers:
    """Leaves by row and path, each with its place in `data`; paths by their parent (-1: none) and their last name."""

    data: npt.NDArray[np.uint8]
    row: Ints
    path: Ints
    starts: Ints
    ends: Ints
    kinds: npt.NDArray[np.uint8]
    escaped: npt.NDArray[np.bool_]
    parents: Ints
    key_starts: Ints
    key_ends: Ints
    bad: npt.NDArray[np.bool_]


def scan(documents: pa.LargeBinaryArray, depth: int) -> ScannedMembers:
    """Null documents, and the document `null`, have no members."""
    _, offsets, content = documents.buffers()
    bounds = np.frombuffer(offsets, np.int64)[documents.offset : documents.offset + len(documents) + 1]
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    valid = documents.is_valid().to_numpy(zero_copy_only=False)
    room, paths = 16 * len(documents) + 64, 256
    while True:
        leaves = np.empty((4, room), np.int64)
        facts = np.empty((2, room), np.uint8)
        known = np.empty((3, paths), np.int64)
        bad = np.zeros(len(documents), np.bool_)
        count, met = _scan(bounds, data, valid, depth or 1 << 30, leaves, facts, known, bad)
        if count <= room and met <= paths:
            break
        room, paths = max(room, int(count)) * 2, max(paths, int(met)) * 2
    row, path, starts, ends = leaves[:, :count]
    parents, key_starts, key_ends = known[:, :met]
    kinds, escaped = facts[:, :count]
    return ScannedMembers(
        data, row, path, starts, ends, kinds, escaped.view(np.bool_), parents, key_starts, key_ends, bad
    )


def gather(found: ScannedMembers, leaves: Ints, *, quotes: bool) -> pa.LargeStringArray:
    """The texts of these leaves; of strings with or without their quotes."""
    around = (found.kinds[leaves] == Kind.STRING).astype(np.int64) * quotes
    starts, sizes = found.starts[leaves] - around, found.ends[leaves] - found.starts[leaves] + 2 * around
    ends = np.concatenate([[0], np.cumsum(sizes)])
    out = np.empty(int(ends[-1]), np.uint8)
    _gather(found.data, starts, ends, out)
    return pa.LargeStringArray.from_buffers(len(leaves), pa.py_buffer(ends), pa.py_buffer(out))


@njit(cache=True, nogil=True)
def _gather(data: Any, starts: Any, ends: Any, out: Any) -> None:
    to = 0
    for number in range(len(starts)):
        start = starts[number]
        for at in range(start, start + ends[number + 1] - ends[number]):
            out[to] = data[at]
            to += 1


@njit(cache=True, nogil=True)
def _scan(bounds: Any, data: Any, valid: Any, depth: int, leaves: Any, facts: Any, known: Any, bad: Any) -> Any:
    """Counts on where there is no more room."""
    room, paths = leaves.shape[1], known.shape[1]
    slots = np.full(4 * paths, -1, np.int64)
    follow = np.full(paths + 1, -1, np.int64)  # which path came after which: documents of a column are alike
    stack = np.empty(128, np.int64)
    count = met = 0
    for row in range(len(bounds) - 1):
        at, end = bounds[row], bounds[row + 1]
        if not valid[row]:
            continue
        at = _space(data, at, end)
        if at < end and data[at] == 110:  # null
            continue
        if at >= end or data[at] != 123:
            bad[row] = True
            continue
        at += 1
        level, parent, last = 0, -1, -1
        good = True
        while good:
            at = _space(data, at, end)
            if at >= end:
                good = False
            elif data[at] == 125:  # }
                at += 1
                if level == 0:
                    break
                level -= 1
                parent = stack[level]
            elif data[at] == 44:  # ,
                at += 1
            elif data[at] == 34:
                key = at + 1
                path = follow[last + 1] if last < paths else -1
                close = _same_key(data, key, end, known, path, parent)
                if close < 0:
                    path = -1
                    close, _ = _string(data, key, end)
                at = _space(data, close + 1, end)
                if close >= end or at >= end or data[at] != 58:
                    good = False
                    break
                at = _space(data, at + 1, end)
                if path < 0:
                    path = _path(data, parent, key, close, slots, known, met, paths)
                    if last < paths and path < paths:
                        follow[last + 1] = path
                    if path == met:
                        met += 1
                last = path
                if at >= end:
                    good = False
                elif data[at] == 123 and level + 1 < depth and level < 126:
                    stack[level] = parent
                    level += 1
                    parent = path
                    at += 1
                else:
                    start, stop, kind, escaped, at = _value(data, at, end)
                    good = kind >= 0
                    if count < room and good:
                        leaves[0, count] = row
                        leaves[1, count] = path
                        leaves[2, count] = start
                        leaves[3, count] = stop
                        facts[0, count] = kind
                        facts[1, count] = escaped
                    count += 1
            else:
                good = False
        if not good:
            bad[row] = True
    return count, met


@njit(cache=True, nogil=True)
def _space(data: Any, at: int, end: int) -> int:
    while at < end and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@njit(cache=True, nogil=True)
def _string(data: Any, at: int, end: int) -> Any:
    """Where the quote that ends it stands, and whether there is a backslash before."""
    escaped = False
    while at < end and data[at] != 34:
        if data[at] == 92:
            escaped = True
            at += 1
        at += 1
    return at, escaped


@njit(cache=True, nogil=True)
def _same_key(data: Any, at: int, end: int, known: Any, path: int, parent: int) -> int:
    """Where the key ends if it is that of the path; -1 if not."""
    if path < 0 or known[0, path] != parent:
        return -1
    start, size = known[1, path], known[2, path] - known[1, path]
    if at + size >= end or data[at + size] != 34:
        return -1
    for number in range(size):
        if data[at + number] != data[start + number]:
            return -1
    return at + size


@njit(cache=True, nogil=True)
def _path(data: Any, parent: int, start: int, end: int, slots: Any, known: Any, met: int, paths: int) -> int:
    """Its number; `met` if it is a new one."""
    word = np.uint64(0xCBF29CE484222325) ^ np.uint64(parent + 1)
    for at in range(start, end):
        word = (word ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
    slot = np.int64(word % np.uint64(len(slots)))
    while slots[slot] >= 0:
        path = slots[slot]
        if known[0, path] == parent and known[2, path] - known[1, path] == end - start:
            same = True
            for at in range(end - start):
                if data[known[1, path] + at] != data[start + at]:
                    same = False
                    break
            if same:
                return path
        slot = (slot + 1) % len(slots)
    if met < paths:
        slots[slot] = met
        known[0, met], known[1, met], known[2, met] = parent, start, end
    return met


@njit(cache=True, nogil=True)
def _value(data: Any, at: int, end: int) -> Any:
    """Start, end, kind (-1: no value), whether it is escaped, and where to go on."""
    first = data[at]
    if first == 34:
        close, escaped = _string(data, at + 1, end)
        return at + 1, close, (1 if close < end else -1), escaped, close + 1
    if first == 123 or first == 91:
        start, level = at, 0
        while at < end:
            if data[at] == 34:
                at, _ = _string(data, at + 1, end)
            elif data[at] == 123 or data[at] == 91:
                level += 1
            elif data[at] == 125 or data[at] == 93:
                level -= 1
                if level == 0:
                    return start, at + 1, 5, False, at + 1
            at += 1
        return start, at, -1, False, at
    start = at
    whole = True
    while at < end and data[at] != 44 and data[at] != 125 and data[at] != 93 and data[at] > 32:
        if data[at] == 46 or data[at] == 101 or data[at] == 69:
            whole = False
        at += 1
    if first == 116 or first == 102:
        return start, at, 4, False, at
    if first == 110:
        return start, at, 0, False, at
    if first == 45 or 48 <= first <= 57:
        if not whole:
            return start, at, 3, False, at
        return start, at, (2 if at - start <= 18 else 6), False, at
    return start, at, -1, False, at
