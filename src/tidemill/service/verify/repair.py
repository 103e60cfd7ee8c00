"""Puts right what `verify` found: missing and different rows are sent again, extra ones deleted.

Rows are sent as a snapshot of their keys (`snapshot_requests.send_rows`): the source is read anew, and of what was read
the rows that changed meanwhile are left out when the chunk comes into the log (ADR 28), so that no repair overwrites a
newer change. They come to every sink of the pipeline, as `read` events.

An extra row is deleted at the sink itself, not by an event: an event in the log would stand after an insert of the same
key that came meanwhile, and delete that too. The sink holds the row, looks at the source once more, and deletes what it
held (`RowAudit.remove`, ADR 36).
"""

from __future__ import annotations

import time
from dataclasses import replace

from tidemill.config import Pipeline
from tidemill.contracts import RowAudit, RowFault, SnapshotReader
from tidemill.errors import Refused
from tidemill.log.reader import LogReader
from tidemill.model.position import Offset
from tidemill.model.snapshot import Bound, SnapshotState
from tidemill.service.position.positions import sink_positions
from tidemill.service.snapshot import requests as snapshot_requests
from tidemill.service.verify.row_comparison import RowComparison
from tidemill.service.verify.verdicts import RowRepair, TableVerdict

_PAUSE_SECONDS = 0.2
_LAGS = "extra rows stay: the pipeline has not come to this place in time. Run it again while the pipeline runs"


class Repairer:
    """Of one table."""

    def __init__(
        self, pipeline: Pipeline, sink: str, reader: SnapshotReader, audit: RowAudit, rows: RowComparison,
        wait_seconds: float,
    ) -> None:  # fmt: skip
        self._pipeline, self._sink, self._reader, self._audit = pipeline, sink, reader, audit
        self._rows, self._wait = rows, wait_seconds
        self._log = LogReader(pipeline.log_uri)

    def run(self, verdict: TableVerdict) -> TableVerdict:
        """The verdict afterwards: what differs still. The keys of extra rows are sent too, though the source has none
        of them: when the snapshot is delivered, the sink has passed every place at which they were looked for."""
        # With more than could be looked at, the whole table is sent.
        keys = () if verdict.more else tuple(key.key for key in verdict.keys)
        extra = [key.key for key in verdict.keys if key.fault is RowFault.EXTRA]
        number = snapshot_requests.send_rows(self._pipeline, self._rows.table, keys)
        sent = -1 if verdict.more else len(keys) - len(extra)
        if not self._await(number):
            kept = _LAGS if extra else ""
            return replace(verdict, repair=RowRepair(sent, number, arrived=False, kept=kept))
        deleted, kept = self._delete(extra)
        return replace(self._rows.again(verdict), repair=RowRepair(sent, number, deleted, kept=kept))

    def _delete(self, keys: list[Bound]) -> tuple[int, str]:
        if not keys:
            return 0, ""
        try:
            return self._audit.remove(keys, self._is_gone), ""
        except Refused as error:
            return 0, error.what

    def _is_gone(self, key: Bound) -> bool:
        # On a standby, only when it has all that any sink can have: what the log has.
        self._reader.observe(self._log.tail().position)
        return self._rows.is_gone(key)

    def _await(self, number: int) -> bool:
        """Whether the snapshot ended well and the sink has all of it, within the time that is waited."""
        deadline = time.monotonic() + self._wait
        end: Offset | None = None
        while True:
            if end is None and (state := snapshot_requests.state_of(self._pipeline, number)) is SnapshotState.DONE:
                end = self._log.tail().offset
            elif end is None and state in (SnapshotState.CANCELLED, SnapshotState.FAILED):
                return False
            if end is not None and self._reached() >= end:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_SECONDS)

    def _reached(self) -> Offset:
        reached = next((at.checkpoint for at in sink_positions(self._pipeline) if at.sink == self._sink), None)
        return reached.offset if reached is not None else 0
