"""The binlog stream of a real server as bytes, and what the decoder makes of it, as plain rows."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pymysql

from tests.support.decoded import fed
from tidemill.decoders._shared.mysql import types
from tidemill.decoders._shared.mysql.session import NO_SESSION, StatementSession
from tidemill.decoders._shared.mysql.table_lookup import DdlChange
from tidemill.decoders.binlog import BinlogDecoder, Flavor, TableMap
from tidemill.errors import DecodeError
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.change import Change
from tidemill.model.position import Position
from tidemill.model.table import Column, Table

Place = tuple[str, int]


def end_of_binlog(server: Server) -> Place:
    command = "SHOW BINARY LOG STATUS" if server.name == "MySQL" else "SHOW MASTER STATUS"
    file, offset, *_ = server.query(command)[0]
    return str(file), int(offset)


def record(server: Server, begin: Place, *, checksum: bool = True, annotate: bool = False) -> bytes:
    """All packets from `begin` (the start of an event) to the end of the binlog, which the server marks when asked not
    to wait there; the mark is left out."""
    session = pymysql.connect(host="127.0.0.1", port=server.port, user="root", ssl_disabled=True)
    with session.cursor() as cursor:
        kind = "CRC32" if checksum else "NONE"
        cursor.execute(f"SET @source_binlog_checksum = '{kind}', @master_binlog_checksum = '{kind}'")
        cursor.execute("SET @mariadb_slave_capability = 4")
    wire: socket.socket = session._sock
    file, offset = begin
    command = b"\x12" + struct.pack("<IHI", offset, 3 if annotate else 1, 7_000_001) + file.encode()
    wire.sendall(struct.pack("<I", len(command)) + command)
    wire.settimeout(30)
    stream = b""
    with wire:
        while not (ended := _ends(stream)):
            if not (received := wire.recv(1 << 20)):
                raise ConnectionError("the server closed the stream")
            stream += received
    return stream[:ended]


def _ends(stream: bytes) -> int:
    """Where the mark of the end begins, 0 if it is not there yet."""
    at = 0
    for packet in packets(stream):
        if packet[4] == 0xFE and len(packet) < 13:
            return at
        if packet[4] == 0xFF:
            raise RuntimeError(packet[5:].decode(errors="replace"))
        at += len(packet)
    return 0


def packets(stream: bytes) -> Iterator[bytes]:
    """The stream cut at its packets' ends; what is incomplete is left out."""
    at = 0
    while at + 4 <= len(stream):
        end = at + 4 + int.from_bytes(stream[at : at + 3], "little")
        if end > len(stream):
            return
        yield stream[at:end]
        at = end


@dataclass
class MapTables:
    """Tables as TABLE_MAP events with full metadata describe them; `known` where the metadata is not enough.

    A DDL statement is answered with what `ddls` says it did: (table, truncate). `filled` has the defaults of tables.
    """

    known: Mapping[str, Sequence[tuple[str, str, str]]] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ddls: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    flavor: Flavor = Flavor.MYSQL
    filled: Mapping[str, Sequence[str]] = field(default_factory=dict)
    shapes: dict[str, TableMap] = field(default_factory=dict)
    statements: list[tuple[str, str]] = field(default_factory=list)

    def resolve(self, shape: TableMap, position: Position) -> Table | None:
        if shape.database in ("mysql", "elsewhere"):
            return None
        self.shapes[shape.full_name] = shape
        given = self.known.get(shape.full_name)
        if given is not None:
            columns = tuple(Column(n, types.data_type(t, c, self.flavor)) for n, t, c in given)
        else:
            kinds = [kind for j in range(len(shape.types)) if (kind := types.of_map(shape, j)) is not None]
            if not len(kinds) == len(shape.types) == len(shape.names):
                raise DecodeError(f"the metadata of {shape.full_name} does not say enough")
            columns = tuple(Column(n, k) for n, k in zip(shape.names, kinds, strict=True))
        key = self.keys.get(shape.full_name) or [columns[j].name for j, _ in shape.key]
        return Table("", shape.database, shape.name, columns, tuple(key), "full").with_fingerprint()

    def defaults(self, shape: TableMap) -> tuple[str | None, ...]:
        return tuple(self.filled.get(shape.full_name, [""] * len(shape.types)))

    def server_started(self, seconds: int, position: Position) -> None:
        pass

    def writes(self, text: str, database: str, session: StatementSession = NO_SESSION) -> bool:
        return " mysql." not in text

    def ddl(
        self, text: str, database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> list[DdlChange]:
        self.statements.append((database, text))
        for start, (table, truncate) in self.ddls.items():
            if text.startswith(start):
                made = Table("", database, table, ()).with_fingerprint()
                return [DdlChange(made, f'{{"text": "{start}"}}', True, truncate)]
        return []


def decode(
    stream: bytes,
    tables: MapTables,
    flavor: Flavor,
    chunks: Iterable[int] = (),
    *,
    began: str = "binlog.000001:4",
    spill_bytes: int = 16 << 20,
    capacity: int = 1 << 12,
    zero_dates: str = "keep",
) -> list[Change]:
    """See `fed`."""
    decoder = BinlogDecoder(
        tables, flavor=flavor, began=Position(began), spill_bytes=spill_bytes, capacity=capacity,
        zero_dates="null" if zero_dates == "null" else "keep",
    )  # fmt: skip
    return fed(decoder, stream, chunks)
