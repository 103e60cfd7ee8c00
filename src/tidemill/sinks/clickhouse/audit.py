"""Compares rows of the source with those of a table in `upsert` mode, for `tidemill verify`.

The rows are inserted into a temporary table that has the target's own types, as the sink would insert them, and
ClickHouse compares them with what `FINAL` shows. So what a type rounds or prints in another way is no difference.
Temporary tables belong to an HTTP session, which the audit has for itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.contracts import RowDifference, RowFault
from tidemill.errors import Refused
from tidemill.model.block import Block
from tidemill.model.snapshot import Bound
from tidemill.model.table import Table
from tidemill.net.clickhouse import explain_errors, literal, quote
from tidemill.sinks._shared.images import Verdicts
from tidemill.sinks.clickhouse.rows import upsert_rows
from tidemill.sinks.clickhouse.send import encode
from tidemill.sinks.clickhouse.server_table import VERSION, ClickHouseTableName, ServerTable
from tidemill.sinks.clickhouse.tables import ClickHouseDestination

_ROW = "tidemill_row"
_KEYS_PER_DELETE = 200


class ClickHouseAudit:
    """`client` is its own, with a session. `found` is the target as the server has it."""

    def __init__(
        self, client: Any, name: ClickHouseTableName, found: ServerTable, table: Table, where: str, *, values: bool
    ) -> None:
        if not table.key or any(key not in found.kinds for key in table.key):
            raise Refused(
                f"rows of {table.full_name} cannot be found: it has no key, or the target has other columns",
                where=where, fix="Only tables with a primary key are compared.",
            )  # fmt: skip
        self._client, self._name, self._where, self._values = client, name, where, values
        kinds = {column.name: found.kinds[column.name] for column in table.columns if column.name in found.kinds}
        self._destination = ClickHouseDestination(name, kinds)
        self._names, self._key = list(kinds), table.key
        self._binary = {c.name for c in table.key_columns() if _is_binary(c.type.arrow)}
        self.left_out = tuple(column.name for column in table.columns if column.name not in kinds)
        token = uuid.uuid4().hex[:12]
        self._stage, self._seen = f"tidemill_audited_{token}", f"tidemill_seen_{token}"
        with explain_errors(where):
            self._make(self._stage, self._names, f", toUInt32(0) AS {_ROW}")
            self._make(self._seen, list(self._key))

    def _make(self, name: str, columns: list[str], more: str = "") -> None:
        rows = f"SELECT {_column_list(columns)}{more} FROM {self._name} LIMIT 0"
        self._client.command(f"CREATE TEMPORARY TABLE {name} ENGINE = Memory AS {rows}")

    def compare(self, block: Block, *, note: bool) -> list[RowDifference]:
        verdicts = Verdicts()
        rows = upsert_rows(block, self._destination, verdicts)
        numbers = np.arange(block.rows, dtype=np.uint32)
        condemned = np.isin(block.offsets(), np.array(list(verdicts.reasons), np.uint64))
        held = [RowDifference(int(row), RowFault.DIFFERENT) for row in np.flatnonzero(condemned)]
        ready = pa.table({**rows.keys, **rows.columns, _ROW: pa.array(numbers)}).filter(pa.array(~condemned))
        if not ready.num_rows:
            return held
        with explain_errors(self._where):
            self._client.command(f"TRUNCATE TABLE {self._stage}")
            self._client.raw_insert(
                self._stage, column_names=[quote(name) for name in ready.column_names],
                insert_block=encode(ready, "none"), fmt="ArrowStream",
                settings={"async_insert": 0, "input_format_null_as_default": 1},
            )  # fmt: skip
            found = held + self._differences()
            if note:
                self._client.command(
                    f"INSERT INTO {self._seen} SELECT {_column_list(self._key)} FROM {self._stage}",
                )
        return sorted(found, key=lambda one: one.row)

    def _differences(self) -> list[RowDifference]:
        key = _column_list(self._key)
        shown = ", ".join(f"{_to_text(f's.{quote(name)}')}, {_to_text(f't.{quote(name)}')}" for name in self._names)
        unlike = ", ".join(_unlike(f"s.{quote(name)}", f"t.{quote(name)}") for name in self._names)
        same = " AND ".join(f"s.{quote(name)} = t.{quote(name)}" for name in self._key)
        columns = f"s.{_ROW} AS row, t.{_THERE} AS there, [{unlike}] AS unlike"
        columns += f", [{shown}] AS shown" if self._values else ""
        found = self._client.query(
            f"SELECT * FROM (SELECT {columns} FROM {self._stage} AS s LEFT JOIN"
            f" (SELECT {_column_list(self._names)}, 1 AS {_THERE} FROM {self._name} FINAL"
            f" WHERE ({key}) IN (SELECT {key} FROM {self._stage})) AS t ON {same})"
            " WHERE NOT there OR has(unlike, 1) ORDER BY row SETTINGS join_use_nulls = 0"
        ).result_rows
        return [self._difference(*each) for each in found]

    def _difference(self, row: int, there: int, unlike: list[int], shown: Sequence[str | None] = ()) -> RowDifference:
        if not there:
            return RowDifference(row, RowFault.MISSING)
        places = [place for place, differs in enumerate(unlike) if differs]
        values = tuple((shown[2 * place], shown[2 * place + 1]) for place in places) if self._values else ()
        return RowDifference(row, RowFault.DIFFERENT, tuple(self._names[place] for place in places), values)

    def extra(self, most: int) -> list[Bound]:
        shown = ", ".join(self._key_text(name) for name in self._key)
        key = _column_list(self._key)
        with explain_errors(self._where):
            found = self._client.query(
                f"SELECT {shown} FROM {self._name} FINAL WHERE ({key}) NOT IN (SELECT {key} FROM {self._seen})"
                f" LIMIT {most}"
            ).result_rows
        return [tuple(row) for row in found]

    def has(self, key: Bound) -> bool:
        with explain_errors(self._where):
            found = self._client.query(
                f"SELECT count() FROM {self._name} FINAL WHERE {self._key_condition(key)}"
            ).result_rows
        return bool(found[0][0])

    def remove(self, keys: Sequence[Bound], is_gone: Callable[[Bound], bool]) -> int:
        """A row is held by its version: what is delivered of the key after the source was looked at has a higher one,
        which the mutation leaves alone."""
        removed = 0
        for at in range(0, len(keys), _KEYS_PER_DELETE):
            conditions = []
            for key in keys[at : at + _KEYS_PER_DELETE]:
                chosen = self._key_condition(key)
                with explain_errors(self._where):
                    ((version, count),) = self._client.query(
                        f"SELECT max({VERSION}), count() FROM {self._name} FINAL WHERE {chosen}"
                    ).result_rows
                if count and is_gone(key):
                    conditions.append(f"({chosen} AND {VERSION} <= {version})")
            if conditions:
                statement = f"ALTER TABLE {self._name} DELETE WHERE {' OR '.join(conditions)}"
                with explain_errors(self._where):
                    self._client.command(statement, settings={"mutations_sync": 2})
            removed += len(conditions)
        return removed

    def _key_text(self, name: str) -> str:
        """A key's value as `Chunk.points` has it."""
        if name in self._binary:
            return f"lower(hex({quote(name)}))"
        return f"toString({quote(name)})"

    def _key_condition(self, key: Bound) -> str:
        """The condition that chooses the row of a key. Arrow writes a `Z` after a time in UTC."""
        parts = []
        for name, text in zip(self._key, key, strict=True):
            if self._destination.kinds[name].digits >= 0:
                text = text.removesuffix("Z").replace("T", " ")
            parts.append(f"{self._key_text(name)} = {literal(text)}")
        return " AND ".join(parts)

    def close(self) -> None:
        try:
            with explain_errors(self._where):
                for name in (self._stage, self._seen):
                    self._client.command(f"DROP TEMPORARY TABLE IF EXISTS {name}")
        finally:
            self._client.close()


_THERE = "tidemill_there"


def _unlike(ours: str, theirs: str) -> str:
    """1 where two values of one type differ; by their text, in which NaN equals itself."""
    return (
        f"toUInt8(isNull({ours}) != isNull({theirs}) OR ifNull(toString({ours}), '') != ifNull(toString({theirs}), ''))"
    )


def _to_text(value: str) -> str:
    return f"CAST(toString({value}), 'Nullable(String)')"


def _column_list(names: Sequence[str]) -> str:
    return ", ".join(quote(name) for name in names)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))
