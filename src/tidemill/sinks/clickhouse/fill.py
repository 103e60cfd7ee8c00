"""Values that the source did not send because they did not change (TOAST): taken from the row that is there.

ReplacingMergeTree keeps whole rows, so a new version needs every value. One query per window asks for the rows by key;
within the window, an earlier event of the same key is nearer than what the destination has. An update that moved a row
to another key has its old values under the old one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill.net.clickhouse import explain_errors, quote
from tidemill.sinks._shared.images import Mask, Verdicts
from tidemill.sinks._shared.upserts import Upsert
from tidemill.sinks.clickhouse.server_table import IS_DELETED, VERSION
from tidemill.sinks.clickhouse.tables import ClickHouseDestination
from tidemill.sinks.clickhouse.types import ClickHouseType

_KEYS_PER_QUERY = 4096
_NOTHING, _DELETED = -1, -2


@dataclass(frozen=True, slots=True)
class Stored:
    """The newest rows the destination has of some keys, with the columns asked for."""

    table: pa.Table

    @property
    def versions(self) -> np.ndarray[Any, Any]:
        return self.table.column(VERSION).to_numpy()


def fetch(
    client: Any, destination: ClickHouseDestination, keys: dict[str, pa.Array], columns: list[str], where: str
) -> Stored:
    """The newest version of each key, deleted ones too: `FINAL` would hide those."""
    names = ", ".join(quote(name) for name in keys)
    wanted = [*columns, IS_DELETED]
    cells = ", ".join(_readable(quote(name), destination.kinds.get(name)) for name in wanted)
    outer = ", ".join(f"tupleElement(newest, {i}) AS {quote(name)}" for i, name in enumerate(wanted, start=1))
    strings = _tuples(keys)
    parts = []
    for at in range(0, max(1, len(strings)), _KEYS_PER_QUERY):
        chosen = ", ".join(strings.slice(at, _KEYS_PER_QUERY).to_pylist())
        inner = (
            f"SELECT {names}, max({VERSION}) AS newest_version, argMax(tuple({cells}), {VERSION}) AS newest "
            f"FROM {destination.name} WHERE ({names}) IN ({chosen}) GROUP BY {names}"
        )
        shown = ", ".join(f"{_readable(quote(name), destination.kinds[name])} AS {quote(name)}" for name in keys)
        statement = f"SELECT {shown}, newest_version AS {VERSION}, {outer} FROM ({inner})"
        settings = {"max_query_size": len(statement) + 100_000, "output_format_arrow_string_as_string": 0}
        with explain_errors(where):
            parts.append(client.query_arrow(statement, settings=settings, use_strings=False))
    return Stored(pa.concat_tables(parts).combine_chunks())


def fill(rows: Upsert, stored: Stored, base: int, verdicts: Verdicts) -> Mask | None:
    """Fills the holes. Answers which rows are to be written: not those the destination has something newer for
    and nothing to fill them with (a replay); None for all. Rows that nothing is known of are condemned."""
    count, known = len(rows.offsets), stored.table.num_rows
    has_old = np.ones(count, bool)
    for values in rows.old_keys.values():
        has_old &= values.is_valid().to_numpy(zero_copy_only=False)
    own, old, there = _number(rows, stored)
    lookup = np.where(rows.moved & has_old, old, own)
    names = list(rows.holes)
    holes = np.stack([rows.holes[name] for name in names])
    total = int(max(own.max(initial=0), old.max(initial=0), there.max(initial=0))) + 1
    last = np.full((len(names), total), _NOTHING, np.int64)
    deleted = stored.table.column(IS_DELETED).to_numpy().astype(bool)
    last[:, there] = np.where(deleted, _DELETED, np.arange(known))
    found = np.empty((len(names), count), np.int64)
    _trace(holes, lookup, own, np.where(rows.moved, old, -1), rows.gone, last, known, found)
    missing = (found < 0).any(axis=0) & ~rows.gone
    for i, name in enumerate(names):
        ours = rows.columns[name]
        theirs = stored.table.column(name).combine_chunks()
        pool = pa.concat_arrays(_of_one_type(theirs, ours))
        rows.columns[name] = pool.take(pa.array(np.maximum(found[i], 0), mask=found[i] < 0))
    if not missing.any():
        return None
    newest, seen = np.zeros(total, np.uint64), np.zeros(total, bool)
    newest[there], seen[there] = stored.versions, True
    superseded = missing & seen[lookup] & (newest[lookup] >= rows.offsets + np.uint64(base))
    verdicts.condemn(
        rows.offsets, missing & ~superseded,
        "the source did not send the unchanged columns, and the destination has no row to take them from; "
        "a snapshot of the table, or REPLICA IDENTITY FULL, brings them", lacking=True,
    )  # fmt: skip
    return ~missing


def unwritten(rows: Upsert, stored: Stored, base: int) -> Mask:
    """Which rows are newer than what the destination has of their key."""
    own, _, there = _number(rows, stored)
    newest = np.zeros(int(max(own.max(initial=0), there.max(initial=0))) + 1, np.uint64)
    seen = np.zeros(len(newest), bool)
    newest[there], seen[there] = stored.versions, True
    return ~seen[own] | (newest[own] < rows.offsets + np.uint64(base))


def _number(rows: Upsert, stored: Stored) -> tuple[Any, Any, Any]:
    """A number per key value: of the rows, of where moved rows stood, of what is stored. Same key, same number."""
    count, known = len(rows.offsets), stored.table.num_rows
    codes = np.zeros(2 * count + known, np.int64)
    for name, ours in rows.keys.items():
        theirs = _as(stored.table.column(name).combine_chunks(), ours.type)
        values = pa.concat_arrays([ours, _as(rows.old_keys[name], ours.type), theirs])
        encoded = values.dictionary_encode(null_encoding="encode")
        codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1]
    return codes[:count], codes[count : 2 * count], codes[2 * count :]


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values if values.type == kind else values.cast(kind)


def _of_one_type(theirs: pa.Array, ours: pa.Array) -> list[pa.Array]:
    """The source's type, unless the destination has a value that only its own, wider one can hold."""
    try:
        return [_as(theirs, ours.type), ours]
    except pa.ArrowInvalid:
        theirs = _as(theirs, theirs.type)
        return [theirs, _as(ours, theirs.type)]


def _readable(name: str, kind: ClickHouseType | None) -> str:
    """As text, where Arrow has no such type."""
    if kind is not None and (kind.core in ("UUID", "JSON") or kind.core.startswith("Enum")):
        return f"toString({name})"
    if kind is not None and kind.element is not None and kind.element.core == "UUID":
        return f"arrayMap(x -> toString(x), {name})"
    return name


def _tuples(keys: dict[str, pa.Array]) -> pa.Array:
    """Each key once, as SQL: `(1,'a')`."""
    columns = []
    for values in keys.values():
        kind = values.type
        if pa.types.is_integer(kind):
            columns.append(values.cast(pa.string()))
            continue
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            columns.append(pa.array([None if v is None else f"unhex('{v.hex()}')" for v in values.to_pylist()]))
            continue
        if pa.types.is_timestamp(kind) and kind.tz:
            values = values.cast(pa.timestamp("us"))
        text = values if pa.types.is_string(kind) else values.cast(pa.string())
        text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), "'", "\\'")
        columns.append(pc.binary_join_element_wise("'", text, "'", ""))
    joined = columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, ",")
    unique = pc.drop_null(joined.unique())
    return unique if len(columns) == 1 else pc.binary_join_element_wise("(", unique, ")", "")


@njit(cache=True, nogil=True)
def _trace(holes, lookup, own, old, gone, last, known, found):  # type: ignore[no-untyped-def]
    """`found[column, row]`: where the row's value is, in what is stored (before `known`) or among the rows."""
    for row in range(len(own)):
        for column in range(len(holes)):
            if holes[column, row]:
                found[column, row] = last[column, lookup[row]]
            else:
                found[column, row] = known + row
        for column in range(len(holes)):
            if old[row] >= 0:
                last[column, old[row]] = -2
            last[column, own[row]] = -2 if gone[row] else found[column, row]
