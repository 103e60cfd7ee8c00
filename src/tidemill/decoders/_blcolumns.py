"""Cells to Arrow arrays. A column's converter is chosen once per table, by its physical type and its `DataType`.

Converters return the array and a mask of values that the type cannot hold (or None). Those are null in the array;
`binlog` keeps their text (`odd_text`) in the block's `odd` column.
"""

from __future__ import annotations

import ipaddress
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.decoders import _blcells as cells
from tidemill.decoders import _blcharsets as charsets
from tidemill.decoders import _bljson as documents
from tidemill.decoders import _blmap as m
from tidemill.decoders import _blmoments as moments
from tidemill.decoders import _words as words
from tidemill.decoders import mysqltypes
from tidemill.errors import DecodeError
from tidemill.model import columns
from tidemill.model.table import Column

Mask = npt.NDArray[np.bool_]
Result = tuple[pa.Array, Mask | None]


@dataclass(frozen=True, slots=True)
class Cells:
    """Where one column's values stand in `buffer`."""

    buffer: npt.NDArray[np.uint8]
    at: npt.NDArray[np.int32]
    size: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.at)

    def value(self, row: int, size: int = -1) -> bytes:
        at = int(self.at[row])
        return self.buffer[at : at + (int(self.size[row]) if size < 0 else size)].tobytes()

    def validity(self, bad: Mask | None = None) -> tuple[int, pa.Buffer | None]:
        kind = self.kind if bad is None else np.where(bad, np.uint8(cells.NULL), self.kind)
        bits = np.zeros((len(kind) + 7) // 8, np.uint8)
        nulls = int(cells.validity(kind, bits))
        return nulls, pa.py_buffer(bits) if nulls else None

    def values(self) -> list[bytes | None]:
        """One by one: only for rare types."""
        return [self.value(i) if self.kind[i] == cells.VALUE else None for i in range(len(self))]


def _hexadecimal(value: bytes) -> str:
    return f"0x{value.hex().upper()}"


@dataclass(frozen=True, slots=True)
class Converter:
    """`step` is the column's part of the row program (`_blimages`)."""

    step: int
    convert: Callable[[Cells], Result]
    odd_text: Callable[[bytes], str] = _hexadecimal
    is_document: bool = False
    is_moment: bool = False


def converter(kind: int, metadata: int, column: Column) -> Converter:
    """`DecodeError` where the physical type cannot be what the column is said to be."""
    step = m.fixed_size(kind, metadata)
    arrow, native = column.type.arrow, column.type.native
    if kind in _INTEGERS and pa.types.is_integer(arrow):
        width, signed = _INTEGERS[kind], pa.types.is_signed_integer(arrow)
        if arrow.bit_width // 8 == (4 if width == 3 else width):
            return Converter(step, lambda c: _integers(c, arrow, width, signed))
    elif kind == m.NEWDECIMAL and pa.types.is_decimal(arrow):
        if arrow.precision == metadata >> 8 and arrow.scale == metadata & 0xFF:
            return Converter(step, lambda c: _decimals(c, arrow))
    elif kind in (m.FLOAT, m.DOUBLE) and arrow == (pa.float32() if kind == m.FLOAT else pa.float64()):
        return Converter(step, lambda c: _integers(c, arrow, step, False))
    elif kind == m.YEAR and arrow == pa.uint16():
        return Converter(step, _years)
    elif kind == m.BIT and (pa.types.is_boolean(arrow) or arrow == pa.uint64()):
        return Converter(step, lambda c: _bits(c, arrow, step))
    elif kind in (m.DATE, m.NEWDATE) and pa.types.is_date(arrow):
        return Converter(step, _dates, moments.date_text, is_moment=True)
    elif kind in (m.DATETIME, m.DATETIME2) and pa.types.is_timestamp(arrow) and arrow.tz is None:
        if kind == m.DATETIME:
            return Converter(step, _old_datetimes, moments.old_datetime_text, is_moment=True)
        return Converter(
            step, lambda c: _datetimes(c, step - 5), lambda v: moments.datetime_text(v, metadata), is_moment=True
        )
    elif kind in (m.TIMESTAMP, m.TIMESTAMP2) and pa.types.is_timestamp(arrow) and arrow.tz is not None:
        old, digits = kind == m.TIMESTAMP, 0 if kind == m.TIMESTAMP else metadata
        return Converter(
            step,
            lambda c: _timestamps(c, arrow, step - 4, old),
            lambda v: moments.timestamp_text(v, digits),
            is_moment=True,
        )
    elif kind in (m.TIME, m.TIME2) and native.startswith("time"):
        return Converter(step, lambda c: _times(c, 0 if kind == m.TIME else metadata, old=kind == m.TIME))
    elif kind == m.ENUM and native.startswith("enum"):
        known = mysqltypes.labels(native)
        return Converter(step, lambda c: _enums(c, step, known), _number_text)
    elif kind == m.SET and native.startswith("set"):
        known = mysqltypes.labels(native)
        return Converter(step, lambda c: _sets(c, step, known), _number_text)
    elif kind == m.JSON and native == "json":
        return Converter(-8, documents.convert, documents.odd_text, is_document=True)
    elif step < 0:
        found = _of_varying(kind, metadata, native, arrow)
        if found is not None:
            return Converter(step, *found)
    raise DecodeError(
        f'column "{column.name}" is said to be {native}, but the binlog has type {kind} with metadata {metadata} there',
        fix="The schema history does not match the binlog. Run resync for the table.",
    )


def _of_varying(
    kind: int, metadata: int, native: str, arrow: pa.DataType
) -> tuple[Callable[[Cells], Result], Callable[[bytes], str]] | None:
    if kind in (m.BLOB_COMPRESSED, m.VARCHAR_COMPRESSED):
        inner = _of_varying(m.BLOB, 4, native, arrow)
        return None if inner is None else ((lambda c: inner[0](_inflated(c))), inner[1])
    if native in _SPECIAL and kind == m.STRING:
        return (lambda c: _special(c, native, metadata)), _hexadecimal
    if pa.types.is_list(arrow):
        return _vectors, _hexadecimal
    if pa.types.is_binary(arrow):
        if kind == m.STRING:
            return (lambda c: _padded(c, metadata)), _hexadecimal
        return _binaries, _hexadecimal
    if not pa.types.is_string(arrow) or kind in (m.GEOMETRY, m.VECTOR):
        return None
    charset = mysqltypes.charset(native)
    if charset in charsets.UTF8:
        return _texts, _hexadecimal
    if charsets.is_single_byte(charset):
        return (lambda c: _single_byte_texts(c, charset)), _hexadecimal
    return (lambda c: _foreign_texts(c, charset)), _hexadecimal


_INTEGERS = {m.TINY: 1, m.SHORT: 2, m.INT24: 3, m.LONG: 4, m.LONGLONG: 8}
_UNSIGNED: dict[int, type] = {1: np.uint8, 2: np.uint16, 3: np.uint32, 4: np.uint32, 8: np.uint64}


def _fixed(column: Cells, arrow: pa.DataType, values: npt.NDArray[Any], bad: Mask | None = None) -> Result:
    nulls, bits = column.validity(bad)
    return pa.Array.from_buffers(arrow, len(column), [bits, pa.py_buffer(values)], nulls), bad


def _integers(column: Cells, arrow: pa.DataType, width: int, signed: bool) -> Result:
    out: npt.NDArray[Any] = np.empty(len(column), _UNSIGNED[width])
    cells.little(column.buffer, column.at, column.kind, width, signed, out)
    return _fixed(column, arrow, out)


def _numbers(column: Cells, width: int) -> npt.NDArray[np.uint64]:
    out = np.zeros(len(column), np.uint64)
    for byte in range(width):  # at most eight; widths of SET need not be powers of two
        part = np.empty(len(column), np.uint8)
        cells.little(column.buffer, column.at + byte, column.kind, 1, False, part)
        out |= part.astype(np.uint64) << np.uint64(8 * byte)
    return out


def _years(column: Cells) -> Result:
    out: npt.NDArray[Any] = np.empty(len(column), np.uint16)
    cells.little(column.buffer, column.at, column.kind, 1, False, out)
    return _fixed(column, pa.uint16(), np.where(out > 0, out + 1900, 0).astype(np.uint16))


def _bits(column: Cells, arrow: pa.DataType, width: int) -> Result:
    out = np.empty(len(column), np.uint64)
    cells.big(column.buffer, column.at, column.kind, width, out)
    if pa.types.is_boolean(arrow):
        return _fixed(column, arrow, np.packbits(out != 0, bitorder="little"))
    return _fixed(column, arrow, out)


def _decimals(column: Cells, arrow: pa.DataType) -> Result:
    bad = np.zeros(len(column), np.bool_)
    if arrow.precision <= 18:
        out: npt.NDArray[Any] = np.empty((len(column), 2), np.int64)
        wrong = cells.decimals(column.buffer, column.at, column.kind, arrow.precision, arrow.scale, out, bad)
    else:
        out = np.empty((len(column), arrow.bit_width // 32), np.uint32)
        wrong = cells.wide_decimals(column.buffer, column.at, column.kind, arrow.precision, arrow.scale, out, bad)
    return _fixed(column, arrow, out, bad if wrong else None)


def _dates(column: Cells) -> Result:
    out, bad = np.empty(len(column), np.int32), np.zeros(len(column), np.bool_)
    wrong = moments.dates(column.buffer, column.at, column.kind, out, bad)
    return _fixed(column, pa.date32(), out, bad if wrong else None)


def _datetimes(column: Cells, fraction: int) -> Result:
    out, bad = np.empty(len(column), np.int64), np.zeros(len(column), np.bool_)
    wrong = moments.datetimes(column.buffer, column.at, column.kind, fraction, out, bad)
    return _fixed(column, pa.timestamp("us"), out, bad if wrong else None)


def _old_datetimes(column: Cells) -> Result:
    out, bad = np.empty(len(column), np.int64), np.zeros(len(column), np.bool_)
    wrong = moments.old_datetimes(column.buffer, column.at, column.kind, out, bad)
    return _fixed(column, pa.timestamp("us"), out, bad if wrong else None)


def _timestamps(column: Cells, arrow: pa.DataType, fraction: int, old: bool) -> Result:
    out, bad = np.empty(len(column), np.int64), np.zeros(len(column), np.bool_)
    wrong = moments.timestamps(column.buffer, column.at, column.kind, fraction, old, out, bad)
    return _fixed(column, arrow, out, bad if wrong else None)


def _times(column: Cells, digits: int, *, old: bool) -> Result:
    offsets, data = np.empty(len(column) + 1, np.int32), np.empty(17 * len(column), np.uint8)
    moments.times(column.buffer, column.at, column.kind, digits, old, offsets, data)
    return _varying(column, pa.string(), offsets, data[: int(offsets[-1])].copy())


def _varying(
    column: Cells, arrow: pa.DataType, offsets: Any, data: npt.NDArray[np.uint8], bad: Mask | None = None
) -> Result:
    nulls, bits = column.validity(bad)
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(arrow, len(column), buffers, nulls), bad


def _copied(column: Cells) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    total = int(column.size.sum(dtype=np.int64))
    if total > np.iinfo(np.int32).max:
        raise DecodeError("one column of a block is larger than 2 GiB", fix="Lower the capture's gulp size.")
    offsets, data = np.empty(len(column) + 1, np.int32), np.empty(total + words.ROOM, np.uint8)
    words.copy(column.buffer, column.at, column.size, offsets, data)
    return offsets, data[:total]


def _binaries(column: Cells) -> Result:
    return _varying(column, pa.binary(), *_copied(column))


def _padded(column: Cells, width: int) -> Result:
    """BINARY(n): the binlog leaves out its trailing zero bytes, a reader of the table sees them."""
    sizes = np.where(column.kind == cells.VALUE, width, 0)
    if (column.size > width).any():
        raise DecodeError(f"a BINARY({width}) value is longer than its column")
    dense = np.zeros((len(column), width), np.uint8)
    cells.padded(column.buffer, column.at, column.size, column.kind, width, dense.reshape(-1))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return _varying(column, pa.binary(), offsets, dense[column.kind == cells.VALUE].reshape(-1))


def _texts(column: Cells) -> Result:
    """UTF-8. Servers check it, but a table may be older than the check: bytes that are no UTF-8 stay bytes."""
    array, _ = _binaries(column)
    try:
        return array.cast(pa.string()), None
    except pa.ArrowInvalid:
        return _one_by_one(column, "utf8mb4")


def _single_byte_texts(column: Cells, charset: str) -> Result:
    if charset != "swe7" and cells.ascii_only(column.buffer, column.at, column.size):
        return _texts(column)
    lengths, utf8 = charsets.single_byte(charset)
    offsets, bad = np.empty(len(column) + 1, np.int32), np.zeros(len(column), np.bool_)
    data = np.empty(3 * int(column.size.sum(dtype=np.int64)), np.uint8)
    wrong = cells.transcode(column.buffer, column.at, column.size, column.kind, lengths, utf8, offsets, data, bad)
    return _varying(column, pa.string(), offsets, data[: int(offsets[-1])].copy(), bad if wrong else None)


def _foreign_texts(column: Cells, charset: str) -> Result:
    """Several bytes a character: the whole column through one call of a codec, with a byte between the values that
    none of them has."""
    if charsets.encode_ascii("a", charset) == b"a" and cells.ascii_only(column.buffer, column.at, column.size):
        return _texts(column)
    values = [value or b"" for value in column.values()]
    held = b"".join(values)
    free = next((chr(c) for c in range(1, 32) if c not in held), None)
    if free is not None and values:
        try:
            text = charsets.decode(charsets.encode_ascii(free, charset).join(values), charset)
        except UnicodeDecodeError:
            return _one_by_one(column, charset)
        data = np.frombuffer(text.encode(), np.uint8)
        ends = np.append(np.flatnonzero(data == ord(free)), len(data))
        if len(ends) == len(values):
            offsets = np.concatenate([[0], ends - np.arange(len(ends))]).astype(np.int32)
            return _varying(column, pa.string(), offsets, data[data != ord(free)])
    return _one_by_one(column, charset)


def _one_by_one(column: Cells, charset: str) -> Result:
    found: list[str | None] = []
    bad = np.zeros(len(column), np.bool_)
    for i, value in enumerate(column.values()):
        try:
            found.append(None if value is None else charsets.decode(value, charset))
        except UnicodeDecodeError:
            bad[i] = True
            found.append(None)
    return pa.array(found, pa.string()), bad if bad.any() else None


def _enums(column: Cells, width: int, known: tuple[str, ...]) -> Result:
    index = _numbers(column, width)
    bad = index > len(known)
    wrong = bool(bad.any())
    texts = pa.array(["", *known], pa.string())
    absent = column.kind != cells.VALUE
    chosen = columns.column(np.where(bad, 0, index).astype(np.int32), pa.int32(), absent | bad)
    return texts.take(chosen), bad if wrong else None


def _sets(column: Cells, width: int, known: tuple[str, ...]) -> Result:
    masks, which = np.unique(_numbers(column, width), return_inverse=True)
    bad = (masks >> np.uint64(len(known)) > 0 if len(known) < 64 else np.zeros(len(masks), np.bool_))[which]
    wrong = bool(bad.any())
    texts = [",".join(label for i, label in enumerate(known) if int(mask) >> i & 1) for mask in masks]
    absent = column.kind != cells.VALUE
    return pa.array(texts, pa.string()).take(
        columns.column(which.astype(np.int32), pa.int32(), absent | bad)
    ), bad if wrong else None


def _number_text(value: bytes) -> str:
    return str(int.from_bytes(value, "little"))


def _vectors(column: Cells) -> Result:
    offsets, data = _copied(column)
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


def _inet6(value: bytes) -> str:
    """As MariaDB prints it: the first longest run of zeros left out, even a single one; IPv4's range with its dots."""
    if value[:10] == bytes(10) and value[10:12] in (b"\xff\xff", b"\0\0") and any(value[12:14]):
        prefix = "::ffff:" if value[10] else "::"
        return prefix + str(ipaddress.IPv4Address(value[12:]))
    groups = [f"{int.from_bytes(value[i : i + 2], 'big'):x}" for i in range(0, 16, 2)]
    found = [(size, -at) for at in range(8) for size in range(1, 9 - at) if groups[at : at + size] == ["0"] * size]
    if not found:
        return ":".join(groups)
    size, at = max(found)
    return ":".join(groups[:-at]) + "::" + ":".join(groups[size - at :])


_SPECIAL: dict[str, tuple[int, Callable[[bytes], str]]] = {
    "uuid": (16, _uuid),
    "inet6": (16, _inet6),
    "inet4": (4, lambda value: str(ipaddress.IPv4Address(value))),
}


def _special(column: Cells, native: str, width: int) -> Result:
    """MariaDB's types that travel as BINARY(n)."""
    size, text = _SPECIAL[native]
    if width != size or (column.size > size).any():
        raise DecodeError(f"a value of type {native} has not {size} bytes")
    found = [None if value is None else text(value.ljust(size, b"\0")) for value in column.values()]
    return pa.array(found, pa.string()), None


def _inflated(column: Cells) -> Cells:
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
    return Cells(buffer, at, size, column.kind)


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
