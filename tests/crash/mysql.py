"""The proof's MySQL and MariaDB: five kinds of table, every kind of transaction, DDL, a binlog that rotates often.

`tally` reads the server's own `mysqlbinlog` over the same files: an account that shares no code with ours. Row metadata
is at the servers' defaults, so that names come from the schema history.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import decimal
import itertools
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import orjson

from tests.crash.harness import Ending, Row, Tally
from tests.crash.mysql_session import KEYS, MysqlSession
from tests.servers.mysql import CACHE, private_server
from tidemill.lab.servers.mysql import fetch, tool
from tidemill.lab.servers.mysql_family import Server

_TABLES = (
    "CREATE TABLE accounts (id bigint PRIMARY KEY, balance decimal(12,2), note text, at timestamp(6) NULL DEFAULT"
    " CURRENT_TIMESTAMP(6), open tinyint unsigned DEFAULT 1, score double)",
    "CREATE TABLE `lines` (`order` int unsigned, Zeile varchar(20) COLLATE utf8mb4_bin, quantity int,"
    " kind enum('a','ä','it''s'), doc json, PRIMARY KEY (`order`, Zeile))",
    "CREATE TABLE documents (name varchar(40) PRIMARY KEY, body longtext, revision int, extra blob)",
    "CREATE TABLE journal (what varchar(20) CHARACTER SET latin1, amount decimal(30,6), body text, day date)",
    "CREATE TABLE readings (id bigint, region varchar(10), value double, PRIMARY KEY (id, region))"
    " PARTITION BY KEY (region) PARTITIONS 3",
)
_ROW = re.compile(r"### (INSERT INTO|UPDATE|DELETE FROM) `([^`]+)`\.`([^`]+)`")
_CELL = re.compile(r"###   @(\d+)=(.*)")
_STATEMENT = re.compile(r"(TRUNCATE|ALTER TABLE) `?(\w+)`?")


def crash_server(kind: str) -> Server:
    """Synced, since it is killed; binlog files of a few hundred kilobytes, so that it rotates under any load."""
    metadata = "MINIMAL" if kind == "mysql" else "NO_LOG"
    return private_server(
        kind, durable=True, max_binlog_size=400_000, binlog_row_metadata=metadata, innodb_buffer_pool_size="128M"
    )


class MysqlHarness:
    MOVES: ClassVar[Mapping[str, float]] = {
        "small": 60, "savepoints": 8, "rolled_back": 6, "documents": 12, "truncate": 1, "medium": 2, "large": 0.4,
        "ddl": 3, "flush": 1, "xa": 4,
    }  # fmt: skip
    SPILLED: ClassVar[str] = "huge"
    COUNTS_DDL: ClassVar[bool] = True

    def __init__(self, server: Server, database: str, *, positions: str = "auto") -> None:
        self.server = server
        self.database = database
        self._positions = positions
        self._ids = itertools.count(1)
        self._tally: Tally = Counter()
        self._account = ("", 0)  # file and byte up to which was counted
        self._start = ""

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        return KEYS

    def create(self) -> None:
        self.server.execute(*_TABLES, database=self.database)
        file, at, *_ = self._status()
        self._account = (file, at)
        self._start = f"{file}:{at}"
        if self._positions != "file":
            variable = "@@gtid_binlog_pos" if self.mariadb else "@@gtid_executed"
            self._start = self.server.query(f"SELECT {variable}")[0][0].replace("\n", "")

    @property
    def mariadb(self) -> bool:
        return self.server.name == "MariaDB"

    def source(self, name: str) -> dict[str, Any]:
        config = {
            "id": name, "dsn": self.server.dsn(), "tables": [f"{self.database}.{table}" for table in KEYS],
            "start_position": self._start, "positions": self._positions, "heartbeat_seconds": 0.5,
            "feedback_seconds": 0.2,
        }  # fmt: skip
        return {"type": "mariadb" if self.mariadb else "mysql", "config": config}

    def ready(self) -> bool:
        return any(row[4].startswith("Binlog Dump") for row in self.server.query("SHOW PROCESSLIST"))

    def session(self) -> MysqlSession:
        # Only a GTID set of MySQL can leave out a transaction that is prepared: elsewhere its commit after a restart is
        # an error that asks for a recovery.
        xa = not self.mariadb and self._positions != "file"
        return MysqlSession(self.server, self.database, self._ids, xa=xa)

    def restart(self, ending: Ending) -> None:
        if ending == "fast":
            self.server.stop()
        else:
            self.server.kill()
        self.server.start()

    def purge(self) -> None:
        """What is counted and not being read: a server keeps files that it is sending."""
        self.server.query("FLUSH BINARY LOGS")
        self.tally()
        self.server.query(f"PURGE BINARY LOGS TO '{self._account[0]}'")

    def written(self) -> int:
        """Bytes of binlog that are there."""
        return sum(row[1] for row in self.server.query("SHOW BINARY LOGS"))

    def rows(self, table: str) -> list[Row]:
        columns = self.server.query(
            "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
            " ORDER BY ORDINAL_POSITION",
            (self.database, table),
        )
        with self.server.connect(self.database, init_command="SET time_zone = '+00:00'") as db, db.cursor() as cursor:
            cursor.execute(f"SELECT * FROM `{table}`")
            return [
                {name: _shown(kind, value, self.mariadb) for (name, kind), value in zip(columns, row, strict=True)}
                for row in cursor.fetchall()
            ]

    def tally(self) -> Tally:
        """Reads on from where the last call ended. What a killed client left prepared is committed first."""
        with contextlib.closing(self.session()) as session:
            session.move("nothing", Random(0))
        end_file, end_at, *_ = self._status()
        names = [row[0] for row in self.server.query("SHOW BINARY LOGS")]
        first, at = self._account
        files = [self.server.data / name for name in names[names.index(first) : names.index(end_file) + 1]]
        program = ["mariadb-binlog"] if self.mariadb else [*map(str, tool(fetch(CACHE), "usr/bin/mysqlbinlog"))]
        options = ["--no-defaults", "--verbose", "--base64-output=DECODE-ROWS", f"--start-position={at}"]
        command = [*program, *options, f"--stop-position={end_at}", *map(str, files)]
        self._tally.update(_events_of(command, self.database))
        self._account = (end_file, end_at)
        return self._tally

    def _status(self) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self.server.query("SHOW MASTER STATUS" if self.mariadb else "SHOW BINARY LOG STATUS")[0]
        return row


def _events_of(command: list[str], database: str) -> Tally:
    """Of the rows that `mysqlbinlog --verbose` prints, only keys are of interest: an update that changes one is two
    events."""
    found: Tally = Counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        op, table, images = "", "", [[""], [""]]
        here = ""

        def done() -> None:
            nonlocal op
            if op == "update" and images[0] != images[1]:
                found.update([(table, "delete"), (table, "insert")])
            elif op:
                found[table, op] += 1
            op = ""

        side = 0
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            if not line.startswith("###"):
                done()
                if used := re.match(r"use `([^`]+)`", line):
                    here = used[1]
                statement = _STATEMENT.match(line.replace("TRUNCATE TABLE", "TRUNCATE"))
                if statement and here == database and statement[2] in KEYS:
                    found[statement[2], "truncate" if statement[1] == "TRUNCATE" else "ddl"] += 1
            elif row := _ROW.match(line):
                done()
                if row[2] == database and row[3] in KEYS:
                    op, table, images = row[1].split()[0].lower(), row[3], [[], []]
            elif line == "### WHERE":
                side = 0
            elif line == "### SET":
                side = 1
            elif op and (cell := _CELL.match(line)) and int(cell[1]) <= len(KEYS[table]):
                images[side].append(cell[2])
        done()
        errors = process.stderr.read().decode()
    assert process.returncode == 0, errors
    return found


def _shown(kind: str, value: Any, mariadb: bool) -> Any:
    """As docs/events.md promises it."""
    match value:
        case None:
            return None
        case decimal.Decimal():
            return f"{value:f}"
        case datetime.datetime():
            return value.isoformat(timespec="microseconds") + ("Z" if kind == "timestamp" else "")
        case datetime.date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case str() if kind == "json" and not mariadb:
            return orjson.loads(value)
        case _:
            return value
