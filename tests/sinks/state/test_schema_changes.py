"""Every sink that keeps tables says beforehand what it would do about a schema change, and does just that."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.state.support import (
    ID,
    INSERT,
    LABEL,
    NAME,
    NOTE,
    RENAMED,
    UPDATE,
    Destination,
    T,
    row,
)
from tests.support.changes import changes, column, structure
from tidemill import registry
from tidemill.errors import Refused
from tidemill.log import LogConfig, LogWriter
from tidemill.model.barrier import Barrier
from tidemill.model.block import Block
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.model.schema_change import SchemaChange, SchemaChangeKind, SchemaPlan
from tidemill.model.table import Table
from tidemill.schema.changes import change_between
from tidemill.stream.batch.plan import Lane, Plan
from tidemill.stream.lane.deliver import deliver
from tidemill.stream.lane.pool import POOL

SMALL, LARGE = column("count", "integer", pa.int32()), column("count", "bigint", pa.int64())
NARROW_TABLE = structure("t", ID, NAME, NOTE, SMALL)
CHANGES = {
    SchemaChangeKind.ADD_COLUMN: (T, structure("t", ID, NAME, NOTE, LABEL, version=2)),
    SchemaChangeKind.RENAME_COLUMN: (T, RENAMED),
    SchemaChangeKind.CHANGE_TYPE: (NARROW_TABLE, structure("t", ID, NAME, NOTE, LARGE, version=2)),
    SchemaChangeKind.DROP_COLUMN: (T, structure("t", ID, NAME, version=2)),
}


def test_every_sink_that_follows_schema_changes_stands_in_this_suite() -> None:
    keeping = {name for name in registry.names("sinks") if registry.load("sinks", name).capabilities.schema_changes}
    assert keeping == {"clickhouse", "starrocks", "postgres"}
    for name in keeping:
        assert {"plan", "apply"} <= vars(registry.load("sinks", name)).keys(), f"{name} inherits a refusal"


def test_the_plan_of_a_new_table_creates_it_and_reads_only(there: Destination) -> None:
    change = change_between("shop", 0, None, T)
    (*_, last) = there.sink().plan(change).statements
    assert last.startswith("CREATE TABLE ")
    assert there.columns() == [], "planning created the table"
    _applied_once(there, change)
    there.write(changes(T, (INSERT, None, row(1))))
    assert there.rows() == [(1, "a", "n")]


@pytest.mark.parametrize("kind", CHANGES)
def test_the_plan_is_what_apply_does_and_nothing_is_left_to_do_after_it(
    there: Destination, kind: SchemaChangeKind
) -> None:
    before, after = CHANGES[kind]
    there.write(changes(before, (INSERT, None, _row(before))))
    change = change_between("shop", 1, before, after)
    assert change.kinds == {kind}
    was = there.columns()
    sink = _sink(there)
    if kind not in sink.capabilities.schema_changes:
        _left_alone(there, change)
        return
    plan = sink.plan(change)
    assert plan.statements
    assert sink.plan(change) == plan, "the plan is another one when it is asked for again"
    assert there.columns() == was, "planning changed the table"
    _applied_once(there, change)
    applied = there.columns()
    assert applied != was
    there.write(changes(after, (INSERT, None, {**_row(after), "id": 2}), first=1), start=1, sink=_sink(there))
    assert there.columns() == applied, "the delivery still changed the table"
    assert [found[0] for found in there.rows(", ".join(c.name for c in after.columns))] == [1, 2]


@pytest.mark.parametrize("kind", CHANGES)
def test_rows_from_before_a_change_in_its_transaction_go_where_their_columns_are_now(
    there: Destination, kind: SchemaChangeKind, tmp_path: Path
) -> None:
    """The worker has seen the table before the driver changed it."""
    before, after = (table.with_fingerprint() for table in CHANGES[kind])
    change = change_between("shop", 3, before, after)
    sink = _sink(there)
    if not change.kinds <= sink.capabilities.schema_changes:
        return
    config = sink.config.model_dump(exclude_unset=True)
    plan = Plan("mill", "shop", str(tmp_path), there.columns.__qualname__, str(tmp_path),
                ((type(sink).__module__.split(".")[2], config),))  # fmt: skip
    log = LogWriter.open(str(tmp_path), LogConfig.model_validate({"fsync": False}))

    def deliver_next(barrier: Barrier, *blocks: Block) -> None:
        start, rows = log.tail.offset, sum(block.rows for block in blocks)
        log.append(Committed(blocks, rows, ((rows, Position(f"0/{start + rows:X}")),), barrier))
        (result,) = deliver(plan, Lane(start, start + rows, 0, 1, "key"))
        assert result.receipt.ok, result.receipt.error

    with closing(log):
        deliver_next(Barrier.NONE, changes(before, (INSERT, None, _row(before))))
        _sink(there).apply(change)
        deliver_next(
            Barrier.SCHEMA_CHANGE,
            changes(before, (UPDATE, None, _row(before)), (INSERT, None, {**_row(before), "id": 2})),
            changes(after, (INSERT, None, {**_row(after), "id": 3}), first=2),
        )
    POOL.close()
    names = [c.name for c in after.columns]
    new = [_row(after)[name] for name in names[1:]]
    older = [*new[:-1], None] if kind is SchemaChangeKind.ADD_COLUMN else new
    assert [(int(id), *values) for id, *values in there.rows(", ".join(names))] == [
        (1, *older), (2, *older), (3, *new)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [SchemaChangeKind.ADD_COLUMN, SchemaChangeKind.RENAME_COLUMN])
def test_a_delivery_that_meets_the_change_first_leaves_what_apply_would_leave(
    there: Destination, kind: SchemaChangeKind
) -> None:
    before, after = CHANGES[kind]
    there.write(changes(before, (INSERT, None, _row(before))))
    change = change_between("shop", 1, before, after)
    there.write(changes(after, (INSERT, None, {**_row(after), "id": 2}), first=1), start=1, sink=_sink(there))
    followed = there.columns()
    assert _sink(there).plan(change) == SchemaPlan()
    _sink(there).apply(change)
    assert there.columns() == followed


@pytest.mark.parametrize(
    ("options", "table"), [({}, structure("t", NAME, key=())), ({"create_tables": False}, T)], ids=["keyless", "strict"]
)
def test_a_plan_refuses_what_apply_refuses_and_nothing_is_made(
    there: Destination, options: dict[str, Any], table: Table
) -> None:
    sink = there.sink(**options)
    for step in (sink.plan, sink.apply):
        with pytest.raises(Refused):
            step(change_between("shop", 0, None, table))
    assert there.columns() == []


def test_a_table_that_the_source_dropped_stays(there: Destination) -> None:
    there.write(changes(T, (INSERT, None, row(1))))
    was = there.columns()
    change = SchemaChange("shop", 1, frozenset(), T, None)
    assert _sink(there).plan(change) == SchemaPlan()
    _sink(there).apply(change)
    assert there.columns() == was


def _sink(there: Destination) -> Any:
    """A new worker that may do all that it can."""
    sink = there.sink()
    can = "allow_destructive_ddl" in type(sink.config).model_fields
    return there.sink(allow_destructive_ddl=True) if can else sink


def _applied_once(there: Destination, change: SchemaChange) -> None:
    sink = _sink(there)
    sink.apply(change)
    applied = there.columns()
    for again in (sink, _sink(there)):  # the same worker, and one after a crash
        assert again.plan(change) == SchemaPlan(), "something is left to do"
        again.apply(change)
        assert there.columns() == applied, "applying it again changed the table"


def _left_alone(there: Destination, change: SchemaChange) -> None:
    """A kind that the sink does not name: it plans nothing, or refuses before it has changed anything."""
    was = there.columns()
    try:
        assert _sink(there).plan(change) == SchemaPlan()
        _sink(there).apply(change)
    except Refused:
        with pytest.raises(Refused):
            _sink(there).apply(change)
    assert there.columns() == was


def _row(table: Table) -> dict[str, Any]:
    return {c.name: 1 if c.name in ("id", "count") else "a" for c in table.columns}
