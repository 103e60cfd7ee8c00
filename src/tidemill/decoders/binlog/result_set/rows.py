"""Rows of a SELECT as blocks of op `read`: what a snapshot's chunk is made of. The snapshot reader feeds it.

The rows come in the binary protocol, and `expression` asks for each column in the form that is nearest to the binlog's:
text as bytes of its own character set, ENUM and SET as numbers, floats as their bits. So the converters of the stream
make the Arrow arrays, and a value is the same whichever way it came. What has another form here (dates, times,
decimals) has kernels of its own (`result_kernels`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.decoders._shared.decimal_text import decimals
from tidemill.decoders._shared.mysql import table_map as m
from tidemill.decoders._shared.mysql import types
from tidemill.decoders._shared.mysql.fields import Bytes
from tidemill.decoders._shared.sides import meta, side_values
from tidemill.decoders.binlog import columns, strings
from tidemill.decoders.binlog.cells import VALUE
from tidemill.decoders.binlog.column import BinlogCells, Result
from tidemill.decoders.binlog.columns import Converter
from tidemill.decoders.binlog.expand import read_only
from tidemill.decoders.binlog.result_set import kernels
from tidemill.errors import DecodeError
from tidemill.model.block import Block, Op, Side
from tidemill.model.columns import Ints
from tidemill.model.table import Column, Table

_LARGEST_PACKET = 0xFFFFFF
_MOST_ROWS = 1 << 16  # of one block
_WIDTHS = {m.TINY: 1, m.SHORT: 2, m.INT24: 4, m.LONG: 4, m.LONGLONG: 8, m.FLOAT: 4, m.DOUBLE: 8, m.YEAR: 2}


def expression(column: Column, quoted_name: str) -> str:
    """What to SELECT for a column. ENUM and SET by number: which label is meant is the same in every character set."""
    return f"CAST({quoted_name} AS UNSIGNED)" if column.type.native.startswith(("enum(", "set(")) else quoted_name


def result_types(definitions: Sequence[bytes]) -> list[int]:
    """The types of a result set's columns from their definitions (Protocol::ColumnDefinition41)."""
    return [_type_of(Bytes(data, "a column definition")) for data in definitions]


def _type_of(definition: Bytes) -> int:
    for _ in range(6):  # catalog, schema, table and its own name, column and its own name
        definition.take(definition.packed())
    definition.take(1 + 2 + 4)  # length of what follows, character set, longest value
    return definition.number(1)


@dataclass(frozen=True, slots=True)
class ResultPart:
    """What `ResultRows.feed` made of some bytes. `ended`: what follows is no row, but the
    server's last packet: the end, or its error."""

    block: Block | None
    consumed: int
    ended: bool


class ResultRows:
    """One SELECT of all columns of a table, each as `expression` has it. `kinds` are their types in the result set.

    Offsets and ordinals of the blocks count from 0 over the whole result.
    """

    def __init__(self, table: Table, kinds: Sequence[int], *, null_zero_dates: bool = False) -> None:
        if len(kinds) != len(table.columns):
            raise DecodeError(f"{len(table.columns)} columns of {table.full_name} expected, {len(kinds)} came")
        self.table = table
        self.rows = 0
        self._null_zero_dates = null_zero_dates
        self._converters = [_converter(kind, column) for kind, column in zip(kinds, table.columns, strict=True)]
        self._program = np.array([made.step for made in self._converters], np.int64)
        self._start, self._end = np.empty(_MOST_ROWS, np.int64), np.empty(_MOST_ROWS, np.int64)

    def feed(self, data: memoryview) -> ResultPart:
        """The rows of all packets that are complete, at most as many as one block has. Call it again while it consumes
        something."""
        buffer = read_only(data)
        status, rows, at = kernels.frames(buffer, 0, self._start, self._end)
        if rows:
            return ResultPart(self._block(buffer, self._start[:rows], self._end[:rows]), int(at), False)
        match status:
            case kernels.ENDED | kernels.REFUSED:
                return ResultPart(None, 0, True)
            case kernels.JOINED:
                return self._large(data)
            case kernels.BROKEN:
                raise DecodeError(f"a row of {self.table.full_name} is no row of a result set")
        return ResultPart(None, 0, False)

    def _large(self, data: memoryview) -> ResultPart:
        """One row of 16 MiB or more."""
        parts, at, size = [], 0, _LARGEST_PACKET
        while size == _LARGEST_PACKET:
            if at + 4 > len(data):
                return ResultPart(None, 0, False)
            size = int.from_bytes(data[at : at + 3], "little")
            parts.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        if at > len(data):
            return ResultPart(None, 0, False)
        row = read_only(b"".join(parts))
        whole = self._block(row, np.zeros(1, np.int64), np.array([len(row)], np.int64))
        return ResultPart(whole, at, False)

    def _block(self, buffer: npt.NDArray[np.uint8], start: Ints, end: Ints) -> Block:
        table, rows = self.table, len(start)
        shape = (len(self._program), rows)
        at, size, kind = np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.uint8)
        if not kernels.cut_rows(buffer, start, end, self._program, at, size, kind):
            raise DecodeError(f"a row of {table.full_name} is not as its columns say")
        arrays, odd = [], []
        for j, made in enumerate(self._converters):
            own = BinlogCells(buffer, at[j], size[j], kind[j])
            array, bad = made.convert(own)
            arrays.append(array)
            if bad is not None and not (made.is_temporal and self._null_zero_dates):
                where = np.flatnonzero(bad)
                found = pa.array([made.odd_text(own.value(i)) for i in where.tolist()], pa.string())
                odd.append((where, Side.AFTER, j, found))
        counted = np.arange(self.rows, self.rows + rows)
        fields = [pa.field(column.name, column.type.arrow) for column in table.columns]
        made_of = {
            **meta(counted, np.full(rows, int(Op.READ), np.uint8), counted),
            "after": pa.StructArray.from_arrays(arrays, fields=fields),
        }
        if odd:
            made_of["odd"] = side_values(odd, rows)
        self.rows += rows
        return Block(table, pa.RecordBatch.from_pydict(made_of))


def _converter(kind: int, column: Column) -> Converter:
    arrow, native = column.type.arrow, column.type.native
    step = _WIDTHS.get(kind, kernels.LENGTH_ENCODED)
    digits = int(found[1]) if (found := re.search(r"\((\d)\)$", native)) else 0
    made: Converter | None = None
    if native.startswith(("enum(", "set(")):
        known = types.labels(native)
        number = columns.convert_enums if native.startswith("enum(") else columns.convert_sets
        # MariaDB chooses the width by how many digits there can be.
        fits = kind in (m.LONG, m.LONGLONG)
        made = Converter(step, lambda c: number(c, step, known), columns.number_text) if fits else None
    elif pa.types.is_integer(arrow) and kind != m.BIT:
        width, signed = _WIDTHS.get(kind, 0), pa.types.is_signed_integer(arrow)
        fits = width * 8 == arrow.bit_width
        made = Converter(step, lambda c: columns.convert_integers(c, arrow, width, signed)) if fits else None
    elif pa.types.is_floating(arrow):
        fits = step * 8 == arrow.bit_width and kind in (m.FLOAT, m.DOUBLE)
        made = Converter(step, lambda c: columns.convert_integers(c, arrow, step, False)) if fits else None
    elif kind == m.BIT:
        width = 1 if native == "bit(1)" else (int(native[4:-1]) + 7) // 8
        made = Converter(step, lambda c: columns.convert_bits(c, arrow, width))
    elif pa.types.is_decimal(arrow):
        made = Converter(step, lambda c: _decimals(c, arrow)) if kind == m.NEWDECIMAL else None
    elif kind == m.DATE and pa.types.is_date(arrow):
        made = Converter(kernels.SHORT_LENGTH, _dates, _date_text, is_temporal=True)
    elif kind in (m.DATETIME, m.TIMESTAMP) and pa.types.is_timestamp(arrow):
        made = Converter(
            kernels.SHORT_LENGTH, lambda c: _datetimes(c, arrow), lambda v: _datetime_text(v, digits), is_temporal=True
        )
    elif kind == m.TIME and native.startswith("time"):
        made = Converter(kernels.SHORT_LENGTH, lambda c: _times(c, digits))
    elif step == kernels.LENGTH_ENCODED and kind not in (m.DATE, m.DATETIME, m.TIMESTAMP, m.TIME):
        # BLOB stands for all of them: what is special about the others in the binlog is not in a result set.
        found_strings = strings.converter_of(m.BLOB, 4, native, arrow)
        made = Converter(step, found_strings) if found_strings is not None else None
    if made is None:
        raise DecodeError(f'column "{column.name}" is said to be {native}, but a SELECT returns type {kind} for it')
    return made


def _dates(column: BinlogCells) -> Result:
    out, bad = np.empty(len(column), np.int32), np.zeros(len(column), np.bool_)
    wrong = kernels.result_dates(column.buffer, column.at, column.size, column.kind, out, bad)
    return columns.fixed_array(column, pa.date32(), out, bad if wrong else None)


def _datetimes(column: BinlogCells, arrow: pa.DataType) -> Result:
    out, bad = np.empty(len(column), np.int64), np.zeros(len(column), np.bool_)
    wrong = kernels.result_datetimes(column.buffer, column.at, column.size, column.kind, out, bad)
    return columns.fixed_array(column, arrow, out, bad if wrong else None)


def _times(column: BinlogCells, digits: int) -> Result:
    offsets, data = np.empty(len(column) + 1, np.int32), np.empty(17 * len(column), np.uint8)
    kernels.result_times(column.buffer, column.at, column.size, column.kind, digits, offsets, data)
    return strings.read_varying(column, pa.string(), offsets, data[: int(offsets[-1])].copy())


def _decimals(column: BinlogCells, arrow: pa.DataType) -> Result:
    if arrow.precision > 18:
        array, _ = strings.as_bytes(column)
        return array.cast(pa.string()).cast(arrow), None
    out, bad = np.empty((len(column), 2), np.int64), np.zeros(len(column), np.bool_)
    where = column.buffer, column.at, column.size, column.kind
    if decimals(*where, VALUE, arrow.precision, arrow.scale, out, bad):
        raise DecodeError(f"a DECIMAL of a result set is not as its type {arrow} says")
    return columns.fixed_array(column, arrow, out)


def _date_text(value: bytes) -> str:
    year, month, day = (int.from_bytes(value[:2], "little"), *value[2:4]) if value else (0, 0, 0)
    return f"{year:04d}-{month:02d}-{day:02d}"


def _datetime_text(value: bytes, digits: int) -> str:
    padded = value.ljust(11, b"\0")
    hour, minute, second = padded[4:7]
    micros = int.from_bytes(padded[7:11], "little")
    text = f"{_date_text(padded)} {hour:02d}:{minute:02d}:{second:02d}"
    return f"{text}.{micros:06d}"[: len(text) + 1 + digits] if digits else text
