"""Events from a file of JSON lines, to try processors with: what `tidemill log cat` prints, or written by hand.

docs/processors.md, "Trying it out", has the format.
"""

from __future__ import annotations

import base64
import datetime
import difflib
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from tidemill.errors import ConfigError
from tidemill.model.block import COMMIT_TIME, META, POSITION, UNCHANGED, Block, Op
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

_OPS = {op.label: op for op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)}
_EPOCH_US = 1_767_225_600_000_000  # 2026-01-01: the commit time of an event that says none
_Line = tuple[int, dict[str, Any]]
_Name = tuple[str, str, str]


def read_sample(path: Path, captured: Sequence[Table] = (), schema: str = "public") -> list[Block]:
    """Blocks of the file's events, in order. A table that was captured has its columns, key and types. Of any other the
    types are those of JSON: integers, numbers, text, booleans, and objects as JSON; and it has no key. It is
    in `schema` unless the event names another."""
    lines = list(_lines(path))
    named = [(number, event, _name(event, captured, schema)) for number, event in lines]
    tables: dict[_Name, Table] = {}
    for name in dict.fromkeys(name for _, _, name in named):
        mine = [(number, event) for number, event, other in named if other == name]
        known = next((t for t in captured if (t.database, t.schema, t.name) == name), None)
        tables[name] = _table(name, mine, path) if known is None else _check_columns(known, mine, path)
    blocks, first = [], 0
    for name, run in groupby(named, key=lambda each: each[2]):
        mine = [(number, event) for number, event, _ in run]
        blocks.append(_block(tables[name], mine, first, path))
        first += len(mine)
    return blocks


def _lines(path: Path) -> Iterator[_Line]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the events cannot be read: {error.strerror}", where=str(path), fix="Name a file of JSON lines."
        ) from error
    for number, text in enumerate(content.splitlines(), 1):
        if not text.strip():
            continue
        try:
            event = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise _wrong(path, number, f"it is no JSON: {error}") from error
        if not isinstance(event, dict) or not list(_rows(event)):
            raise _wrong(path, number, "it is no event: it has neither after nor before")
        if event.get("op", "insert") not in _OPS:
            raise _wrong(path, number, f"its op is none of {', '.join(_OPS)}")
        yield number, event


def _name(event: dict[str, Any], captured: Sequence[Table], schema: str) -> _Name:
    """Database, schema and table. What the event leaves out is that of the one captured table which fits, if one
    does."""
    given = [event.get(part) for part in ("database", "schema", "table")]
    for table in captured if given[2] is not None else ():
        own = (table.database, table.schema, table.name)
        if all(said is None or said == mine for said, mine in zip(given, own, strict=True)):
            return own
    return str(given[0] or ""), str(given[1] or schema), str(given[2] or "sample")


def _check_columns(table: Table, lines: list[_Line], path: Path) -> Table:
    names = [column.name for column in table.columns]
    for number, event in lines:
        for name in (*(name for row in _rows(event) for name in row), *event.get("unchanged", ())):
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                hint = f'Did you mean "{close[0]}"? ' if close else ""
                raise _wrong(
                    path, number, f'{table.full_name} has no column "{name}"', f"{hint}It has: {', '.join(names)}."
                )
    return table


def _table(name: _Name, lines: list[_Line], path: Path) -> Table:
    columns: dict[str, Column] = {}
    names = dict.fromkeys(column for _, event in lines for row in _rows(event) for column in row)
    names |= dict.fromkeys(column for _, event in lines for column in event.get("unchanged", ()))
    for column in names:
        values = [(number, row[column]) for number, event in lines for row in _rows(event) if column in row]
        columns[column] = Column(column, _type(column, values, path))
    return Table(*name, tuple(columns.values())).with_fingerprint()


def _rows(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (row for row in (event.get("after"), event.get("before")) if isinstance(row, dict))


def _type(column: str, values: list[tuple[int, Any]], path: Path) -> DataType:
    kinds = {type(value) for _, value in values if value is not None}
    if not kinds or kinds == {str}:
        return DataType("text", pa.string(), JsonForm.STRING)
    if kinds == {bool}:
        return DataType("boolean", pa.bool_(), JsonForm.BOOL)
    if kinds == {int}:
        return DataType("bigint", pa.int64(), JsonForm.NUMBER)
    if kinds <= {int, float}:
        return DataType("double precision", pa.float64(), JsonForm.NUMBER)
    if kinds <= {dict, list}:
        return DataType("json", pa.string(), JsonForm.RAW)
    raise _wrong(path, values[-1][0], f'column "{column}" has values of several types in the file')


def _block(table: Table, lines: list[_Line], first: int, path: Path) -> Block:
    events, count = [event for _, event in lines], len(lines)
    columns: dict[str, pa.Array] = {
        "offset": pa.array(range(first, first + count), pa.uint64()),
        "op": pa.array([int(_OPS[event.get("op", "insert")]) for event in events], pa.uint8()),
        "position": pa.array([str(event.get("position") or "sample") for event in events])
        .dictionary_encode()
        .cast(POSITION),
        "tx_id": pa.array([event.get("tx_id") for event in events], pa.uint64()),
        "ordinal": pa.array([event.get("ordinal", first + n) for n, event in enumerate(events)], pa.uint32()),
        "commit_time": pa.array([_time(*line, path) for line in lines], pa.int64()).cast(COMMIT_TIME),
    }
    images = {
        "key": [event.get("before") if _is_key(event.get("before"), table) else None for event in events],
        "before": [None if _is_key(event.get("before"), table) else event.get("before") for event in events],
        "after": [event.get("after") for event in events],
    }
    for side, rows in images.items():
        if any(row is not None for row in rows):
            numbered = [(number, row) for (number, _), row in zip(lines, rows, strict=True)]
            own = [column for column in table.columns if side != "key" or column.name in table.key]
            columns[side] = _struct(table, own, numbered, path)
    places = {column.name: number for number, column in enumerate(table.columns)}
    unchanged = [[places[name] for name in event.get("unchanged", ())] or None for event in events]
    if any(unchanged):
        columns["unchanged"] = pa.array(unchanged, UNCHANGED)
    fields = [META.field(name) if name in META.names else pa.field(name, a.type) for name, a in columns.items()]
    return Block(table, pa.record_batch(list(columns.values()), schema=pa.schema(fields)))


def _is_key(row: dict[str, Any] | None, table: Table) -> bool:
    """Whether the old row is only its key, as sources send it that do not have the rest."""
    return row is not None and bool(table.key) and set(row) == set(table.key) and len(row) < len(table.columns)


def _struct(
    table: Table, columns: Sequence[Column], rows: list[tuple[int, dict[str, Any] | None]], path: Path
) -> pa.StructArray:
    arrays = []
    for column in columns:
        cells = [(number, None if row is None else row.get(column.name)) for number, row in rows]
        arrays.append(_array(cells, column, table, path))
    mask = pa.array([row is None for _, row in rows])
    fields = [pa.field(column.name, column.type.arrow) for column in columns]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _array(cells: list[tuple[int, Any]], column: Column, table: Table, path: Path) -> pa.Array:
    made = []
    for number, cell in cells:
        try:
            made.append(_value(cell, column.type))
        except (pa.ArrowException, ValueError, TypeError) as error:
            what = f'column "{column.name}" of {table.full_name} is {column.type.native}, and its value is not'
            raise _wrong(path, number, what, "Write values as `tidemill log cat` prints them.") from error
    return pa.concat_arrays(made)


def _value(cell: Any, kind: DataType) -> pa.Array:
    """One value, as events in JSON show it (docs/events.md)."""
    arrow = kind.arrow
    if cell is None:
        return pa.nulls(1, arrow)
    if kind.json is JsonForm.RAW:
        return pa.array([orjson.dumps(cell).decode()], arrow)
    if pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow) or pa.types.is_fixed_size_binary(arrow):
        return pa.array([base64.b64decode(cell, validate=True)], arrow)
    if pa.types.is_decimal(arrow):
        return pa.array([str(cell)]).cast(arrow)
    if pa.types.is_temporal(arrow) and isinstance(cell, str):
        naive = pa.types.is_timestamp(arrow) and arrow.tz is None
        return pa.array([cell.removesuffix("Z") if naive else cell]).cast(arrow)
    return pa.array([cell], arrow)


def _time(number: int, event: dict[str, Any], path: Path) -> int:
    """Microseconds since 1970, of milliseconds or ISO 8601."""
    given = event.get("timestamp")
    if given is None:
        return _EPOCH_US
    if isinstance(given, int | float):
        return int(given * 1000)
    try:
        parsed = datetime.datetime.fromisoformat(given)
    except (TypeError, ValueError) as error:
        raise _wrong(path, number, "its timestamp is neither milliseconds since 1970 nor ISO 8601") from error
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp() * 1_000_000)


def _wrong(path: Path, line: int, what: str, fix: str = "") -> ConfigError:
    fix = fix or 'Write one event a line: {"op": "insert", "after": {"id": 1}}'
    return ConfigError(what, where=f"{path}:{line}", fix=fix)
