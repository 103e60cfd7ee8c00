"""Compares rows of the source with those of a table, for `tidemill verify`.

The source's rows are made into the documents that a load would send, the table's are asked for by key, and both are
brought into one form by the column's declared type. Rows that are marked as deleted count as gone.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from tidemill.contracts import RowDifference, RowFault
from tidemill.errors import Refused
from tidemill.model.block import Block
from tidemill.model.snapshot import Bound
from tidemill.model.table import Table
from tidemill.sinks._shared.audit_store import AuditStore
from tidemill.sinks._shared.images import Verdicts
from tidemill.sinks._shared.upserts import upsert
from tidemill.sinks.starrocks.rows import IS_DELETED, VERSION, LoadPiece
from tidemill.sinks.starrocks.tables import (
    StarRocksTableName,
    StarRocksTables,
    choose_keys,
    literal,
    loaded_kinds,
    quote,
)
from tidemill.sinks.starrocks.types import fit, form_of, plain

_LIVE = f"COALESCE({quote(IS_DELETED)}, 0) = 0"
_PAGE = 20_000
_LONGEST = 20  # characters of an integer of 64 bits
Row = dict[str, Any]


class StarRocksAudit:
    """`tables` has a connection of its own."""

    left_out: tuple[str, ...]

    def __init__(self, tables: StarRocksTables, name: StarRocksTableName, table: Table, *, values: bool) -> None:
        there = tables.describe(name)
        if not there:
            raise Refused(
                f"the sink has no table {name.plain} yet",
                where=tables.where,
                fix="Nothing of it was delivered. Rows from before come by a snapshot.",
            )
        if not table.key or any(key not in there for key in table.key):
            raise Refused(
                f"rows of {table.full_name} cannot be found: it has no key, or the target has other columns",
                where=tables.where, fix="Only tables with a primary key are compared.",
            )  # fmt: skip
        self._tables, self._name, self._table, self._values = tables, name, table, values
        self._kinds = loaded_kinds(table, there)
        self._declared = {column: plain(there[column][0]) for column in self._kinds}
        self._names, self._key = list(self._kinds), list(table.key)
        self._binary = {c.name for c in table.key_columns() if pa.types.is_binary(c.type.arrow)}
        self.left_out = tuple(column.name for column in table.columns if column.name not in self._kinds)
        self._store = AuditStore()

    def compare(self, block: Block, *, note: bool) -> list[RowDifference]:
        verdicts = Verdicts()
        rows = upsert(block, self._kinds, fit, verdicts, lambda kind, column: False)
        condemned = np.isin(block.offsets(), np.array(list(verdicts.reasons), np.uint64))
        found = [RowDifference(int(row), RowFault.DIFFERENT) for row in np.flatnonzero(condemned)]
        kept = np.flatnonzero(~condemned)
        if not len(kept):
            return found
        columns = {**rows.keys, **rows.columns}
        forms = {name: form_of(values, self._kinds[name]) for name, values in columns.items()}
        piece = LoadPiece(pa.table(columns), forms, tuple(self._key), partial=False).take(kept)
        ours = [self._row(row, sent=True) for row in _load(piece.body())]
        keys = [self._identity(row) for row in ours]
        if note:
            self._store.note(keys)
        theirs = self._fetch(piece.key_values())
        for number, key, row in zip(kept.tolist(), keys, ours, strict=True):
            if key not in theirs:
                found.append(RowDifference(number, RowFault.MISSING))
            elif unlike := [name for name in self._names if row[name] != theirs[key][name]]:
                values = tuple((_to_text(row[name]), _to_text(theirs[key][name])) for name in unlike)
                found.append(RowDifference(number, RowFault.DIFFERENT, tuple(unlike), values if self._values else ()))
        return sorted(found, key=lambda one: one.row)

    def extra(self, most: int) -> list[Bound]:
        found: list[Bound] = []
        for page in self._pages():
            rows = {self._identity(row): row for row in page}
            unseen = self._store.unseen(list(rows))
            found += [tuple(self._key_text(name, rows[key][name]) for name in self._key) for key in unseen]
            if len(found) >= most:
                break
        return found[:most]

    def has(self, key: Bound) -> bool:
        return bool(self._versions(key))

    def remove(self, keys: Sequence[Bound], is_gone: Callable[[Bound], bool]) -> int:
        """A row is held by its version: what is delivered of the key after the source was looked at has a higher one,
        which the statement leaves alone."""
        removed = 0
        for key in keys:
            versions = self._versions(key)
            if versions and is_gone(key):
                held = f"{quote(VERSION)} IS NULL" if versions[0] is None else f"{quote(VERSION)} <= {versions[0]}"
                self._tables.run(f"DELETE FROM {self._name} WHERE {self._key_condition(key)} AND {held}")
                removed += 1
        return removed

    def close(self) -> None:
        self._store.close()
        self._tables.connection.close()

    def _fetch(self, keys: list[tuple[Any, ...]]) -> dict[bytes, Row]:
        names = ", ".join(quote(name) for name in self._names)
        found: dict[bytes, Row] = {}
        for chosen in choose_keys(self._key, keys):
            for row in self._tables.run(f"SELECT {names} FROM {self._name} WHERE {chosen} AND {_LIVE}"):
                made = self._row(dict(zip(self._names, row, strict=True)))
                found[self._identity(made)] = made
        return found

    def _pages(self) -> Iterator[list[Row]]:
        """All keys that are there, in the server's order of them; each page begins after the last."""
        names = ", ".join(quote(name) for name in self._key)
        after = "TRUE"
        while True:
            rows = self._tables.run(
                f"SELECT {names} FROM {self._name} WHERE {_LIVE} AND ({after}) ORDER BY {names} LIMIT {_PAGE}"
            )
            if not rows:
                return
            yield [
                {name: _canonical(value, self._declared[name]) for name, value in zip(self._key, row, strict=True)}
                for row in rows
            ]
            after = _after(self._key, rows[-1], self._declared)

    def _row(self, row: Row, *, sent: bool = False) -> Row:
        return {name: _canonical(row[name], self._declared[name], sent=sent) for name in self._names}

    def _identity(self, row: Row) -> bytes:
        return orjson.dumps([_to_text(row[name]) for name in self._key])

    def _key_text(self, name: str, value: Any) -> str:
        """A key's value as `Chunk.points` has it; bytes are base64 here, and hex there."""
        return base64.b64decode(value).hex() if name in self._binary else _to_text(value) or ""

    def _key_condition(self, key: Bound) -> str:
        parts = []
        for name, text in zip(self._key, key, strict=True):
            value: Any = base64.b64encode(bytes.fromhex(text)).decode() if name in self._binary else text
            value = _canonical(value, self._declared[name])
            parts.append(f"{quote(name)} = {literal(value if isinstance(value, int) else _to_text(value))}")
        return " AND ".join(parts)

    def _versions(self, key: Bound) -> list[int | None]:
        found = self._tables.run(
            f"SELECT {quote(VERSION)} FROM {self._name} WHERE {self._key_condition(key)} AND {_LIVE}"
        )
        return [None if version is None else int(version) for (version,) in found]


def _after(names: Sequence[str], last: Sequence[Any], kinds: dict[str, str]) -> str:
    """The condition of keys that follow `last`."""
    alternatives, equal = [], ""
    for name, value in zip(names, last, strict=True):
        known = _canonical(value, kinds[name])
        given = literal(known if isinstance(known, int) else _to_text(known))
        alternatives.append(f"({equal}{quote(name)} > {given})")
        equal += f"{quote(name)} = {given} AND "
    return " OR ".join(alternatives)


def _canonical(value: Any, kind: str, *, sent: bool = False) -> Any:
    """A value as the MySQL protocol brings it, or (`sent`) as a load sends it, in one form for its type."""
    if value is None:
        return None
    base, _, rest = kind.partition("(")
    if kind.startswith("ARRAY<"):
        return [_canonical(item, kind[len("ARRAY<") : -1]) for item in (value if sent else _load(value))]
    if base in ("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT"):
        return int(value)
    match base:
        case "BOOLEAN":
            return value in (True, 1, "1", "true", "TRUE", b"\x01")
        case "FLOAT":
            return struct.unpack("f", struct.pack("f", float(value)))[0]
        case "DOUBLE":
            return float(value)
        case "DECIMAL":
            return decimal.Decimal(str(value)).quantize(_unit(rest), context=decimal.Context(prec=80))
        case "DATE":
            return str(value)[:10]
        case "DATETIME":
            return _timestamp(value)
        case "JSON":
            return value if sent else _load(value)
    if isinstance(value, datetime.datetime):
        return _timestamp(value)
    return value if isinstance(value, str) else _dump(value)


def _timestamp(value: Any) -> str:
    """With six digits after the second; as text, since Python's years begin with 1."""
    whole, _, fraction = str(value).replace("T", " ").partition(".")
    return f"{whole}.{fraction:0<6}"


def _unit(rest: str) -> decimal.Decimal:
    return decimal.Decimal(1).scaleb(-int(rest.rstrip(")").split(",")[1]))


def _to_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | float | list | dict):
        return _dump(value)
    return str(value)


def _load(document: str | bytes) -> Any:
    """Integers beyond 64 bits are doubles, as a JSON of StarRocks has them. Numbers beyond a double, which it refuses,
    are kept as they are: the rows that have them differ from all that is there."""
    return json.loads(document, parse_int=_integer, parse_float=_double)


def _integer(text: str) -> int | float | decimal.Decimal:
    if len(text) > _LONGEST:  # `int` refuses more than 4300 digits
        return _double(text)
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 64 else float(number)


def _double(text: str) -> float | decimal.Decimal:
    number = float(text)
    return number if math.isfinite(number) else decimal.Decimal(text)


def _dump(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()
