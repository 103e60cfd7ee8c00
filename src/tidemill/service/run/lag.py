"""How much waits in the log, and for how long."""

from __future__ import annotations

import time

import pyarrow.compute as pc

from tidemill.errors import TidemillError
from tidemill.log.reader import LogReader
from tidemill.model.position import Offset
from tidemill.stream.position.ledger import Ledger
from tidemill.telemetry import events

_LOOK_SECONDS = 1.0


class WaitingEvents:
    """Those in the log that are not delivered. Only numbers for people: who reads the log to deliver it says what is
    wrong with it."""

    def __init__(self, log: LogReader, ledger: Ledger) -> None:
        self._log, self._ledger, self._lag, self._last_tail = log, ledger, Lag(log), 0

    @property
    def head(self) -> Offset:
        return self._log.head()

    def tail(self) -> Offset:
        """Where the log ends; as it was last known, if it cannot be read now."""
        try:
            self._last_tail = self._log.tail().offset
        except TidemillError as error:
            events.warn("pipeline.lag_unknown", error=error.what)
        return self._last_tail

    def count(self, tail: Offset) -> int:
        try:
            return max(0, tail - max(self._ledger.checkpoint.offset, self._log.head()))
        except TidemillError:
            return max(0, tail - self._ledger.checkpoint.offset)

    def seconds(self, tail: Offset, waiting: int) -> float:
        """Since the commit of the oldest."""
        return self._lag.seconds(tail - waiting, tail)


class Lag:
    """Reads that event's commit time from the log: at once for the first one that waits, then once a second while
    others take its place, because a block's checksum is read with it."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._offset: Offset | None = None
        self._committed = 0.0
        self._look_at = 0.0

    def seconds(self, offset: Offset, tail: Offset) -> float:
        """Since the commit of the event at `offset`; 0 when nothing waits."""
        if offset >= tail:
            self._offset = None
            return 0.0
        if self._offset is None or (offset != self._offset and time.monotonic() >= self._look_at):
            try:
                self._committed = self._commit_of(offset)
            except TidemillError:  # only a number for people; who reads the log to deliver it says what is wrong
                return max(0.0, time.time() - self._committed) if self._offset is not None else 0.0
            self._offset, self._look_at = offset, time.monotonic() + _LOOK_SECONDS
        return max(0.0, time.time() - self._committed)

    def _commit_of(self, offset: Offset) -> float:
        """Seconds since 1970."""
        for ref in self._log.refs(offset, offset + 1):
            if ref.commit_time is not None:
                return ref.commit_time / 1e6
            block = self._log.read(ref)
            # A message that was written outside of a transaction has none.
            if block.rows and (committed := pc.cast(block.batch.column("commit_time"), "int64")[0]).is_valid:
                return float(committed.as_py() / 1e6)
        return next(self._log.entries(offset)).written_at / 1000
