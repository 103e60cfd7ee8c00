"""What a server wrote into its binlog, cut into events without the decoder."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders._shared.mysql.place import BinlogPlace
from tidemill.decoders.binlog.events import Query, read_query
from tidemill.lab.servers.mysql_family import Server


class Statements:
    """Reads what was logged since the last look, from the file that was the newest at the first one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._file, self._at = self._end()

    def new(self) -> list[Query]:
        found = []
        data = (self._server.data / self._file).read_bytes()
        while self._at < len(data):
            _, kind, _, size, _, flags = struct.unpack_from("<IBIIIH", data, self._at)
            if kind == 2:
                found.append(read_query(data[self._at + 19 : self._at + size - 4], flags))
            self._at += size
        return found

    def _end(self) -> tuple[str, int]:
        command = "SHOW BINARY LOG STATUS" if self._server.name == "MySQL" else "SHOW MASTER STATUS"
        row: tuple[Any, ...] = self._server.query(command)[0]
        return row[0], int(row[1])


@dataclass(frozen=True, slots=True)
class Event:
    """`place` is the one behind it."""

    kind: int
    body: bytes
    place: BinlogPlace


def events(server: Server) -> Iterator[Event]:
    """Every event of the binlog, read from the server's own files. Checksums are taken off, not verified."""
    flavor = Flavor.MYSQL if server.name == "MySQL" else Flavor.MARIADB
    for path in sorted(server.data.glob("binlog.[0-9]*")):
        data, at = path.read_bytes(), 4
        while at < len(data):
            _, kind, _, size, _, _ = struct.unpack_from("<IBIIIH", data, at)
            yield Event(kind, data[at + 19 : at + size - 4], BinlogPlace(flavor, None, path.name, at + size))
            at += size


def statement(body: bytes) -> tuple[str, str]:
    """Database and text of a QUERY event."""
    _thread, _time, database, _error, status = struct.unpack_from("<IIBHH", body)
    at = 13 + status
    return body[at : at + database].decode(), body[at + database + 1 :].decode()
