"""Ends of transactions that `scan` leaves to Python: of spilled ones, of XA, and what was rolled back.

Called by `control` for events, by `statements` for what the binlog says in SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.decoders._shared.mysql.gtid import MysqlGtids
from tidemill.decoders.binlog import events
from tidemill.decoders.binlog import scan as scanning
from tidemill.decoders.binlog.emit import Emitter
from tidemill.decoders.binlog.progress import Progress
from tidemill.decoders.binlog.stream import BinlogStream, BinlogTransaction
from tidemill.errors import SKIP, SourceError
from tidemill.model.change import Change, SpillAborted

_SAVEPOINT = re.compile(r"\s*(?:ROLLBACK\s+TO\s+)?(?:SAVEPOINT\s+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An XA transaction whose rows are spilled, waiting for its commit."""

    spill: int
    events: int
    began: BinlogTransaction


class TransactionEnds:
    def __init__(self, stream: BinlogStream, progress: Progress, emitter: Emitter) -> None:
        self._stream = stream
        self._progress = progress
        self._emitter = emitter
        self._prepared: dict[events.Xid, _Prepared] = {}

    @property
    def waiting(self) -> bool:
        """Whether a prepared XA transaction waits for its end."""
        return bool(self._prepared)

    def commit(self, seconds: int, xid: int, end: int) -> Iterator[Change]:
        """The end of a transaction that was spilled, or that XA held."""
        yield from self._spill_rest(end)
        yield self._commit_spill(seconds, xid)

    def roll_back(self, end: int) -> Iterator[Change]:
        yield from self._spill_rest(end)
        self._progress.finish(self._emitter.end_spill())
        if self._emitter.spilled:
            yield SpillAborted(self._emitter.spill)
        yield self._emitter.nothing()

    def abandon(self) -> Iterator[Change]:
        """A server that died while it wrote a transaction leaves its first events at the end of a file; when it came
        back it rolled the changes back, and the stream goes on with the next file. (MySQL cuts the file, MariaDB does
        not.)"""
        state = self._stream.state
        if not state[scanning.OPEN]:
            return
        if state[scanning.SPILLING]:
            state[scanning.ROWS] = 0
            self._emitter.end_spill()
            if self._emitter.spilled:
                yield SpillAborted(self._emitter.spill)
        else:
            state[scanning.ROWS] = state[scanning.OPEN_ROW]
            state[scanning.TXS] -= 1
            state[[scanning.OPEN, scanning.HELD]] = 0

    def _spill_rest(self, end: int) -> Iterator[Change]:
        if self._stream.state[scanning.OPEN] != 2:
            raise self._stream.broken(scanning.BAD_EVENT)
        yield from self._emitter.spill_now()
        self._stream.state[scanning.POS] = end

    def _commit_spill(self, seconds: int, xid: int) -> Change:
        emitter = self._emitter
        ended = emitter.end_spill()
        self._progress.finish(ended)
        return emitter.committed_spill(emitter.spill, emitter.spilled, ended, ended.commit_time(seconds), xid)

    # Savepoints

    def save(self, text: str) -> None:
        stream, state = self._stream, self._stream.state
        if stream.saved_at != state[scanning.OPEN_AT]:
            stream.saved, stream.saved_at = {}, int(state[scanning.OPEN_AT])
        stream.saved[_savepoint(text)] = int(state[scanning.ROWS])

    def roll_back_to(self, text: str) -> None:
        """MariaDB writes down what a savepoint took back where the transaction used a temporary table, or a table of
        an engine without transactions; rows of such a table are not among these, but in a transaction of their own."""
        stream, state = self._stream, self._stream.state
        row = stream.saved.get(_savepoint(text)) if stream.saved_at == state[scanning.OPEN_AT] else None
        if row is None or state[scanning.SPILLING] or state[scanning.OPEN] != 2:
            raise SourceError(
                "a large transaction was rolled back to a savepoint after its changes were written to the binlog",
                where=stream.where(),
                fix="That happens where a transaction uses temporary tables, or an engine without transactions."
                f" {SKIP}",
            )
        state[scanning.ROWS] = row

    # XA

    def prepare(self, body: bytes, seconds: int, end: int) -> Iterator[Change]:
        """The rows of a prepared XA transaction wait, invisible, until it is committed or rolled back.

        Its GTID counts as done only then: after a restart the server sends it again, as long as positions are GTID sets
        of MySQL. A position of MariaDB, or in a file, cannot leave one out; there the commit of a transaction that was
        prepared before the restart is an error (`resolve`), never a silent loss (invariant 7).
        """
        one_phase, xid = events.xa_prepare(body)
        yield from self._spill_rest(end)
        if one_phase:
            yield self._commit_spill(seconds, 0)
            return
        began = self._emitter.end_spill()
        if not isinstance(self._stream.place.gtids, MysqlGtids):
            self._progress.finish(began)
        self._prepared[xid] = _Prepared(self._emitter.spill, self._emitter.spilled, began)

    def resolve(self, xid: events.Xid, committed: bool, seconds: int, end: int) -> Iterator[Change]:
        """XA COMMIT or XA ROLLBACK of what was prepared."""
        own = self._emitter.take_open(end)
        yield from self._emitter.flush(spill_open=False)
        held = self._prepared.pop(xid, None)
        if held is None and committed:
            raise SourceError(
                "an XA transaction was committed whose changes were sent before this stream began",
                where=self._stream.where(),
                fix=f"What it changed is not known here. {SKIP}",
            )
        if held is not None and isinstance(self._stream.place.gtids, MysqlGtids):
            self._progress.finish(held.began)
        self._progress.finish(own)
        if held is not None and held.events and not committed:
            yield SpillAborted(held.spill)
        if held is not None and committed:
            yield self._emitter.committed_spill(held.spill, held.events, own, own.commit_time(seconds), 0)
        else:
            yield self._emitter.nothing()


def _savepoint(text: str) -> str:
    """The name in `SAVEPOINT x` and `ROLLBACK TO x`; servers do not tell upper case from lower in them."""
    return _SAVEPOINT.sub("", text).strip().lower()
