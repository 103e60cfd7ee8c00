"""A log is opened the same way by capture and by a recovery, except for where an empty one begins."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.support.blocks import make_table
from tidemill.capture.open_log import open_log
from tidemill.config.pipeline import Pipeline, load
from tidemill.log import Tail
from tidemill.log.staging import Staging
from tidemill.model.delivery import Checkpoint, key_of
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, ChunkState, SnapshotTable


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    spec = {
        "state_dir": str(tmp_path / "state"),
        "source": {"type": "postgres", "config": {"id": "s", "dsn": "postgresql://x@localhost/x", "tables": ["p.t"]}},
        "sinks": [
            {"type": "blackhole", "config": {"id": "leads", "required": True}},
            {"type": "blackhole", "config": {"id": "follows", "required": False}},
        ],
        "commit_policy": {"mode": "required"},
    }
    file = tmp_path / "pipeline.yaml"
    file.write_text(yaml.safe_dump({"metadata": {"name": "opened"}, "spec": spec}))
    (found,) = load(file)
    found.state_path.mkdir(parents=True)
    return found


@pytest.mark.parametrize("anew", [False, True])
def test_what_a_snapshot_has_staged_stays_and_what_nobody_wants_goes(pipeline: Pipeline, anew: bool) -> None:
    with closing(pipeline.build_state()) as state:
        record = state.snapshots.begin("opened", "asked", (), "", "2026-01-01T00:00:00Z")
        state.snapshots.add_tables("opened", record.id, [SnapshotTable(make_table(), ("id",), 1, Position("0/1"))])
        (table,) = state.snapshots.tables("opened", record.id)
        state.snapshots.plan("opened", record.id, [(table, [Chunk(table.name, 0)])])
        (chunk,) = state.snapshots.chunks("opened", record.id, ChunkState.PLANNED)
        wanted = Staging(pipeline.log_uri, chunk.staging_id(record.identity))
        forgotten = Staging(pipeline.log_uri, "snapshot0.0.0.0")
        for staging in (wanted, forgotten):
            staging.seal([])
        open_log(pipeline, state, anew=anew).close()
        assert wanted.manifest() is not None
        assert forgotten.manifest() is None


def test_an_empty_log_begins_where_the_source_resumes_or_anew_after_every_used_offset(pipeline: Pipeline) -> None:
    at = Position("0/1000")
    with closing(pipeline.build_checkpoints()) as store:
        store.save("opened", Checkpoint(1000, at, base=990), expect=0)
        store.save(key_of("opened", "follows"), Checkpoint(1200, Position("0/1200")), expect=0)
    with closing(pipeline.build_state()) as state:
        for anew, begins in ((False, 990), (True, 1200)):
            with closing(open_log(pipeline, state, anew=anew)) as log:
                assert log.tail == Tail(begins, at)
