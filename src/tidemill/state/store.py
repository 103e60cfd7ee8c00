"""Every operation of a state store, written once in SQL that SQLite and PostgreSQL have in common."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from tidemill.contracts.state_store import ConfirmedPosition, LostRange, Transition
from tidemill.model.position import Offset, Position
from tidemill.state import registry_tables, schema_changes, sensing, snapshots
from tidemill.state.migrations import Rows
from tidemill.telemetry.failpoints import failpoint

KEPT_TRANSITIONS = 1000
"""Of each pipeline: one that is started again and again must not fill the store."""

_OF_A_LIFE = (
    "confirmed_positions", "spark_starts", "lost_ranges", *snapshots.TABLES, *sensing.TABLES,
    *schema_changes.TABLES, *registry_tables.TABLES,
)  # fmt: skip


class Database(Protocol):
    """A backend. Both contexts commit when they end well, and undo everything when they do not."""

    where: str  # for messages
    columns_query: str  # names of a table's columns, in their order; ? is the table

    def writing(self, *pipelines: str) -> AbstractContextManager[Rows]:
        """A transaction; others that write state of these pipelines wait for its end. What belongs to no pipeline
        (`audit.INSTALLATION`) is named last."""

    def reading(self) -> AbstractContextManager[Rows]: ...

    def snapshot(self) -> AbstractContextManager[Rows]:
        """Reading, with every statement of one moment."""

    def preparing(self) -> AbstractContextManager[Rows]:
        """A transaction on the store as it is, which is made where it is missing, without its tables. Nobody else
        opens it for the first time meanwhile."""

    def version_in(self, run: Rows) -> int:
        """`version`, inside a transaction."""

    def version(self) -> int:
        """Of its tables, without a change of them; 0 where there are none. `StateTooNew` if it is beyond ours."""

    def write_problem(self) -> str:
        """Why it could not be written, or made where it is missing; empty if it could. Changes nothing."""

    def close(self) -> None: ...


class SqlStateStore:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.snapshots = snapshots.SqlSnapshotStore(database)
        self.sensing = sensing.SqlSensingStore(database)
        self.schema_changes = schema_changes.SqlSchemaChangeStore(database)

    def claim(self, pipeline: str, directory: str, *, keep: bool = False) -> None:
        with self._database.writing(pipeline) as run:
            known = run("SELECT directory FROM pipelines WHERE pipeline = ?", pipeline)
            if known == [(directory,)]:
                return
            if known and not keep:
                for table in _OF_A_LIFE:
                    run(f"DELETE FROM {table} WHERE pipeline = ?", pipeline)
            run(
                "INSERT INTO pipelines (pipeline, directory) VALUES (?, ?)"
                " ON CONFLICT (pipeline) DO UPDATE SET directory = excluded.directory",
                pipeline, directory,
            )  # fmt: skip

    def confirmed(self, pipeline: str) -> ConfirmedPosition | None:
        found = self._read('SELECT position, "offset" FROM confirmed_positions WHERE pipeline = ?', pipeline)
        return ConfirmedPosition(Position(found[0][0]), found[0][1]) if found else None

    def confirm(self, pipeline: str, position: Position, offset: Offset) -> None:
        self._write(
            pipeline,
            'INSERT INTO confirmed_positions (pipeline, position, "offset") VALUES (?, ?, ?)'
            ' ON CONFLICT (pipeline) DO UPDATE SET position = excluded.position, "offset" = excluded."offset"',
            pipeline, position, offset,
        )  # fmt: skip

    def forget_confirmed(self, pipeline: str) -> None:
        self._write(pipeline, "DELETE FROM confirmed_positions WHERE pipeline = ?", pipeline)

    def record(self, pipeline: str, transition: Transition) -> None:
        with self._database.writing(pipeline) as run:
            newest = run(f"{_TRANSITIONS} LIMIT 1", pipeline)
            if newest and _transition(newest[0]) == transition:
                return
            number = newest[0][0] + 1 if newest else 1
            run(
                "INSERT INTO transitions (pipeline, sequence, state, actor, reason, at) VALUES (?, ?, ?, ?, ?, ?)",
                pipeline, number, transition.state, transition.actor, transition.reason, transition.at,
            )  # fmt: skip
            run("DELETE FROM transitions WHERE pipeline = ? AND sequence <= ?", pipeline, number - KEPT_TRANSITIONS)

    def transitions(self, pipeline: str, limit: int = 20) -> list[Transition]:
        return [_transition(row) for row in self._read(f"{_TRANSITIONS} LIMIT ?", pipeline, limit)]

    def spark_start(self, pipeline: str, sink: str = "") -> Offset | None:
        found = self._read('SELECT "offset" FROM spark_starts WHERE pipeline = ? AND sink = ?', pipeline, sink)
        return found[0][0] if found else None

    def save_spark_start(self, pipeline: str, offset: Offset, sink: str = "") -> None:
        self._write(
            pipeline,
            'INSERT INTO spark_starts (pipeline, sink, "offset") VALUES (?, ?, ?)'
            ' ON CONFLICT (pipeline, sink) DO UPDATE SET "offset" = excluded."offset"',
            pipeline, sink, offset,
        )  # fmt: skip

    def forget_spark_start(self, pipeline: str, sink: str = "") -> None:
        self._write(pipeline, "DELETE FROM spark_starts WHERE pipeline = ? AND sink = ?", pipeline, sink)

    def lost_ranges(self, pipeline: str, sink: str) -> list[LostRange]:
        rows = self._read(
            "SELECT first_offset, end_offset, events FROM lost_ranges WHERE pipeline = ? AND sink = ?"
            " ORDER BY first_offset",
            pipeline, sink,
        )  # fmt: skip
        return [LostRange(*row) for row in rows]

    def add_lost_range(self, pipeline: str, sink: str, lost: LostRange) -> None:
        self._write(
            pipeline,
            "INSERT INTO lost_ranges (pipeline, sink, first_offset, end_offset, events) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (pipeline, sink, first_offset)"
            " DO UPDATE SET end_offset = excluded.end_offset, events = excluded.events",
            pipeline, sink, lost.first, lost.end, lost.events,
        )  # fmt: skip

    def forget_lost_ranges(self, pipeline: str, sink: str) -> None:
        self._write(pipeline, "DELETE FROM lost_ranges WHERE pipeline = ? AND sink = ?", pipeline, sink)

    def forget(self, pipeline: str) -> None:
        with self._database.writing(pipeline) as run:
            for table in ("pipelines", "transitions", *_OF_A_LIFE):
                run(f"DELETE FROM {table} WHERE pipeline = ?", pipeline)

    def close(self) -> None:
        self._database.close()

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._database.reading() as run:
            return list(run(statement, *values))

    def _write(self, pipeline: str, statement: str, *values: Any) -> None:
        with self._database.writing(pipeline) as run:
            run(statement, *values)
            failpoint("state.before_commit")


_TRANSITIONS = "SELECT sequence, state, actor, reason, at FROM transitions WHERE pipeline = ? ORDER BY sequence DESC"


def _transition(row: tuple[Any, ...]) -> Transition:
    return Transition(*row[1:])
