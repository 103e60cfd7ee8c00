"""Transactions of the proof's MySQL and MariaDB, of every kind, from one session."""

from __future__ import annotations

import contextlib
import itertools
import time
from random import Random
from typing import Any

import pymysql

from tests.crash.mysql_statements import DOCUMENT_STATEMENTS, STATEMENTS
from tidemill.lab.servers.mysql_family import Server

KEYS: dict[str, tuple[str, ...]] = {
    "accounts": ("id",),
    "lines": ("order", "Zeile"),
    "documents": ("name",),
    "journal": (),
    "readings": ("id", "region"),
}
_LARGE_IDS = 1_000_000_000
_EXTRA_COLUMNS = 3
_SIZES = {"large": 25_000, "huge": 4000, "medium": 800, "savepoints": 400, "rolled_back": 300}


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
            dice.choice(STATEMENTS)(self, dice)

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
            dice.choice(DOCUMENT_STATEMENTS)(self, dice)

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
        table = dice.choice(list(KEYS))
        there = [row[0] for row in self.run(f"SHOW COLUMNS FROM `{table}` LIKE 'extra%%'")]
        if dice.random() < 0.5:
            self._small(dice)
        change = dice.choice(("add", "add", "drop", "rename", "modify", "index"))
        if change == "add" and len(there) < _EXTRA_COLUMNS:
            kind = dice.choice(("int", "varchar(20)", "decimal(10,3)", "datetime(2)", "bigint unsigned", "text"))
            place = dice.choice(("", f" AFTER `{(KEYS[table] or ('what',))[-1]}`"))
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
