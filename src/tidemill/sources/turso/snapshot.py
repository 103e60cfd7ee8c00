"""Reads tables of a Turso file in chunks, each in one read transaction (ADR 38).

Rows and change table are in one file, and a read transaction sees one state of it, also while other processes commit.
So a chunk's read sees exactly the changes up to the last recorded number, and every commit from before it began: it
proves every observation. pyturso gives rows as Python tuples; nothing faster can be had from it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.decoders.sqlite import cells_of
from tidemill.errors import StructureChanged
from tidemill.model.block import Block
from tidemill.model.position import Position
from tidemill.model.snapshot import Bound, Chunk, SnapshotTable
from tidemill.model.table import Table
from tidemill.sources._shared.sqlite_catalog import quote, table_of_statement
from tidemill.sources._shared.sqlite_chunks import block_of_rows, comparison, last_key, rows_of, walk
from tidemill.sources._shared.sqlite_names import full_name, is_selected, patterns_of
from tidemill.sources.turso.client import TursoFile
from tidemill.sources.turso.errors import UNREADABLE, CdcUnknown
from tidemill.sources.turso.resume import CdcPlace
from tidemill.telemetry.failpoints import failpoint

if TYPE_CHECKING:
    from tidemill.sources.turso import TursoConfig

_ROWS = 5_000  # of a block


class TursoSnapshotReader:
    """For one thread. Pickled, it is its configuration. A connection is made for each question: one that stays open
    would keep the file from a program that opens it alone."""

    def __init__(self, config: TursoConfig) -> None:
        self._config = config
        self._ends: dict[str, Bound | None] = {}  # by table, the last key when it was planned

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._config,)

    def tables(self, names: Sequence[str] = ()) -> list[SnapshotTable]:
        config = self._config
        wanted = patterns_of(names)
        with self._open() as file, file.reading():
            high = CdcPlace(*file.last(file.form(config.cdc_table))).text()
            return [
                self._describe(name, sql, high)
                for name, sql in file.statements().items()
                if config.is_selected(name) and is_selected(wanted, name)
            ]

    def names_with_rows(self) -> list[str]:
        return [table.name for table in self.tables() if table.estimate]

    def structures(self) -> list[Table]:
        with self._open() as file, file.reading():
            chosen = [sql for name, sql in file.statements().items() if self._config.is_selected(name)]
        return [
            found.to_table(self._config.path.stem) for sql in chosen if (found := table_of_statement(sql)) is not None
        ]

    def _describe(self, name: str, sql: str, high: Position) -> SnapshotTable:
        """A key that may be NULL, as SQLite allows it in some, cannot bound a chunk: such a table is one."""
        described = table_of_statement(sql)
        if described is None:
            raise CdcUnknown(
                f"the statement of table {full_name(name)} cannot be read", where=self._config.where, fix=UNREADABLE
            )
        whole = all(not c.nullable for c in described.columns if c.key)
        table = described.to_table(self._config.path.stem)
        return SnapshotTable(table, table.key if whole else (), -1, high, ("",), sql)

    def plan(self, table: SnapshotTable, part: str, after: Bound | None, rows: int) -> Bound | None:
        if not table.key:
            return None
        shown = ", ".join(map(quote, table.key))
        with self._open() as file:
            if after is None or table.name not in self._ends:
                # Rows after the last one of now come by the stream, so that a table that grows has an end.
                self._ends[table.name] = _bound(file.rows(last_key(table, shown)))
            last = self._ends[table.name]
            bound = _bound(file.rows(walk(table, shown, after, last, rows, _narrow)))
            return None if bound is None or bound == last else bound

    def observe(self, logged: Position) -> str:
        return ""

    @contextmanager
    def read(self, chunk: Chunk, table: SnapshotTable, observations: Sequence[str]) -> Iterator[TursoChunkReading]:
        config = self._config
        with self._open() as file, file.reading():
            place = CdcPlace(*file.last(file.form(config.cdc_table)))
            if file.statements().get(table.table.name) != table.token:
                raise StructureChanged(f"table {table.name} has another structure, or is gone", where=config.where)
            newest = len(observations) - 1 if observations else None
            query = rows_of(chunk, table, _narrow)
            yield TursoChunkReading(place.text(), newest, int(time.time() * 1_000_000), file, query, table)

    def close(self) -> None:
        """Nothing stays open."""

    def _open(self) -> contextlib.closing[TursoFile]:
        config = self._config
        return contextlib.closing(TursoFile(config.path, config.experimental_features, config.where))


@dataclass(frozen=True, slots=True)
class TursoChunkReading:
    high: Position
    observation: int | None
    commit_time: int
    _file: TursoFile
    _query: str
    _table: SnapshotTable

    def blocks(self) -> Iterator[Block]:
        failpoint("snapshot.read")
        first = 0
        for rows in self._file.scan(self._query, _ROWS):
            yield block_of_rows(self._table, first, cells_of(rows, len(self._table.table.columns)))
            first += len(rows)


def _narrow(key: Sequence[str], operator: str, bound: Bound) -> str:
    """Turso searches an index by its first column only, and not by rows of values."""
    whole = comparison(key, operator, bound)
    if len(key) == 1:
        return whole
    return f"{comparison(key[:1], operator.rstrip('=') + '=', bound[:1])} AND {whole}"


def _bound(rows: list[tuple[Any, ...]]) -> Bound | None:
    return tuple(_literal(value) for value in rows[0]) if rows else None


def _literal(value: object) -> str:
    match value:
        case bytes():
            return f"X'{value.hex()}'"
        case str() if "\0" in value:
            return f"CAST(X'{value.encode().hex()}' AS TEXT)"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case _:
            return repr(value)
