"""What triggers cannot do for tables as they are now: said by `doctor`, and in the status while a pipeline runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from tidemill.contracts import Notice
from tidemill.decoders.sqlite import SqliteTable
from tidemill.sources._shared.patterns import Pattern
from tidemill.sources._shared.sqlite_catalog import (
    likely_shadows,
    table_names,
    unreadable_columns,
    why_unreadable,
)
from tidemill.sources._shared.sqlite_names import full_name, is_selected, list_names
from tidemill.sources.sqlite.specs import read_spec, read_writes
from tidemill.sources.sqlite.triggers import rowid_name

MOST_COLUMNS = 990  # a change of an UPDATE has each column twice, and SQLite allows 2,000


def find_obstacle(table: SqliteTable) -> tuple[str, str] | None:
    """Why a table cannot be recorded at all, and what helps."""
    if len(table.columns) > MOST_COLUMNS:
        return (
            f"{full_name(table.name)} has {len(table.columns)} columns, and {MOST_COLUMNS} can be recorded",
            "Name the tables that are meant in `tables`, without this one.",
        )
    if not table.without_rowid and rowid_name(table) is None:
        return (
            f"columns of {full_name(table.name)} take all three names of its rowid",
            "Rename one of rowid, oid and _rowid_, or name other tables in `tables`.",
        )
    return None


def find_limits(db: sqlite3.Connection, patterns: Sequence[Pattern]) -> Iterator[Notice]:
    writes = read_writes(db)
    for virtual, shadows in likely_shadows(db).items():
        if chosen := [name for name in shadows if is_selected(patterns, name)]:
            yield Notice(
                "tables-left-out", full_name(virtual), f"not captured, because they are taken for parts of the virtual"
                f" table {full_name(virtual)}: {list_names(chosen)}. Its module is not known here, which parts it has"
                " neither", f"If one of them is the application's own, give it a name that does not begin with"
                f' "{virtual}_". Else leave them out of `tables`.',
            )  # fmt: skip
    for name, sql in table_names(db).items():
        if not is_selected(patterns, name):
            continue
        if why := why_unreadable(db, name, "1"):
            yield Notice(
                "table-not-copied", full_name(name), f"rows of {full_name(name)} cannot be read here ({why}): only the"
                " application knows how its key is ordered. Its changes are captured",
                "Name the other tables in `tables` of the snapshot: a copy of this one fails.",
            )  # fmt: skip
        for column, why in unreadable_columns(db, name).items():
            yield Notice(
                "column-left-out", full_name(name), f'column "{column}" of {full_name(name)} is not captured: it is'
                f" computed when it is read, and here that fails ({why})",
                "Make it a STORED column, or let it use SQLite's own functions only. All other columns are captured.",
            )  # fmt: skip
        if failing := writes.failing_triggers(name):
            shown = ", ".join(f"{trigger.name} on {full_name(trigger.table)}" for trigger in failing[:3])
            yield Notice(
                "fail-unrecorded", full_name(name), f"a change of {full_name(name)} is not recorded if what a foreign"
                f" key does next ends with RAISE(FAIL) ({shown}): SQLite keeps the change, and runs no trigger for it",
                "Let that trigger RAISE(ABORT), which undoes the whole statement.",
            )  # fmt: skip
        spec = read_spec(db, name, sql, writes)
        if spec.nested and not spec.table.key:
            yield Notice(
                "old-row-overtaken", full_name(name), f"an update of {full_name(name)} may be recorded with an older"
                " row as its `before`: a trigger or foreign key may change the same row in the middle of it, and the"
                " table has no primary key by which a destination would find the row",
                "Give the table a primary key. With one the last event of a row is always the row as it is.",
            )  # fmt: skip
        if doubtful := spec.doubtful:
            named = ", ".join(f"{index} ({why})" for index, why in sorted(doubtful.items()))
            yield Notice(
                "replace-unrecorded", full_name(name), f"rows of {full_name(name)} that REPLACE deletes because of the"
                f" unique index {named} may be missed", "Let writers set PRAGMA recursive_triggers = ON, or make an"
                " expression that compares values a generated column and that unique.",
            )  # fmt: skip
