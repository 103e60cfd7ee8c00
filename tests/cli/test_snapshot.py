"""`tidemill snapshot`: requests are rows in the state store, whether the pipeline runs or not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.blocks import make_table
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.contracts import SnapshotRecord
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, ChunkState, SnapshotState, SnapshotTable, TableState
from tidemill.state.snapshots import SqlSnapshotStore

DOCUMENT = """\
metadata: {name: orders}
spec:
  source: {type: postgres, config: {id: p, dsn: "postgresql://nobody@127.0.0.1:1/none", snapshot: {}}}
  sinks: [{type: blackhole, config: {id: none}}]
"""


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(f"{DOCUMENT}  state_dir: {tmp_path}/state\n")
    return path


def test_a_snapshot_is_started_shown_paused_resumed_and_cancelled(tidemill: Terminal, file: Path) -> None:
    assert "has no snapshot yet" in tidemill("snapshot", "status", file).out
    begun = tidemill("snapshot", "start", file, "--table", "public.orders", "--where", "id > 5", "--json").json
    assert (begun["snapshot"]["id"], begun["snapshot"]["state"]) == (1, "waiting")
    assert "begins when the pipeline runs" in tidemill("snapshot", "status", file).out
    assert tidemill("snapshot", "pause", file).out == "orders: snapshot 1 is paused\n"
    assert tidemill("snapshot", "resume", file).out == (
        "orders: snapshot 1 begins when the pipeline runs and no snapshot before it is under way\n"
    )
    (pipeline,) = config.load(file)
    with closing(pipeline.build_state()) as state:
        store = state.snapshots
        store.add_tables("orders", 1, [SnapshotTable(make_table(), ("id",), 400, Position("0/1"))])
        (table,) = store.tables("orders", 1)
        store.plan("orders", 1, [(table, [Chunk(table.name, 0)])])
        (chunk,) = store.chunks("orders", 1, ChunkState.PLANNED)
        store.stage("orders", 1, [chunk])
        store.adopt("orders", 1, [(chunk, 100)])
        store.set_table_state("orders", 1, table.name, TableState.COPYING)
    shown = tidemill("snapshot", "status", file).out
    assert shown.startswith("snapshot 1 (asked for, where id > 5): ")
    assert "public.orders" in shown
    assert "25%" in shown
    assert "that sinks have not got yet: none." in shown
    assert tidemill("snapshot", "resume", file).out == "orders: snapshot 1 goes on while the pipeline runs\n"
    with closing(pipeline.build_state()) as state:
        state.snapshots.set_table_state("orders", 1, table.name, TableState.READY)
    assert "ready" in tidemill("snapshot", "status", file).out
    (said,) = tidemill("snapshot", "status", file, "--json").json["snapshots"]
    assert (said["where"], said["tables"][0]["rows"], said["tables"][0]["estimate"]) == ("id > 5", 100, 400)
    assert tidemill("snapshot", "cancel", file).out == "orders: snapshot 1 is cancelled\n"
    assert tidemill("snapshot", "status", file, "--json").json["snapshots"][0]["state"] == "cancelled"


def test_a_table_that_failed_is_shown_with_what_to_do(tidemill: Terminal, file: Path) -> None:
    tidemill("snapshot", "start", file, "--table", "public.orders", "--where", "regin = 'north'")
    (pipeline,) = config.load(file)
    with closing(pipeline.build_state()) as state:
        store = state.snapshots
        store.add_tables("orders", 1, [SnapshotTable(make_table(), ("id",), 400, Position("0/1"))])
        store.set_table_state("orders", 1, "public.orders", TableState.FAILED, error="no column", fix="Look again.")
        store.set_state("orders", 1, SnapshotState.FAILED)
    shown = tidemill("snapshot", "status", file).out
    assert "(asked for, where regin = 'north'): failed" in shown
    assert "public.orders: Look again. Then ask for it again: `tidemill snapshot start FILE --table`." in shown


def test_a_table_that_a_cancelled_snapshot_did_not_finish_is_cancelled_too(tidemill: Terminal, file: Path) -> None:
    tidemill("snapshot", "start", file)
    (pipeline,) = config.load(file)
    tables = [SnapshotTable(make_table(name=name), ("id",), 400, Position("0/1")) for name in ("done", "half")]
    with closing(pipeline.build_state()) as state:
        state.snapshots.add_tables("orders", 1, tables)
        state.snapshots.set_table_state("orders", 1, "public.done", TableState.READY)
        state.snapshots.set_table_state("orders", 1, "public.half", TableState.COPYING)
    tidemill("snapshot", "cancel", file)
    (said,) = tidemill("snapshot", "status", file, "--json").json["snapshots"]
    assert [(table["name"], table["state"]) for table in said["tables"]] == [
        ("public.done", "ready"), ("public.half", "cancelled"),
    ]  # fmt: skip


@pytest.mark.parametrize("request_", ["pause", "resume", "cancel"])
def test_a_request_that_comes_as_the_snapshot_ends_does_not_bring_it_back(
    tidemill: Terminal, file: Path, monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    """Paused, it was under way again until somebody resumed it, and those after it waited; resumed, a cancelled one
    was gone on with."""
    tidemill("snapshot", "start", file)
    (pipeline,) = config.load(file)
    with closing(pipeline.build_state()) as state:
        look = type(state.snapshots).active

        def look_before(store: SqlSnapshotStore, pipeline: str) -> SnapshotRecord | None:
            found = look(store, pipeline)
            store.set_state(pipeline, 1, SnapshotState.DONE)
            return found

        monkeypatch.setattr(SqlSnapshotStore, "active", look_before)
        answer = tidemill("snapshot", request_, file)
        assert answer.code != 0
        assert "is under way" in answer.err
        assert state.snapshots.records("orders")[0].state is SnapshotState.DONE


def test_the_snapshot_under_way_is_shown_however_many_wait_for_it(tidemill: Terminal, file: Path) -> None:
    for _ in range(13):
        tidemill("snapshot", "start", file)
    (pipeline,) = config.load(file)
    with closing(pipeline.build_state()) as state:
        state.snapshots.add_tables("orders", 1, [SnapshotTable(make_table(), ("id",), 400, Position("0/1"))])
    shown = tidemill("snapshot", "status", file).out
    assert shown.startswith("snapshot 1 (asked for): running")
    assert "public.orders" in shown
    assert shown.endswith("After it: snapshot 2, snapshot 3 and 10 more.\n")
    assert tidemill("snapshot", "pause", file).out == "orders: snapshot 1 is paused\n"
    listed = tidemill("snapshot", "status", file, "--json").json["snapshots"]
    assert [each["id"] for each in listed] == [*range(13, 0, -1)]
    for _ in range(13):
        tidemill("snapshot", "cancel", file)
    assert tidemill("snapshot", "status", file).out.startswith("snapshot 13 (asked for): cancelled")
    assert len(tidemill("snapshot", "status", file, "--json").json["snapshots"]) == 10


def test_what_cannot_be_done_says_why(tidemill: Terminal, file: Path) -> None:
    for command in ("pause", "resume", "cancel"):
        failed = tidemill("snapshot", command, file)
        assert failed.code == 1
        assert "no snapshot of pipeline" in failed.err
    assert "--where needs --table" in tidemill("snapshot", "start", file, "--where", "id > 5").err
