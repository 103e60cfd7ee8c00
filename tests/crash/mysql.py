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
import time
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, ClassVar

import orjson
import pymysql

from tests.crash.harness import Ending, Row, Tally
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
_KEYS: dict[str, tuple[str, ...]] = {
    "accounts": ("id",),
    "lines": ("order", "Zeile"),
    "documents": ("name",),
    "journal": (),
    "readings": ("id", "region"),
}
_REGIONS = ("north", "south", "east")
_LARGE_IDS = 1_000_000_000
_EXTRA_COLUMNS = 3
_SIZES = {"large": 25_000, "huge": 4000, "medium": 800, "savepoints": 400, "rolled_back": 300}
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
        return _KEYS

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
            "id": name, "dsn": self.server.dsn(), "tables": [f"{self.database}.{table}" for table in _KEYS],
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
                if statement and here == database and statement[2] in _KEYS:
                    found[statement[2], "truncate" if statement[1] == "TRUNCATE" else "ddl"] += 1
            elif row := _ROW.match(line):
                done()
                if row[2] == database and row[3] in _KEYS:
                    op, table, images = row[1].split()[0].lower(), row[3], [[], []]
            elif line == "### WHERE":
                side = 0
            elif line == "### SET":
                side = 1
            elif op and (cell := _CELL.match(line)) and int(cell[1]) <= len(_KEYS[table]):
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


class MysqlSession:
    """Does one transaction per move. What the server refuses is rolled back; a server that is away is waited for."""

    def __init__(self, server: Server, database: str, ids: itertools.count[int], *, xa: bool) -> None:
        self._server, self._database, self._ids, self._may_xa = server, database, ids, xa
        self._db: Any = None

    def close(self) -> None:
        self._hang_up()

    def move(self, kind: str, dice: Random) -> int:
        deadline = time.monotonic() + 180
        while True:
            try:
                self._connect()
                break
            except pymysql.err.MySQLError:
                assert time.monotonic() < deadline, "the database does not come back"
                time.sleep(0.05)
        try:
            getattr(self, f"_{kind}")(dice)
            self._db.commit()
        except (pymysql.err.OperationalError, pymysql.err.IntegrityError, pymysql.err.InternalError,
                pymysql.err.InterfaceError):  # fmt: skip
            # A restart, a deadlock, a lock not had in time, a key that is taken: ordinary life of a client.
            try:
                self._db.rollback()
            except (pymysql.err.MySQLError, OSError):
                self._hang_up()
        return _SIZES.get(kind, 10)

    def _connect(self) -> None:
        if self._db is None:
            depth = "cte_max_recursion_depth" if self._server.name == "MySQL" else "max_recursive_iterations"
            settings = f"SET SESSION lock_wait_timeout = 2, innodb_lock_wait_timeout = 2, {depth} = 2000000"
            self._db = self._server.connect(self._database, autocommit=False, connect_timeout=5, init_command=settings)
            self._commit_prepared()

    def _commit_prepared(self) -> None:
        """Of clients that ended between PREPARE and COMMIT; those of living ones are refused."""
        for _, length, _, data in self.run("XA RECOVER") if self._may_xa else []:
            if data[:length].startswith(f"{self._database}-"):
                with contextlib.suppress(pymysql.err.MySQLError):
                    self.run(f"XA COMMIT '{data[:length]}'")

    def _hang_up(self) -> None:
        if self._db is not None:
            with contextlib.suppress(pymysql.err.MySQLError, OSError):
                self._db.close()
            self._db = None

    def run(self, statement: str, *params: Any) -> list[tuple[Any, ...]]:
        with self._db.cursor() as cursor:
            cursor.execute(statement, params or None)
            return list(cursor.fetchall())

    def next_id(self) -> int:
        return next(self._ids)

    def _small(self, dice: Random) -> None:
        for _ in range(dice.randint(1, 6)):
            dice.choice(_STATEMENTS)(self, dice)

    def _savepoints(self, dice: Random) -> None:
        for _ in range(dice.randint(1, 4)):
            self._small(dice)
            self.run("SAVEPOINT a")
            self.bulk(dice.choice((3, 3, 500)))
            self.run("SAVEPOINT b")
            self._small(dice)
            self.run(dice.choice(("ROLLBACK TO a", "ROLLBACK TO b", "RELEASE SAVEPOINT a")))

    def _rolled_back(self, dice: Random) -> None:
        self._small(dice)
        if dice.random() < 0.4:
            self.bulk(800)
        self._db.rollback()

    def _documents(self, dice: Random) -> None:
        for _ in range(dice.randint(1, 4)):
            dice.choice(_DOCUMENT_STATEMENTS)(self, dice)

    def _nothing(self, dice: Random) -> None:
        pass

    def _xa(self, dice: Random) -> None:
        """In two phases, and other transactions between them."""
        if not self._may_xa:
            self._small(dice)
            return
        name = f"{self._database}-{self.next_id()}"
        self.run(f"XA START '{name}'")
        try:
            self._small(dice)
        finally:
            self.run(f"XA END '{name}'")
        self.run(f"XA PREPARE '{name}'")
        time.sleep(dice.choice((0, 0.05)))
        self.run(f"XA COMMIT '{name}'")

    def _huge(self, dice: Random) -> None:
        """More than capture keeps in memory before the commit."""
        self.run("DELETE FROM documents WHERE name LIKE 'huge%%'")
        for _ in range(3):
            self.run(
                "INSERT INTO documents (name, body) WITH RECURSIVE s AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM s"
                " WHERE n < 250) SELECT concat('huge-', %s, '-', n), repeat('0123456789abcdef', 2500) FROM s",
                self.next_id(),
            )
            self._small(dice)
        if dice.random() < 0.2:
            self._db.rollback()

    def _million(self, dice: Random) -> None:
        self.run(
            "INSERT INTO accounts (id, balance, note) WITH RECURSIVE s AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM s"
            " WHERE n < 1000000) SELECT %s + n, n, repeat('x', 150) FROM s",
            2 * _LARGE_IDS,
        )

    def _truncate(self, dice: Random) -> None:
        if dice.random() < 0.5:
            self._small(dice)
        self.run(f"TRUNCATE TABLE `{dice.choice(('lines', 'journal', 'readings', 'documents'))}`")
        self._small(dice)

    def _flush(self, dice: Random) -> None:
        self._small(dice)
        self.run("FLUSH BINARY LOGS")

    def _medium(self, dice: Random) -> None:
        self.bulk(dice.randint(400, 1200))
        self._small(dice)

    def _large(self, dice: Random) -> None:
        count = dice.randint(10_000, 20_000)
        first = self.bulk(count)
        self._small(dice)
        fate = dice.random()
        if fate < 0.25:
            self._db.rollback()
        elif fate < 0.5:
            self.run("SAVEPOINT a")
            self.run("UPDATE accounts SET open = 0 WHERE id BETWEEN %s AND %s", first, first + count)
            self.run("ROLLBACK TO a")
        else:
            self.run("UPDATE accounts SET score = id WHERE id BETWEEN %s AND %s", first, first + count // 3)
        # The tables must not outgrow the comparison.
        self.run("DELETE FROM accounts WHERE id >= %s AND id < %s", _LARGE_IDS, first)

    def _ddl(self, dice: Random) -> None:
        """Columns come, go, change names, types and places. Without a default, so that old rows read NULL."""
        table = dice.choice(list(_KEYS))
        there = [row[0] for row in self.run(f"SHOW COLUMNS FROM `{table}` LIKE 'extra%%'")]
        if dice.random() < 0.5:
            self._small(dice)
        change = dice.choice(("add", "add", "drop", "rename", "modify", "index"))
        if change == "add" and len(there) < _EXTRA_COLUMNS:
            kind = dice.choice(("int", "varchar(20)", "decimal(10,3)", "datetime(2)", "bigint unsigned", "text"))
            place = dice.choice(("", f" AFTER `{(_KEYS[table] or ('what',))[-1]}`"))
            self.run(f"ALTER TABLE `{table}` ADD COLUMN extra_{self.next_id()} {kind}{place}")
        elif change == "drop" and there:
            self.run(f"ALTER TABLE `{table}` DROP COLUMN {dice.choice(there)}")
        elif change == "rename" and there:
            self.run(f"ALTER TABLE `{table}` RENAME COLUMN {dice.choice(there)} TO extra_{self.next_id()}")
        elif change == "modify":
            self.run(f"ALTER TABLE documents MODIFY revision {dice.choice(('int', 'bigint', 'mediumint'))}")
        elif change == "index":
            self.run(f"ALTER TABLE accounts {dice.choice(('ADD INDEX i (balance)', 'DROP INDEX i'))}")
        self._small(dice)
        for column in [row[0] for row in self.run(f"SHOW COLUMNS FROM `{table}` LIKE 'extra%%'")]:
            if table in ("accounts", "lines", "readings"):
                self.run(f"UPDATE `{table}` SET {column} = 20260301 WHERE rand() < 0.1")

    def bulk(self, count: int) -> int:
        """The first id of `count` new accounts with consecutive ids."""
        first = _LARGE_IDS + 25_000 * self.next_id()
        self.run(
            "INSERT INTO accounts (id, balance, note) WITH RECURSIVE s AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM s"
            " WHERE n < %s) SELECT %s + n, n %% 1000, concat('bulk ', n) FROM s",
            count - 1, first,
        )  # fmt: skip
        return first


def _text(dice: Random, size: int) -> str:
    return dice.randbytes(size // 2).hex()


def _open(db: MysqlSession, dice: Random) -> None:
    for _ in range(dice.choice((1, 1, 3))):
        db.run(
            "INSERT INTO accounts (id, balance, note, score) VALUES (%s, %s, %s, %s)", db.next_id(),
            f"{dice.uniform(-9e9, 9e9):.2f}", dice.choice((None, "", "ключ\t\"q\"\n\\", "x" * 300)),
            dice.choice((None, 0.1, -1e300, 2.5e-300)),
        )  # fmt: skip


def _deposit(db: MysqlSession, dice: Random) -> None:
    low = dice.randint(1, 60)
    db.run(
        "UPDATE accounts SET balance = balance / 2, at = now(6), open = 1 - open WHERE id BETWEEN %s AND %s",
        low, low + dice.choice((0, 5, 30)),
    )  # fmt: skip


def _close(db: MysqlSession, dice: Random) -> None:
    db.run("DELETE FROM accounts WHERE id >= %s ORDER BY id LIMIT 1", dice.randint(1, 60))


def _renumber(db: MysqlSession, dice: Random) -> None:
    db.run(
        "UPDATE accounts SET id = %s, note = 'moved' WHERE id >= %s ORDER BY id LIMIT 1",
        db.next_id(),
        dice.randint(1, 60),
    )


def _reuse(db: MysqlSession, dice: Random) -> None:
    """The same key again and again, so that the order of its events matters."""
    number = dice.randint(1, 40)
    db.run("DELETE FROM accounts WHERE id = %s", number)
    db.run("REPLACE INTO accounts (id, balance, note) VALUES (%s, %s, 'again')", number, dice.randint(0, 99))


def _line(db: MysqlSession, dice: Random) -> None:
    db.run(
        "INSERT INTO `lines` (`order`, Zeile, quantity, kind, doc) VALUES (%s, %s, 1, %s, %s)"
        " ON DUPLICATE KEY UPDATE quantity = quantity + 1, doc = VALUES(doc)",
        dice.randint(1, 15), dice.choice("aäb'c\""), dice.choice((None, "a", "ä", "it's")),
        dice.choice((None, '{"a": [1, {"b": null}]}', '"text"', "[1.5, 18446744073709551615]")),
    )  # fmt: skip


def _move_lines(db: MysqlSession, dice: Random) -> None:
    """Part of the key changes for several rows, onto keys that others had a moment ago."""
    left, right = dice.sample(range(1, 16), 2)
    db.run("DELETE FROM `lines` WHERE `order` = %s", left)
    db.run("UPDATE `lines` SET `order` = %s, quantity = 0 WHERE `order` = %s", left, right)


def _drop_lines(db: MysqlSession, dice: Random) -> None:
    db.run("DELETE FROM `lines` WHERE `order` = %s AND Zeile <> 'a'", dice.randint(1, 15))


def _note(db: MysqlSession, dice: Random) -> None:
    """Often the same row twice: without a key they are told apart by nothing."""
    body = _text(dice, 5000) if dice.random() < 0.2 else None
    for _ in range(dice.choice((1, 2))):
        db.run(
            "INSERT INTO journal (what, amount, body, day) VALUES (%s, %s, %s, %s)", f"wé{dice.randint(1, 9)}",
            dice.choice(("1.50", "-0.000001", "123456789012345678901234.5", None)), body,
            dice.choice((None, "2026-03-01", "0001-01-01")),
        )  # fmt: skip


def _renote(db: MysqlSession, dice: Random) -> None:
    db.run("UPDATE journal SET amount = 7 WHERE what = %s", f"wé{dice.randint(1, 9)}")


def _unnote(db: MysqlSession, dice: Random) -> None:
    db.run("DELETE FROM journal WHERE what = %s LIMIT %s", f"wé{dice.randint(1, 9)}", dice.randint(1, 20))


def _measure(db: MysqlSession, dice: Random) -> None:
    for _ in range(dice.randint(1, 3)):
        db.run(
            "INSERT INTO readings (id, region, value) VALUES (%s, %s, %s)", db.next_id(), dice.choice(_REGIONS),
            dice.choice((1.5, 0.1, -1e-30)),
        )  # fmt: skip


def _relocate(db: MysqlSession, dice: Random) -> None:
    """From one partition into another, which changes the key."""
    here, there = dice.sample(_REGIONS, 2)
    db.run("UPDATE readings SET region = %s, value = 2 WHERE region = %s ORDER BY id LIMIT 3", there, here)


def _forget(db: MysqlSession, dice: Random) -> None:
    db.run("DELETE FROM readings WHERE region = %s ORDER BY id LIMIT 4", dice.choice(_REGIONS))


def _write(db: MysqlSession, dice: Random) -> None:
    body, extra = (_text(dice, 9000) if dice.random() < 0.8 else None), dice.randbytes(dice.choice((0, 10, 3000)))
    db.run(
        "INSERT INTO documents (name, body, revision, extra) VALUES (%s, %s, 0, %s) ON DUPLICATE KEY UPDATE"
        " revision = revision + 1, extra = VALUES(extra)", f"doc-{dice.randint(1, 40)}", body, extra,
    )  # fmt: skip


def _revise(db: MysqlSession, dice: Random) -> None:
    db.run("UPDATE documents SET revision = revision + 1 WHERE name LIKE %s", f"doc-{dice.randint(0, 4)}%")


def _rewrite(db: MysqlSession, dice: Random) -> None:
    db.run(
        "UPDATE documents SET body = %s, revision = revision + 1 WHERE name = %s",
        dice.choice((None, "short", _text(dice, 7000))), f"doc-{dice.randint(1, 40)}",
    )  # fmt: skip


def _shred(db: MysqlSession, dice: Random) -> None:
    db.run("DELETE FROM documents WHERE name = %s", f"doc-{dice.randint(1, 60)}")


Statement = Callable[[MysqlSession, Random], None]
_DOCUMENT_STATEMENTS: tuple[Statement, ...] = (_write, _write, _revise, _rewrite, _shred)
_STATEMENTS: tuple[Statement, ...] = (
    _open, _open, _deposit, _deposit, _close, _renumber, _reuse, _line, _line, _move_lines, _drop_lines,
    _note, _note, _renote, _unnote, _measure, _measure, _relocate, _forget, _write, _revise,
)  # fmt: skip
