"""The tables of a state store, as numbered steps. A step that was released never changes; a new need is a new step.

A store is brought from its version to ours in one transaction, under a lock that other processes wait for. A store that
is newer than ours is refused. Steps only go forward. The SQL is what SQLite and PostgreSQL have in common: times are
ISO 8601 in text, documents are JSON in text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from tidemill.errors import StateTooNew


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    statements: tuple[str, ...]


MIGRATIONS = (
    Migration(
        1,
        "confirmed positions, lifecycle, last status, Spark's starts, lost ranges",
        (
            "CREATE TABLE pipelines (pipeline TEXT PRIMARY KEY, directory TEXT NOT NULL)",
            "CREATE TABLE confirmed_positions (pipeline TEXT PRIMARY KEY, position TEXT NOT NULL,"
            ' "offset" BIGINT NOT NULL)',
            "CREATE TABLE transitions (pipeline TEXT NOT NULL, sequence BIGINT NOT NULL, state TEXT NOT NULL,"
            " actor TEXT NOT NULL, reason TEXT NOT NULL, at TEXT NOT NULL, PRIMARY KEY (pipeline, sequence))",
            "CREATE TABLE last_statuses (pipeline TEXT PRIMARY KEY, document TEXT NOT NULL, at TEXT NOT NULL)",
            'CREATE TABLE spark_starts (pipeline TEXT NOT NULL, sink TEXT NOT NULL, "offset" BIGINT NOT NULL,'
            " PRIMARY KEY (pipeline, sink))",
            "CREATE TABLE lost_ranges (pipeline TEXT NOT NULL, sink TEXT NOT NULL, first_offset BIGINT NOT NULL,"
            " end_offset BIGINT NOT NULL, events BIGINT NOT NULL, PRIMARY KEY (pipeline, sink, first_offset))",
        ),
    ),
)

_APPLIED = (
    "CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL)"
)


class Rows(Protocol):
    """Runs one statement, with `?` for each value, and returns its rows."""

    def __call__(self, statement: str, *values: Any) -> Sequence[tuple[Any, ...]]: ...


def latest() -> int:
    return MIGRATIONS[-1].version


def migrate(run: Rows, where: str) -> None:
    """Inside a transaction of the caller, who holds the store's lock."""
    run(_APPLIED)
    current = version_of(run)
    check(current, where)
    for step in MIGRATIONS:
        if step.version > current:
            for statement in step.statements:
                run(statement)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            run("INSERT INTO migrations (version, name, applied_at) VALUES (?, ?, ?)", step.version, step.name, now)


def version_of(run: Rows) -> int:
    """Of a store that has been opened before."""
    ((found,),) = run("SELECT COALESCE(MAX(version), 0) FROM migrations")
    return int(found)


def check(current: int, where: str) -> None:
    """`StateTooNew` if a later Tidemill has been at the store: its tables may mean what we do not know."""
    if current > latest():
        raise StateTooNew(
            f"the state store is at version {current}, and this Tidemill knows versions up to {latest()}",
            where=where,
            fix="A later version of Tidemill has used it. Run that version or a newer one here, or restore the store's "
            "backup from before the upgrade. Nothing was changed.",
        )
