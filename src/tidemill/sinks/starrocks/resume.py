"""Where the starrocks sink keeps its history (`history`): in `_tidemill_history`, beside its tables."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from tidemill.sinks._shared.history import TABLE, VersionedResumption, WriterNote
from tidemill.sinks._shared.resume_scheme import ResumeScheme
from tidemill.sinks.starrocks.rows import VERSION
from tidemill.sinks.starrocks.tables import StarRocksTableName, StarRocksTables, literal, quote

# A primary key has at most 128 bytes, names may have more: the key is a digest of them.
_COLUMNS = {
    "id": "VARCHAR(64) NOT NULL", "table_name": "STRING NULL", "source_table": "STRING NULL", "pipeline": "STRING NULL",
    "sink": "STRING NULL", "base": "BIGINT NULL", "start_offset": "BIGINT NULL", "first_offset": "BIGINT NULL",
    "first_position": "STRING NULL",
}  # fmt: skip
_NOTE = list(_COLUMNS)[1:]


@dataclass(slots=True)
class StarRocksNotebook:
    tables: StarRocksTables

    def create(self, database: str) -> None:
        name = StarRocksTableName(database, TABLE)
        if self.tables.describe(name):
            return
        columns = ",\n  ".join(f"{quote(column)} {kind}" for column, kind in _COLUMNS.items())
        self.tables.run(
            f"CREATE TABLE IF NOT EXISTS {name} (\n  {columns}\n)\nPRIMARY KEY (`id`)\nDISTRIBUTED BY HASH(`id`)"
            f"{self.tables.tail()}"
        )

    def read(self, database: str) -> list[WriterNote]:
        if not self.tables.describe(StarRocksTableName(database, TABLE)):
            return []
        rows: list[tuple[Any, ...]] = self.tables.run(
            f"SELECT {_names(_NOTE)} FROM {StarRocksTableName(database, TABLE)}"
        )
        return [
            WriterNote(table, source_table, pipeline, sink, int(base), int(start), int(offset), position or "")
            for table, source_table, pipeline, sink, base, start, offset, position in rows
        ]

    def write(self, database: str, note: WriterNote) -> None:
        """Of two lanes that note their first event at once the second one stays, which is as good."""
        whose = (note.table, note.source_table, note.pipeline, note.sink, str(note.base))
        identity = hashlib.sha256("\x00".join(whose).encode()).hexdigest()[:32]
        values = (
            identity, note.table, note.source_table, note.pipeline, note.sink, note.base, note.start, note.offset,
            note.position,
        )  # fmt: skip
        into = f"{StarRocksTableName(database, TABLE)} ({_names(list(_COLUMNS))})"
        self.tables.run(f"INSERT INTO {into} VALUES ({', '.join(map(literal, values))})")

    def greatest(self, name: StarRocksTableName) -> int | None:
        found = self.tables.run(f"SELECT MAX({quote(VERSION)}) FROM {name}")[0][0]
        return None if found is None else int(found)


def _names(columns: list[str]) -> str:
    return ", ".join(quote(column) for column in columns)


RESUME = ResumeScheme(
    kept_in="_tidemill_history, and the version of each row",
    bound_by="a table's note is written before its first row; a row carries its version",
    replay="refused by the server unless its version is newer",
    resumption=VersionedResumption,
)
