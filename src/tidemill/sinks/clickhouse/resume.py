"""Where the clickhouse sink keeps its history (`history`): in `_tidemill_history`, beside its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill.net.clickhouse import explain_errors, literal, quote
from tidemill.sinks._shared.history import TABLE, VersionedResumption, WriterNote
from tidemill.sinks._shared.resume_scheme import ResumeScheme
from tidemill.sinks.clickhouse.server_table import ClickHouseTableName


@dataclass(slots=True)
class ClickHouseNotebook:
    client: Any
    version: str
    where: str

    def create(self, database: str) -> None:
        with explain_errors(self.where):
            self.client.command(
                f"CREATE TABLE IF NOT EXISTS {quote(database)}.{TABLE} (table String, source_table String, "
                "pipeline String, sink String, base UInt64, start UInt64, offset UInt64, position String, "
                "noted_at DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY (table, pipeline, sink, base, offset)"
            )

    def read(self, database: str) -> list[WriterNote]:
        with explain_errors(self.where):
            rows = self.client.query(
                "SELECT table, source_table, pipeline, sink, base, start, offset, position "
                f"FROM {quote(database)}.{TABLE}"
            ).result_rows
        return [WriterNote(*row) for row in rows]

    def write(self, database: str, note: WriterNote) -> None:
        strings = ", ".join(literal(t) for t in (note.table, note.source_table, note.pipeline, note.sink))
        with explain_errors(self.where):
            self.client.command(
                f"INSERT INTO {quote(database)}.{TABLE} (table, source_table, pipeline, sink, base, start, offset, "
                f"position) SELECT {strings}, {note.base}, {note.start}, {note.offset}, {literal(note.position)}",
                settings={"async_insert": 0},
            )

    def greatest(self, name: ClickHouseTableName) -> int | None:
        with explain_errors(self.where):
            rows = self.client.query(f"SELECT max({self.version}), count() FROM {name}").result_rows
        return int(rows[0][0]) if rows[0][1] else None


RESUME = ResumeScheme(
    kept_in="_tidemill_history, and the version of each row",
    bound_by="a table's note is written before its first row; a row carries its version",
    replay="replaced by itself: the same version, the same insert_deduplication_token",
    resumption=VersionedResumption,
)
