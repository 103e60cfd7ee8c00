"""Tables that are copied while everybody writes to them, and the pipeline is killed at every boundary of the copy.

Afterwards the delivered files, replayed, are the source's tables row by row, and so are the tables of a state sink:
nothing is missing, nothing was brought back, and no event is there twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.crash.actors import RunActor, delivered_offset, on_stage, wait_for, write_pipeline
from tests.crash.delivered import from_files
from tests.crash.harness import Row
from tests.crash.postgres import PostgresHarness
from tests.crash.replay import Key, Replay, _image, _unequal
from tests.crash.workload import Load
from tests.support.seed import choose
from tests.support.seed import dice as chances
from tidemill.log.reader import LogReader
from tidemill.model.snapshot import SnapshotState, TableState

# Of those that stand in capture, driver and workers; which of them a run takes is its seed's choice.
FAILPOINTS = (
    "snapshot.planned:2", "snapshot.read:3", "snapshot.staged:3", "log.staged:3", "log.staging_sealed:2",
    "snapshot.sealed:3", "snapshot.registered:1", "snapshot.filtered:1", "log.adopt_linked:2", "log.adopted:1",
    "snapshot.adopted:1", "snapshot.noted:1", "snapshot.table_ready:1",
)  # fmt: skip
# A table without a key cannot be told apart from its changes while it is written to without a pause.
TABLES = ("accounts", "lines", "documents", "readings")
MOVES = {"small": 50, "documents": 25, "rename": 8, "truncate": 0.5, "ddl": 1.5, "rolled_back": 2, "message": 2}
_TABLE = "${source.schema}.${source.table}"
_SECONDS = 180


class CopyReplay(Replay):
    """A consumer who takes what comes: a change may come before the row that it changes was copied."""

    def _apply_keyed(self, event: dict[str, Any], rows: dict[Key, Row], key: tuple[str, ...]) -> None:
        op, before, after = event["op"], event["before"], event["after"]
        new, old = _image(after or before, key), _image(before or after, key)
        kept = rows.pop(old, None) or {}
        if op != "delete":
            rows[new] = after | {column: kept.get(column, "not there yet") for column in event.get("unchanged") or ()}


def fill(source: PostgresHarness) -> None:
    with psycopg.connect(source.dsn, autocommit=True) as db:
        db.execute(
            "INSERT INTO accounts (id, balance, note) SELECT n, n, 'there before ' || n FROM generate_series(1, 400) n"
        )
        db.execute("SELECT setval('ids', 2000)")
        db.execute(
            "INSERT INTO documents (name, body, revision) SELECT 'doc-' || n, repeat(md5(n::text), 200), 0"
            " FROM generate_series(1, 80) n"
        )
        db.execute("INSERT INTO lines SELECT n, 'a', n FROM generate_series(1, 12) n")
        db.execute("INSERT INTO readings SELECT n, (ARRAY['north', 'south', 'east'])[1 + n % 3], n FROM"
                   " generate_series(1, 150) n")  # fmt: skip
        db.execute("ANALYZE")


class CopyStage:
    def __init__(
        self, source: PostgresHarness, target: PostgresHarness, directory: Path, crash_at: str = "",
        *, master: str = "local[2]",
    ) -> None:  # fmt: skip
        self.source, self.target = source, target
        self.files = directory / "files"
        document = source.source("proof")
        document["config"] |= {
            "tables": [f"public.{table}" for table in TABLES],
            "snapshot": {"chunk_rows": 60, "max_connections": 2},
        }
        sinks = [
            {"type": "files", "config": {"id": "files", "path": str(self.files)}},
            {"type": "postgres", "config": {"id": "copy", "dsn": target.dsn, "table": _TABLE}},
        ]
        spark = {"master": master, "conf": {"spark.driver.memory": "512m"}}
        self.run = RunActor(directory, write_pipeline(directory, document, sinks, spark=spark), crash_at)

    def count_adopted(self) -> int:
        """Chunks that are in the log."""
        self.run.keep_running()
        with closing(self.run.pipeline.build_state()) as state:
            return sum(table.adopted for table in state.snapshots.tables("proof", 1))

    def logged(self) -> bool:
        """Whether the newest copy is in the log, delivered or not."""
        self.run.keep_running()
        with closing(self.run.pipeline.build_state()) as state:
            tables = state.snapshots.tables("proof", state.snapshots.records("proof", 1)[0].id)
            return bool(tables) and all(table.state is TableState.READY for table in tables)

    def copied(self) -> bool:
        self.run.keep_running()
        with closing(self.run.pipeline.build_state()) as state:
            records = state.snapshots.records("proof")
            return bool(records) and records[0].state is not SnapshotState.RUNNING

    def note_end(self) -> None:
        """The load is over, and the run may still be killed: one that begins after it meets no event to confirm."""
        with psycopg.connect(self.source.dsn, autocommit=True) as db:
            self._end(db)

    def finish(self) -> int:
        """The load is over: everything arrives, once, and makes the source's tables."""
        self.deliver_all()
        keys = self._keys()
        replay = CopyReplay(keys)
        replay.take(from_files(self.files))
        found = list(replay.complaints)
        for table, key in keys.items():
            wanted = {_image(row, key): row for row in self.source.rows(table)}
            found += [f"files: {line}" for line in _unequal(table, replay.tables[table], wanted)]
        assert not found, "\n".join(found[:20])
        assert replay.duplicates == 0
        self.check_target()
        return replay.tally.total()

    def deliver_all(self) -> None:
        """Until the newest copy is over, and everything is at its destinations; then the run ends."""
        wait_for(self.copied, _SECONDS, lambda: f"the copy does not end:\n{self.run.testimony()}")
        log = LogReader(self.run.pipeline.log_uri)

        def caught_up() -> bool:
            self.run.keep_running()
            return self._logged() and delivered_offset(self.run.pipeline) >= log.tail().offset

        wait_for(caught_up, _SECONDS, lambda: f"not everything is delivered:\n{self.run.testimony()}")
        assert self.run.stop() == 0, self.run.output[-5000:]
        with closing(self.run.pipeline.build_state()) as state:
            tables = state.snapshots.tables("proof", state.snapshots.records("proof", 1)[0].id)
        assert {table.state for table in tables} == {TableState.READY}, [(t.name, t.error) for t in tables]

    def check_target(self) -> None:
        """The state sink has the source's rows, and no others."""
        found = []
        for table, key in self._keys().items():
            wanted = {_image(row, key): row for row in self.source.rows(table)}
            there = {_image(row, key): row for row in self.target.rows(table)}
            found += [f"postgres: {line}" for line in _unequal(table, there, wanted)]
        assert not found, "\n".join(found[:20])

    def _keys(self) -> dict[str, tuple[str, ...]]:
        return {table: key for table, key in self.source.keys.items() if table in TABLES}

    def _logged(self) -> bool:
        """Whether capture has read on to where the server was after the load."""
        with psycopg.connect(self.source.dsn, autocommit=True) as db:
            behind = db.execute(
                "SELECT pg_wal_lsn_diff(%s::pg_lsn, confirmed_flush_lsn) FROM pg_replication_slots"
                " WHERE slot_name = 'tidemill_proof'", [self._end(db)],
            ).fetchone()  # fmt: skip
        return behind is not None and behind[0] <= 0

    def _end(self, db: psycopg.Connection[Any]) -> str:
        if not hasattr(self, "_place"):
            self._place = str(db.execute("SELECT pg_current_wal_insert_lsn()").fetchall()[0][0])
        return self._place


@pytest.mark.parametrize("point", choose("snapshot failpoints", FAILPOINTS))
def test_tables_that_are_copied_while_they_change_are_the_sources_whoever_is_killed(
    source: PostgresHarness, target: PostgresHarness, evidence: Path, account: Callable[..., None], point: str
) -> None:
    """A copy for each point: of several in one, the last ones are met only if the copy is not over before."""
    luck = chances("snapshot failpoints", point)
    fill(source)
    stage = CopyStage(source, target, evidence, point)
    with on_stage(stage.run):
        with Load(source, luck.randrange(1 << 30), clients=2, pause=0.15, rows_per_second=100, moves=MOVES).running():
            stage.run.begin(source)
            wait_for(stage.copied, _SECONDS, lambda: f"the copy does not end:\n{stage.run.testimony()}")
        met, stage.run.crash_at = stage.run.crashed_at_failpoint, ""
        events = stage.finish()
    assert met, f"nobody passed {point}"
    account(killed_at=point, events=events)
