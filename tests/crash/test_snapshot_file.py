"""Tables of a SQLite or Turso file, copied while programs write to them, and the pipeline is killed in the middle."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.actors import RunActor, delivered_offset, on_stage, wait_for, write_pipeline
from tests.crash.delivered import from_files
from tests.crash.replay import _image, _unequal
from tests.crash.sqlite import SqliteHarness
from tests.crash.test_snapshot import FAILPOINTS, CopyReplay
from tests.crash.turso import TursoHarness
from tests.crash.workload import Load
from tests.support.seed import choose
from tests.support.seed import dice as chances
from tidemill.log.reader import LogReader
from tidemill.model.snapshot import SnapshotState, TableState

_SECONDS = 300  # of a machine that starts Spark beside other work


@pytest.mark.parametrize("source", choose("copied file", ("sqlite", "turso")), indirect=True)
def test_tables_of_a_file_that_are_copied_while_they_change_are_the_files_whoever_is_killed(
    source: SqliteHarness | TursoHarness, evidence: Path, account: Callable[..., None]
) -> None:
    luck = chances("snapshot", type(source).__name__)
    source.fill(400)
    document = source.source("proof")
    document["config"] |= {"tables": list(source.COPIED), "snapshot": {"chunk_rows": 100, "max_connections": 2}}
    files = evidence / "files"
    sinks = [{"type": "files", "config": {"id": "files", "path": str(files)}}]
    run = RunActor(evidence, write_pipeline(evidence, document, sinks), luck.choice(FAILPOINTS))

    def copied() -> bool:
        run.keep_running()
        with closing(run.pipeline.build_state()) as state:
            records = state.snapshots.records("proof")
            return bool(records) and records[0].state is not SnapshotState.RUNNING

    with on_stage(run):
        load = Load(source, luck.randrange(1 << 30), pause=0.15, rows_per_second=100, moves={"small": 1})
        with load.running():
            run.begin(source)
            wait_for(copied, _SECONDS, lambda: f"the copy does not end:\n{run.testimony()}")
        met, run.crash_at = [run.crash_at] * run.crashed_at_failpoint, ""
        log = LogReader(run.pipeline.log_uri)
        last = source.last_change()

        def caught_up() -> bool:
            run.keep_running()
            here = log.tail()
            there = int(here.position.partition("@")[0].partition("/")[0]) >= last
            return there and delivered_offset(run.pipeline) >= here.offset

        wait_for(caught_up, _SECONDS, lambda: f"not everything is delivered:\n{run.testimony()}")
        assert run.stop() == 0, run.output[-5000:]
    with closing(run.pipeline.build_state()) as state:
        tables = state.snapshots.tables("proof", 1)
    assert {table.state for table in tables} == {TableState.READY}, [(t.name, t.error) for t in tables]
    keys = {table: source.keys[table] for table in source.COPIED}
    replay = CopyReplay(keys)
    replay.take(from_files(files))
    found = list(replay.complaints)
    for table, key in keys.items():
        found += _unequal(table, replay.tables[table], {_image(row, key): row for row in source.rows(table)})
    assert not found, "\n".join(found[:20])
    assert replay.duplicates == 0
    account(killed_at=met, events=replay.tally.total())
