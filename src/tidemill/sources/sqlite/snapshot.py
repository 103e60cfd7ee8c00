"""Reads SQLite tables in chunks, each in one read transaction (ADR 28).

Rows and change table are in one file: what a read transaction sees of the one is what it sees of the other. So a
chunk's read sees exactly the changes up to the last recorded number, and every commit from before it began: it proves
every observation.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.decoders.sqlite import SqliteTable
from tidemill.errors import StructureChanged
from tidemill.model.block import Block
from tidemill.model.position import Position
from tidemill.model.snapshot import Bound, Chunk, SnapshotTable
from tidemill.model.table import Table
from tidemill.sources._shared.sqlite_catalog import file_number, is_unknown, quote, read_table, table_names
from tidemill.sources._shared.sqlite_chunks import block_of_rows, last_key, rows_of, shown_key, walk
from tidemill.sources._shared.sqlite_names import is_selected, patterns_of
from tidemill.sources.sqlite import resume
from tidemill.sources.sqlite.client import connect
from tidemill.sources.sqlite.errors import FileUnusable, translate
from tidemill.sources.sqlite.native import CellReader
from tidemill.sources.sqlite.resume import SqlitePlace
from tidemill.sources.sqlite.triggers import rowid_name
from tidemill.telemetry.failpoints import failpoint

if TYPE_CHECKING:
    from tidemill.sources.sqlite import SqliteFileConfig

_ROWS = 10_000  # of a block


class SqliteSnapshotReader:
    """For one thread. Pickled, it is its configuration; connections are made when first needed. Bounds are SQL
    literals (`shown_key`)."""

    def __init__(self, config: SqliteFileConfig) -> None:
        self._config = config
        self._db: sqlite3.Connection | None = None
        self._number: tuple[int, int] | None = None  # of the file that it is connected to
        self._ends: dict[str, Bound | None] = {}  # by table, the last key when it was planned

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._config,)

    def tables(self, names: Sequence[str] = ()) -> list[SnapshotTable]:
        config, wanted = self._config, patterns_of(names)
        with self._connect() as db:
            file = resume.identity(db)
            if file is None:
                raise FileUnusable(
                    "the file has no change table yet", where=config.where,
                    fix="A pipeline that has never run makes it when it starts. Of one that ran it was taken out, and"
                    " the pipeline's position with it: tidemill recover FILE --snapshot makes it again; start the"
                    " pipeline then, which copies the tables.",
                )  # fmt: skip
            found = [n for n in table_names(db) if is_selected(config.patterns, n) and is_selected(wanted, n)]
            return [self._describe(db, name, file) for name in found]

    def structures(self) -> list[Table]:
        with self._connect() as db:
            names = [name for name in table_names(db) if is_selected(self._config.patterns, name)]
            return [read_table(db, name).to_table(self._config.database_name) for name in names]

    def names_with_rows(self) -> list[str]:
        with self._connect() as db:
            names = [name for name in table_names(db) if is_selected(self._config.patterns, name)]
            tables = [read_table(db, name) for name in names if db.execute(f"SELECT 1 FROM {quote(name)}").fetchone()]
        return [table.to_table(self._config.database_name).full_name for table in tables]

    def _describe(self, db: sqlite3.Connection, name: str, file: str) -> SnapshotTable:
        """A key that may be NULL, as SQLite allows it in some, or whose order only the application knows, cannot bound
        a chunk: such a table is one."""
        described = read_table(db, name)
        whole = all(not c.nullable for c in described.columns if c.key) and _is_ordered(db, described)
        estimate = -1
        if not described.without_rowid and (rowid := rowid_name(described)) is not None:
            estimate = int(db.execute(f"SELECT coalesce(max({rowid}), 0) FROM {quote(name)}").fetchone()[0])
        high = resume.place_of(db, resume.last_number(db), file).text()
        table = described.to_table(self._config.database_name)
        return SnapshotTable(table, table.key if whole else (), estimate, high, ("",), described.to_json())

    def plan(self, table: SnapshotTable, part: str, after: Bound | None, rows: int) -> Bound | None:
        if not table.key:
            return None
        shown = shown_key(table)
        with self._connect() as db:
            if after is None or table.name not in self._ends:
                # Rows after the last one of now come by the stream, so that a table that grows has an end.
                self._ends[table.name] = db.execute(last_key(table, shown)).fetchone()
            last = self._ends[table.name]
            row: Bound | None = db.execute(walk(table, shown, after, last, rows)).fetchone()
            return None if row is None or row == last else row

    def observe(self, logged: Position) -> str:
        return ""

    @contextmanager
    def read(self, chunk: Chunk, table: SnapshotTable, observations: Sequence[str]) -> Iterator[SqliteChunkReading]:
        config = self._config
        reader = CellReader(
            str(config.path.absolute()), int(config.busy_timeout_seconds * 1000), config.where, rows=_ROWS
        )
        with contextlib.closing(reader), reader.transaction():
            number = int(reader.read(f"{resume.LAST_NUMBER} WHERE ?1 <= ?2", (0, 0), 1).number[0, 0])
            with self._connect() as db:
                # Looked at after the read began: a structure that it does not see any more is refused, too.
                if read_table(db, table.table.name).to_json() != table.token:
                    raise StructureChanged(f"table {table.name} has another structure, or is gone", where=config.where)
                file = resume.identity(db)
            assert file is not None
            high = SqlitePlace(number, 0, file).text()
            newest = len(observations) - 1 if observations else None
            yield SqliteChunkReading(high, newest, int(time.time() * 1_000_000), reader, rows_of(chunk, table), table)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        number = file_number(self._config.path)
        if self._db is not None and number != self._number:  # another file is in its place
            self.close()
        if self._db is None:
            self._number = number
            self._db = connect(self._config.path, self._config.where, self._config.busy_timeout_seconds)
        with translate(self._config.where):
            yield self._db


def _is_ordered(db: sqlite3.Connection, table: SqliteTable) -> bool:
    """Whether the collations of its key are known here."""
    key = ", ".join(map(quote, table.key)) or "1"
    try:
        db.execute(f"SELECT 1 FROM {quote(table.name)} ORDER BY {key} LIMIT 0")
    except sqlite3.OperationalError as error:
        if not is_unknown(error):
            raise
        return False
    return True


@dataclass(frozen=True, slots=True)
class SqliteChunkReading:
    high: Position
    observation: int | None
    commit_time: int
    _reader: CellReader
    _query: str
    _table: SnapshotTable

    def blocks(self) -> Iterator[Block]:
        failpoint("snapshot.read")
        for first, cells in self._reader.scan(self._query, len(self._table.table.columns)):
            yield block_of_rows(self._table, first, cells)
