"""Replication streams of PostgreSQL as bytes: `record` takes what a real server sends on a slot."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pg8000.native

from tests.support.decoded import fed
from tidemill.decoders.pgoutput import DescribedBy, PgOutputDecoder
from tidemill.decoders.pgoutput.messages import Relation, RelationColumn
from tidemill.lab.servers.postgres import Postgres
from tidemill.model import postgres_types
from tidemill.model.change import Change
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType
from tidemill.sources.postgres.client import SESSION

Tables = Callable[[Relation, Mapping[int, str]], Table]

_ELEMENT_OF = {1000: 16, 1007: 23, 1016: 20, 1009: 25, 1231: 1700, 1115: 1114, 1182: 1082, 1020: 603, 1001: 17}


class Recording:
    """An open replication connection. `catch_up` takes what the server has to say up to now.

    Nothing is acknowledged, so the slot tells it all again.
    """

    def __init__(
        self,
        server: Postgres,
        slot: str,
        *,
        dbname: str = "postgres",
        publication: str = "p",
        protocol: int = 4,
        streaming: str = "off",
    ) -> None:
        self.data = b""
        self._server = server
        session = pg8000.native.Connection(
            server.user, host="127.0.0.1", port=server.port, database=dbname, replication="database",
            startup_params=SESSION,
        )  # fmt: skip
        self._sock: socket.socket = session._usock
        options = {"proto_version": protocol, "publication_names": publication, "messages": "true"}
        if protocol > 1:
            options["streaming"] = streaming
        listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
        self._send("Q", f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({listed})".encode() + b"\0")

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        with self._sock:
            self._send("c", b"")
            self._send("X", b"")

    def catch_up(self, timeout: float = 30) -> None:
        """Reads frames until the keepalive that says that all WAL written before now was sent."""
        # A commit flushes the WAL, also of transactions still open. In another database, so that it is not told here.
        self._server.query("SELECT pg_logical_emit_message(true, 'flush', '')", dbname="template1")
        (target,) = self._server.query("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")[0]
        self._send("d", struct.pack(">cQQQqB", b"r", 0, 0, 0, 0, 1))  # a status update that asks for an answer
        self._sock.settimeout(timeout)
        deadline = time.monotonic() + timeout
        buffer = b""
        while time.monotonic() < deadline:
            while len(buffer) < 5 or len(buffer) < (end := 1 + struct.unpack_from(">I", buffer, 1)[0]):
                if not (received := self._sock.recv(1 << 20)):
                    raise ConnectionError("the server closed the stream")
                buffer += received
            frame, buffer = buffer[:end], buffer[end:]
            match frame[:1]:
                case b"E":
                    raise RuntimeError(frame[5:].replace(b"\0", b" ").decode())
                case b"d":
                    self.data += frame
                    if frame[5:6] == b"k" and struct.unpack_from(">Q", frame, 6)[0] >= target and not buffer:
                        return
        raise TimeoutError("the server did not catch up")

    def _send(self, kind: str, body: bytes) -> None:
        self._sock.sendall(kind.encode() + struct.pack(">I", len(body) + 4) + body)


def record(server: Postgres, slot: str, **options: Any) -> bytes:
    """Everything the slot has to say up to now: whole CopyData frames, keepalives among them."""
    with Recording(server, slot, **options) as recording:
        recording.catch_up()
        return recording.data


def frames(stream: bytes) -> Iterator[bytes]:
    """The stream cut at its frames' ends."""
    at = 0
    while at < len(stream):
        end = at + 1 + struct.unpack_from(">I", stream, at + 1)[0]
        yield stream[at:end]
        at = end


def tables_of(keys: Mapping[str, Sequence[str]]) -> Tables:
    """Describes relations without a catalog. `keys` are those of tables with REPLICA IDENTITY FULL."""

    def describe(relation: Relation, _types: Mapping[int, str]) -> Table:
        columns = tuple(Column(c.name, _type(c)) for c in relation.columns)
        name = f"{relation.schema}.{relation.name}"
        flagged = tuple(c.name for c in relation.columns if c.key)
        key = flagged if relation.identity in "di" else tuple(keys.get(name, ()))
        identity = {"f": "full", "n": "nothing"}.get(relation.identity, "key")
        return Table("db", relation.schema, relation.name, columns, key, identity).with_fingerprint()

    return describe


def _type(column: RelationColumn) -> DataType:
    native = (
        postgres_types.BUILT_IN[column.type_oid][0]
        if column.type_oid in postgres_types.BUILT_IN
        else f"oid {column.type_oid}"
    )
    if column.type_oid not in _ELEMENT_OF:
        return postgres_types.data_type(column.type_oid, column.typmod, native)
    oid = _ELEMENT_OF[column.type_oid]
    element = postgres_types.data_type(oid, column.typmod, postgres_types.BUILT_IN[oid][0])
    delimiter = ";" if element.native == "box" else ","
    return postgres_types.data_type(column.type_oid, -1, f"{element.native}[]", element=element, delimiter=delimiter)


def decode(
    stream: bytes, tables: Tables, chunks: Iterable[int] = (), *, spill_bytes: int = 16 << 20, capacity: int = 1 << 12,
    after: int = 0,
) -> list[Change]:  # fmt: skip
    """See `fed`. Transactions that commit before `after` are known."""
    decoder = PgOutputDecoder(
        DescribedBy(tables), lambda _kind, _body: None, spill_bytes=spill_bytes, capacity=capacity
    )
    decoder.resume(after)
    return fed(decoder, stream, chunks)
