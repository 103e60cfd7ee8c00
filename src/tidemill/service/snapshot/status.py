"""How far a snapshot is, for `run`, `snapshot status` and programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.config.pipeline import Pipeline
from tidemill.contracts import TableCopy
from tidemill.log.reader import LogReader
from tidemill.service.position.positions import sink_positions
from tidemill.service.snapshot.plan import OVER


@dataclass(frozen=True, slots=True)
class TableStatus:
    """How far the copy of a table is: `state` is pending, copying, catching_up, ready or failed, or cancelled with its
    snapshot; in the status of a pipeline also paused with it. `estimate` is the source's own guess of its rows, -1 if
    it has none; `rows` of them are in the log, in `adopted` of `chunks` chunks that are planned so far."""

    name: str
    state: str
    rows: int = 0
    estimate: int = -1
    chunks: int = 0
    adopted: int = 0
    error: str = ""
    fix: str = ""


def table_statuses(tables: Sequence[TableCopy], *, paused: bool = False) -> tuple[TableStatus, ...]:
    """`paused`: their snapshot is."""
    return tuple(
        TableStatus(
            t.name,
            "paused" if paused and t.state not in OVER else str(t.state),
            t.rows,
            t.structure.estimate,
            t.chunks,
            t.adopted,
            t.error,
            t.fix,
        )
        for t in tables
    )


def count_undelivered(pipeline: Pipeline) -> dict[str, int]:
    """How many events of the log each sink has not got yet, copied rows and changes: a table is `ready` when its rows
    are in the log, not when sinks have them."""
    tail = LogReader(pipeline.log_uri).tail().offset
    reached = ((at.sink, at.checkpoint.offset if at.checkpoint else 0) for at in sink_positions(pipeline))
    return {sink: max(0, tail - offset) for sink, offset in reached}
