"""Schema changes that wait for an operator, in quarantine or at the gate, while processes are killed around each step.

Two tables are altered again and again, beside one that never is. Each event of each table arrives once, in the order of
its table, and the copy is the source.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from tests.crash.actors import RunActor, on_stage, wait_for, write_pipeline
from tests.crash.delivered import Event, from_files
from tests.support.seed import WHOLE, dice
from tidemill.contracts.schema_change_store import ChangeStatus, Decision
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.cause import Cause
from tidemill.service.schema import changes as service
from tidemill.service.schema.barriers import quarantines_of

Fact = tuple[str, int | None, int | None]
"""What happened to a row: op, id, and the number that it got; the latter are None of a TRUNCATE, and of a delete."""

WAITING, FREE = ("first", "second"), "third"
TABLES = (*WAITING, FREE)
STEPS = (
    "ddl.recorded", "ddl.planned", "ddl.decided", "ddl.applied_at_sink", "ddl.noted_of_sink", "ddl.applied", "ddl.kept",
)  # fmt: skip
"""Of every change, in the driver."""
REQUEUE = (
    "ddl.quarantined", "requeue.staged", "requeue.appended", "requeue.noted", "requeue.ended", "log.adopted",
    "stream.delivered:4",
)  # fmt: skip
WAYS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "quarantine": (
        (*STEPS, *REQUEUE),
        {"policies": [{"tables": [f"public.{table}" for table in WAITING], "action": "quarantine"}]},
    ),
    "gate": ((*STEPS, "stream.delivered:4"), {"gate": True, "on_reject": "ignore"}),
}
MODES = ("micro_batch", "real_time")
_ALTERATIONS = 10
_PAUSE_SECONDS = 0.02
"""Of the writer. After the last change it is ten times as long: each release appends what is left up to the end, and on
a busy machine, where the kills take minutes, that would be tens of thousands of events."""
_MOST_LEFT = 500
"""Events that the writer may be ahead. Each TRUNCATE and each change ends a batch: what is left in the end takes long,
and after kills that took a quarter of an hour those were many thousands."""
_names = itertools.count(1)
_START_SECONDS, _CATCH_UP_SECONDS = 300, 300


def batches() -> list[tuple[str, str, tuple[str, ...]]]:
    """The points of a run are come to in turn; only who ends there takes the time to start again."""
    chance = dice("schema changes under kills")
    if not WHOLE:
        way = chance.choice(list(WAYS))
        return [(way, chance.choice(MODES), tuple(chance.sample(WAYS[way][0], 3)))]
    return [(way, mode, WAYS[way][0][at::2]) for way in WAYS for mode in MODES for at in range(2)]


class Writer(threading.Thread):
    """One session, so that its order is the order of each table."""

    def __init__(self, dsn: str, chance: Random) -> None:
        super().__init__()
        self.dsn, self.chance, self.over, self.held = dsn, chance, threading.Event(), threading.Event()
        self.history: dict[str, list[Fact]] = {table: [] for table in TABLES}
        self.alterations = 0
        self.error: psycopg.Error | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as db:
                self._write(db)
        except psycopg.Error as error:
            self.error = error

    def _write(self, db: psycopg.Connection[Any]) -> None:
        living: dict[str, list[int]] = {table: [] for table in TABLES}
        numbers = itertools.count(1)
        while not self.over.wait(_PAUSE_SECONDS if self.alterations < _ALTERATIONS else 10 * _PAUSE_SECONDS):
            if self.held.is_set():
                continue
            table, number, ids = self.chance.choice(TABLES), next(numbers), living
            what = self.chance.choices(
                ["insert", "update", "delete", "truncate", "alter"], [50, 30, 10, 1, 2 if self._may_alter(table) else 0]
            )[0]
            if what in ("update", "delete") and not ids[table]:
                what = "insert"
            match what:
                case "insert":
                    db.execute(f"INSERT INTO {table} (id, n) VALUES ({number}, {number})".encode())
                    ids[table].append(number)
                    self.history[table].append(("insert", number, number))
                case "update":
                    id = self.chance.choice(ids[table])
                    db.execute(f"UPDATE {table} SET n = {number} WHERE id = {id}".encode())
                    self.history[table].append(("update", id, number))
                case "delete":
                    id = ids[table].pop(self.chance.randrange(len(ids[table])))
                    db.execute(f"DELETE FROM {table} WHERE id = {id}".encode())
                    self.history[table].append(("delete", id, None))
                case "truncate":
                    db.execute(f"TRUNCATE {table}".encode())
                    ids[table].clear()
                    self.history[table].append(("truncate", None, None))
                case "alter":
                    db.execute(f"ALTER TABLE {table} ADD COLUMN c{number} int".encode())
                    self.alterations += 1

    def _may_alter(self, table: str) -> bool:
        """Each release appends what is left up to the end: many changes at once take long."""
        return table in WAITING and self.alterations < _ALTERATIONS


class Stage:
    """The source under load, `tidemill run` with two sinks, and an operator."""

    def __init__(self, directory: Path, dsn: str, chance: Random, way: str, mode: str, points: tuple[str, ...]) -> None:
        self.rejects = way == "gate"
        self.dsn, self.chance, self.files = dsn, chance, directory / "files"
        self.db = psycopg.connect(dsn, autocommit=True)
        for table in TABLES:
            self.db.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)".encode())
        self.writer = Writer(dsn, chance)
        document = write_pipeline(
            directory,
            {
                "type": "postgres",
                "config": {"id": "proof", "dsn": dsn, "tables": [f"public.{each}" for each in TABLES]},
            },
            [
                {"type": "files", "config": {"id": "files", "path": str(self.files)}},
                {"type": "postgres", "config": {"id": "copy", "dsn": dsn, "table": "copy.${source.table}"}},
            ],
            trigger={"mode": mode},
            ddl=WAYS[way][1],
        )
        self.run = RunActor(directory, document, ",".join(points))
        self._counted = 0.0

    def begin(self) -> None:
        self.run.start()
        there = "SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND active"
        wait_for(
            lambda: "stream.started" in self.run.output and self.db.execute(there).fetchone() is not None,
            _START_SECONDS, lambda: self.run.output[-3000:],
        )  # fmt: skip
        self.writer.start()

    def decide(self, *, all: bool) -> None:
        """On what waits, or on one change of it; the pipeline may be stopped just then."""
        waiting = [
            each for each in service.list_changes(self.run.pipeline, 1000)
            if each.status in (ChangeStatus.QUARANTINED, ChangeStatus.PENDING) and each.decision is Decision.PENDING
        ]  # fmt: skip
        for each in waiting if all or not waiting else [self.chance.choice(waiting)]:
            rejected = self.rejects and self.chance.random() < 0.3
            decision = Decision.REJECTED if rejected else Decision.APPROVED
            service.decide(self.run.pipeline, each.number, decision, Cause("ann", "looked at it"))

    def meet_failpoints(self) -> None:
        def met() -> bool:
            self.run.keep_running()
            self.decide(all=False)
            self.hold_writer()
            return self.run.crashed_at_failpoint and self.writer.alterations == _ALTERATIONS

        wait_for(met, 3 * _START_SECONDS, lambda: f"not all of {self.run.crash_at}:\n{self.run.testimony()}")

    def hold_writer(self) -> None:
        """While too much of what it wrote is left. Looks once a second: all files are read."""
        if (now := time.monotonic()) - self._counted >= 1:
            self._counted = now
            left = sum(map(len, self.writer.history.values())) - sum(1 for _ in self.events())
            (self.writer.held.set if left > _MOST_LEFT else self.writer.held.clear)()

    def finish(self) -> None:
        """The load is over."""
        self.writer.over.set()
        self.writer.join()
        assert self.writer.error is None, self.writer.error
        self.run.crash_at = ""
        expected = sum(map(len, self.writer.history.values()))

        def arrived() -> bool:
            self.run.keep_running()
            self.decide(all=True)
            waits = any(each.is_open for each in quarantines_of(self.run.pipeline))
            return not waits and sum(1 for _ in self.events()) >= expected

        wait_for(arrived, _CATCH_UP_SECONDS, lambda: f"{expected} events expected:\n{self.run.testimony()}")
        assert self.run.stop() == 0, self.run.output[-5000:]

    def events(self) -> Iterator[Event]:
        """Without logical messages, and what tells of changes of a table."""
        found = from_files(self.files)
        return (event for event in found if event["table"] in TABLES and event["op"] != "ddl")

    def delivered(self) -> dict[str, list[Fact]]:
        facts: dict[str, list[Fact]] = {table: [] for table in TABLES}
        for event in sorted(self.events(), key=lambda event: event["offset"]):
            row = event["after"] or event["before"] or {}
            number = row["n"] if event["after"] else None
            facts[event["table"]].append((event["op"], row.get("id"), number))
        return facts

    def rows(self, schema: str, table: str) -> list[Any]:
        return self.db.execute(f"SELECT id, n FROM {schema}.{table} ORDER BY id".encode()).fetchall()


@contextmanager
def staged(stage: Stage) -> Iterator[Stage]:
    try:
        with on_stage(stage.run):
            yield stage
    finally:
        stage.writer.over.set()
        if stage.writer.ident is not None:
            stage.writer.join()
        stage.db.close()


@pytest.mark.timeout(5 * _START_SECONDS)  # its own deadlines, which say what is missing, come before
@pytest.mark.parametrize(
    ("way", "mode", "points"), batches(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_kills_around_changes_that_wait_lose_double_and_reorder_no_event_of_any_table(
    postgres18: Postgres, evidence: Path, way: str, mode: str, points: tuple[str, ...]
) -> None:
    chance = dice("changes that wait", way, mode, points)
    with (
        postgres18.database(f"waiting_{next(_names)}") as dsn,
        staged(Stage(evidence, dsn, chance, way, mode, points)) as stage,
    ):
        stage.begin()
        stage.meet_failpoints()
        stage.finish()
        delivered = stage.delivered()
        for table in TABLES:
            assert delivered[table] == stage.writer.history[table], table
            assert stage.rows("copy", table) == stage.rows("public", table), table
        changes = service.list_changes(stage.run.pipeline, 1000)
        assert 0 < len(changes) <= stage.writer.alterations  # several between two rows are told as one
        wanted = {Decision.APPROVED: ChangeStatus.APPLIED, Decision.REJECTED: ChangeStatus.IGNORED}
        assert [each.status for each in changes] == [wanted[each.decision] for each in changes]
        assert {each.actor for each in changes} == {"ann"}
