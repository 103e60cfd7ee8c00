"""The end of a recovery: state sinks remove what the source no longer has, when they have all of the copy.

Called by the driver of snapshots when every table is in the log. A row that no event since the recovery's beginning has
written is not in the source (contracts/recovery.py), so it does not matter when it is removed, or how often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from tidemill.config.advice import fill_in
from tidemill.config.pipeline import Pipeline
from tidemill.contracts import RecoverableSink, SnapshotRecord, TableCopy
from tidemill.errors import Refused, TidemillError, is_retryable
from tidemill.log.reader import LogReader
from tidemill.model.position import Offset
from tidemill.model.snapshot import TableState
from tidemill.service.snapshot.plan import filter_of, settings_of
from tidemill.telemetry import events
from tidemill.telemetry.failpoints import failpoint

Delivered = Callable[[str], Offset | None]
"""Up to which offset a sink has everything, by its id; None if it is not delivered to any more."""


class LeftOver:
    """Of one snapshot; `remove` is called until it says that it is done."""

    def __init__(self, pipeline: Pipeline, record: SnapshotRecord, delivered: Delivered) -> None:
        self._pipeline, self._since, self._delivered = pipeline, record.recovers_from, delivered
        self._config = settings_of(pipeline)
        self._wanted = LogReader(pipeline.log_uri).tail().offset  # the whole copy stands before it
        self._done: set[str] = set()
        self._ended: set[tuple[str, str]] = set()  # sinks, each with a table whose left-over rows are gone

    def remove(self, tables: Sequence[TableCopy]) -> bool:
        """True when every sink has removed what is left over, or cannot. Errors of a sink that a retry may mend are
        raised; what was done before them need not be done again."""
        for spec in self._pipeline.spec.sinks:
            name = spec.config.id
            if name in self._done:
                continue
            with closing(self._pipeline.build_sink(spec)) as sink:
                if isinstance(sink, RecoverableSink) and sink.capabilities.upsert:
                    reached = self._delivered(name)
                    if reached is not None and reached < self._wanted:
                        continue
                    self._end(sink, name, tables, given_up=reached is None)
            self._done.add(name)
        return len(self._done) == len(self._pipeline.spec.sinks)

    def _end(self, sink: RecoverableSink, name: str, tables: Sequence[TableCopy], *, given_up: bool) -> None:
        if self._pipeline.spec.processors:
            events.warn(
                "recovery.processors", sink=name,
                fix="Rows that processors send to tables of other names are not looked at: compare those yourself.",
            )  # fmt: skip
        waits: TidemillError | None = None
        for copy in tables:
            if (name, copy.name) in self._ended:
                continue
            table = copy.structure.table
            whole = copy.state is TableState.READY and not filter_of(copy.structure, self._config) and not given_up
            try:
                removed = sink.end_recovery(table, self._pipeline.source_id, self._since, remove=whole)
            except Refused as error:
                self._ended.add((name, copy.name))
                events.warn("recovery.rows_stay", sink=name, table=copy.name, error=error.what, fix=error.fix)
                continue
            except TidemillError as error:
                if not is_retryable(error):
                    raise
                waits = error  # for rows of another table that point to them, maybe
                continue
            self._ended.add((name, copy.name))
            failpoint("recovery.removed")
            if not whole:
                events.warn(
                    "recovery.rows_stay", sink=name, table=copy.name,
                    error="the sink has not all of the table's copy: it is filtered, it failed, or the sink did",
                    fix=fill_in(
                        "Rows that the source no longer has may still be there. tidemill verify FILE says which.",
                        self._pipeline,
                    ),
                )  # fmt: skip
            elif table.key:
                events.emit("recovery.removed", sink=name, table=copy.name, rows=removed)
        if waits is not None:
            raise waits


def abandon(pipeline: Pipeline, tables: Sequence[TableCopy]) -> None:
    """The recovery is not gone on with: sinks forget what they noted for it, and nothing is removed."""
    found = [copy.structure.table for copy in tables]
    if not found:
        with closing(pipeline.build_source().snapshot_reader()) as reader:
            found = [table.table for table in reader.tables()]
    for sink in pipeline.build_sinks():
        with closing(sink):
            if isinstance(sink, RecoverableSink) and sink.capabilities.upsert:
                for table in found:
                    sink.end_recovery(table, pipeline.source_id, 0, remove=False)
