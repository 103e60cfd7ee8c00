"""Which tables are copied, by what the state store says of snapshots."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.blocks import make_table
from tidemill.capture.copied_tables import find_copied
from tidemill.model.position import Position
from tidemill.model.snapshot import SnapshotTable, TableState
from tidemill.state import open_store


@pytest.mark.parametrize("waiting", [0, 1, 30])
def test_a_table_is_copied_also_while_other_snapshots_wait(waiting: int, tmp_path: Path) -> None:
    """With ten of them it was not: rows that were still to come were refused, and the mark of the table stayed."""
    with closing(open_store(str(tmp_path / "state.sqlite"))) as state:
        store = state.snapshots
        first = store.begin("orders", "asked for", ("public.orders",), "", "")
        for _ in range(waiting):
            store.begin("orders", "asked for", ("public.items",), "", "")
        store.add_tables("orders", first.id, [SnapshotTable(make_table(), ("id",), 400, Position("0/1"))])
        assert find_copied(store, "orders") == {}
        store.set_table_state("orders", first.id, "public.orders", TableState.READY)
        assert find_copied(store, "orders") == {"public.orders": Position("0/1")}
        assert find_copied(store, "orders", ["public.orders"]) == {"public.orders": Position("")}
