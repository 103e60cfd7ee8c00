"""Key ranges of SQLite tables as SQL, and what a chunk's read makes of its rows. For readers of SQLite's and of Turso's
files. Bounds are SQL literals."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tidemill.decoders.sqlite import RowChanges, SqliteCells, block_of, shows_number
from tidemill.model.block import Block, Op
from tidemill.model.snapshot import Bound, Chunk, SnapshotTable
from tidemill.model.types import DataType
from tidemill.sources._shared.sqlite_catalog import quote

_HEX = re.compile(r"([0-9a-f]{2})*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
# Values that are not of their column's type, as decoders/sqlite shows them.
_SHOWN = re.compile(r"X'([0-9A-Fa-f]{2})*'|CAST\(X'([0-9A-Fa-f]{2})*' AS TEXT\)")
_CAST_NUMBER = re.compile(r"CAST\((.*) AS (?:INTEGER|REAL)\)")
_QUOTED = re.compile(r"'([^']|'')*'")
# SQLite prints them so, our texts have the long form; it reads neither.
_INFINITE = {"inf": "9e999", "-inf": "-9e999", "infinity": "9e999", "-infinity": "-9e999"}

Compare = Callable[[Sequence[str], str, Bound], str]


def comparison(key: Sequence[str], operator: str, bound: Bound) -> str:
    """The key's columns stand so to the bound. One column stands without parentheses: with them Turso reads the whole
    table."""
    literals = [_INFINITE.get(text.lower(), text) for text in bound]
    if len(key) == 1:
        return f"{quote(key[0])} {operator} {literals[0]}"
    return f"({', '.join(map(quote, key))}) {operator} ({', '.join(literals)})"


def shown_key(table: SnapshotTable) -> str:
    """Its columns as SQL literals. A text goes through its bytes: `quote` ends at a NUL, and not every text is UTF-8.
    The sign takes away the affinity that a CAST has: the column's own decides how values compare."""
    return ", ".join(
        f"CASE typeof({name}) WHEN 'text' THEN '+CAST(X''' || hex(CAST({name} AS BLOB)) || ''' AS TEXT)'"
        f" ELSE quote({name}) END"
        for name in map(quote, table.key)
    )


def last_key(table: SnapshotTable, shown: str) -> str:
    backwards = ", ".join(f"{quote(column)} DESC" for column in table.key)
    return f"SELECT {shown} FROM {quote(table.table.name)} ORDER BY {backwards} LIMIT 1"


def walk(
    table: SnapshotTable, shown: str, after: Bound | None, last: Bound | None, rows: int, compare: Compare = comparison
) -> str:
    """The key that stands so many rows after `after`, and not after `last`."""
    conditions = [compare(table.key, ">", after)] if after is not None else []
    conditions += [compare(table.key, "<=", last)] if last is not None else []
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    key = ", ".join(map(quote, table.key))
    return f"SELECT {shown} FROM {quote(table.table.name)}{where} ORDER BY {key} LIMIT 1 OFFSET {rows - 1}"


def rows_of(chunk: Chunk, table: SnapshotTable, compare: Compare = comparison) -> str:
    conditions = [f"({chunk.where})"] if chunk.where else []
    if chunk.lower is not None:
        conditions.append(compare(table.key, ">", chunk.lower))
    if chunk.upper is not None:
        conditions.append(compare(table.key, "<=", chunk.upper))
    if chunk.points:
        points = [comparison(table.key, "=", each) for point in chunk.points for each in _literals(point, table)]
        conditions.append(f"({' OR '.join(points)})")
    columns = ", ".join(quote(c.name) for c in table.table.columns)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {columns} FROM {quote(table.table.name)}{where}"


def _literals(point: Bound, table: SnapshotTable) -> list[Bound]:
    """What the texts of a key may stand for, as SQL. They are data: SQLite keeps any text in a column of any type, so
    nothing of them is taken for SQL that is not a number, or one of our own forms of a value."""
    columns = [_candidates(text, column.type) for text, column in zip(point, table.table.key_columns(), strict=True)]
    return list(itertools.product(*columns))


def _candidates(text: str, kind: DataType) -> list[str]:
    """Of one value of a key, in the forms of `decoders/sqlite/columns.py`, bytes in hex. Only in a column of numbers
    it may be one of two: Arrow prints a number as a text may be."""
    if pa.types.is_binary(kind.arrow):
        if _HEX.fullmatch(text):
            return [f"X'{text}'"]
        if (cast := _CAST_NUMBER.fullmatch(text)) and _is_number(cast[1]):
            return [cast[1]]
    if _SHOWN.fullmatch(text):
        return [text]
    if _QUOTED.fullmatch(text):
        return [_text(text[1:-1].replace("''", "'"))]
    if pa.types.is_string(kind.arrow):
        return [text if shows_number(text, kind) else _text(text)]
    if text in ("true", "false"):
        return [_text(text), "1" if text == "true" else "0"]
    return [_text(text), text] if _is_number(text) else [_text(text)]


def _is_number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text)) or text.lower() in _INFINITE  # infinities: `comparison`


def _text(value: str) -> str:
    if "\0" in value:  # which ends a literal
        return f"+CAST(X'{value.encode().hex()}' AS TEXT)"
    return "'" + value.replace("'", "''") + "'"


def block_of_rows(table: SnapshotTable, first: int, cells: SqliteCells) -> Block:
    """Rows of a chunk, counted from `first` on."""
    count = cells.rows
    op = np.full(count, int(Op.READ), np.uint8)
    none, every = np.zeros(count, np.bool_), np.ones(count, np.bool_)
    place = np.arange(first, first + count)
    batch = block_of(RowChanges(table.table, op, None, cells, none, every), place, place, None).batch
    kept = [name for name in batch.schema.names if name != "subtx"]
    return Block(table.table, pa.RecordBatch.from_pydict({name: batch.column(name) for name in kept}))
