"""One connection to a Turso file, and the few questions that are asked of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.errors import TidemillError
from tidemill.sources._shared.sqlite_catalog import quote
from tidemill.sources.turso.errors import MVCC, CdcMissing, CdcUnknown, DriverMissing, MvccFile, translate

_BUSY_MS = 5_000
_V1 = ("change_id", "change_time", "change_type", "table_name", "id", "before", "after")


@dataclass(frozen=True, slots=True)
class CdcForm:
    """`transactions`: the change table tells them apart (its version 2)."""

    table: str
    transactions: bool

    @property
    def columns(self) -> str:
        number = "change_txn_id" if self.transactions else "0"
        return f'change_id, change_time, {number}, change_type, table_name, id, "before", "after"'


class TursoFile:
    """For one thread. pyturso is imported here."""

    def __init__(self, path: Path, features: str, where: str) -> None:
        self._where = where
        if not path.is_file():
            raise CdcMissing(
                f"there is no file {path}", where=where, fix="Check `path`; the application makes the database."
            )
        try:
            import turso
        except ImportError as error:
            fix = 'Install it: pip install "tidemill[turso]".'
            raise DriverMissing("the package pyturso is not installed", where=where, fix=fix) from error
        with translate(where):
            self._db: Any = turso.connect(
                str(path.absolute()), experimental_features=features or None, isolation_level=None
            )
            self._db.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All reads inside see the same state of the file."""
        self.rows("BEGIN")
        try:
            yield
        except BaseException:
            with suppress(TidemillError):  # the first error tells what happened
                self.rows("ROLLBACK")
            raise
        self.rows("COMMIT")

    def scan(self, sql: str, count: int) -> Iterator[list[tuple[Any, ...]]]:
        """Rows of a statement, so many at a time."""
        with translate(self._where):
            cursor = self._db.execute(sql)
            while rows := cursor.fetchmany(count):
                yield rows

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with translate(self._where):
            found: list[tuple[Any, ...]] = self._db.execute(sql, tuple(values)).fetchall()
            return found

    def form(self, table: str) -> CdcForm:
        if self.rows("PRAGMA journal_mode")[0][0] == "mvcc":
            raise MvccFile("the journal mode of the file is mvcc", where=self._where, fix=MVCC)
        columns = self.column_names(table)
        if not columns:
            raise CdcMissing(
                f'the file has no table "{table}": no connection records its changes', where=self._where,
                fix="Run on every connection that writes: PRAGMA capture_data_changes_conn('full'). libSQL and SQLite"
                " ignore it without a word: for their files use `type: sqlite`.",
            )  # fmt: skip
        if missing := [name for name in _V1 if name not in columns]:
            raise CdcUnknown(
                f'"{table}" lacks {", ".join(missing)}: it is of a form that this version does not know',
                where=self._where, fix="Update Tidemill, or name the right table in `cdc_table`.",
            )  # fmt: skip
        return CdcForm(table, "change_txn_id" in columns)

    def column_names(self, table: str) -> set[str]:
        """Empty where there is no such table."""
        return {str(row[1]) for row in self.rows(f"PRAGMA table_info({quote(table)})")}

    def last(self, form: CdcForm) -> tuple[int, int]:
        """Number and time of the last change; zeros where there is none."""
        rows = self.rows(f"SELECT change_id, change_time FROM {quote(form.table)} ORDER BY change_id DESC LIMIT 1")
        return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)

    def statements(self) -> dict[str, str]:
        """Name and CREATE statement of the tables that are not Turso's own."""
        rows = self.rows("SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        return {str(name): str(sql) for name, sql in rows if sql and is_user_table(str(name))}

    def schema_version(self) -> int:
        rows = self.rows("PRAGMA schema_version")
        return int(rows[0][0]) if rows else 0

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None  # pyturso keeps its lock on the file for as long as somebody refers to the connection


def is_user_table(name: str) -> bool:
    return not name.lower().startswith(("sqlite_", "turso_", "__turso_", "_tidemill_"))
