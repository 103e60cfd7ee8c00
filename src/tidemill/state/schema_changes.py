"""Schema changes in the state store: `contracts.SchemaChangeStore`, in SQL that both backends have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import orjson

from tidemill.contracts.installation import AuditEntry
from tidemill.contracts.schema_change_store import Decision, SinkOutcome, StoredChange
from tidemill.model.position import Offset, Position
from tidemill.model.quarantine import Quarantine
from tidemill.state.audit import INSTALLATION, append_audit
from tidemill.telemetry.failpoints import failpoint

if TYPE_CHECKING:
    from tidemill.state.migrations import Rows
    from tidemill.state.store import Database

TABLES = ("schema_changes", "sink_structures", "quarantines")

_FIELDS = (
    'number, "offset", position, name, kinds, statement, before, after, seen_at, decision, actor, reason, decided_at,'
    " outcomes"
)


class SqlSchemaChangeStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, pipeline: str, change: StoredChange) -> StoredChange:
        with self._database.writing(pipeline) as run:
            place = 'pipeline = ? AND "offset" = ? AND name = ?'
            known = run(f"SELECT {_FIELDS} FROM schema_changes WHERE {place}", pipeline, change.offset, change.table)
            if known:
                return _with_quarantines(run, pipeline, [_change(known[0])])[0]
            ((last,),) = run("SELECT COALESCE(MAX(number), 0) FROM schema_changes WHERE pipeline = ?", pipeline)
            new = replace(change, number=last + 1)
            run(
                f"INSERT INTO schema_changes (pipeline, {_FIELDS})"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                pipeline, *_row(new),
            )  # fmt: skip
            failpoint("state.before_commit")
            return new

    def changes(self, pipeline: str, limit: int = 100, *, before: int | None = None) -> list[StoredChange]:
        chosen, values = ("", ()) if before is None else (" AND number < ?", (before,))
        with self._database.reading() as run:
            rows = run(
                f"SELECT {_FIELDS} FROM schema_changes WHERE pipeline = ?{chosen} ORDER BY number DESC LIMIT ?",
                pipeline, *values, limit,
            )  # fmt: skip
            return _with_quarantines(run, pipeline, [_change(row) for row in rows])

    def change(self, pipeline: str, number: int) -> StoredChange | None:
        with self._database.reading() as run:
            return _find(run, pipeline, number)

    def decide(
        self, pipeline: str, number: int, decision: Decision, actor: str, reason: str, at: str,
        entry: AuditEntry | None = None,
    ) -> StoredChange:  # fmt: skip
        with self._database.writing(pipeline, *([INSTALLATION] if entry is not None else [])) as run:
            found = _find(run, pipeline, number)
            if found is None:
                raise KeyError(number)
            if found.decision is not Decision.PENDING:
                return found
            run(
                "UPDATE schema_changes SET decision = ?, actor = ?, reason = ?, decided_at = ?"
                " WHERE pipeline = ? AND number = ?",
                str(decision), actor, reason, at, pipeline, number,
            )  # fmt: skip
            failpoint("ddl.decision_written")
            if entry is not None:
                append_audit(run, entry)
            failpoint("state.before_commit")
            return replace(found, decision=decision, actor=actor, reason=reason, decided_at=at)

    def note(self, pipeline: str, number: int, sink: str, outcome: SinkOutcome) -> None:
        with self._database.writing(pipeline) as run:
            found = _find(run, pipeline, number)
            if found is None:
                raise KeyError(number)
            run(
                "UPDATE schema_changes SET outcomes = ? WHERE pipeline = ? AND number = ?",
                _pack({**found.outcomes, sink: outcome}), pipeline, number,
            )  # fmt: skip

    def structures(self, pipeline: str, sinks: str) -> dict[str, dict[str, Any]]:
        with self._database.reading() as run:
            rows = run("SELECT name, document FROM sink_structures WHERE pipeline = ? AND sinks = ?", pipeline, sinks)
        return {name: orjson.loads(document) for name, document in rows}

    def keep_structures(self, pipeline: str, sinks: str, documents: Mapping[str, Mapping[str, Any]]) -> None:
        with self._database.writing(pipeline) as run:
            for name, document in documents.items():
                run(
                    "INSERT INTO sink_structures (pipeline, sinks, name, document) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (pipeline, sinks, name) DO UPDATE SET document = excluded.document",
                    pipeline, sinks, name, orjson.dumps(document).decode(),
                )  # fmt: skip
            failpoint("state.before_commit")

    def quarantine(self, pipeline: str, number: int, table: str, first: Offset, at: str) -> Quarantine:
        with self._database.writing(pipeline) as run:
            run(
                "INSERT INTO quarantines (pipeline, number, name, first_offset, through_offset, since, lost_at)"
                " VALUES (?, ?, ?, ?, ?, ?, '') ON CONFLICT (pipeline, number) DO NOTHING",
                pipeline, number, table, first, first, at,
            )  # fmt: skip
            failpoint("state.before_commit")
            return next(each for each in _quarantines(run, pipeline) if each.number == number)

    def quarantines(self, pipeline: str) -> list[Quarantine]:
        with self._database.reading() as run:
            return _quarantines(run, pipeline)

    def note_requeued(
        self, pipeline: str, number: int, through: Offset, ended: Offset | None = None, lost_at: str = ""
    ) -> None:
        with self._database.writing(pipeline) as run:
            run(
                "UPDATE quarantines SET through_offset = ?, ended_offset = ?, lost_at = ?"
                " WHERE pipeline = ? AND number = ? AND through_offset <= ? AND ended_offset IS NULL",
                through, ended, lost_at, pipeline, number, through,
            )  # fmt: skip
            failpoint("state.before_commit")

    def forget_quarantine(self, pipeline: str, number: int) -> None:
        with self._database.writing(pipeline) as run:
            run("DELETE FROM quarantines WHERE pipeline = ? AND number = ?", pipeline, number)


def _find(run: Rows, pipeline: str, number: int) -> StoredChange | None:
    found = run(f"SELECT {_FIELDS} FROM schema_changes WHERE pipeline = ? AND number = ?", pipeline, number)
    return _with_quarantines(run, pipeline, [_change(found[0])])[0] if found else None


def _quarantines(run: Rows, pipeline: str) -> list[Quarantine]:
    rows = run(
        "SELECT q.number, q.name, q.first_offset, q.through_offset, q.ended_offset, q.since, c.decision, q.lost_at"
        " FROM quarantines q JOIN schema_changes c ON c.pipeline = q.pipeline AND c.number = q.number"
        " WHERE q.pipeline = ? ORDER BY q.number",
        pipeline,
    )  # fmt: skip
    return [
        Quarantine(number, name, first, through, ended, since, Decision(decision) is not Decision.PENDING, lost_at)
        for number, name, first, through, ended, since, decision, lost_at in rows
    ]


def _with_quarantines(run: Rows, pipeline: str, changes: list[StoredChange]) -> list[StoredChange]:
    known = {each.number: each for each in _quarantines(run, pipeline)} if changes else {}
    return [replace(each, quarantine=known.get(each.number)) for each in changes]


def _row(change: StoredChange) -> tuple[Any, ...]:
    return (
        change.number, change.offset, change.position, change.table, orjson.dumps(change.kinds).decode(), change.text,
        change.before, change.after, change.seen_at, str(change.decision), change.actor, change.reason,
        change.decided_at, _pack(change.outcomes),
    )  # fmt: skip


def _change(row: tuple[Any, ...]) -> StoredChange:
    number, offset, position, name, kinds, text, before, after, seen_at, decision, actor, reason, decided, packed = row
    outcomes = {
        sink: SinkOutcome(**each | {"statements": tuple(each["statements"])})
        for sink, each in orjson.loads(packed).items()
    }
    return StoredChange(
        number, offset, Position(position), name, tuple(orjson.loads(kinds)), text, before, after, seen_at,
        Decision(decision), actor, reason, decided, outcomes,
    )  # fmt: skip


def _pack(outcomes: Mapping[str, SinkOutcome]) -> str:
    return orjson.dumps({sink: asdict(outcome) for sink, outcome in outcomes.items()}).decode()
