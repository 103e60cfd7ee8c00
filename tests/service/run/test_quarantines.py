"""What a run keeps and says of tables in quarantine: a real log and state store, no Spark, no database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.blocks import make_change, make_table
from tidemill import config
from tidemill.contracts import StateStore
from tidemill.contracts.schema_change_store import ChangeStatus, Decision, StoredChange
from tidemill.log import LogConfig, LogWriter
from tidemill.model.position import Position
from tidemill.model.snapshot import SnapshotTable, TableState
from tidemill.service.run import quarantines
from tidemill.service.run.quarantines import RunQuarantines
from tidemill.state import open_store

DOCUMENT = """
metadata: {{name: orders}}
spec:
  source: {{type: postgres, config: {{id: shop, dsn: "postgresql://nobody@127.0.0.1:1/none", tables: [public.orders]}}}}
  sinks: [{{type: files, config: {{id: files, path: {directory}/files}}}}]
  ddl: {ddl}
  state_dir: {directory}/state
"""
QUARANTINE = "{policies: [{action: quarantine}]}"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateStore]:
    """`public.orders` waits from offset 5 on, 5 of its events in the log."""
    monkeypatch.setattr(quarantines, "_LOOK_SECONDS", 0.0)
    pipeline = load(tmp_path, QUARANTINE)
    pipeline.state_path.mkdir(parents=True)
    old, new = make_table().with_fingerprint(), make_table(version=2).with_fingerprint()
    with closing(LogWriter.open(pipeline.log_uri, LogConfig.model_validate({"fsync": False}))) as log:
        log.append(make_change(5, tables=[old], number=1))
        log.append(make_change(5, tables=[new], number=2, barrier=True))
    with closing(open_store(pipeline.state_uri)) as made:
        before, after = old.to_json().decode(), new.to_json().decode()
        change = StoredChange(
            0, 5, Position("0/200"), "public.orders", ("add_column",), "", before, after, "2026-01-31"
        )  # fmt: skip
        made.schema_changes.record("orders", change)
        made.schema_changes.quarantine("orders", 1, "public.orders", 5, "2026-01-31T12:00:00Z")
        yield made


def load(directory: Path, ddl: str) -> config.Pipeline:
    file = directory / "orders.yaml"
    file.write_text(DOCUMENT.format(directory=directory, ddl=ddl))
    (pipeline,) = config.load(file)
    return pipeline


def test_the_log_is_kept_from_what_waits_and_a_copy_counts_as_delivered_only_when_it_came(
    tmp_path: Path, state: StateStore
) -> None:
    run, store = RunQuarantines(load(tmp_path, QUARANTINE), state), state.schema_changes
    assert (run.lower(None), run.lower(3), run.lower(8)) == (5, 3, 5)
    assert (run.delivered(4), run.delivered(9)) == (4, 5)
    store.note_requeued("orders", 1, 8)
    assert (run.lower(None), run.delivered(9)) == (8, 5)
    store.note_requeued("orders", 1, 10, 14)
    assert (run.lower(None), run.lower(3)) == (None, 3)
    assert (run.delivered(12), run.delivered(14)) == (5, 14)


def test_status_says_what_waits_and_why_until_it_is_decided(tmp_path: Path, state: StateStore) -> None:
    run = RunQuarantines(load(tmp_path, QUARANTINE), state)
    for _ in range(2):  # the second look goes on where the first ended
        (table,) = run.look()
        assert (table.table, table.change, table.events, table.decided) == ("public.orders", 1, 5, False)
    (notice,) = run.notices()
    assert (notice["code"], notice["subject"]) == ("ddl-quarantined", "public.orders")
    assert "schema change 1 (add column) waits for a decision: 5 events" in notice["what"]
    state.schema_changes.decide("orders", 1, Decision.APPROVED, "ann", "", "2026-01-31")
    assert [each.decided for each in run.look()] == [True]
    state.schema_changes.note_requeued("orders", 1, 10, 14)
    assert (run.look(), run.notices()) == ((), ())


def test_what_no_policy_keeps_any_more_is_let_go_by_the_next_start(tmp_path: Path, state: StateStore) -> None:
    for ddl, status in ((QUARANTINE, "quarantined"), ("{gate: true}", "quarantined"), ("{}", "approved")):
        RunQuarantines(load(tmp_path, ddl), state).look()
        assert [each.status for each in state.schema_changes.changes("orders")] == [ChangeStatus(status)]


def test_lost_rows_are_named_until_the_table_is_copied(tmp_path: Path, state: StateStore) -> None:
    state.schema_changes.note_requeued("orders", 1, 10, 10, "2026-01-31")
    run = RunQuarantines(load(tmp_path, QUARANTINE), state)
    run.look()
    (notice,) = run.notices()
    assert (notice["code"], notice["subject"]) == ("quarantined-rows-lost", "public.orders")
    copied = state.snapshots.begin("orders", "asked for", (), "", "2026-02-01")
    state.snapshots.add_tables("orders", copied.id, [SnapshotTable(make_table(), ("id",), 1, Position("0/1"))])
    run.look()
    assert run.notices()
    state.snapshots.set_table_states("orders", copied.id, {"public.orders": TableState.READY})
    run.look()
    assert not run.notices()
