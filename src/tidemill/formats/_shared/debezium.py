"""Debezium's envelope: what both its JSON and its typed forms are made of. docs/events.md lists the fields."""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill import __version__
from tidemill.formats._shared import record as records
from tidemill.formats._shared.record import FieldColumns
from tidemill.model.block import Block, Op
from tidemill.model.identity import ordinals
from tidemill.model.table import Table

UNAVAILABLE = "__debezium_unavailable_value"
OPS = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.TRUNCATE: "t", Op.MESSAGE: "m", Op.READ: "r",
       Op.DDL: "ddl"}  # fmt: skip

_CODES = pa.array([None, *(OPS.get(op) for op in Op)], pa.string())
_SNAPSHOT = pa.array([None, *("true" if op is Op.READ else "false" for op in Op)], pa.string())
_FILE = re.compile(r"([^:@/]+\.[0-9]{6,}):([0-9]+)(?:@.*)?")
_MARIADB = re.compile(r"[0-9]+-[0-9]+-[0-9]+(,.*)?")
_NUMBERED = re.compile(r"[0-9]+@([0-9a-f]{16}|[0-9]{1,12})")  # a change of a SQLite file, of a Turso file
_IDENTITY = 16  # digits of a SQLite file's identity
_LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")

# The fields of both connectors: a schema must not depend on the rows.
_SOURCE = pa.schema(
    [
        pa.field("version", pa.string(), nullable=False),
        pa.field("connector", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("ts_ms", pa.int64()),
        pa.field("snapshot", pa.string()),
        pa.field("db", pa.string(), nullable=False),
        pa.field("sequence", pa.string()),
        pa.field("ts_us", pa.int64()),
        pa.field("ts_ns", pa.int64()),
        pa.field("schema", pa.string()),
        pa.field("table", pa.string(), nullable=False),
        pa.field("txId", pa.int64()),
        pa.field("lsn", pa.int64()),
        pa.field("xmin", pa.int64()),
        pa.field("origin", pa.string()),
        pa.field("origin_lsn", pa.int64()),
        pa.field("server_id", pa.int64()),
        pa.field("gtid", pa.string()),
        pa.field("file", pa.string()),
        pa.field("pos", pa.int64()),
        pa.field("row", pa.int32()),
        pa.field("thread", pa.int64()),
        pa.field("query", pa.string()),
    ]
)
_TRANSACTION = pa.struct([("id", pa.string()), ("total_order", pa.int64()), ("data_collection_order", pa.int64())])


class Connector(enum.StrEnum):
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    MARIADB = "mariadb"
    SQLITE = "sqlite"  # this one and the next are ours: Debezium has no connector for them
    TURSO = "turso"


@dataclass(frozen=True, slots=True)
class PositionOrigin:
    """What the rows' positions say about where they come from. Columns are null where they do not apply."""

    connector: Connector
    lsn: pa.Array
    gtid: pa.Array
    file: pa.Array
    pos: pa.Array

    @classmethod
    def of(cls, block: Block) -> PositionOrigin:
        position = block.batch.column("position")
        if not pa.types.is_dictionary(position.type):
            position = position.dictionary_encode()
        elif len(position.dictionary) > 2 * block.rows + 16:  # a slice keeps the dictionary of the whole append
            position = position.dictionary_decode().dictionary_encode()
        index, positions = position.indices, position.dictionary
        first = positions[0].as_py() if len(positions) else "0/0"
        rows = block.rows
        strings, numbers = pa.nulls(rows, pa.string()), pa.nulls(rows, pa.int64())
        if _LSN.fullmatch(first):
            return cls(Connector.POSTGRESQL, lsns(positions).take(index).cast(pa.int64()), strings, strings, numbers)
        if _FILE.fullmatch(first):
            found = [_FILE.fullmatch(word) for word in positions.to_pylist()]
            file = pa.array([f[1] if f else None for f in found], pa.string()).take(index)
            pos = pa.array([int(f[2]) if f else None for f in found], pa.int64()).take(index)
            return cls(Connector.MYSQL, numbers, strings, file, pos)
        if numbered := _NUMBERED.fullmatch(first):
            connector = Connector.SQLITE if len(numbered[1]) == _IDENTITY else Connector.TURSO
            pos = pc.list_element(pc.split_pattern(positions, "@", max_splits=1), 0).cast(pa.int64()).take(index)
            return cls(connector, numbers, strings, strings, pos)
        connector = Connector.MARIADB if _MARIADB.fullmatch(first) else Connector.MYSQL
        return cls(connector, numbers, position.cast(pa.string()), strings, numbers)


@functools.lru_cache(maxsize=256)
def schema(table: Table) -> pa.Schema:
    """`unchanged`, `odd` and `ddl` are ours: a typed column has no room for a placeholder or for a foreign text, and
    Debezium's statements have a shape of their own."""
    fields = [pa.field(name, table.arrow_struct()) for name in ("before", "after") if table.columns]
    fields += [
        pa.field("source", pa.struct(list(_SOURCE)), nullable=False),
        pa.field("transaction", _TRANSACTION),
        pa.field("op", pa.string()),
        pa.field("ts_ms", pa.int64()),
        pa.field("ts_us", pa.int64()),
        pa.field("ts_ns", pa.int64()),
        pa.field("unchanged", records.NAMES),
        pa.field("odd", records.ODD),
        pa.field("ddl", pa.string()),
    ]
    return pa.schema(fields, metadata=records.facts(table))


def record(block: Block, source: str) -> FieldColumns:
    fields = schema(block.table)
    timestamps = times(block.batch.column("commit_time"))
    columns: dict[str, Any] = {
        "source": _source(block, source, timestamps),
        "op": _CODES.take(block.batch.column("op")),
        "unchanged": records.unchanged_names(block),
        "odd": records.odd_values(block),
        "ddl": block.column("ddl"),
        **timestamps,
    }
    if block.table.columns:
        kind = block.table.arrow_struct()
        columns["before"] = _old(block, kind)
        after = block.column("after")
        columns["after"] = None if after is None else _with_placeholders(block, records.fit(after, kind))
    return records.fill(fields, columns, block.rows)


def times(commit_time: pa.Array) -> dict[str, pa.Array]:
    """Milliseconds round down, as clocks do. What 64 bits of nanoseconds cannot hold (from the year 2262) is null."""
    micros = commit_time.cast(pa.int64())
    limit = np.iinfo(np.int64).max // 1000
    fits = pc.and_(pc.less_equal(micros, limit), pc.greater_equal(micros, -limit))
    nanos = pc.multiply(pc.if_else(fits, micros, pa.scalar(None, pa.int64())), 1000)
    floor = pc.subtract(micros, pc.subtract(1000, 1)) if _any_negative(micros) else None
    millis = pc.divide(micros, 1000)
    if floor is not None:
        millis = pc.if_else(pc.less(micros, 0), pc.divide(floor, 1000), millis)
    return {"ts_ms": millis, "ts_us": micros, "ts_ns": nanos}


def sequences(lsn: pa.Array, ordinal: pa.Array) -> pa.Array:
    """`["<lsn>","<ordinal>"]`: rises from event to event."""
    parts = ['["', lsn.cast(pa.string()), '","', ordinal.cast(pa.string()), '"]', ""]
    return pc.binary_join_element_wise(*parts)


def lsns(positions: pa.Array) -> pa.Array:
    """Positions as numbers; null where a position is not of the form `16/B374D848`."""
    positions = positions.cast(pa.large_string())
    offsets, data = positions.buffers()[1:]
    numbers = np.zeros(len(positions), np.uint64)
    if not len(positions):
        return pa.array(numbers)
    ends = np.frombuffer(offsets, np.int64)[positions.offset : positions.offset + len(positions) + 1]
    good = _parse_lsn(ends, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), numbers)
    return pa.array(numbers, mask=~good)


def _source(block: Block, source: str, timestamps: dict[str, pa.Array]) -> FieldColumns:
    table, origin = block.table, PositionOrigin.of(block)
    postgres = origin.connector is Connector.POSTGRESQL
    columns: dict[str, Any] = {
        "version": pa.scalar(__version__),
        "connector": pa.scalar(str(origin.connector)),
        "name": pa.scalar(source),
        "snapshot": _SNAPSHOT.take(block.batch.column("op")),
        "db": pa.scalar(table.database),
        "table": pa.scalar(table.name),
        **timestamps,
    }
    if postgres:
        columns |= {
            "sequence": sequences(origin.lsn, ordinals(block)),
            "schema": pa.scalar(table.schema),
            "txId": block.batch.column("tx_id").cast(pa.int64()),
            "lsn": origin.lsn,
        }
    else:
        columns |= {
            "gtid": origin.gtid, "file": origin.file, "pos": origin.pos,
            "row": block.batch.column("ordinal").cast(pa.int32()),
        }  # fmt: skip
    return records.fill(_SOURCE, columns, block.rows)


def _old(block: Block, kind: pa.DataType) -> pa.Array | None:
    """The old row, or a row of its old key and nulls."""
    images = [records.fit(a, kind) for name in ("before", "key") if (a := block.column(name)) is not None]
    if len(images) < 2:
        return images[0] if images else None
    return pc.if_else(images[0].is_valid(), images[0], images[1])


def _with_placeholders(block: Block, after: pa.StructArray) -> pa.StructArray:
    """Texts and bytes that the database did not send read as Debezium's placeholder."""
    lists = block.column("unchanged")
    if lists is None:
        return after
    numbers = lists.flatten().to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(block.rows), pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False))
    children = [after.field(i) for i in range(after.type.num_fields)]
    for column in np.unique(numbers).tolist():
        kind = children[column].type
        if kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            mask = np.zeros(block.rows, np.bool_)
            mask[rows[numbers == column]] = True
            children[column] = pc.if_else(pa.array(mask), pa.scalar(UNAVAILABLE).cast(kind), children[column])
    return pa.StructArray.from_arrays(children, fields=list(after.type), mask=after.is_null())


def _any_negative(micros: pa.Array) -> bool:
    return bool(len(micros)) and (pc.min(micros).as_py() or 0) < 0


@njit(cache=True, nogil=True)
def _parse_lsn(ends: Any, data: Any, numbers: Any) -> Any:
    good = np.zeros(len(numbers), np.bool_)
    for i in range(len(numbers)):
        high, word, slashes, valid = np.int64(0), np.int64(0), 0, ends[i + 1] - ends[i] >= 3
        for at in range(ends[i], ends[i + 1]):
            byte = np.int64(data[at])
            if byte == 47:
                high, word, slashes = word, np.int64(0), slashes + 1
            elif 48 <= byte <= 57:
                word = word * 16 + byte - 48
            elif 65 <= (byte & 0xDF) <= 70:
                word = word * 16 + (byte & 0xDF) - 55
            else:
                valid = False
        good[i] = valid and slashes == 1 and high < 2**32 and word < 2**32
        numbers[i] = np.uint64(high) << np.uint64(32) | np.uint64(word)
    return good
