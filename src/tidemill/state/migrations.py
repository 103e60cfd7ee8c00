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
    Migration(
        2,
        "snapshots, their tables and chunks",
        (
            "CREATE TABLE snapshots (pipeline TEXT NOT NULL, id BIGINT NOT NULL, why TEXT NOT NULL,"
            " state TEXT NOT NULL, began TEXT NOT NULL, ended TEXT NOT NULL, tables TEXT NOT NULL,"
            " condition TEXT NOT NULL, since BIGINT NOT NULL, observation TEXT NOT NULL, cursor_offset BIGINT NOT NULL,"
            " PRIMARY KEY (pipeline, id))",
            "CREATE TABLE snapshot_tables (pipeline TEXT NOT NULL, snapshot BIGINT NOT NULL, name TEXT NOT NULL,"
            " number BIGINT NOT NULL, state TEXT NOT NULL, structure TEXT NOT NULL, registered INTEGER NOT NULL,"
            " planned INTEGER NOT NULL, part BIGINT NOT NULL, lower_bound TEXT NOT NULL, next_number BIGINT NOT NULL,"
            " points TEXT NOT NULL,"
            " error TEXT NOT NULL, fix TEXT NOT NULL, PRIMARY KEY (pipeline, snapshot, name))",
            "CREATE TABLE snapshot_chunks (pipeline TEXT NOT NULL, snapshot BIGINT NOT NULL,"
            " table_number BIGINT NOT NULL, number BIGINT NOT NULL, document TEXT NOT NULL, state TEXT NOT NULL,"
            " since BIGINT NOT NULL, high TEXT NOT NULL, commit_time BIGINT NOT NULL, fingerprint TEXT NOT NULL,"
            " row_count BIGINT NOT NULL, tries BIGINT NOT NULL,"
            " PRIMARY KEY (pipeline, snapshot, table_number, number))",
            "CREATE TABLE known_tables (pipeline TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (pipeline, name))",
        ),
    ),
    Migration(
        3,
        "schemas inferred from events, and drift",
        (
            'CREATE TABLE sensed_offsets (pipeline TEXT PRIMARY KEY, "offset" BIGINT NOT NULL)',
            "CREATE TABLE sensed_tables (pipeline TEXT NOT NULL, name TEXT NOT NULL, version BIGINT NOT NULL,"
            " document TEXT NOT NULL, PRIMARY KEY (pipeline, name))",
            "CREATE TABLE sensed_versions (pipeline TEXT NOT NULL, name TEXT NOT NULL, version BIGINT NOT NULL,"
            ' "offset" BIGINT NOT NULL, at TEXT NOT NULL, structure TEXT NOT NULL,'
            " PRIMARY KEY (pipeline, name, version))",
            "CREATE TABLE drift_baselines (pipeline TEXT NOT NULL, name TEXT NOT NULL, revision BIGINT NOT NULL,"
            " document TEXT NOT NULL, PRIMARY KEY (pipeline, name))",
            "CREATE TABLE drift_findings (pipeline TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL,"
            " subject TEXT NOT NULL, document TEXT NOT NULL, PRIMARY KEY (pipeline, name, kind, subject))",
        ),
    ),
    Migration(
        4,
        "documents of a server's pipelines, tokens, answers to idempotency keys, audit trail",
        (
            "CREATE TABLE documents (pipeline TEXT PRIMARY KEY, origin TEXT NOT NULL, document TEXT NOT NULL,"
            " version TEXT NOT NULL, desired TEXT NOT NULL, changed_by TEXT NOT NULL, changed_at TEXT NOT NULL)",
            "CREATE TABLE tokens (id TEXT PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL, digest TEXT NOT NULL,"
            " created_at TEXT NOT NULL, expires_at TEXT NOT NULL, revoked_at TEXT NOT NULL)",
            "CREATE TABLE answers (caller TEXT NOT NULL, idempotency_key TEXT NOT NULL, request TEXT NOT NULL,"
            " status INTEGER NOT NULL, headers TEXT NOT NULL, body TEXT NOT NULL, at TEXT NOT NULL,"
            " PRIMARY KEY (caller, idempotency_key))",
            "CREATE TABLE audit (sequence BIGINT PRIMARY KEY, at TEXT NOT NULL, actor TEXT NOT NULL,"
            " action TEXT NOT NULL, subject TEXT NOT NULL, detail TEXT NOT NULL)",
        ),
    ),
    Migration(
        5,
        "snapshots of a lost store are told from new ones",
        ("ALTER TABLE snapshots ADD COLUMN mark TEXT NOT NULL DEFAULT ''",),
    ),
    Migration(
        6,
        "snapshots that recover from a lost position",
        ("ALTER TABLE snapshots ADD COLUMN recovers_from BIGINT NOT NULL DEFAULT -1",),
    ),
    Migration(
        7,
        "schema changes and decisions on them",
        (
            "CREATE TABLE schema_changes (pipeline TEXT NOT NULL, number BIGINT NOT NULL,"
            ' "offset" BIGINT NOT NULL, position TEXT NOT NULL, name TEXT NOT NULL, kinds TEXT NOT NULL,'
            " statement TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL, seen_at TEXT NOT NULL,"
            " decision TEXT NOT NULL, actor TEXT NOT NULL, reason TEXT NOT NULL, decided_at TEXT NOT NULL,"
            " outcomes TEXT NOT NULL, PRIMARY KEY (pipeline, number))",
            'CREATE UNIQUE INDEX schema_changes_place ON schema_changes (pipeline, "offset", name)',
        ),
    ),
    Migration(
        8,
        "structures that sinks have",
        (
            "CREATE TABLE sink_structures (pipeline TEXT NOT NULL, sinks TEXT NOT NULL, name TEXT NOT NULL,"
            " document TEXT NOT NULL, PRIMARY KEY (pipeline, sinks, name))",
        ),
    ),
    Migration(
        9,
        "which server runs which pipeline",
        (
            "CREATE TABLE lease_holders (holder TEXT PRIMARY KEY, beat BIGINT NOT NULL,"
            " seconds DOUBLE PRECISION NOT NULL, process TEXT NOT NULL)",
            "CREATE TABLE pipeline_leases (pipeline TEXT PRIMARY KEY, holder TEXT NOT NULL, epoch BIGINT NOT NULL,"
            " since TEXT NOT NULL)",
        ),
    ),
    Migration(
        12,
        "schema registries of pipelines whose store is shared",
        (
            "CREATE TABLE registry_versions (pipeline TEXT NOT NULL, sequence BIGINT NOT NULL, name TEXT NOT NULL,"
            " version BIGINT NOT NULL, fingerprint TEXT NOT NULL, position TEXT NOT NULL, registered_at TEXT NOT NULL,"
            " document BYTEA NOT NULL, PRIMARY KEY (pipeline, sequence), UNIQUE (pipeline, name, version),"
            " UNIQUE (pipeline, name, fingerprint))",
            "CREATE TABLE registry_structures (pipeline TEXT NOT NULL, sequence BIGINT NOT NULL,"
            " position TEXT NOT NULL, name TEXT NOT NULL, document BYTEA, PRIMARY KEY (pipeline, sequence))",
            "CREATE TABLE registry_memory (pipeline TEXT NOT NULL, name TEXT NOT NULL, document BYTEA NOT NULL,"
            " PRIMARY KEY (pipeline, name))",
        ),
    ),
    Migration(
        13,
        "drift that waits for its sink",
        (
            "CREATE TABLE drift_events (pipeline TEXT NOT NULL, number BIGINT NOT NULL, document TEXT NOT NULL,"
            " PRIMARY KEY (pipeline, number))",
            "CREATE TABLE drift_sent (pipeline TEXT PRIMARY KEY, number BIGINT NOT NULL)",
        ),
    ),
    Migration(
        14,
        "tokens of a tenant or a pipeline; no last status, which nobody read",
        (
            "ALTER TABLE tokens ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE tokens ADD COLUMN pipeline TEXT NOT NULL DEFAULT ''",
            "DROP TABLE last_statuses",
        ),
    ),
    Migration(
        15,
        "tables in quarantine",
        (
            "CREATE TABLE quarantines (pipeline TEXT NOT NULL, number BIGINT NOT NULL, name TEXT NOT NULL,"
            " first_offset BIGINT NOT NULL, through_offset BIGINT NOT NULL, ended_offset BIGINT, since TEXT NOT NULL,"
            " lost_at TEXT NOT NULL, PRIMARY KEY (pipeline, number))",
        ),
    ),
    Migration(
        16,
        "whose the state of a pipeline is, also after it was deleted",
        ("CREATE TABLE pipeline_owners (pipeline TEXT PRIMARY KEY, tenant TEXT NOT NULL)",),
    ),
    Migration(
        17,
        "what servers and workers say to each other",
        (
            "CREATE TABLE published_statuses (pipeline TEXT PRIMARY KEY, epoch BIGINT NOT NULL, state TEXT NOT NULL,"
            " document TEXT NOT NULL, at TEXT NOT NULL)",
            "CREATE TABLE server_requests (id TEXT PRIMARY KEY, pipeline TEXT NOT NULL, action TEXT NOT NULL,"
            " document TEXT NOT NULL, actor TEXT NOT NULL, reason TEXT NOT NULL, asked_at TEXT NOT NULL,"
            " taken_by TEXT NOT NULL, answer TEXT NOT NULL)",
        ),
    ),
    Migration(
        18,
        "idempotency keys of requests under way",  # not among the answers, where an older server would take it for one
        (
            "CREATE TABLE key_claims (caller TEXT NOT NULL, idempotency_key TEXT NOT NULL, claimant TEXT NOT NULL,"
            " at TEXT NOT NULL, PRIMARY KEY (caller, idempotency_key))",
            "DELETE FROM answers WHERE status = 0",
        ),
    ),
    Migration(
        19,
        "chunks that were adopted are counted, not kept",
        (
            "ALTER TABLE snapshot_tables ADD COLUMN adopted_chunks BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE snapshot_tables ADD COLUMN adopted_rows BIGINT NOT NULL DEFAULT 0",
            "UPDATE snapshot_tables SET (adopted_chunks, adopted_rows) = (SELECT COUNT(*), COALESCE(SUM(row_count), 0)"
            " FROM snapshot_chunks c WHERE c.pipeline = snapshot_tables.pipeline"
            " AND c.snapshot = snapshot_tables.snapshot AND c.table_number = snapshot_tables.number"
            " AND c.state = 'adopted')",
            "DELETE FROM snapshot_chunks WHERE state = 'adopted'",
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


def migrate(run: Rows, where: str, *, through: int | None = None) -> None:
    """Inside a transaction of the caller, who holds the store's lock. `through`: no further than this version."""
    run(_APPLIED)
    current = version_of(run)
    check(current, where)
    for step in MIGRATIONS:
        if current < step.version <= (latest() if through is None else through):
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
