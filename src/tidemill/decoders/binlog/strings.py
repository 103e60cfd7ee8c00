"""Values of varying length to Arrow: text in any character set, bytes, vectors, and what MariaDB compresses."""

from __future__ import annotations

import ipaddress
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.decoders._shared import eight_bytes
from tidemill.decoders._shared.mysql import charsets, types
from tidemill.decoders._shared.mysql import table_map as m
from tidemill.decoders._shared.mysql.fill import inet6_text
from tidemill.decoders.binlog import cells
from tidemill.decoders.binlog.column import BinlogCells, Mask, Result
from tidemill.errors import DecodeError


def converter_of(kind: int, metadata: int, native: str, arrow: pa.DataType) -> Callable[[BinlogCells], Result] | None:
    """None where such values cannot be what the column is said to be."""
    if kind in (m.BLOB_COMPRESSED, m.VARCHAR_COMPRESSED):
        inner = converter_of(m.BLOB, 4, native, arrow)
        return None if inner is None else (lambda c: inner(_inflate_cells(c)))
    if native in _SPECIAL and kind == m.STRING:
        return lambda c: _special(c, native, metadata)
    if pa.types.is_list(arrow):
        return _vectors
    if pa.types.is_binary(arrow):
        if kind == m.STRING:
            return lambda c: _pad(c, metadata)
        return as_bytes
    if not pa.types.is_string(arrow) or kind in (m.GEOMETRY, m.VECTOR):
        return None
    charset = types.charset(native)
    if charset in charsets.UTF8:
        return _strings
    if charsets.is_single_byte(charset):
        return lambda c: _single_byte_strings(c, charset)
    return lambda c: _foreign_strings(c, charset)


def read_varying(
    column: BinlogCells, arrow: pa.DataType, offsets: Any, data: npt.NDArray[np.uint8], bad: Mask | None = None
) -> Result:
    nulls, bits = column.validity(bad)
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(arrow, len(column), buffers, nulls), bad


_MOST = np.iinfo(np.int32).max


def _fit(size: int) -> int:
    """Arrow counts a column's bytes in 32 bits, and UTF-8 may be three times as long as what was sent."""
    if size > _MOST:
        raise DecodeError("one column of a block is larger than 2 GiB", fix="Lower gather_ms, to decode less at once.")
    return size


def _copy(column: BinlogCells) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    total = _fit(int(column.size.sum(dtype=np.int64)))
    offsets, data = np.empty(len(column) + 1, np.int32), np.empty(total + eight_bytes.ROOM, np.uint8)
    eight_bytes.copy(column.buffer, column.at, column.size, offsets, data)
    return offsets, data[:total]


def as_bytes(column: BinlogCells) -> Result:
    return read_varying(column, pa.binary(), *_copy(column))


def _pad(column: BinlogCells, width: int) -> Result:
    """BINARY(n): the binlog leaves out its trailing zero bytes, a reader of the table sees them."""
    sizes = np.where(column.kind == cells.VALUE, width, 0)
    if (column.size > width).any():
        raise DecodeError(f"a BINARY({width}) value is longer than its column")
    dense = np.zeros((len(column), width), np.uint8)
    cells.pad(column.buffer, column.at, column.size, column.kind, width, dense.reshape(-1))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return read_varying(column, pa.binary(), offsets, dense[column.kind == cells.VALUE].reshape(-1))


def _strings(column: BinlogCells) -> Result:
    """UTF-8. Servers check it, but a table may be older than the check: bytes that are no UTF-8 stay bytes."""
    array, _ = as_bytes(column)
    try:
        return array.cast(pa.string()), None
    except pa.ArrowInvalid:
        return _one_by_one(column, "utf8mb4")


def _single_byte_strings(column: BinlogCells, charset: str) -> Result:
    if charset != "swe7" and cells.ascii_only(column.buffer, column.at, column.size):
        return _strings(column)
    lengths, utf8 = charsets.single_byte(charset)
    offsets, bad = np.empty(len(column) + 1, np.int32), np.zeros(len(column), np.bool_)
    room = 3 * int(column.size.sum(dtype=np.int64))
    if room > _MOST:
        sent = (column.buffer[at : at + size] for at, size in zip(column.at, column.size, strict=True))
        room = _fit(sum(int(lengths[part].sum(dtype=np.int64)) for part in sent))
    data = np.empty(room, np.uint8)
    wrong = cells.transcode(column.buffer, column.at, column.size, column.kind, lengths, utf8, offsets, data, bad)
    return read_varying(column, pa.string(), offsets, data[: int(offsets[-1])].copy(), bad if wrong else None)


def _foreign_strings(column: BinlogCells, charset: str) -> Result:
    """Several bytes a character: the whole column through one call of a codec, with a byte between the values that
    none of them has."""
    if charsets.encode_ascii("a", charset) == b"a" and cells.ascii_only(column.buffer, column.at, column.size):
        return _strings(column)
    values = [value or b"" for value in column.values()]
    held = b"".join(values)
    free = next((chr(c) for c in range(1, 32) if c not in held), None)
    if free is not None and values:
        try:
            text = charsets.decode(charsets.encode_ascii(free, charset).join(values), charset)
        except UnicodeDecodeError:
            return _one_by_one(column, charset)
        data = np.frombuffer(text.encode(), np.uint8)
        _fit(len(data) - len(values) + 1)
        ends = np.append(np.flatnonzero(data == ord(free)), len(data))
        if len(ends) == len(values):
            offsets = np.concatenate([[0], ends - np.arange(len(ends))]).astype(np.int32)
            return read_varying(column, pa.string(), offsets, data[data != ord(free)])
    return _one_by_one(column, charset)


def _one_by_one(column: BinlogCells, charset: str) -> Result:
    found: list[str | None] = []
    bad = np.zeros(len(column), np.bool_)
    for i, value in enumerate(column.values()):
        try:
            found.append(None if value is None else charsets.decode(value, charset))
        except UnicodeDecodeError:
            bad[i] = True
            found.append(None)
    return pa.array(found, pa.string()), bad if bad.any() else None


def _vectors(column: BinlogCells) -> Result:
    offsets, data = _copy(column)
    if (offsets % 4).any():
        raise DecodeError("a VECTOR is not made of whole numbers of four bytes")
    values = pa.Array.from_buffers(pa.float32(), len(data) // 4, [None, pa.py_buffer(data)])
    nulls, bits = column.validity()
    whole = pa.py_buffer((offsets // 4).astype(np.int32))
    return pa.Array.from_buffers(pa.list_(pa.float32()), len(column), [bits, whole], nulls, children=[values]), None


def _uuid(value: bytes) -> str:
    """MariaDB keeps a UUID of version 1 to 5 in an order that sorts by time; others as they are (sql_type_uuid.h)."""
    if value[6] & 0x80 and 0 < value[8] < 0x60:
        value = value[12:16] + value[10:12] + value[8:10] + value[6:8] + value[0:6]
    return str(uuid.UUID(bytes=value))


_SPECIAL: dict[str, tuple[int, Callable[[bytes], str]]] = {
    "uuid": (16, _uuid),
    "inet6": (16, inet6_text),
    "inet4": (4, lambda value: str(ipaddress.IPv4Address(value))),
}


def _special(column: BinlogCells, native: str, width: int) -> Result:
    """MariaDB's types that travel as BINARY(n)."""
    size, text = _SPECIAL[native]
    if width != size or (column.size > size).any():
        raise DecodeError(f"a value of type {native} has not {size} bytes")
    found = [None if value is None else text(value.ljust(size, b"\0")) for value in column.values()]
    return pa.array(found, pa.string()), None


def _inflate_cells(column: BinlogCells) -> BinlogCells:
    """MariaDB's COMPRESSED columns: a byte with the method and the size of the length, the length, then zlib's data."""
    parts, at, size = [], np.zeros(len(column), np.int32), np.zeros(len(column), np.int32)
    total = 0
    for i, value in enumerate(column.values()):
        if value is None:
            continue
        plain = _inflate(value)
        at[i], size[i] = total, len(plain)
        parts.append(plain)
        total += len(plain)
    buffer = np.frombuffer(b"".join(parts) + b"\0", np.uint8)
    return BinlogCells(buffer, at, size, column.kind)


def _inflate(value: bytes) -> bytes:
    if not value:
        return value
    head = value[0]
    if head == 0:
        return value[1:]
    if head >> 4 != 8:
        raise DecodeError("a COMPRESSED column has a value of an unknown method")
    length = head & 7
    try:
        plain = zlib.decompress(value[1 + length :], -15 if head & 8 else 15)
    except zlib.error as error:
        raise DecodeError("a value of a COMPRESSED column does not unpack") from error
    if len(plain) != int.from_bytes(value[1 : 1 + length], "big"):
        raise DecodeError("a value of a COMPRESSED column unpacks to another length than it says")
    return plain
