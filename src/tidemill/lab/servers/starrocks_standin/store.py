"""What the StarRocks stand-in keeps, in SQLite: tables with declared types, rows, labels; and what it lets in.

A load is one SQLite transaction with its label, so that it is there wholly or not at all, also after a kill.
"""

from __future__ import annotations

import datetime
import decimal
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

_SCHEMA = """
CREATE TABLE IF NOT EXISTS _columns (db TEXT, tbl TEXT, pos INTEGER, name TEXT, type TEXT, nullable INTEGER,
                                     pk INTEGER);
CREATE TABLE IF NOT EXISTS _comments (db TEXT, tbl TEXT, name TEXT, comment TEXT, PRIMARY KEY (db, tbl, name));
CREATE TABLE IF NOT EXISTS _labels (db TEXT, label TEXT, state TEXT, txn INTEGER, PRIMARY KEY (db, label));
"""
_INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64, "LARGEINT": 128}
_LABEL = re.compile(r"^[-\w]{1,128}$", re.ASCII)


class Rejected(Exception):
    """A value that its column does not take."""


class Forbidden(Exception):
    """A load that StarRocks does not do: it fails as a whole."""


@dataclass(frozen=True, slots=True)
class StandinColumn:
    name: str
    type: str
    nullable: bool
    key: bool


@dataclass(frozen=True, slots=True)
class Load:
    db: str
    table: str
    label: str
    columns: tuple[str, ...]
    partial: bool
    condition: str = ""


class StandinStore:
    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(_SCHEMA)
        self._lock = threading.RLock()
        self.held: set[tuple[str, str]] = set()  # labels of loads that are under way

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def query(self, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        with self._lock:
            cursor = self._db.execute(statement)
            return [d[0] for d in cursor.description or ()], cursor.fetchall()

    def columns(self, db: str, table: str) -> list[StandinColumn]:
        with self._lock:
            rows = self._db.execute(
                "SELECT name, type, nullable, pk FROM _columns WHERE db = ? AND tbl = ? ORDER BY pos", (db, table)
            ).fetchall()
        return [StandinColumn(name, kind, bool(nullable), bool(key)) for name, kind, nullable, key in rows]

    def create(self, db: str, table: str, columns: list[StandinColumn]) -> None:
        with self.transaction() as connection:
            for position, c in enumerate(columns):
                connection.execute(
                    "INSERT INTO _columns VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (db, table, position, c.name, c.type, c.nullable, c.key),
                )
            body = ", ".join(_quote(c.name) for c in columns)
            key = ", ".join(_quote(c.name) for c in columns if c.key)
            connection.execute(f"CREATE TABLE {_quote(f'{db}.{table}')} ({body}, PRIMARY KEY ({key}))")

    def comments(self, db: str, table: str) -> list[tuple[str, str]]:
        with self._lock:
            found = "SELECT name, comment FROM _comments WHERE db = ? AND tbl = ?"
            return self._db.execute(found, (db, table)).fetchall()

    def comment(self, db: str, table: str, column: str, comment: str) -> None:
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO _comments VALUES (?, ?, ?, ?)", (db, table, column, comment))

    def add(self, db: str, table: str, column: StandinColumn, default: Any = None, comment: str = "") -> None:
        """`default`: what the rows that are there have in it."""
        with self.transaction() as connection:
            position = len(self.columns(db, table))
            connection.execute(
                "INSERT INTO _columns VALUES (?, ?, ?, ?, ?, ?, 0)",
                (db, table, position, column.name, column.type, column.nullable),
            )
            connection.execute(f"ALTER TABLE {_quote(f'{db}.{table}')} ADD COLUMN {_quote(column.name)}")
            if default is not None:
                connection.execute(f"UPDATE {_quote(f'{db}.{table}')} SET {_quote(column.name)} = ?", (default,))
            if comment:
                connection.execute(
                    "INSERT OR REPLACE INTO _comments VALUES (?, ?, ?, ?)", (db, table, column.name, comment)
                )

    def rename(self, db: str, table: str, old: str, new: str) -> None:
        with self.transaction() as connection:
            connection.execute(
                "UPDATE _columns SET name = ? WHERE db = ? AND tbl = ? AND name = ?", (new, db, table, old)
            )
            connection.execute(
                "UPDATE _comments SET name = ? WHERE db = ? AND tbl = ? AND name = ?", (new, db, table, old)
            )
            connection.execute(f"ALTER TABLE {_quote(f'{db}.{table}')} RENAME COLUMN {_quote(old)} TO {_quote(new)}")

    def state(self, db: str, label: str) -> str:
        if (db, label) in self.held:
            return "PREPARE"
        with self._lock:
            found = self._db.execute("SELECT state FROM _labels WHERE db = ? AND label = ?", (db, label)).fetchone()
        return str(found[0]) if found else "UNKNOWN"

    def refuse(self, load: Load) -> str:
        """Why the load cannot begin; empty if it can."""
        if not _LABEL.match(load.label):
            return "Label format error. regex: ^[-\\w]{1,128}$"
        known = {c.name: c for c in self.columns(load.db, load.table)}
        if not known:
            return f"unknown table, table={load.table}"
        strange = [name for name in load.columns if name not in known and name != "__op"]
        if strange:
            return f"unknown reference column, column={strange[0]}"
        absent = [c.name for c in known.values() if c.key and c.name not in load.columns]
        if absent:
            return f"primary key column {absent[0]} is missing"
        if load.condition and (load.condition not in known or known[load.condition].key):
            return f"merge condition column {load.condition} is no column besides the primary key"
        if load.condition and load.condition not in load.columns:
            return f"merge condition column {load.condition} is not loaded"
        lacking = [c.name for c in known.values() if not c.nullable and c.name not in load.columns]
        return "" if load.partial or not lacking else f"Column has no default value, column={lacking[0]}"

    def apply(self, load: Load, body: bytes) -> tuple[int, list[str]]:
        """(rows, errors as the report has them). With an error nothing is loaded."""
        columns = {c.name: c for c in self.columns(load.db, load.table)}
        documents = orjson.loads(body)
        if not isinstance(documents, list):
            raise Rejected("strip_outer_array is set, but the body is no array")
        errors, rows = [], []
        for document in documents:
            try:
                values = {n: convert(document.get(n), columns[n]) for n in load.columns if n != "__op"}
                op = document.get("__op", 0)
                if op not in (0, 1):
                    raise Rejected("the value of __op is neither 0 nor 1")
                if op == 1 and load.condition:
                    raise Forbidden(f"memtable of tablet 1 delete with condition column {load.condition}")
                rows.append((op, values))
            except Rejected as error:
                errors.append(f"Error: {error}. Row: {orjson.dumps(document).decode()}")
        if not errors:
            with self.transaction() as connection:
                for op, values in rows:
                    _write(connection, load, columns, op, values)
                transaction = connection.execute("SELECT count(*) FROM _labels").fetchone()[0] + 1000
                connection.execute(
                    "INSERT OR REPLACE INTO _labels VALUES (?, ?, 'VISIBLE', ?)", (load.db, load.label, transaction)
                )
        return len(documents), errors

    def close(self) -> None:
        with self._lock:
            self._db.close()


def _write(
    connection: sqlite3.Connection, load: Load, columns: dict[str, StandinColumn], op: int, row: dict[str, Any]
) -> None:
    table = _quote(f"{load.db}.{load.table}")
    key = [c.name for c in columns.values() if c.key]
    where = " AND ".join(f"{_quote(name)} = ?" for name in key)
    if load.condition and _is_newer(connection, f"{table} WHERE {where}", [row[name] for name in key], load, row):
        return
    if op == 1:
        connection.execute(f"DELETE FROM {table} WHERE {where}", [row[name] for name in key])
        return
    names = ", ".join(_quote(name) for name in row)
    marks = ", ".join("?" for _ in row)
    kept = [name for name in row if name not in key]
    if not load.partial:
        connection.execute(f"DELETE FROM {table} WHERE {where}", [row[name] for name in key])
    update = ", ".join(f"{_quote(name)} = excluded.{_quote(name)}" for name in kept)
    action = f"UPDATE SET {update}" if kept else "NOTHING"
    connection.execute(
        f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT ({', '.join(map(_quote, key))}) DO {action}",
        list(row.values()),
    )


def _is_newer(connection: sqlite3.Connection, place: str, key: list[Any], load: Load, row: dict[str, Any]) -> bool:
    """Whether the row that is there has a greater value in the condition's column; NULL is less than any."""
    there = connection.execute(f"SELECT {_quote(load.condition)} FROM {place}", key).fetchone()
    if there is None or there[0] is None:
        return False
    return row[load.condition] is None or there[0] > row[load.condition]


def convert(value: Any, column: StandinColumn) -> Any:
    """As strict mode does it: what does not fit is an error, never NULL."""
    if value is None:
        if not column.nullable:
            raise Rejected(f"NULL value in non-nullable column '{column.name}'")
        return None
    base, _, rest = column.type.upper().partition("(")
    try:
        return _value(value, base.strip(), rest.rstrip(")"))
    except (ValueError, TypeError, decimal.InvalidOperation) as error:
        raise Rejected(f"Value is invalid for '{column.name}', whose type is {column.type}") from error


def _value(value: Any, base: str, rest: str) -> Any:
    if base in _INTEGERS:
        number = int(value) if isinstance(value, str) else value
        limit = 1 << (_INTEGERS[base] - 1)
        if isinstance(number, bool) or not isinstance(number, int) or not -limit <= number < limit:
            raise ValueError
        return str(number) if base == "LARGEINT" else number
    if base == "BOOLEAN":
        return {True: 1, False: 0}[value]
    if base in ("DOUBLE", "FLOAT"):
        if not isinstance(value, int | float):
            raise ValueError
        return float(value)
    if base == "DECIMAL":
        precision, scale = (int(part) for part in rest.split(","))
        number = decimal.Decimal(str(value))
        exact = number.quantize(decimal.Decimal(1).scaleb(-scale), context=decimal.Context(prec=80))
        if exact != number or len(exact.as_tuple().digits) > precision:
            raise ValueError
        return str(exact)
    if base == "DATE":
        return datetime.date.fromisoformat(value).isoformat()
    if base == "DATETIME":
        if "T" in value or "Z" in value:
            raise ValueError  # the loader's own format only
        return datetime.datetime.fromisoformat(value).isoformat(" ", "microseconds")
    if base in ("VARCHAR", "STRING"):
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        if len(text.encode()) > int(rest or 65533):
            raise ValueError
        return text
    if base == "JSON":
        return orjson.dumps(value).decode()
    if base.startswith("ARRAY<"):
        if not isinstance(value, list):
            raise ValueError
        return orjson.dumps(value).decode()
    raise ValueError(base)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
