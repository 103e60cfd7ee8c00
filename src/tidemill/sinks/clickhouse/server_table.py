"""A table as the server has it: its engine, its columns, and what we noted in their comments."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from tidemill.errors import Refused
from tidemill.model.table import Table
from tidemill.net.clickhouse import quote
from tidemill.sinks._shared.table_name import TableName
from tidemill.sinks.clickhouse.comments import COMMENT
from tidemill.sinks.clickhouse.types import ClickHouseType, parse

Mode = Literal["upsert", "changelog"]

VERSION, IS_DELETED = "_version", "_is_deleted"
#: Columns of ours; in changelog mode the table's own follow twice, as `before_…` and `after_…`.
UPSERT_COLUMNS = {VERSION: "UInt64", IS_DELETED: "UInt8"}
CHANGELOG_COLUMNS = {
    "_offset": "UInt64",
    "_op": "LowCardinality(String)",
    "_position": "String",
    "_tx_id": "Nullable(UInt64)",
    "_ordinal": "UInt32",
    "_commit_time": "DateTime64(6, 'UTC')",
    "_unchanged": "Array(LowCardinality(String))",
}
#: Which of several events that processors made of one; tables of earlier versions do not have it.
SUB = "_sub"

_STRUCTURE = re.compile(r"tidemill: structure (\d+) since (\d+) of the log at (\d+)")
_WINDOW = re.compile(r"\b(non_)?replicated_deduplication_window = (\d+)")


@dataclass(frozen=True, slots=True)
class ClickHouseTableName(TableName):
    @staticmethod
    def quote(name: str) -> str:
        return quote(name)


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
    """Replicated tables heed tokens unless a setting forbids it, others only if one says so. A window of 0: never."""
    replicated = engine.startswith(("Replicated", "Shared"))
    windows = {not plain: int(size) for plain, size in _WINDOW.findall(full)}
    return windows.get(replicated, int(replicated)) > 0


def check_engine(
    name: ClickHouseTableName, table: Table, found: ServerTable, mode: Mode, where: str, *, shared: bool
) -> None:
    """`Refused` if no ALTER TABLE could make this table take the rows."""
    if mode == "changelog":
        lacking = [column for column in CHANGELOG_COLUMNS if column not in found.kinds]
        if lacking or "MergeTree" not in found.engine:
            raise Refused(
                f"{name.plain} is no changelog table: engine {found.engine}, lacks {', '.join(lacking) or '-'}",
                where=where, fix='Choose another "table", or let the sink create it.',
            )  # fmt: skip
        if shared and "Replacing" in found.engine:
            raise Refused(
                f"{name.plain} keeps one event of each offset, and several logs have the same offsets",
                where=where,
                fix="A changelog with shared_tables needs a plain MergeTree ORDER BY (_offset, _sub): give each source "
                'its own "table", or create this one anew.',
            )  # fmt: skip
        return
    parameters = found.engine_full.partition(" ")[0] + found.engine_full.partition("ReplacingMergeTree(")[2]
    fits = "Replacing" in found.engine and f"{VERSION}, {IS_DELETED})" in parameters
    if not fits:
        raise Refused(
            f"{name.plain} has engine {found.engine_full.partition(' ORDER')[0]}, not "
            f"ReplacingMergeTree({VERSION}, {IS_DELETED})", where=where,
            fix='Choose another "table", or create it as docs/sinks/clickhouse.md shows.',
        )  # fmt: skip
    if set(found.sorting_key) != set(table.key):
        raise Refused(
            f"{name.plain} is ordered by ({', '.join(found.sorting_key)}), but {table.full_name} has the key "
            f"({', '.join(table.key)})", where=where,
            fix="ClickHouse cannot change the order of a table: fill a new one (another \"table\", then tidemill"
            " snapshot start FILE).",
        )  # fmt: skip
