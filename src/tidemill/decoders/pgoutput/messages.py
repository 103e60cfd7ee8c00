"""The rare messages of pgoutput, parsed one at a time: relations, types, pieces of streamed transactions.

Formats: PostgreSQL manual 54.9, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tidemill.errors import DecodeError


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    typmod: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the server announces it before its first row. `identity` is pg_class.relreplident: d, n, f or i."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]

    @property
    def full_name(self) -> str:
        """As `Table.full_name`."""
        return f"{self.schema}.{self.name}" if self.schema else self.name


class Cursor:
    """Reads a message field by field; running past its end is a `DecodeError`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        try:
            (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        except struct.error as error:
            raise DecodeError("a replication message ends too early") from error
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise DecodeError("a name in a replication message has no end")
        value = self._data[self._at : end]
        self._at = end + 1
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise DecodeError("a name in a replication message is not UTF-8") from error

    def rest(self, size: int) -> bytes:
        """All that follows, which has this size."""
        found = self._data[self._at :]
        if len(found) != size:
            raise DecodeError("a logical message does not end where its length says")
        self._at = len(self._data)
        return found


def relation(message: Cursor) -> Relation:
    oid, schema, name = message.number("I"), message.text(), message.text()
    identity = chr(message.number("B"))
    columns = tuple(_relation_column(message) for _ in range(message.number("H")))
    # An empty schema stands for pg_catalog (manual 54.9, Relation).
    return Relation(oid, schema or "pg_catalog", name, identity, columns)


def _relation_column(message: Cursor) -> RelationColumn:
    key = bool(message.number("B") & 1)
    return RelationColumn(message.text(), message.number("I"), message.number("i"), key)


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """`xid` is that of the subtransaction that wrote it, in a streamed transaction; else 0."""

    xid: int
    content: bytes


def logical_message(message: Cursor, *, streamed: bool) -> LogicalMessage:
    xid = message.number("I") if streamed else 0
    _flags, _lsn, _prefix = message.number("B"), message.number("Q"), message.text()
    return LogicalMessage(xid, message.rest(message.number("I")))


@dataclass(frozen=True, slots=True)
class StreamCommit:
    xid: int
    commit_lsn: int
    end_lsn: int
    time: int


def stream_commit(message: Cursor) -> StreamCommit:
    xid, _flags = message.number("I"), message.number("B")
    return StreamCommit(xid, message.number("Q"), message.number("Q"), message.number("q"))


def relations_of(message: bytes, *, streamed: bool) -> tuple[int, list[int]]:
    """The subtransaction of a row or a TRUNCATE, 0 outside of streamed ones, and the relations that it names."""
    cursor = Cursor(message)
    kind, sub = chr(cursor.number("B")), cursor.number("I") if streamed else 0
    if kind != "T":
        return sub, [cursor.number("I")]
    count, _options = cursor.number("I"), cursor.number("B")
    return sub, [cursor.number("I") for _ in range(count)]
