"""Events that `scan` leaves to Python: files and formats, tables and servers not met before, and what is rare.

`binlog` calls `event` where `scan` returned CONTROL. Each case moves POS after its event, or leaves it where it is for
`scan` to look at again, now that it knows a name.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from tidemill.decoders._shared.calendar import NO_TIME
from tidemill.decoders._shared.mysql import table_map as maps
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders._shared.mysql.table_lookup import TableLookup
from tidemill.decoders.binlog import events
from tidemill.decoders.binlog import scan as scanning
from tidemill.decoders.binlog.emit import Emitter
from tidemill.decoders.binlog.ends import TransactionEnds
from tidemill.decoders.binlog.events import EventType
from tidemill.decoders.binlog.progress import Progress
from tidemill.decoders.binlog.rows import Domain, TransactionName, Uuid
from tidemill.decoders.binlog.statements import Statements
from tidemill.decoders.binlog.stream import BinlogStream
from tidemill.errors import DecodeError, SourceError
from tidemill.model.barrier import Barrier
from tidemill.model.change import Change

_IGNORABLE = 0x80  # LOG_EVENT_IGNORABLE_F: a reader that does not know the event may skip it
_ARTIFICIAL = 0x20  # LOG_EVENT_ARTIFICIAL_F: made up for the stream, in no file


class Control:
    def __init__(
        self,
        stream: BinlogStream,
        tables: TableLookup,
        flavor: Flavor,
        progress: Progress,
        emitter: Emitter,
        ends: TransactionEnds,
    ) -> None:
        self._stream = stream
        self._tables = tables
        self._flavor = flavor
        self._progress = progress
        self._emitter = emitter
        self._ends = ends
        self._statements = Statements(stream, tables, progress, emitter, ends)
        self._shape_of: dict[str, int] = {}  # the newest slot of each table

    def event(self) -> Iterator[Change]:
        """The event from POS to FRAME_END."""
        stream, state = self._stream, self._stream.state
        at, end = int(state[scanning.POS]), int(state[scanning.FRAME_END])
        head = at + (5 if state[scanning.PACKETS] else 0)
        event = stream.buffer[head:end].tobytes()
        kind, seconds = event[4], int.from_bytes(event[:4], "little")
        if kind in (EventType.ROTATE, EventType.FORMAT_DESCRIPTION):
            if state[scanning.OPEN] and (kind == EventType.FORMAT_DESCRIPTION or not event[17] & _ARTIFICIAL):
                raise stream.broken(scanning.BAD_EVENT)
            yield from self._ends.abandon()
            yield from self._emitter.flush(spill_open=False)
            self._format(event) if kind == EventType.FORMAT_DESCRIPTION else self._rotate(event)
            state[scanning.POS] = end
            return
        flags = int.from_bytes(event[17:19], "little")
        body = event[events.HEADER : -4 if state[scanning.PACKETS] and state[scanning.CHECKSUM] else None]
        match kind:
            case EventType.TABLE_MAP:
                self._table_map(body)
                state[scanning.POS] = end
            case EventType.GTID:
                self._learn_uuid(body)  # and the same event is looked at again
            case EventType.MARIADB_GTID if not body[12] & 0xC0:
                self._learn_domain(event)
            case EventType.MARIADB_GTID:
                prepared = bool(body[12] & 0x40)
                name = self._learn_domain(event)
                number = int.from_bytes(body[:8], "little", signed=True)
                stream.begin(name, number, NO_TIME, 2 if prepared else 1)
                state[scanning.HELD] = prepared
                state[scanning.POS] = end
            case EventType.GTID_TAGGED:
                self._tagged_gtid(body)
                state[scanning.POS] = end
            case EventType.QUERY:
                yield from self._statements.query(events.read_query(body, flags), seconds, end)
            case EventType.XID:  # only met here when its rows were spilled
                yield from self._ends.commit(seconds, int.from_bytes(body[:8], "little"), end)
            case EventType.XA_PREPARE:
                yield from self._ends.prepare(body, seconds, end)
            case EventType.APPEND_BLOCK | EventType.DELETE_FILE | EventType.BEGIN_LOAD_QUERY:
                # The file of a LOAD DATA; what was done with it comes as EXECUTE_LOAD_QUERY.
                state[scanning.POS] = end
            case EventType.EXECUTE_LOAD_QUERY:
                yield from self._statements.row_change("LOAD DATA", events.read_load_query(body, flags), seconds, end)
            case EventType.INCIDENT:
                raise SourceError(
                    "the binlog has an incident: the server could not write some changes to it",
                    where=stream.where(),
                    fix='Changes are missing from the binlog. Run "tidemill recover FILE --snapshot" to copy the tables'
                    ' again and go on, or "tidemill recover FILE --accept-gap" to go on without what was lost.',
                )
            case _ if flags & _IGNORABLE:
                state[scanning.POS] = end
            case _:
                raise DecodeError(
                    f"the binlog has an event of type {kind}, which is unknown here", where=stream.where()
                )

    def _format(self, event: bytes) -> None:
        found = events.format_description(event[events.HEADER :])
        if found.checksum and zlib.crc32(event[:-4]) != int.from_bytes(event[-4:], "little"):
            raise self._stream.broken(scanning.BAD_CHECKSUM)
        self._stream.state[scanning.CHECKSUM] = found.checksum
        if created := int.from_bytes(event[:4], "little"):
            self._stream.place.created = created
        if found.started:
            self._tables.server_started(found.started, self._stream.place.text())
        self._stream.known.forget()

    def _rotate(self, event: bytes) -> None:
        stream, state = self._stream, self._stream.state
        # The server makes this event up when a stream begins, with a checksum or without one as it sees fit.
        if len(event) > 31 and zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
            event = event[:-4]
        elif state[scanning.CHECKSUM] and not event[17] & _ARTIFICIAL:
            raise stream.broken(scanning.BAD_CHECKSUM)
        if len(event) < 28:
            raise stream.broken(scanning.BAD_EVENT)
        try:
            file = event[27:].decode()
        except UnicodeDecodeError as error:
            raise DecodeError("a ROTATE event names no file") from error
        offset = int.from_bytes(event[19:27], "little")
        if offset >> 32:
            raise DecodeError("a ROTATE event names no place in a file")
        state[scanning.LOG_POS] = offset
        state[scanning.FILE] = stream.names.number(TransactionName(f"{file}:"))
        if file != stream.place.file:
            stream.place.created = 0  # until its first event is read, which follows
        stream.place.file, stream.place.offset = file, offset

    def _table_map(self, body: bytes) -> None:
        stream, state = self._stream, self._stream.state
        shape = maps.parse(body, mariadb=self._flavor is Flavor.MARIADB)
        transaction = self._emitter.open or (stream.newest() if state[scanning.OPEN] else None)
        table = self._tables.resolve(shape, self._progress.here(transaction))
        slot = scanning.NOT_CAPTURED
        if table is not None:
            slot = stream.known.slot(shape, table, self._tables.defaults(shape))
            if self._shape_of.setdefault(table.full_name, slot) != slot:
                state[scanning.BARRIER] |= int(Barrier.SCHEMA_CHANGE)  # the table changed its shape here
                self._shape_of[table.full_name] = slot
        stream.known.point(shape.table_id, slot, body)

    def _tagged_gtid(self, body: bytes) -> None:
        if self._stream.state[scanning.OPEN]:
            raise self._stream.broken(scanning.BAD_EVENT)
        gtid = events.read_tagged_gtid(body)
        prefix = f"{gtid.uuid}:{gtid.tag}:" if gtid.tag else f"{gtid.uuid}:"
        name = self._stream.names.number(TransactionName(prefix, Uuid(gtid.uuid, gtid.tag)))
        self._stream.begin(name, gtid.number, gtid.time or NO_TIME, 1)

    def _learn_uuid(self, body: bytes) -> None:
        text = body[1:17].hex()
        name = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
        self._stream.names.number(TransactionName(f"{name}:", Uuid(name)), body[1:17])

    def _learn_domain(self, event: bytes) -> int:
        (server,) = struct.unpack_from("<I", event, 5)
        (domain,) = struct.unpack_from("<I", event, events.HEADER + 8)
        name = TransactionName(f"{domain}-{server}-", Domain(domain, server))
        return self._stream.names.number(name, struct.pack("<QQ", domain, server))
