"""Whether a server still has the history that our position belongs to (ADR 22).

A position is a number, and a server that was put back to an older state, or promoted without the last of its WAL, gives
the same numbers to other transactions. So a source remembers the last transaction it has seen (LSN, xid, commit time),
confirms to the server nothing beyond that transaction's commit, and begins the next stream there: the first thing to
come must be that transaction again. So it is one that must come again: the server also streams large transactions of
which we want nothing, and leaves them out the next time. Before that, system identifier and timeline are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import orjson

from tidemill.contracts import Schemas
from tidemill.errors import PositionLost
from tidemill.model.columns import Ints
from tidemill.sources.postgres.lsn import format_lsn, parse_lsn

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig

NAME = "postgres.witness"
_TWO_THOUSAND = datetime(2000, 1, 1, tzinfo=UTC)  # where PostgreSQL's clock starts
#: WAL of others that may be kept for the sake of the last transaction, before a newer one is made or it is given up.
SLACK_BYTES = 1 << 20

#: A command of the replication protocol, answered with rows (manual 54.4).
Ask = Callable[[str], list[tuple[object, ...]]]
RESTORED = (
    "Check the dsn. If the server was restored or failed over on purpose: the destinations hold changes that it no"
    ' longer has, and lack what it did instead. Run "tidemill recover FILE --snapshot" to copy the tables again'
    ' and go on, or "tidemill recover FILE --accept-gap" to go on with that difference.'
)


@dataclass(frozen=True, slots=True)
class ServerTimeline:
    """`timeline` is 0 where it says nothing: a standby that is promoted changes it in the middle of a stream."""

    system: str
    timeline: int


@dataclass(frozen=True, slots=True)
class WitnessedTransaction:
    lsn: int
    end: int
    xid: int
    time: int


@dataclass(frozen=True, slots=True)
class WitnessMemory:
    """What is kept across restarts. `stream` is what the server was asked to send: with other publications it may leave
    out what it sent before. `closed`: the stream ended in order, and `last` is the last that was seen of it. `placed`:
    where an operator lets the log go on, which need not be where a transaction ends."""

    server: ServerTimeline
    stream: str
    last: WitnessedTransaction | None
    closed: bool = False
    placed: int = 0

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, document: bytes) -> WitnessMemory:
        kept = orjson.loads(document)
        last = kept["last"]
        return cls(
            ServerTimeline(**kept["server"]),
            kept["stream"],
            WitnessedTransaction(**last) if last else None,
            kept.get("closed", False),
            kept.get("placed", 0),
        )


def identify(ask: Ask, *, recovering: bool) -> ServerTimeline:
    system, timeline = ask("IDENTIFY_SYSTEM")[0][:2]
    return ServerTimeline(str(system), 0 if recovering else int(str(timeline)))


def check_server(memory: WitnessMemory, now: ServerTimeline, known: int, ask: Ask, where: str) -> WitnessMemory:
    """The memory as it holds at this server, or `PositionLost`. `known` is where our log ends."""
    before = memory.server
    if now.system != before.system:
        _raise_lost(f"this is another server: its system identifier is {now.system}, not {before.system}", where)
    fork = _fork(before.timeline, now.timeline, ask) if before.timeline and now.timeline else None
    if fork is None:
        return replace(memory, server=now)
    if known > fork:
        _raise_lost(
            f"the server is on timeline {now.timeline}, which left ours ({before.timeline}) at {format_lsn(fork)},"
            f" before our last position {format_lsn(known)}",
            where,
        )
    # What came later on the old timeline is not in our log: nothing is lost with it.
    last = memory.last if memory.last and memory.last.end <= fork else None
    return replace(memory, server=now, last=last)


def check_end(memory: WitnessMemory, end: int, where: str) -> None:
    """A transaction that was sent was on the server's disk: its WAL cannot end before it."""
    last = memory.last
    if last is not None and last.end > end:
        _raise_lost(
            f"the server's WAL ends at {format_lsn(end)}, before a transaction that it sent ({_describe(last)})", where
        )


def _fork(before: int, now: int, ask: Ask) -> int | None:
    """Where the server's history left timeline `before`; None if it is still on it, 0 if it never was."""
    if now == before:
        return None
    if now < before:
        return 0
    content = ask(f"TIMELINE_HISTORY {now}")[0][1]
    text = content.decode(errors="replace") if isinstance(content, bytes) else str(content)
    for line in text.splitlines():
        tokens = line.split()
        if len(tokens) >= 2 and tokens[0] == str(before):
            return parse_lsn(tokens[1])
    return 0


class WalWitness:
    """Of one connection: compares what the server sends again, and keeps the newest transaction."""

    def __init__(self, config: PostgresConfig, schemas: Schemas) -> None:
        self.schemas, self._where = schemas, config.where
        self._stream = _stream(config)
        document = schemas.recall(NAME)
        self._memory = WitnessMemory.from_json(document) if document else None
        self._newest: WitnessedTransaction | None = None
        self._expected: WitnessedTransaction | None = None
        self._boundary = 0

    @property
    def last(self) -> WitnessedTransaction | None:
        """The newest transaction that is remembered for good."""
        return self._memory.last if self._memory else None

    @property
    def pending(self) -> bool:
        return self._expected is not None or self._boundary > 0

    def forget(self) -> None:
        """For a source that begins anew."""
        self._memory = None

    def meet(self, now: ServerTimeline, known: int, end: int, ask: Ask) -> None:
        """Compares what the server says of itself. Without a memory it is taken as it is, and remembered."""
        memory = self._memory
        if memory is None:
            memory = WitnessMemory(now, self._stream, None)
        else:
            memory = check_server(memory, now, known, ask, self._where)
            if memory.stream != self._stream:
                memory = replace(memory, stream=self._stream, last=None)
            check_end(memory, end, self._where)
        # A process that was killed has logged more than it noted, and its log ends with a transaction. After one that
        # closed, a log that ends later was moved by an operator: until it has grown, that is no transaction's end.
        self._keep(replace(memory, closed=False, placed=known if memory.closed else memory.placed))

    def rewind(self, begin: int, confirmed: int) -> int:
        """Where the stream must begin to bring the last transaction again. What is before `confirmed` never comes."""
        memory, last = self._memory, self.last
        if memory is None or last is None or last.lsn < confirmed:
            return begin
        self._expected = last
        self._boundary = begin if begin > last.end and begin != memory.placed else 0
        return min(begin, last.lsn)

    def observe(self, lsn: Ints, end: Ints, xid: Ints, time: Ints, again: bool) -> None:
        """Transactions in the order of their commits, as the decoder calls it. What does not come `again` may be
        compared, and is never remembered."""
        if self._expected is not None and lsn[-1] >= self._expected.lsn:
            at = int(np.searchsorted(lsn, self._expected.lsn))
            found = WitnessedTransaction(int(lsn[at]), int(end[at]), int(xid[at]), int(time[at]))
            if found != self._expected:
                self._differs(self._expected, _describe(found))
            self._expected = None
        if self._boundary and end[-1] >= self._boundary:
            if self._boundary not in end:
                self._gap()
            self._boundary = 0
        real = np.flatnonzero(xid)  # a message outside transactions has none
        if again and len(real):
            at = int(real[-1])
            self._newest = WitnessedTransaction(int(lsn[at]), int(end[at]), int(xid[at]), int(time[at]))

    def judge(self, wal_end: int) -> None:
        """All that was committed before `wal_end` has been observed."""
        if self._expected is not None and wal_end >= self._expected.end:
            self._differs(self._expected, "nothing")
        if self._boundary and wal_end >= self._boundary:
            self._gap()

    def note(self) -> None:
        """Remembers the newest transaction, once its history is known to be ours. Durable when it returns, so that the
        position may be confirmed up to there."""
        memory, newest = self._memory, self._newest
        if memory is None or newest is None or self.pending:
            return
        if memory.last is not None and newest.lsn <= memory.last.lsn:
            return
        self._keep(replace(memory, last=newest))

    def close(self) -> None:
        self.note()
        if self._memory is not None and not self.pending:
            self._keep(replace(self._memory, closed=True))

    def _keep(self, memory: WitnessMemory) -> None:
        if memory != self._memory:
            self.schemas.remember(NAME, memory.to_json())
            self._memory = memory

    def _differs(self, expected: WitnessedTransaction, found: str) -> NoReturn:
        _raise_lost(
            f"the server's history is another one: where it sent {_describe(expected)}, it now has {found}", self._where
        )

    def _gap(self) -> NoReturn:
        _raise_lost(
            "the server's history is another one: no transaction of it ends at our last position"
            f" {format_lsn(self._boundary)}",
            self._where,
        )


def begin(schemas: Schemas, config: PostgresConfig, system: str) -> None:
    """The server with which a source begins anew; nothing is remembered where its identifier is not known."""
    memory = WitnessMemory(ServerTimeline(system, 0), _stream(config), None) if system else None
    schemas.remember(NAME, memory.to_json() if memory else None)


def _stream(config: PostgresConfig) -> str:
    return f"{config.publication_name} {config.origin}"


def place(schemas: Schemas, lsn: int) -> None:
    """An operator lets the log go on at `lsn`. Without effect if it does not, after all."""
    memory = recall(schemas.recall)
    if memory is not None:
        schemas.remember(NAME, replace(memory, placed=lsn).to_json())


def recall(remembered: Callable[[str], bytes | None]) -> WitnessMemory | None:
    document = remembered(NAME)
    return WitnessMemory.from_json(document) if document else None


def _describe(transaction: WitnessedTransaction) -> str:
    # A history with transactions of the same sizes has the same LSNs and xids: only the time tells them apart.
    committed = _TWO_THOUSAND + timedelta(microseconds=transaction.time)
    return f"transaction {transaction.xid} at {format_lsn(transaction.lsn)} of {committed:%Y-%m-%d %H:%M:%S.%f}"


def _raise_lost(what: str, where: str) -> NoReturn:
    raise PositionLost(what, where=where, fix=RESTORED)
