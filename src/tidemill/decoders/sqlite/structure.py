"""A table of SQLite as its catalog describes it: what a recorded row is decoded with (invariant 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from tidemill.decoders.sqlite.types import data_type
from tidemill.model.table import Column, Initial, Table
from tidemill.schema.ddl_document import describe_structure

SCHEMA = "main"


@dataclass(frozen=True, slots=True)
class SqliteColumn:
    """`key` is its place in the primary key from 1, 0 outside of it. `default` is an SQL expression."""

    name: str
    declared: str
    nullable: bool = True
    generated: bool = False
    key: int = 0
    default: str | None = None


@dataclass(frozen=True, slots=True)
class SqliteTable:
    """`descending`: its key is INTEGER PRIMARY KEY DESC, which is a column like any other and not the rowid
    (https://sqlite.org/lang_createtable.html#rowids_and_the_integer_primary_key)."""

    name: str
    columns: tuple[SqliteColumn, ...]
    without_rowid: bool = False
    strict: bool = False
    descending: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(c.name for c in sorted((c for c in self.columns if c.key), key=lambda c: c.key))

    @property
    def rowid_column(self) -> int | None:
        """The column that is the rowid itself: the one INTEGER PRIMARY KEY."""
        keys = [i for i, c in enumerate(self.columns) if c.key]
        if len(keys) != 1 or self.without_rowid or self.descending:
            return None
        return keys[0] if self.columns[keys[0]].declared.upper() == "INTEGER" else None

    def to_table(
        self,
        database: str,
        *,
        identity: str = "full",
        renamed: tuple[tuple[str, str], ...] = (),
        initial: Mapping[str, Initial] | None = None,
    ) -> Table:
        """A key column is nullable where SQLite lets it be: only INTEGER PRIMARY KEY, WITHOUT ROWID and STRICT forbid
        it (https://sqlite.org/quirks.html)."""
        columns = tuple(
            Column(
                c.name, data_type(c.declared), nullable=c.nullable, generated=c.generated,
                initial=(initial or {}).get(c.name),
            )
            for c in self.columns
        )  # fmt: skip
        return Table(database, SCHEMA, self.name, columns, self.key, identity, renamed=renamed)

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> SqliteTable:
        doc: dict[str, Any] = orjson.loads(text)
        return cls(**{**doc, "columns": tuple(SqliteColumn(**c) for c in doc["columns"])})


def column_changes(
    old: SqliteTable | None, new: SqliteTable, renamed: tuple[tuple[str, str], ...] = ()
) -> list[dict[str, Any]]:
    """`changes` of a DDL event's document, which docs/events.md describes."""
    before = {c.name: c for c in old.columns} if old else {}
    was_of = {now: was for was, now in renamed if was in before}
    kept = {was_of.get(c.name, c.name) for c in new.columns}
    found: list[dict[str, Any]] = [
        {"change": "drop", "column": name, "type": data_type(c.declared).native}
        for name, c in before.items()
        if name not in kept
    ]
    previous = ""
    for column in new.columns:
        was = before.get(was_of.get(column.name, column.name))
        place = {"after": previous} if previous else {"first": True}
        if was is None:
            found.append({"change": "add", "column": column.name, **_describe(column), **place})
        elif was.name != column.name:
            found.append({"change": "rename", "column": column.name, "from": was.name})
        if was is not None and _describe(was) != _describe(column):
            found.append({"change": "modify", "column": column.name, "from": _describe(was), "to": _describe(column)})
        if was is not None and was.default != column.default:
            found.append({"change": "default", "column": column.name, "from": was.default, "to": column.default})
        previous = column.name
    if old is not None and tuple(was_of.get(name, name) for name in new.key) != old.key:
        found.append({"change": "key", "from": list(old.key), "to": list(new.key)})
    return found


def describe_table(table: SqliteTable | None) -> dict[str, Any] | None:
    """`before` or `after` of the document."""
    return None if table is None else describe_structure([(c.name, _describe(c)) for c in table.columns], table.key)


def _describe(column: SqliteColumn) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": data_type(column.declared).native, "nullable": column.nullable}
    return {**shown, "generated": True} if column.generated else shown
