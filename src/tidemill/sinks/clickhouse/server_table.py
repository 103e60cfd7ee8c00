"""A table as the server has it: its engine, its columns, and what we noted in their comments."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tidemill.net.clickhouse import quoted
from tidemill.sinks.clickhouse.comments import COMMENT
from tidemill.sinks.clickhouse.types import ClickHouseType, parse

_STRUCTURE = re.compile(r"tidemill: structure (\d+) since (\d+) of the log at (\d+)")
_WINDOW = re.compile(r"\b(non_)?replicated_deduplication_window = (\d+)")


@dataclass(frozen=True, slots=True)
class ClickHouseTableName:
    database: str
    table: str

    def __str__(self) -> str:
        return f"{quoted(self.database)}.{quoted(self.table)}"

    @property
    def plain(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class ServerTable:
    """A table as the server has it. `kinds` are the columns that can be written; `natives` what the source called
    those that we made, `origins` what it knows them by, `said` what their rows could not follow; `sequence` is the
    structure last applied, `since` the offset it came with; `deduplicates` tells whether tokens are heeded."""

    engine: str
    engine_full: str
    sorting_key: tuple[str, ...]
    kinds: dict[str, ClickHouseType]
    natives: dict[str, str]
    origins: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    sequence: int = 0
    since: int = 0
    deduplicates: bool = True


def describe(client: Any, name: ClickHouseTableName, base: int) -> ServerTable | None:
    """What the server has under this name; `base` is where the log began that writes there."""
    rows = client.query(
        "SELECT engine, engine_full, comment FROM system.tables WHERE database = {d:String} AND "
        "name = {t:String}", {"d": name.database, "t": name.table},
    ).result_rows  # fmt: skip
    if not rows:
        return None
    columns = client.query(
        "SELECT name, type, comment, is_in_sorting_key FROM system.columns "
        "WHERE database = {d:String} AND table = {t:String} AND "
        "default_kind NOT IN ('MATERIALIZED', 'ALIAS') ORDER BY position",
        {"d": name.database, "t": name.table},
    ).result_rows  # fmt: skip
    engine, full, comment = rows[0]
    noted_columns = {column: f for column, _, note, _ in columns if (f := COMMENT.fullmatch(note))}
    noted = _STRUCTURE.match(comment)
    # A log that began anew numbers structures anew.
    sequence, since = (int(noted[1]), int(noted[2])) if noted and int(noted[3]) == base else (0, 0)
    return ServerTable(
        engine, full, tuple(column for column, _, _, sorts in columns if sorts),
        {column: parse(kind) for column, kind, _, _ in columns},
        {column: found[1] for column, found in noted_columns.items()},
        {column: found[2] for column, found in noted_columns.items() if found[2]},
        {column: found[3] for column, found in noted_columns.items() if found[3]},
        sequence,
        since,
        _deduplicates(engine, full),
    )  # fmt: skip


def _deduplicates(engine: str, full: str) -> bool:
    """Replicated tables heed tokens unless told not to, others only if told to. A window of 0 forgets them all."""
    replicated = engine.startswith(("Replicated", "Shared"))
    windows = {not plain: int(size) for plain, size in _WINDOW.findall(full)}
    return windows.get(replicated, int(replicated)) > 0
