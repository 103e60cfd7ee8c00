"""The MySQL protocol of the StarRocks stand-in: enough of it for PyMySQL, and the few statements a sink sends.

https://dev.mysql.com/doc/dev/mysql-server/latest/PAGE_PROTOCOL.html: handshake 10, mysql_native_password, COM_QUERY
with text results. A statement it does not know is error 1064, as for any server.
"""

from __future__ import annotations

import hashlib
import os
import re
import socketserver
import sqlite3
import struct
from typing import Any

from tidemill.lab.servers.starrocks_standin.store import Rejected, StandinColumn, StandinStore, convert

_CAPABILITIES = 0x00000001 | 0x00000008 | 0x00000200 | 0x00008000 | 0x00080000  # long password, db, 4.1, secure, plugin
_COM_QUIT, _COM_INIT_DB, _COM_QUERY, _COM_PING = 1, 2, 3, 14
_NAME = r"`((?:[^`]|``)+)`"
_TABLE = rf"{_NAME}\.{_NAME}"
_PLAIN = re.compile(r"^(SET|USE|CREATE DATABASE IF NOT EXISTS|ROLLBACK|COMMIT)\b", re.IGNORECASE)
_COLUMNS = re.compile(r"FROM information_schema\.columns WHERE table_schema = '(.*?)' AND table_name = '(.*?)'", re.I)
_MODEL = re.compile(
    r"FROM information_schema\.tables_config WHERE table_schema = '(.*?)' AND table_name = '(.*?)'", re.I
)
_CREATE = re.compile(
    rf"CREATE TABLE IF NOT EXISTS {_TABLE} \((.*)\)\s+PRIMARY KEY \((.*?)\)\s+DISTRIBUTED BY HASH\((.*?)\)", re.S | re.I
)
_COLUMN = re.compile(rf"^\s*{_NAME} (.+?) (NOT NULL|NULL)(?: COMMENT .*)?$", re.I)
_TEXT = r"'((?:[^'\\]|\\.|'')*)'"
_ADD = re.compile(
    rf"^ALTER TABLE {_TABLE} ADD COLUMN {_NAME} (.+?) NULL(?: DEFAULT {_TEXT})?(?: COMMENT {_TEXT})?$", re.I | re.S
)
_RENAME = re.compile(rf"^ALTER TABLE {_TABLE} RENAME COLUMN {_NAME} TO {_NAME}$", re.I)
_COMMENT = re.compile(rf"^ALTER TABLE {_TABLE} MODIFY COLUMN {_NAME} COMMENT {_TEXT}$", re.I | re.S)
_ROWS = re.compile(rf"^(SELECT|DELETE) .*?FROM {_TABLE}", re.I | re.S)
_INSERT = re.compile(rf"^INSERT INTO {_TABLE} (\(.*?\) VALUES \(.*\))$", re.I | re.S)
_STRING = re.compile(_TEXT, re.S)


class SqlError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def run(store: StandinStore, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns and rows; both empty for a statement without a result."""
    statement = statement.strip().rstrip(";")
    if _PLAIN.match(statement):
        return [], []
    if statement.lower() in ("select 1", "select current_version()"):
        return ["version"], [("1" if statement.endswith("1") else "3.3.0-standin",)]
    if (found := _COLUMNS.search(statement)) and "column_comment" in statement:
        return ["column_name", "column_comment"], store.comments(found[1], found[2])
    if found := _COLUMNS.search(statement):
        rows = [(c.name, c.type.lower(), "PRI" if c.key else "") for c in store.columns(found[1], found[2])]
        return ["column_name", "column_type", "column_key"], rows
    if found := _MODEL.search(statement):
        return ["table_model"], [("PRIMARY_KEYS",)] if store.columns(found[1], found[2]) else []
    if statement.upper().startswith("SHOW ALTER TABLE COLUMN"):
        return ["State"], []
    if found := _CREATE.search(statement):
        return _create(store, found)
    if found := _ADD.search(statement):
        if any(c.name == found[3] for c in store.columns(found[1], found[2])):
            raise SqlError(1060, f"Duplicate column name '{found[3]}'")
        column = StandinColumn(found[3], found[4].upper(), True, False)
        store.add(found[1], found[2], column, _default(column, found[5]), _plain(found[6] or ""))
        return [], []
    if found := _RENAME.search(statement):
        columns = {c.name: c for c in store.columns(found[1], found[2])}
        if found[3] not in columns or columns[found[3]].key or found[4] in columns:
            raise SqlError(1064, f"Getting analyzing error: column {found[3]} cannot be renamed to {found[4]}")
        store.rename(found[1], found[2], found[3], found[4])
        return [], []
    if found := _COMMENT.search(statement):
        store.comment(found[1], found[2], found[3], _plain(found[4]))
        return [], []
    if found := _INSERT.match(statement):
        return _run(store, found[1], found[2], f"INSERT OR REPLACE INTO `{found[1]}.{found[2]}` {found[3]}")
    if found := _ROWS.match(statement):
        plain = statement.replace(f"`{found[2]}`.`{found[3]}`", f"`{found[2]}.{found[3]}`")
        return _run(store, found[2], found[3], plain)
    raise SqlError(1064, "Getting syntax error: the stand-in does not know this statement")


def _run(store: StandinStore, database: str, table: str, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    if not store.columns(database, table):
        raise SqlError(5502, f"Unknown table '{database}.{table}'")
    try:
        return store.query(_STRING.sub(lambda m: _literal(m[1]), statement))
    except sqlite3.Error as error:
        raise SqlError(1064, str(error)) from error


def _create(store: StandinStore, found: re.Match[str]) -> tuple[list[str], list[tuple[Any, ...]]]:
    if store.columns(found[1], found[2]):
        return [], []
    keys = [name.strip(" `") for name in found[4].split(",")]
    columns = []
    for line in found[3].strip().split(",\n"):
        column = _COLUMN.match(line.strip())
        if column is None:
            raise SqlError(1064, f"Getting syntax error at {line.strip()[:40]}")
        columns.append(StandinColumn(column[1], column[2].upper(), column[3].upper() == "NULL", column[1] in keys))
    if [c.name for c in columns[: len(keys)]] != keys:
        raise SqlError(1064, "Key columns must be the first few columns of the schema and in the same order")
    for c in columns[: len(keys)]:
        if c.nullable or c.type.startswith(("DECIMAL", "DOUBLE", "FLOAT", "JSON", "ARRAY")):
            raise SqlError(1064, f"primary key column[{c.name}] type not support or nullable")
    store.create(found[1], found[2], columns)
    return [], []


def _default(column: StandinColumn, text: str | None) -> Any:
    """As the analyzer takes it: a constant of a scalar type, or an error."""
    if text is None:
        return None
    base = column.type.partition("(")[0]
    if base == "JSON" or base.startswith("ARRAY"):
        raise SqlError(1064, f"Invalid default value for '{column.name}': {base} has none")
    value: Any = _plain(text)
    try:
        if base == "BOOLEAN":
            value = {"1": True, "0": False, "true": True, "false": False}[value.lower()]
        return convert(float(value) if base in ("FLOAT", "DOUBLE") else value, column)
    except (Rejected, ValueError, KeyError) as error:
        raise SqlError(1064, f"Invalid default value for '{column.name}'") from error


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text.replace("''", "'"), flags=re.S)


def _literal(text: str) -> str:
    return "'" + _plain(text).replace("'", "''") + "'"


class Connection(socketserver.BaseRequestHandler):
    """One client. The server object has `store`, `user` and `password`."""

    server: Any

    def handle(self) -> None:
        self._sequence = 0
        salt = bytes(b % 127 + 1 for b in os.urandom(20))
        self._send(
            b"\x0a8.0.33\x00" + struct.pack("<I", 1) + salt[:8] + b"\x00"
            + struct.pack("<HBHH", _CAPABILITIES & 0xFFFF, 45, 2, _CAPABILITIES >> 16)
            + bytes([21]) + bytes(10) + salt[8:] + b"\x00" + b"mysql_native_password\x00"
        )  # fmt: skip
        answer = self._receive()
        if answer is None:
            return
        user, _, rest = answer[32:].partition(b"\x00")
        token = rest[1 : 1 + rest[0]] if rest else b""
        if user.decode() != self.server.user or token != _scramble(self.server.password, salt):
            self._error(1045, f"Access denied for user '{user.decode()}'")
            return
        self._ok()
        while (packet := self._receive()) is not None:
            if packet[0] == _COM_QUIT:
                return
            self._answer(packet)

    def _answer(self, packet: bytes) -> None:
        if packet[0] in (_COM_PING, _COM_INIT_DB):
            self._ok()
        elif packet[0] != _COM_QUERY:
            self._error(1047, "Unknown command")
        else:
            try:
                names, rows = run(self.server.store, packet[1:].decode())
            except SqlError as error:
                self._error(error.code, str(error))
                return
            self._rows(names, rows) if names else self._ok()

    def _rows(self, names: list[str], rows: list[tuple[Any, ...]]) -> None:
        self._send(_length(len(names)))
        for name in names:
            strings = b"".join(_text(t) for t in (b"def", b"", b"", b"", name.encode(), name.encode()))
            self._send(strings + b"\x0c" + struct.pack("<HIBHBH", 45, 1024, 253, 0, 0, 0))
        self._send(b"\xfe\x00\x00\x02\x00")
        for row in rows:
            self._send(b"".join(b"\xfb" if v is None else _text(str(v).encode()) for v in row))
        self._send(b"\xfe\x00\x00\x02\x00")

    def _ok(self) -> None:
        self._send(b"\x00\x00\x00\x02\x00\x00\x00")

    def _error(self, code: int, message: str) -> None:
        self._send(b"\xff" + struct.pack("<H", code) + b"#HY000" + message.encode())

    def _send(self, body: bytes) -> None:
        self.request.sendall(len(body).to_bytes(3, "little") + bytes([self._sequence]) + body)
        self._sequence = (self._sequence + 1) % 256

    def _receive(self) -> bytes | None:
        head = self._read(4)
        if head is None:
            return None
        self._sequence = (head[3] + 1) % 256
        return self._read(int.from_bytes(head[:3], "little"))

    def _read(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            piece = self.request.recv(size - len(data))
            if not piece:
                return None
            data += piece
        return data


def _scramble(password: str, salt: bytes) -> bytes:
    if not password:
        return b""
    first = hashlib.sha1(password.encode()).digest()
    mask = hashlib.sha1(salt + hashlib.sha1(first).digest()).digest()
    return bytes(a ^ b for a, b in zip(first, mask, strict=True))


def _length(number: int) -> bytes:
    if number < 251:
        return bytes([number])
    return b"\xfc" + struct.pack("<H", number) if number < 1 << 16 else b"\xfd" + struct.pack("<I", number)[:3]


def _text(data: bytes) -> bytes:
    return _length(len(data)) + data
