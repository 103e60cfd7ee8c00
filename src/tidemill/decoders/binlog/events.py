"""The rare events of a binlog, parsed one at a time: formats, statements, XA, tagged GTIDs, what is compressed."""

from __future__ import annotations

import enum
import re
import struct
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from tidemill.decoders._shared.mysql import charsets
from tidemill.decoders._shared.mysql.fields import Bytes
from tidemill.decoders._shared.mysql.session import NO_SESSION, SqlMode, StatementSession
from tidemill.errors import DecodeError

HEADER = 19


class EventType(enum.IntEnum):
    """Those that Python meets: Log_event_type of MySQL, from 160 on MariaDB's. `scan` has its own, compiled."""

    QUERY = 2
    STOP = 3
    ROTATE = 4
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    INCIDENT = 26
    HEARTBEAT = 27
    GTID = 33
    ANONYMOUS_GTID = 34
    XA_PREPARE = 38
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_2 = 41
    GTID_TAGGED = 42
    MARIADB_GTID = 162
    QUERY_COMPRESSED = 165


#: MariaDB's compressed events and what they are once unpacked.
COMPRESSED = {165: 2, 166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
_ZSTD, _UNCOMPRESSED = 0, 255
_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """FORMAT_DESCRIPTION. `checksum`: events of this file end with a CRC32. `started`: when the server started
    (seconds since 1970), in the first file that it wrote then; 0 in its others, and where a stream begins in a file."""

    server: str
    checksum: bool
    started: int


def format_description(body: bytes) -> FormatDescription:
    """`body` with the four bytes of its checksum, which are there whether or not the other events have one."""
    data = Bytes(body, "a FORMAT_DESCRIPTION event")
    version, server = data.number(2), data.take(50).rstrip(b"\0").decode("latin-1")
    started = data.number(4)
    if version != 4 or data.number(1) != HEADER:
        raise DecodeError(
            f"the binlog has version {version}, written by server {server}",
            fix="Version 4 is read here, which MySQL and MariaDB have written since 5.0.",
        )
    lengths = data.rest()
    if len(lengths) < 5:
        raise DecodeError("a FORMAT_DESCRIPTION event ends too early")
    algorithm = lengths[-5]
    if algorithm not in (0, 1):
        raise DecodeError(
            f"the binlog has checksums of an unknown kind ({algorithm})", fix="Set binlog_checksum=CRC32."
        )
    return FormatDescription(server, algorithm == 1, started)


@dataclass(frozen=True, slots=True)
class Query:
    """`pending`: MariaDB (binlog_alter_two_phase) says here that an ALTER has begun, or that it failed; done it is
    with the next one that is not pending."""

    database: str
    text: str
    pending: bool = False
    session: StatementSession = NO_SESSION


_START_ALTER, _ROLLBACK_ALTER = 2, 8  # flags of Q_GTID_FLAGS3; 4 is its commit
# Of those that may stand before the ones that are wanted.
_STATUS_SIZES = {0: 4, 3: 4, 7: 2, 8: 2, 9: 8, 10: 4, 128: 3, 129: 8}


_THREAD_SPECIFIC = 4  # LOG_EVENT_THREAD_SPECIFIC_F


def read_query(body: bytes, flags: int) -> Query:
    """`flags` are those of the event's header."""
    data = Bytes(body, "a QUERY event")
    session = StatementSession(thread=data.number(4), uses_temporary=bool(flags & _THREAD_SPECIFIC))
    data.number(4)
    database_size, _error = data.number(1), data.number(2)
    return _query(data, database_size, data.number(2), session)


def read_load_query(body: bytes, flags: int) -> Query:
    """EXECUTE_LOAD_QUERY: a QUERY with the number of a file, and where in the text its name stands."""
    data = Bytes(body, "a LOAD DATA event")
    session = StatementSession(thread=data.number(4), uses_temporary=bool(flags & _THREAD_SPECIFIC))
    data.number(4)
    database_size, _error = data.number(1), data.number(2)
    status_size = data.number(2)
    data.take(13)
    return _query(data, database_size, status_size, session)


def _query(data: Bytes, database_size: int, status_size: int, session: StatementSession) -> Query:
    status = data.take(status_size)
    database = data.take(database_size).decode("utf-8", "backslashreplace")
    data.number(1)
    statement = data.rest()
    charset, pending, session = _status(status, session)
    try:
        return Query(database, charsets.decode(statement, charset), pending, session)
    except UnicodeDecodeError:
        # A comment or a default may hold bytes that are no text; names and keywords are.
        return Query(database, statement.decode("utf-8", "replace"), pending, session)


def _status(status: bytes, session: StatementSession) -> tuple[str, bool, StatementSession]:
    """The client's character set, `Query.pending` and the session, among the status variables (Query_event of the
    servers)."""
    data = Bytes(status, "the status of a QUERY event")
    charset = "utf8mb4"
    while data.left:
        code = data.number(1)
        if code == 1:
            session = replace(session, mode=SqlMode(data.number(8)))
        elif code == 4:
            found = charsets.of_collation(data.number(2))
            charset = found if found and found != "binary" else charset
            data.take(2)  # collation_connection
            session = replace(session, server_charset=charsets.of_collation(data.number(2)) or "")
        elif code == 130:
            return charset, bool(data.number(1) & (_START_ALTER | _ROLLBACK_ALTER)), session
        elif code == 2:
            data.take(data.number(1) + 1)
        elif code in (5, 6):
            data.take(data.number(1))
        elif code == 11:
            data.take(data.number(1))
            data.take(data.number(1))
        elif code in _STATUS_SIZES:
            data.take(_STATUS_SIZES[code])
        else:
            break
    return charset, False, session


@dataclass(frozen=True, slots=True)
class TaggedGtid:
    uuid: str
    number: int
    tag: str
    time: int


def read_tagged_gtid(body: bytes) -> TaggedGtid:
    """GTID_TAGGED (8.3 on): fields by number, in the format of MySQL's serialization library."""
    data = Bytes(body, "a GTID_TAGGED event")
    _version, _size, _last = data.varint(), data.varint(), data.varint()
    name, number, tag, time, original = b"", 0, "", 0, 0
    while data.left:
        match data.varint():
            case 0:
                data.varint()
            case 1:
                name = bytes(_byte(data.varint()) for _ in range(16))
            case 2:
                number = _decode_sign(data.varint())
            case 3:
                tag = data.text(data.varint())
            case 4 | 5:
                data.varint()
            case 6:
                time = data.varint()
            case 7:
                original = data.varint()
            case 8 | 9 | 10 | 11:
                data.varint()
            case _:
                break  # what a later server adds comes last
    if len(name) != 16 or number <= 0:
        raise DecodeError("a GTID_TAGGED event has no GTID")
    return TaggedGtid(str(uuid.UUID(bytes=name)), number, tag, original or time)


def _byte(value: int) -> int:
    if value > 255:
        raise DecodeError("a GTID_TAGGED event has a malformed UUID")
    return value


def _decode_sign(value: int) -> int:
    return value >> 1 ^ -(value & 1)


Xid = tuple[int, bytes, bytes]
_XID = re.compile(r"X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(-?\d+)", re.IGNORECASE)


def xid_of(statement: str) -> Xid:
    """Servers write an XA transaction's name as `X'…',X'…',1`."""
    found = _XID.search(statement)
    if not found:
        raise DecodeError("an XA statement names no transaction")
    try:
        return int(found[3]), bytes.fromhex(found[1]), bytes.fromhex(found[2])
    except ValueError as error:
        raise DecodeError("an XA statement names no transaction") from error


def xa_prepare(body: bytes) -> tuple[bool, Xid]:
    """(committed at once, name)."""
    data = Bytes(body, "an XA_PREPARE event")
    one_phase = bool(data.number(1))
    form, first, second = struct.unpack("<iii", data.take(12))
    if first < 0 or second < 0:
        raise DecodeError("an XA_PREPARE event names no transaction")
    return one_phase, (form, data.take(first), data.take(second))


def expand(event: bytes) -> Iterator[bytes]:
    """A compressed event (header and body, no checksum) as events in pieces of bounded size."""
    kind, body = event[4], event[HEADER:]
    if kind == EventType.TRANSACTION_PAYLOAD:
        # Events inside have no place in the file of their own: this one gives them theirs.
        yield event[:4] + b"\xff" + event[5:9] + struct.pack("<I", HEADER) + event[13:HEADER]
        yield from _payload(body)
    elif kind in COMPRESSED:
        head, packed = _compressed_part(kind, body)
        plain = _inflate(packed)
        size = struct.pack("<I", HEADER + len(head) + len(plain))
        yield event[:4] + bytes([COMPRESSED[kind]]) + event[5:9] + size + event[13:HEADER] + head + plain
    else:
        yield event


def _payload(body: bytes) -> Iterator[bytes]:
    data = Bytes(body, "a TRANSACTION_PAYLOAD event")
    method = _ZSTD
    size = -1
    while kind := data.packed():
        field = Bytes(data.take(data.packed()), "a TRANSACTION_PAYLOAD event")
        if kind == 1:
            size = field.packed()
        elif kind == 2:
            method = field.packed()
    content = data.rest()
    if size not in (-1, len(content)):
        raise DecodeError("a TRANSACTION_PAYLOAD event has another size than it says")
    if method == _UNCOMPRESSED:
        yield content
        return
    if method != _ZSTD:
        raise DecodeError(f"a TRANSACTION_PAYLOAD event is compressed in an unknown way ({method})")
    try:
        with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
            while piece := stream.read(_CHUNK):
                yield piece
    except (OSError, pa.ArrowException) as error:
        raise DecodeError("a TRANSACTION_PAYLOAD event does not unpack") from error


def _compressed_part(kind: int, body: bytes) -> tuple[bytes, bytes]:
    """What is not compressed, and what is."""
    data = Bytes(body, "a compressed event")
    if kind == EventType.QUERY_COMPRESSED:
        data.number(8)
        database = data.number(1)
        data.number(2)
        data.take(data.number(2) + database + 1)
    else:
        data.number(8)
        if kind >= 169:
            data.take(max(data.number(2), 2) - 2)
        bitmap = (data.packed() + 7) // 8
        data.take(bitmap * (2 if kind in (167, 170) else 1))
    rest = data.left
    return body[: len(body) - rest], body[len(body) - rest :]


def _inflate(packed: bytes) -> bytes:
    """A byte with the method and the size of the length, the length, then zlib's data (binlog_buf_uncompress)."""
    data = Bytes(packed, "a compressed event")
    head = data.number(1)
    if head & 0xF0 != 0x80:
        raise DecodeError("an event is compressed in an unknown way")
    size = int.from_bytes(data.take(head & 0x07), "big")
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data.rest(), size + 1)
    except zlib.error as error:
        raise DecodeError("a compressed event does not unpack") from error
    if len(plain) != size:
        raise DecodeError("a compressed event unpacks to another size than it says")
    return plain
