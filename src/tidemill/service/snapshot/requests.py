"""Snapshots that an operator starts, pauses, resumes and cancels, while the pipeline runs or before it starts.

A request is a row in the state store: the running driver and capture see it within a second.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from tidemill.config.advice import fill_in
from tidemill.config.pipeline import Pipeline
from tidemill.contracts import SnapshotRecord, SnapshotSource
from tidemill.errors import ConfigError, LifecycleError, TidemillError
from tidemill.model.snapshot import Bound, SnapshotState, SnapshotTable
from tidemill.model.tablenames import TableNames
from tidemill.service.snapshot.left_over import abandon
from tidemill.service.snapshot.plan import ASKED, OVER, REPAIR, now
from tidemill.service.snapshot.status import TableStatus, table_statuses
from tidemill.state import find_store

_EVERY_ROW = "1 = 1"  # a condition: sinks do not take the table for one whose missing rows are all on their way

_NAMED = 10
_SHOWN = 10  # snapshots, and all that are not over
_UNDER_WAY = (SnapshotState.RUNNING, SnapshotState.PAUSED)

WAITING = "waiting"
"""Shown of a snapshot that is to run, and whose tables nobody has looked for yet."""


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """A snapshot and its tables; none while the driver has not looked for them yet, and then it is `waiting`: for the
    pipeline to run, and for snapshots before it."""

    id: int
    why: str
    state: str
    began: str
    ended: str
    where: str
    tables: tuple[TableStatus, ...] = ()

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def start(pipeline: Pipeline, tables: Sequence[str], where: str) -> SnapshotStatus:
    """Copies all captured tables, or those named, as soon as the pipeline runs and earlier snapshots are over."""
    if not isinstance(pipeline.build_source(), SnapshotSource):
        raise ConfigError(
            f'a source of type "{pipeline.spec.source.type}" cannot copy its tables', where=pipeline.file,
            fix="Copy them to the destinations yourself.",
        )  # fmt: skip
    if where and not tables:
        raise ConfigError("--where needs --table: a condition is about the columns of one table", where=pipeline.file)
    with closing(pipeline.build_state()) as state:
        record = state.snapshots.begin(pipeline.name, ASKED, tables, where, now())
    return _status(record)


def check_names(pipeline: Pipeline, names: Sequence[str]) -> None:
    """Asks the source: `ConfigError` for the first name that is no captured table's and no pattern of one. A source
    that cannot be asked is asked when the snapshot begins, which fails if it finds no table."""
    source = pipeline.build_source()
    if not names or not isinstance(source, SnapshotSource):
        return
    try:
        with closing(source.snapshot_reader()) as reader:
            tables = reader.structures()
    except TidemillError:
        return
    for name in names:
        if '"' not in name and not any(map(TableNames([name]).match, tables)):
            known = sorted(table.full_name for table in tables)
            close = difflib.get_close_matches(name, known, 1)
            fix = f'Did you mean "{close[0]}"? ' if close else ""
            raise ConfigError(
                f'no captured table is called "{name}"', where=pipeline.file,
                fix=f"{fix}Captured are {', '.join(known[:_NAMED]) or 'no tables'}"
                + (f" and {len(known) - _NAMED} more." if len(known) > _NAMED else "."),
            )  # fmt: skip


def send_rows(pipeline: Pipeline, table: SnapshotTable, keys: Sequence[Bound]) -> int:
    """A snapshot of these rows alone, or of the whole table without `keys`; answers its number. It begins paused, so
    that the driver finds it whole: resumed half made, after a crash, it copies the table."""
    with closing(pipeline.build_state()) as state:
        store, name = state.snapshots, pipeline.name
        record = store.begin(name, REPAIR, [table.name], _EVERY_ROW, now(), state=SnapshotState.PAUSED)
        store.add_tables(name, record.id, [table])
        if keys:
            (copy,) = store.tables(name, record.id)
            store.plan(name, record.id, [(replace(copy, part=len(table.parts), points=tuple(keys)), [])])
        store.set_state(name, record.id, SnapshotState.RUNNING)
    return record.id


def state_of(pipeline: Pipeline, number: int) -> SnapshotState | None:
    with closing(pipeline.build_state()) as state:
        found = (each.state for each in state.snapshots.records(pipeline.name) if each.id == number)
        return next(found, None)


def status(pipeline: Pipeline) -> list[SnapshotStatus]:
    """The last snapshots, newest first, with all that are not over."""
    state = find_store(pipeline.state_uri)
    if state is None:
        return []
    with closing(state):
        store = state.snapshots
        return [
            _status(record, table_statuses(store.tables(pipeline.name, record.id)))
            for number, record in enumerate(store.records(pipeline.name))
            if number < _SHOWN or record.state in _UNDER_WAY
        ]


def pause(pipeline: Pipeline) -> SnapshotStatus:
    return _change(pipeline, SnapshotState.PAUSED)


def resume(pipeline: Pipeline) -> SnapshotStatus:
    return _change(pipeline, SnapshotState.RUNNING)


def cancel(pipeline: Pipeline) -> SnapshotStatus:
    """What was copied stays at the destinations; the rest never comes."""
    return _change(pipeline, SnapshotState.CANCELLED)


def newest(pipeline: Pipeline) -> int:
    """The number of the newest snapshot; 0 if there was none."""
    state = find_store(pipeline.state_uri)
    if state is None:
        return 0
    with closing(state):
        return max((record.id for record in state.snapshots.records(pipeline.name, 1)), default=0)


def cancel_after(pipeline: Pipeline, number: int) -> None:
    """Snapshots that began after that one and are not over: of a document that was tried out and put away again."""
    with closing(pipeline.build_state()) as state:
        for record in state.snapshots.records(pipeline.name):
            if record.id > number and record.state in _UNDER_WAY:
                state.snapshots.set_state(pipeline.name, record.id, SnapshotState.CANCELLED, now())


def _change(pipeline: Pipeline, into: SnapshotState) -> SnapshotStatus:
    with closing(pipeline.build_state()) as state:
        store = state.snapshots
        record = store.active(pipeline.name)
        if record is not None and into is SnapshotState.CANCELLED and record.recovers_from >= 0:
            abandon(pipeline, store.tables(pipeline.name, record.id))
        ended = now() if into is SnapshotState.CANCELLED else ""
        # It may be over since that look: what was done or cancelled does not begin again.
        if record is None or not store.set_state(pipeline.name, record.id, into, ended):
            raise LifecycleError(
                f'no snapshot of pipeline "{pipeline.name}" is under way', where=pipeline.file,
                fix=fill_in('Start one: "tidemill snapshot start FILE".', pipeline),
            )  # fmt: skip
        (changed,) = [each for each in store.records(pipeline.name) if each.id == record.id]
        return _status(changed, table_statuses(store.tables(pipeline.name, record.id)))


def _status(record: SnapshotRecord, tables: tuple[TableStatus, ...] = ()) -> SnapshotStatus:
    waits = record.state is SnapshotState.RUNNING and not tables
    state = WAITING if waits else str(record.state)
    if record.state is SnapshotState.CANCELLED:
        tables = tuple(each if each.state in map(str, OVER) else replace(each, state=state) for each in tables)
    return SnapshotStatus(record.id, record.why, state, record.began, record.ended, record.where, tables)
