"""Begins capture anew where the source has lost our position: a new slot, or the end of the binlog.

Called by `tidemill recover` for a stopped pipeline, and by the capture process itself with `snapshot: {mode:
when_needed}`. What the log still holds is delivered as ever. With `copy` all captured tables are copied again, and
state sinks remove what the source no longer has (ADR 35).

The log's new position is noted last. Whoever is killed before that leaves a pipeline whose position is still lost, and
which says so: the recovery is run again, and replaces the one that was begun. After it, everything that the copy needs
is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidemill.capture.confirmed import forget_confirmed
from tidemill.config.pipeline import Pipeline
from tidemill.contracts import RecoverableSink, SnapshotSource, SnapshotStore
from tidemill.errors import ConfigError
from tidemill.log.entry import Tail
from tidemill.log.gap import Gap, write_gap
from tidemill.log.writer import LogWriter
from tidemill.model.change import Committed
from tidemill.model.position import Offset, Position
from tidemill.model.snapshot import SnapshotState
from tidemill.telemetry import events
from tidemill.telemetry.failpoints import failpoint

LOST = "the position was lost"
Confirm = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class NewBeginning:
    """Capture goes on `after` a position; `lost` says what is missing in the log. `snapshot`: the copy that was begun,
    0 for none."""

    after: Position
    lost: str
    snapshot: int = 0


def begin_anew(pipeline: Pipeline, log: LogWriter, confirm: Confirm, *, copy: bool) -> NewBeginning:
    """`confirm` is called with what is lost before anything is changed, and raises to leave everything as it is."""
    before = log.tail
    with (
        closing(pipeline.open_registry()) as schemas,
        closing(pipeline.build_source()) as source,
        closing(pipeline.build_state()) as state,
    ):
        if copy and not isinstance(source, SnapshotSource):
            raise ConfigError(
                f'a source of type "{pipeline.spec.source.type}" cannot copy its tables', where=pipeline.file,
                fix="Go on with --accept-gap, and copy them to the destinations yourself.",
            )  # fmt: skip
        other = source.other_server(before.position, schemas) if before.position else ""
        confirm(_consequence(pipeline, before, other, copy=copy))
        snapshot = _begin_copy(state.snapshots, pipeline.name, before.offset) if copy else 0
        failpoint("recovery.copy_begun")
        now = source.renew(schemas)
        forget_confirmed(state, pipeline.name, pipeline.state_path)
        failpoint("recovery.renewed")
        if copy:
            _begin_at_sinks(pipeline, source, before.offset)
            failpoint("recovery.sinks_begun")
    jump(log, now, snapshot)
    failpoint("recovery.noted")
    lost = f"changes between {before.position or 'the beginning'} and {now}"
    if other:
        lost = f"changes of the server before after {before.position}, and of this one before {now} ({other})"
    return NewBeginning(now, lost, snapshot)


def jump(log: LogWriter, to: Position, snapshot: int = 0) -> None:
    """The log's next event is what commits after this position."""
    write_gap(log.store, Gap(log.tail.offset, snapshot))
    log.append(Committed((), 0, ((0, to),)))


def _consequence(pipeline: Pipeline, before: Tail, other: str, *, copy: bool) -> str:
    gap = f"changes of {pipeline.name} after {before.position or 'the beginning'} and before now are never captured"
    if copy:
        gap += (
            "; all captured tables are copied again, and rows that the source no longer has are removed at sinks that"
            " keep tables"
        )
    return f"{other}; if it is the right one: {gap}" if other else gap


def _begin_copy(store: SnapshotStore, pipeline: str, since: Offset) -> int:
    """The number of the snapshot. Those that are under way are of the time before: their tables are copied by it."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    while (older := store.active(pipeline)) is not None:
        store.set_state(pipeline, older.id, SnapshotState.CANCELLED, at)
        events.emit("snapshot.replaced", snapshot=older.id, why=LOST)
    return store.begin(pipeline, LOST, (), "", at, recovers_from=since).id


def _begin_at_sinks(pipeline: Pipeline, source: Any, since: Offset) -> None:
    with closing(source.snapshot_reader()) as reader:
        tables = [found.table for found in reader.tables()]
    for sink in pipeline.build_sinks():
        with closing(sink):
            if isinstance(sink, RecoverableSink) and sink.capabilities.upsert:
                sink.begin_recovery(tables, pipeline.source_id, since)
