"""Inferred schemas in the state store: `contracts.SensingStore`, in SQL that SQLite and PostgreSQL have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from tidemill.contracts.sensing_store import DriftEvent, SensedBatch, SensedTable, SensedVersion, StoredFinding
from tidemill.model.position import Offset
from tidemill.telemetry.failpoints import failpoint

if TYPE_CHECKING:
    from tidemill.state.migrations import Rows
    from tidemill.state.store import Database

TABLES = (
    "sensed_offsets",
    "sensed_tables",
    "sensed_versions",
    "drift_baselines",
    "drift_findings",
    "drift_events",
    "drift_sent",
)

KEPT_VERSIONS = 100


class SqlSensingStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def offset(self, pipeline: str) -> Offset:
        found = self._read('SELECT "offset" FROM sensed_offsets WHERE pipeline = ?', pipeline)
        return found[0][0] if found else 0

    def tables(self, pipeline: str) -> list[SensedTable]:
        rows = self._read(
            "SELECT name, version, document FROM sensed_tables WHERE pipeline = ? ORDER BY name", pipeline
        )
        return [SensedTable(name, version, orjson.loads(document)) for name, version, document in rows]

    def versions(self, pipeline: str, table: str) -> list[SensedVersion]:
        rows = self._read(
            'SELECT version, "offset", at, structure FROM sensed_versions WHERE pipeline = ? AND name = ?'
            " ORDER BY version DESC",
            pipeline, table,
        )  # fmt: skip
        return [SensedVersion(version, offset, at, orjson.loads(text)) for version, offset, at, text in rows]

    def baselines(self, pipeline: str) -> dict[str, dict[str, Any]]:
        rows = self._read("SELECT name, document FROM drift_baselines WHERE pipeline = ? ORDER BY name", pipeline)
        return {name: orjson.loads(document) for name, document in rows}

    def revision(self, pipeline: str) -> int:
        with self._database.reading() as run:
            return _revision(run, pipeline)

    def findings(self, pipeline: str) -> list[StoredFinding]:
        rows = self._read(
            "SELECT name, kind, subject, document FROM drift_findings WHERE pipeline = ? ORDER BY name, kind, subject",
            pipeline,
        )
        return [StoredFinding(name, kind, subject, orjson.loads(text)) for name, kind, subject, text in rows]

    def save(self, pipeline: str, batch: SensedBatch) -> None:
        with self._database.writing(pipeline) as run:
            known = run('SELECT "offset" FROM sensed_offsets WHERE pipeline = ?', pipeline)
            if known and known[0][0] >= batch.offset:
                return
            run(
                'INSERT INTO sensed_offsets (pipeline, "offset") VALUES (?, ?)'
                ' ON CONFLICT (pipeline) DO UPDATE SET "offset" = excluded."offset"',
                pipeline, batch.offset,
            )  # fmt: skip
            for table in batch.tables:
                run(
                    "INSERT INTO sensed_tables (pipeline, name, version, document) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (pipeline, name)"
                    " DO UPDATE SET version = excluded.version, document = excluded.document",
                    pipeline, table.name, table.version, _json(table.document),
                )  # fmt: skip
            for name, version in (batch.structures or {}).items():
                run(
                    'INSERT INTO sensed_versions (pipeline, name, version, "offset", at, structure)'
                    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (pipeline, name, version) DO NOTHING",
                    pipeline, name, version.version, version.offset, version.at, _json(version.structure),
                )  # fmt: skip
                run(
                    "DELETE FROM sensed_versions WHERE pipeline = ? AND name = ? AND version <= ?",
                    pipeline, name, version.version - KEPT_VERSIONS,
                )  # fmt: skip
            if batch.revision is None or _revision(run, pipeline) == batch.revision:
                _keep_drift(run, pipeline, batch)
            _add_drifted(run, pipeline, batch)
            failpoint("state.before_commit")

    def drift_events(self, pipeline: str) -> list[DriftEvent]:
        rows = self._read("SELECT number, document FROM drift_events WHERE pipeline = ? ORDER BY number", pipeline)
        return [DriftEvent(number, orjson.loads(text)) for number, text in rows]

    def forget_drift_event(self, pipeline: str, number: int) -> None:
        with self._database.writing(pipeline) as run:
            run("DELETE FROM drift_events WHERE pipeline = ? AND number <= ?", pipeline, number)
            run(
                "INSERT INTO drift_sent (pipeline, number) VALUES (?, ?)"
                " ON CONFLICT (pipeline) DO UPDATE SET number = excluded.number",
                pipeline, number,
            )  # fmt: skip

    def accept(self, pipeline: str, table: str, baseline: Mapping[str, Any]) -> None:
        with self._database.writing(pipeline) as run:
            _keep_baseline(run, pipeline, table, baseline, accepted=1)
            run("DELETE FROM drift_findings WHERE pipeline = ? AND name = ?", pipeline, table)
            failpoint("state.before_commit")

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._database.reading() as run:
            return list(run(statement, *values))


def _add_drifted(run: Rows, pipeline: str, batch: SensedBatch) -> None:
    if not batch.drifted:
        return
    ((waiting,),) = run("SELECT COALESCE(MAX(number), 0) FROM drift_events WHERE pipeline = ?", pipeline)
    ((sent,),) = run("SELECT COALESCE(MAX(number), 0) FROM drift_sent WHERE pipeline = ?", pipeline)
    for number, document in enumerate(batch.drifted, max(waiting, sent) + 1):
        run(
            "INSERT INTO drift_events (pipeline, number, document) VALUES (?, ?, ?)",
            pipeline, number, _json(document),
        )  # fmt: skip


def _revision(run: Rows, pipeline: str) -> int:
    ((found,),) = run("SELECT COALESCE(SUM(revision), 0) FROM drift_baselines WHERE pipeline = ?", pipeline)
    return int(found)


def _keep_drift(run: Rows, pipeline: str, batch: SensedBatch) -> None:
    for name, baseline in (batch.baselines or {}).items():
        _keep_baseline(run, pipeline, name, baseline, accepted=0)
    for finding in batch.findings:
        run(
            "INSERT INTO drift_findings (pipeline, name, kind, subject, document) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (pipeline, name, kind, subject) DO UPDATE SET document = excluded.document",
            pipeline, finding.table, finding.kind, finding.subject, _json(finding.document),
        )  # fmt: skip


def _keep_baseline(run: Rows, pipeline: str, name: str, baseline: Mapping[str, Any], *, accepted: int) -> None:
    run(
        "INSERT INTO drift_baselines (pipeline, name, revision, document) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (pipeline, name)"
        " DO UPDATE SET revision = drift_baselines.revision + excluded.revision, document = excluded.document",
        pipeline, name, accepted, _json(baseline),
    )  # fmt: skip


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
