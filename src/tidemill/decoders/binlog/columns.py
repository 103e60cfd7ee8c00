"""Cells to Arrow arrays. A column's converter is chosen once per table, by its physical type and its `DataType`.

Converters return the array and a mask of values that the type cannot hold (or None). Those are null in the array;
`binlog` keeps their text (`odd_text`) in the block's `odd` column.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.decoders._shared.mysql import table_map as m
from tidemill.decoders._shared.mysql import types
from tidemill.decoders.binlog import cells, old_temporal, strings, temporal
from tidemill.decoders.binlog.column import BinlogCells, Mask, Result
from tidemill.decoders.binlog.json import documents
from tidemill.errors import SKIP, DecodeError
from tidemill.model import columns
from tidemill.model.table import Column


def _hexadecimal(value: bytes) -> str:
    return f"0x{value.hex().upper()}"


@dataclass(frozen=True, slots=True)
class Converter:
    """`step` is the column's part of the row program (`images`)."""

    step: int
    convert: Callable[[BinlogCells], Result]
    odd_text: Callable[[bytes], str] = _hexadecimal
    is_document: bool = False
    is_temporal: bool = False


def converter(kind: int, metadata: int, column: Column) -> Converter:
    """`DecodeError` where the physical type cannot be what the column is said to be."""
    step = m.fixed_size(kind, metadata)
    arrow, native = column.type.arrow, column.type.native
    if kind in old_temporal.NOW and (fraction := re.search(r"\(([1-6])\)$", native)):
        return _with_old_fraction(kind, int(fraction[1]), column)
    if kind in _INTEGERS and pa.types.is_integer(arrow):
        width, signed = _INTEGERS[kind], pa.types.is_signed_integer(arrow)
        if arrow.bit_width // 8 == (4 if width == 3 else width):
            return Converter(step, lambda c: convert_integers(c, arrow, width, signed))
    elif kind == m.NEWDECIMAL and pa.types.is_decimal(arrow):
        if arrow.precision == metadata >> 8 and arrow.scale == metadata & 0xFF:
            return Converter(step, lambda c: _decimals(c, arrow))
    elif kind in (m.FLOAT, m.DOUBLE) and arrow == (pa.float32() if kind == m.FLOAT else pa.float64()):
        return Converter(step, lambda c: convert_integers(c, arrow, step, False))
    elif kind == m.YEAR and arrow == pa.uint16():
        return Converter(step, _years)
    elif kind == m.BIT and (pa.types.is_boolean(arrow) or arrow == pa.uint64()):
        return Converter(step, lambda c: convert_bits(c, arrow, step))
    elif kind in (m.DATE, m.NEWDATE) and pa.types.is_date(arrow):
        return Converter(step, _dates, temporal.date_text, is_temporal=True)
    elif kind in (m.DATETIME, m.DATETIME2) and pa.types.is_timestamp(arrow) and arrow.tz is None:
        if kind == m.DATETIME:
            return Converter(step, _old_datetimes, temporal.old_datetime_text, is_temporal=True)
        return Converter(
            step, lambda c: _datetimes(c, step - 5), lambda v: temporal.datetime_text(v, metadata), is_temporal=True
        )
    elif kind in (m.TIMESTAMP, m.TIMESTAMP2) and pa.types.is_timestamp(arrow) and arrow.tz is not None:
        old, digits = kind == m.TIMESTAMP, 0 if kind == m.TIMESTAMP else metadata
        return Converter(
            step,
            lambda c: _timestamps(c, arrow, step - 4, old),
            lambda v: temporal.timestamp_text(v, digits),
            is_temporal=True,
        )
    elif kind in (m.TIME, m.TIME2) and native.startswith("time"):
        return Converter(step, lambda c: _times(c, 0 if kind == m.TIME else metadata, old=kind == m.TIME))
    elif kind == m.ENUM and native.startswith("enum"):
        known = types.labels(native)
        return Converter(step, lambda c: convert_enums(c, step, known), number_text)
    elif kind == m.SET and native.startswith("set"):
        known = types.labels(native)
        return Converter(step, lambda c: convert_sets(c, step, known), number_text)
    elif kind == m.JSON and native == "json":
        return Converter(-8, documents.convert, documents.odd_text, is_document=True)
    elif step < 0:
        found = strings.converter_of(kind, metadata, native, arrow)
        if found is not None:
            return Converter(step, found)
    raise DecodeError(
        f'column "{column.name}" is said to be {native}, but the binlog has type {kind} with metadata {metadata} there',
        fix=f"Set binlog_row_metadata=FULL at the server: the binlog has the types itself then. {SKIP}",
    )


def _with_old_fraction(kind: int, digits: int, column: Column) -> Converter:
    now = converter(old_temporal.NOW[kind], digits, column)
    size = old_temporal.size(kind, digits)

    def rewritten(value: bytes) -> bytes:
        return old_temporal.rewritten(kind, digits, value)

    def convert(old: BinlogCells) -> Result:
        values = [
            rewritten(old.value(i, size)) if old.kind[i] == cells.VALUE else bytes(now.step) for i in range(len(old))
        ]
        at = np.arange(len(old), dtype=np.int32) * now.step
        return now.convert(BinlogCells(np.frombuffer(b"".join(values) + bytes(8), np.uint8), at, old.size, old.kind))

    return Converter(size, convert, lambda value: now.odd_text(rewritten(value)), is_temporal=now.is_temporal)


_INTEGERS = {m.TINY: 1, m.SHORT: 2, m.INT24: 3, m.LONG: 4, m.LONGLONG: 8}


_UNSIGNED: dict[int, type] = {1: np.uint8, 2: np.uint16, 3: np.uint32, 4: np.uint32, 8: np.uint64}


def fixed_array(column: BinlogCells, arrow: pa.DataType, values: npt.NDArray[Any], bad: Mask | None = None) -> Result:
    nulls, bits = column.validity(bad)
    return pa.Array.from_buffers(arrow, len(column), [bits, pa.py_buffer(values)], nulls), bad


def convert_integers(column: BinlogCells, arrow: pa.DataType, width: int, signed: bool) -> Result:
    out: npt.NDArray[Any] = np.empty(len(column), _UNSIGNED[width])
    cells.little(column.buffer, column.at, column.kind, width, signed, out)
    return fixed_array(column, arrow, out)


def _numbers(column: BinlogCells, width: int) -> npt.NDArray[np.uint64]:
    out = np.zeros(len(column), np.uint64)
    for byte in range(width):  # at most eight; widths of SET need not be powers of two
        part = np.empty(len(column), np.uint8)
        cells.little(column.buffer, column.at + byte, column.kind, 1, False, part)
        out |= part.astype(np.uint64) << np.uint64(8 * byte)
    return out


def _years(column: BinlogCells) -> Result:
    out: npt.NDArray[Any] = np.empty(len(column), np.uint16)
    cells.little(column.buffer, column.at, column.kind, 1, False, out)
    return fixed_array(column, pa.uint16(), np.where(out > 0, out + 1900, 0).astype(np.uint16))


def convert_bits(column: BinlogCells, arrow: pa.DataType, width: int) -> Result:
    out = np.empty(len(column), np.uint64)
    cells.big(column.buffer, column.at, column.kind, width, out)
    if pa.types.is_boolean(arrow):
        return fixed_array(column, arrow, np.packbits(out != 0, bitorder="little"))
    return fixed_array(column, arrow, out)


def _decimals(column: BinlogCells, arrow: pa.DataType) -> Result:
    bad = np.zeros(len(column), np.bool_)
    if arrow.precision <= 18:
        out: npt.NDArray[Any] = np.empty((len(column), 2), np.int64)
        wrong = cells.decimals(column.buffer, column.at, column.kind, arrow.precision, arrow.scale, out, bad)
    else:
        out = np.empty((len(column), arrow.bit_width // 32), np.uint32)
        wrong = cells.wide_decimals(column.buffer, column.at, column.kind, arrow.precision, arrow.scale, out, bad)
    return fixed_array(column, arrow, out, bad if wrong else None)


def _dates(column: BinlogCells) -> Result:
    out, bad = np.empty(len(column), np.int32), np.zeros(len(column), np.bool_)
    wrong = temporal.dates(column.buffer, column.at, column.kind, out, bad)
    return fixed_array(column, pa.date32(), out, bad if wrong else None)


def _datetimes(column: BinlogCells, fraction: int) -> Result:
    out, bad = np.empty(len(column), np.int64), np.zeros(len(column), np.bool_)
    wrong = temporal.datetimes(column.buffer, column.at, column.kind, fraction, out, bad)
    return fixed_array(column, pa.timestamp("us"), out, bad if wrong else None)


def _old_datetimes(column: BinlogCells) -> Result:
    out, bad = np.empty(len(column), np.int64), np.zeros(len(column), np.bool_)
    wrong = temporal.old_datetimes(column.buffer, column.at, column.kind, out, bad)
    for i in np.flatnonzero(bad).tolist():
        temporal.old_datetime_text(column.value(i, 8))  # refuses what is no date at all, also one that becomes NULL
    return fixed_array(column, pa.timestamp("us"), out, bad if wrong else None)


def _timestamps(column: BinlogCells, arrow: pa.DataType, fraction: int, old: bool) -> Result:
    out, bad = np.empty(len(column), np.int64), np.zeros(len(column), np.bool_)
    wrong = temporal.timestamps(column.buffer, column.at, column.kind, fraction, old, out, bad)
    return fixed_array(column, arrow, out, bad if wrong else None)


def _times(column: BinlogCells, digits: int, *, old: bool) -> Result:
    offsets, data = np.empty(len(column) + 1, np.int32), np.empty(17 * len(column), np.uint8)
    temporal.times(column.buffer, column.at, column.kind, digits, old, offsets, data)
    return strings.read_varying(column, pa.string(), offsets, data[: int(offsets[-1])].copy())


def convert_enums(column: BinlogCells, width: int, known: tuple[str, ...]) -> Result:
    index = _numbers(column, width)
    bad = index > len(known)
    wrong = bool(bad.any())
    labels = pa.array(["", *known], pa.string())
    absent = column.kind != cells.VALUE
    chosen = columns.column(np.where(bad, 0, index).astype(np.int32), pa.int32(), absent | bad)
    return labels.take(chosen), bad if wrong else None


def convert_sets(column: BinlogCells, width: int, known: tuple[str, ...]) -> Result:
    masks, which = np.unique(_numbers(column, width), return_inverse=True)
    bad = (masks >> np.uint64(len(known)) > 0 if len(known) < 64 else np.zeros(len(masks), np.bool_))[which]
    wrong = bool(bad.any())
    combined = [",".join(label for i, label in enumerate(known) if int(mask) >> i & 1) for mask in masks]
    absent = column.kind != cells.VALUE
    return pa.array(combined, pa.string()).take(
        columns.column(which.astype(np.int32), pa.int32(), absent | bad)
    ), bad if wrong else None


def number_text(value: bytes) -> str:
    return str(int.from_bytes(value, "little"))
