"""Snapshots in the state store: `contracts.SnapshotStore`, in SQL that SQLite and PostgreSQL have in common."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from tidemill.contracts.snapshot_store import ChunkCopy, SnapshotRecord, TableCopy
from tidemill.model.position import Offset, Position
from tidemill.model.snapshot import Bound, Chunk, ChunkState, SnapshotState, SnapshotTable, TableState
from tidemill.telemetry.failpoints import failpoint

if TYPE_CHECKING:
    from tidemill.state.store import Database

TABLES = ("snapshots", "snapshot_tables", "snapshot_chunks", "known_tables")

_UNDER_WAY = (str(SnapshotState.RUNNING), str(SnapshotState.PAUSED))
_RECORD = "id, why, state, began, ended, tables, condition, since, observation, cursor_offset, mark, recovers_from"
_MINE = "pipeline = ? AND snapshot = ?"
_ONE = f"{_MINE} AND table_number = ? AND number = ? AND state = ? AND tries = ?"


class SqlSnapshotStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(
        self,
        pipeline: str,
        why: str,
        tables: Sequence[str],
        where: str,
        at: str,
        *,
        state: SnapshotState = SnapshotState.RUNNING,
        recovers_from: Offset = -1,
    ) -> SnapshotRecord:
        with self._database.writing(pipeline) as run:
            ((last,),) = run("SELECT COALESCE(MAX(id), 0) FROM snapshots WHERE pipeline = ?", pipeline)
            made = SnapshotRecord(
                int(last) + 1, why, state, at, "", tuple(tables), where, mark=secrets.token_hex(4),
                recovers_from=recovers_from,
            )  # fmt: skip
            run(
                f"INSERT INTO snapshots (pipeline, {_RECORD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                pipeline, made.id, why, str(made.state), at, "", _json(list(tables)), where, -1, "", -1, made.mark,
                recovers_from,
            )  # fmt: skip
        return made

    def records(self, pipeline: str, limit: int = 1000) -> list[SnapshotRecord]:
        return self._records("pipeline = ? ORDER BY id DESC LIMIT ?", pipeline, limit)

    def active(self, pipeline: str) -> SnapshotRecord | None:
        found = self._records("pipeline = ? AND state IN (?, ?) ORDER BY id LIMIT 1", pipeline, *_UNDER_WAY)
        return found[0] if found else None

    def set_state(self, pipeline: str, snapshot: int, state: SnapshotState, at: str = "") -> bool:
        with self._database.writing(pipeline) as run:
            ((now,),) = run("SELECT state FROM snapshots WHERE pipeline = ? AND id = ?", pipeline, snapshot)
            if now not in _UNDER_WAY:
                return False
            run(
                "UPDATE snapshots SET state = ?, ended = ? WHERE pipeline = ? AND id = ?",
                str(state), at, pipeline, snapshot,
            )  # fmt: skip
            failpoint("state.before_commit")
        return True

    def save_observation(self, pipeline: str, snapshot: int, since: Offset, observation: str) -> None:
        self._write(
            pipeline, "UPDATE snapshots SET since = ?, observation = ? WHERE pipeline = ? AND id = ?",
            since, observation, pipeline, snapshot,
        )  # fmt: skip

    def save_points(self, pipeline: str, snapshot: int, cursor: Offset, points: dict[str, Sequence[Bound]]) -> None:
        with self._database.writing(pipeline) as run:
            for name, new in points.items():
                rows = run(f"SELECT points FROM snapshot_tables WHERE {_MINE} AND name = ?", pipeline, snapshot, name)
                for (known,) in rows:
                    both = dict.fromkeys([*map(tuple, orjson.loads(known)), *new])
                    run(
                        f"UPDATE snapshot_tables SET points = ? WHERE {_MINE} AND name = ?",
                        _json(list(both)), pipeline, snapshot, name,
                    )  # fmt: skip
            run("UPDATE snapshots SET cursor_offset = ? WHERE pipeline = ? AND id = ?", cursor, pipeline, snapshot)

    def add_tables(self, pipeline: str, snapshot: int, tables: Sequence[SnapshotTable]) -> None:
        with self._database.writing(pipeline) as run:
            ((last,),) = run(
                f"SELECT COALESCE(MAX(number), 0) FROM snapshot_tables WHERE {_MINE}", pipeline, snapshot
            )  # fmt: skip
            for number, table in enumerate(tables, int(last) + 1):
                run(
                    "INSERT INTO snapshot_tables (pipeline, snapshot, name, number, state, structure, registered,"
                    " planned, part, lower_bound, next_number, points, error, fix)"
                    " VALUES (?, ?, ?, ?, ?, ?, 0, 0, 0, ?, 0, ?, ?, ?)"
                    " ON CONFLICT (pipeline, snapshot, name) DO NOTHING",
                    pipeline, snapshot, table.name, number, str(TableState.PENDING), table.to_json(), "null", "[]",
                    "", "",
                )  # fmt: skip

    def tables(self, pipeline: str, snapshot: int) -> list[TableCopy]:
        with self._database.reading() as run:
            rows = run(
                "SELECT t.name, t.number, t.state, t.structure, t.registered, t.planned, t.part, t.lower_bound,"
                " t.next_number, t.points, t.error, t.fix, t.adopted_chunks, t.adopted_rows,"
                " (SELECT COUNT(*) FROM snapshot_chunks c WHERE c.pipeline = t.pipeline AND c.snapshot = t.snapshot"
                " AND c.table_number = t.number AND c.state IN (?, ?))"
                " FROM snapshot_tables t WHERE t.pipeline = ? AND t.snapshot = ? ORDER BY t.number",
                str(ChunkState.PLANNED), str(ChunkState.STAGED), pipeline, snapshot,
            )  # fmt: skip
        return [_table(row) for row in rows]

    def save_numbered(self, pipeline: str, snapshot: int, tables: Mapping[str, SnapshotTable]) -> None:
        with self._database.writing(pipeline) as run:
            for name, structure in tables.items():
                run(
                    f"UPDATE snapshot_tables SET structure = ?, registered = 1 WHERE {_MINE} AND name = ?",
                    structure.to_json(), pipeline, snapshot, name,
                )  # fmt: skip

    def forget_structure(self, pipeline: str, snapshot: int, name: str, structure: SnapshotTable) -> None:
        with self._database.writing(pipeline) as run:
            run(
                "UPDATE snapshot_tables SET structure = ?, registered = 0, planned = 0, part = 0, lower_bound = ?"
                f" WHERE {_MINE} AND name = ?",
                structure.to_json(), "null", pipeline, snapshot, name,
            )  # fmt: skip
            run(
                f"DELETE FROM snapshot_chunks WHERE {_MINE} AND table_number ="
                f" (SELECT number FROM snapshot_tables WHERE {_MINE} AND name = ?)",
                pipeline, snapshot, pipeline, snapshot, name,
            )  # fmt: skip

    def set_table_states(self, pipeline: str, snapshot: int, states: Mapping[str, TableState]) -> None:
        with self._database.writing(pipeline) as run:
            for name, state in states.items():
                run(
                    f"UPDATE snapshot_tables SET state = ?, error = ?, fix = ? WHERE {_MINE} AND name = ?",
                    str(state), "", "", pipeline, snapshot, name,
                )  # fmt: skip
            failpoint("state.before_commit")

    def set_table_state(
        self, pipeline: str, snapshot: int, name: str, state: TableState, *, error: str = "", fix: str = ""
    ) -> None:
        with self._database.writing(pipeline) as run:
            run(
                f"UPDATE snapshot_tables SET state = ?, error = ?, fix = ? WHERE {_MINE} AND name = ?",
                str(state), error, fix, pipeline, snapshot, name,
            )  # fmt: skip
            if state is TableState.FAILED:
                run(
                    f"DELETE FROM snapshot_chunks WHERE {_MINE} AND state = ? AND table_number ="
                    f" (SELECT number FROM snapshot_tables WHERE {_MINE} AND name = ?)",
                    pipeline, snapshot, str(ChunkState.PLANNED), pipeline, snapshot, name,
                )  # fmt: skip
            failpoint("state.before_commit")

    def plan(self, pipeline: str, snapshot: int, plans: Sequence[tuple[TableCopy, Sequence[Chunk]]]) -> None:
        with self._database.writing(pipeline) as run:
            for table, chunks in plans:
                for chunk in chunks:
                    run(
                        "INSERT INTO snapshot_chunks (pipeline, snapshot, table_number, number, document, state, since,"
                        " high, commit_time, fingerprint, row_count, tries)"
                        " VALUES (?, ?, ?, ?, ?, ?, -1, ?, 0, ?, 0, 0)"
                        " ON CONFLICT (pipeline, snapshot, table_number, number) DO NOTHING",
                        pipeline, snapshot, table.number, chunk.number, chunk.to_json(), str(ChunkState.PLANNED), "",
                        "",
                    )  # fmt: skip
                run(
                    "UPDATE snapshot_tables SET planned = ?, part = ?, lower_bound = ?, next_number = ?, points = ?"
                    f" WHERE {_MINE} AND name = ?",
                    int(table.planned), table.part, _json(table.lower), table.next,
                    _json(table.points), pipeline, snapshot, table.name,
                )  # fmt: skip

    def chunks(self, pipeline: str, snapshot: int, state: ChunkState, limit: int = 1000) -> list[ChunkCopy]:
        with self._database.reading() as run:
            rows = run(
                "SELECT table_number, document, state, since, high, commit_time, fingerprint, row_count, tries"
                f" FROM snapshot_chunks WHERE {_MINE} AND state = ? ORDER BY table_number, number LIMIT ?",
                pipeline, snapshot, str(state), limit,
            )  # fmt: skip
        return [
            ChunkCopy(number, Chunk.from_json(text), ChunkState(state), since, Position(high), time, mark, count, tries)
            for number, text, state, since, high, time, mark, count, tries in rows
        ]

    def stage(self, pipeline: str, snapshot: int, chunks: Sequence[ChunkCopy]) -> None:
        with self._database.writing(pipeline) as run:
            for chunk in chunks:
                run(
                    "UPDATE snapshot_chunks SET state = ?, since = ?, high = ?, commit_time = ?, fingerprint = ?,"
                    f" row_count = ? WHERE {_ONE}",
                    str(ChunkState.STAGED), chunk.since, chunk.high, chunk.commit_time, chunk.fingerprint, chunk.rows,
                    pipeline, snapshot, chunk.table, chunk.chunk.number, str(ChunkState.PLANNED), chunk.tries,
                )  # fmt: skip
            failpoint("state.before_commit")

    def adopt(self, pipeline: str, snapshot: int, chunks: Sequence[tuple[ChunkCopy, int]]) -> None:
        with self._database.writing(pipeline) as run:
            for chunk, rows in chunks:
                one = (pipeline, snapshot, chunk.table, chunk.chunk.number, str(ChunkState.STAGED), chunk.tries)
                if run(f"SELECT 1 FROM snapshot_chunks WHERE {_ONE}", *one):
                    run(f"DELETE FROM snapshot_chunks WHERE {_ONE}", *one)
                    run(
                        "UPDATE snapshot_tables SET adopted_chunks = adopted_chunks + 1,"
                        f" adopted_rows = adopted_rows + ? WHERE {_MINE} AND number = ?",
                        rows, pipeline, snapshot, chunk.table,
                    )  # fmt: skip
            failpoint("state.before_commit")

    def read_again(self, pipeline: str, snapshot: int, chunk: ChunkCopy) -> None:
        self._write(
            pipeline,
            f"UPDATE snapshot_chunks SET state = ?, tries = tries + 1, since = -1 WHERE {_MINE} AND table_number = ?"
            " AND number = ? AND tries = ?",
            str(ChunkState.PLANNED), pipeline, snapshot, chunk.table, chunk.chunk.number, chunk.tries,
        )  # fmt: skip

    def known_tables(self, pipeline: str) -> frozenset[str]:
        with self._database.reading() as run:
            return frozenset(name for (name,) in run("SELECT name FROM known_tables WHERE pipeline = ?", pipeline))

    def add_known_tables(self, pipeline: str, names: Sequence[str]) -> None:
        with self._database.writing(pipeline) as run:
            for name in names:
                run(
                    "INSERT INTO known_tables (pipeline, name) VALUES (?, ?) ON CONFLICT (pipeline, name) DO NOTHING",
                    pipeline, name,
                )  # fmt: skip

    def _records(self, condition: str, *values: Any) -> list[SnapshotRecord]:
        with self._database.reading() as run:
            rows = run(f"SELECT {_RECORD} FROM snapshots WHERE {condition}", *values)
        return [
            SnapshotRecord(
                id,
                why,
                SnapshotState(state),
                began,
                ended,
                tuple(orjson.loads(tables)),
                where,
                since,
                seen,
                cursor,
                mark,
                recovers_from,
            )
            for id, why, state, began, ended, tables, where, since, seen, cursor, mark, recovers_from in rows
        ]

    def _write(self, pipeline: str, statement: str, *values: Any) -> None:
        with self._database.writing(pipeline) as run:
            run(statement, *values)
            failpoint("state.before_commit")


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _table(row: tuple[Any, ...]) -> TableCopy:
    name, number, state, structure, registered, planned, part, lower, next_number, *rest = row
    points, error, fix, adopted, rows, waiting = rest
    bound = orjson.loads(lower)
    return TableCopy(
        name, number, TableState(state), SnapshotTable.from_json(structure), bool(registered), bool(planned), part,
        None if bound is None else tuple(bound), next_number, tuple(tuple(point) for point in orjson.loads(points)),
        error, fix, int(adopted) + int(waiting), int(adopted), int(rows),
    )  # fmt: skip
