"""Moves a stream's `place` over the transactions that ended, and names the places of single ones.

`emit` calls it for those that `scan` saw whole, the parts that end transactions themselves for the others.
"""

from __future__ import annotations

import numpy as np

from tidemill.decoders._shared.mysql.gtid import MariadbGtids, MysqlGtids
from tidemill.decoders.binlog import scan as scanning
from tidemill.decoders.binlog.rows import Domain, Uuid
from tidemill.decoders.binlog.stream import BinlogStream, BinlogTransaction
from tidemill.errors import SKIP, SourceError
from tidemill.model.position import Position


class Progress:
    def __init__(self, stream: BinlogStream) -> None:
        self._stream = stream
        self._place = stream.place

    def advance(self, first: int, last: int) -> None:
        """`place` moves over the noted transactions from `first` up to, not including, `last`."""
        notes = self._stream.rows
        name, number = notes.tx_name[first:last], notes.tx_no[first:last]
        if self._place.gtids is not None:
            breaks = np.flatnonzero((np.diff(name) != 0) | (np.diff(number) != 1)) + 1
            starts, stops = np.append(0, breaks).tolist(), np.append(breaks, len(name)).tolist()
            for start, stop in zip(starts, stops, strict=True):
                self._add_gtids(int(name[start]), int(number[start]), int(number[stop - 1]))
        self._place.end_transaction(int(notes.tx_end[last - 1]))

    def finish(self, transaction: BinlogTransaction) -> None:
        """A transaction that ended outside of `scan`."""
        if transaction.name or self._place.gtids is not None:
            self._add_gtids(transaction.name, transaction.number, transaction.number)
        self._place.end_transaction(int(self._stream.state[scanning.LOG_POS]))

    def position(self, transaction: BinlogTransaction | None) -> Position:
        if transaction is not None and transaction.name:
            return Position(f"{self._stream.names[transaction.name].prefix}{transaction.number}")
        return Position(self._stream.where())

    def here(self, transaction: BinlogTransaction | None) -> Position:
        """Of the kind that the stream resumes by."""
        return self.position(None if self._place.gtids is None else transaction)

    def _add_gtids(self, name: int, first: int, last: int) -> None:
        """Adds the GTIDs of one server from `first` to `last`."""
        match self._place.gtids, self._stream.names[name].counter:
            case MysqlGtids() as gtids, Uuid(uuid, tag):
                if first == last:
                    gtids.add(uuid, first, tag)
                else:
                    gtids.add_interval(uuid, tag, first, last + 1)
            case MariadbGtids() as gtids, Domain(domain, server):
                gtids.add(domain, server, last)
            case None, _:
                pass
            case _:
                raise SourceError(
                    "a transaction has no GTID, but this source resumes by GTID",
                    where=self._stream.where(),
                    fix=f"Set gtid_mode=ON at the server. {SKIP}",
                )
