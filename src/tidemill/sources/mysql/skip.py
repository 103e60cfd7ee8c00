"""What an operator gives up so that capture can go on: some transactions by name, or the one that comes next.

Called by `tidemill recover --after` and `--skip-transaction`. Nothing changes at the server.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidemill.contracts import Passage
from tidemill.decoders.binlog import (
    EVENT_HEADER,
    BinlogPlace,
    BinlogRefused,
    EventType,
    MariadbGtids,
    MysqlGtids,
    TaggedGtid,
    read_query,
    read_server_packet,
    read_tagged_gtid,
)
from tidemill.errors import ConfigError, DecodeError, SourceError
from tidemill.model.position import Position
from tidemill.sources.mysql import resume as position
from tidemill.sources.mysql import server as facts
from tidemill.sources.mysql.client import MysqlSession, connect
from tidemill.sources.mysql.errors import from_stream
from tidemill.sources.mysql.server import MysqlServerInfo
from tidemill.sources.mysql.stream import BinlogConnection, event_size

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig

_BEGINS = frozenset({EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED, EventType.MARIADB_GTID})
_ENDS = frozenset({EventType.XID, EventType.XA_PREPARE, EventType.TRANSACTION_PAYLOAD})
_BETWEEN = ("gtid", "anonymous_gtid", "rotate", "stop", "format_desc", "previous_gtids", "binlog_checkpoint")
_PLACE = 5  # an event in its packet: length, number, and the byte that says that all is well


def up_to(config: MysqlConfig, after: Position, wanted: Position, confirmed: Position | None) -> Passage:
    """A GTID set adds to what was captured; a file and byte is where the stream goes on."""
    with connect(config) as db:
        server, here = _here(db, after, confirmed, config)
        there = BinlogPlace.parse(wanted, server.flavor)
        if (there.gtids is None) != (here.gtids is None):
            raise ConfigError(
                f"{wanted} is not of the kind of our position, {str(here.text())[:200]}", where=config.where,
                fix="Give a set of GTIDs where the source resumes by GTID, else a file and byte.",
            )  # fmt: skip
        if there.gtids is None:
            end = facts.end_of_binlog(db, server)
            if (position.number_of(there.file), there.offset) > (position.number_of(end.name), end.size):
                raise ConfigError(
                    f"{wanted} is beyond the end of the binlog, {end.name}:{end.size}", where=config.where,
                    fix="Nothing was changed. Name a place up to there.",
                )  # fmt: skip
            to = position.resume(db, server, there, config)
            _check_file_place(db, here, to, config)
            return Passage(to.text(), f"what stands between {here.text()} and {to.text()} in the binlog")
        to = here.copy()
        match here.gtids, there.gtids:
            case MysqlGtids() as own, MysqlGtids() as more:
                to.gtids = own.union(more)
            case MariadbGtids() as own, MariadbGtids() as more:
                to.gtids = own.union(more)
        if to.gtids == here.gtids:
            raise ConfigError(f"{wanted} was captured already", where=config.where, fix="Name a later transaction.")
        assert to.gtids is not None
        assert here.gtids is not None
        if uncommitted := position.minus(there.gtids, facts.read_executed(db, server)):
            raise ConfigError(
                f"{wanted} is not in what the server has: it has not committed {uncommitted[:200]}", where=config.where,
                fix="Nothing was changed. Name transactions that it has; the ones after them are captured.",
            )  # fmt: skip
        lost = position.minus(to.gtids, here.gtids)
        to = position.resume(db, server, to, config)
        to.seen = position.end_witness(db, server, config)
        return Passage(to.text(), f"transactions {lost[:500]}")


def next_transaction(config: MysqlConfig, after: Position, confirmed: Position | None) -> Passage:
    with connect(config) as db:
        server, here = _here(db, after, confirmed, config)
        if _at_the_end(db, server, here):
            raise ConfigError(
                f"no transaction stands after {str(here.text())[:200]} in the binlog", where=config.where,
                fix="There is nothing to leave out.",
            )  # fmt: skip
    stream = BinlogConnection(connect(config), server, here, config)
    found = _Transaction(here.file)
    try:
        while not found.ended:
            view = stream.read(0.2)
            size = event_size(view)
            if not size or len(view) < size:
                continue
            if view[4]:  # no event
                raise _refusal(bytes(view[4:size]), config)
            found.take(_event(bytes(view[:size])), checksum=server.checksum)
            stream.consumed(size)
    finally:
        stream.close()
    to = here.copy()
    if to.gtids is not None:
        with connect(config) as db:
            to.seen = position.end_witness(db, server, config)
    if isinstance(to.gtids, MysqlGtids) and found.gtid is not None:
        to.gtids.add(found.gtid.uuid, found.gtid.number, found.gtid.tag)
    elif isinstance(to.gtids, MariadbGtids) and found.triple is not None:
        to.gtids.add(*found.triple)
    else:
        to.created = to.created if found.file == here.file else 0  # when that one was made was not asked
        to.file, to.offset = found.file, found.end
    changed = f", which changed {', '.join(sorted(found.tables))}" if found.tables else ""
    when = datetime.fromtimestamp(found.seconds, UTC)
    return Passage(to.text(), f"transaction {found.name}, written {when:%Y-%m-%d %H:%M:%S} UTC{changed}")


@dataclass(slots=True)
class _Transaction:
    """The first one that a stream brings, event by event. `triple` is MariaDB's (domain, server, number)."""

    file: str
    name: str = ""
    gtid: TaggedGtid | None = None
    triple: tuple[int, int, int] | None = None
    tables: set[str] = field(default_factory=set)
    seconds: int = 0
    end: int = 0
    ended: bool = False
    _begun: bool = False
    _single: bool | None = None  # one statement, without BEGIN and COMMIT; None until that is known

    def take(self, event: bytes, *, checksum: bool) -> None:
        kind, (log_pos, flags) = event[4], struct.unpack_from("<IH", event, 13)
        body = event[EVENT_HEADER : -4 if checksum and kind != EventType.FORMAT_DESCRIPTION else None]
        if kind == EventType.ROTATE:
            # The server makes one up when a stream begins, with a checksum or without one as it sees fit.
            summed = zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little")
            self.file = event[EVENT_HEADER + 8 : -4 if summed else None].decode()
        elif kind in _BEGINS and not self._begun:
            self._begin(kind, event, body, log_pos)
        elif self._begun and kind not in (EventType.HEARTBEAT, EventType.HEARTBEAT_2):
            self._go_on(kind, body, flags, log_pos)

    def _begin(self, kind: int, event: bytes, body: bytes, log_pos: int) -> None:
        self._begun, self.end = True, log_pos
        (self.seconds,) = struct.unpack_from("<I", event)
        if kind == EventType.GTID:
            self.gtid = TaggedGtid(str(uuid.UUID(bytes=body[1:17])), int.from_bytes(body[17:25], "little"), "", 0)
            self.name = f"{self.gtid.uuid}:{self.gtid.number}"
        elif kind == EventType.GTID_TAGGED:
            self.gtid = read_tagged_gtid(body)
            self.name = f"{self.gtid.uuid}:{self.gtid.tag}:{self.gtid.number}".replace("::", ":")
        elif kind == EventType.MARIADB_GTID:
            number, domain = struct.unpack_from("<QI", body)
            (server,) = struct.unpack_from("<I", event, 5)
            self.triple = domain, server, number
            self.name = f"{domain}-{server}-{number}"
            self._single = bool(body[12] & 1)  # FL_STANDALONE
        else:
            self.name = f"at {self.file}:{log_pos - len(event)}"

    def _go_on(self, kind: int, body: bytes, flags: int, log_pos: int) -> None:
        if kind == EventType.TABLE_MAP:
            database = body[9 : 9 + body[8]]
            table = body[11 + body[8] : 11 + body[8] + body[10 + body[8]]]
            self.tables.add(f"{database.decode(errors='replace')}.{table.decode(errors='replace')}")
        text = read_query(body, flags).text.strip().upper() if kind == EventType.QUERY else ""
        if kind == EventType.QUERY and self._single is None:
            self._single = not text.startswith(("BEGIN", "XA START"))
        over = kind in _BEGINS or kind in (EventType.ROTATE, EventType.STOP)
        self.end = self.end if over else log_pos
        committed = text.startswith(("COMMIT", "ROLLBACK")) and not text.startswith("ROLLBACK TO")
        single = kind == EventType.QUERY and bool(self._single)
        self.ended = over or kind in _ENDS or committed or single


def _event(packets: bytes) -> bytes:
    """Without the headers of its packets; an event of 16 MB and more comes in several."""
    if int.from_bytes(packets[:3], "little") < 0xFFFFFF:
        return packets[_PLACE:]
    parts, at = [], 0
    while at < len(packets):
        length = int.from_bytes(packets[at : at + 3], "little")
        parts.append(packets[at + 4 : at + 4 + length])
        at += 4 + length
    return b"".join(parts)[1:]


def _here(
    db: MysqlSession, after: Position, confirmed: Position | None, config: MysqlConfig
) -> tuple[MysqlServerInfo, BinlogPlace]:
    server = MysqlServerInfo.read(db)
    known = position.further(*(position.parse(p, server, config) if p else None for p in (after, confirmed)))
    assert known is not None
    return server, position.resume(db, server, known, config)


def _at_the_end(db: MysqlSession, server: MysqlServerInfo, here: BinlogPlace) -> bool:
    if here.gtids is not None:
        return not position.minus(facts.read_executed(db, server), here.gtids)
    end = facts.end_of_binlog(db, server)
    return (here.file, here.offset) == (end.name, end.size)


def _check_file_place(db: MysqlSession, here: BinlogPlace, there: BinlogPlace, config: MysqlConfig) -> None:
    """It is later than ours, and a transaction ends there."""
    if (position.number_of(there.file), there.offset) <= (position.number_of(here.file), here.offset):
        raise ConfigError(f"{there.text()} is not after {here.text()}", where=config.where, fix="Name a later place.")
    name = there.file.replace("'", "''")
    try:
        found = db.rows(f"SHOW BINLOG EVENTS IN '{name}' FROM {there.offset} LIMIT 1")
    except SourceError as error:
        fix = f"SHOW BINLOG EVENTS IN '{there.file}' says where events begin."
        raise ConfigError(f"no event begins at {there.offset}: {error.what}", where=config.where, fix=fix) from error
    if found and not str(found[0]["Event_type"]).lower().startswith(_BETWEEN):
        raise ConfigError(
            f"{there.file}:{there.offset} is inside a transaction", where=config.where,
            fix=f"SHOW BINLOG EVENTS IN '{there.file}' says where one begins: at an event of type Gtid or"
            " Anonymous_Gtid.",
        )  # fmt: skip


def _refusal(packet: bytes, config: MysqlConfig) -> Exception:
    said = read_server_packet(packet, config.where)
    if isinstance(said, BinlogRefused):
        return from_stream(said.errno, said.message, config.where, config.replica_id)
    return said or DecodeError("a packet of the binlog stream is malformed", where=config.where)
