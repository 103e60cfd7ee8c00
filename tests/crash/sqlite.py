"""The proof's SQLite: four kinds of table, every way to write, several programs at once, a file that is vacuumed.

`tally` is the file's own account: counters that triggers of the harness keep in the same transactions, which share no
code with those of capture. Columns do not change here: how many events that gives depends on when capture looks
(tests/sources/test_sqlite_schema.py has it). DDL is indexes that come and go, after which triggers are looked at anew.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.crash.harness import Ending, Row, Tally

_TABLES = (
    "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance REAL, note TEXT UNIQUE, open BOOLEAN DEFAULT 1)",
    'CREATE TABLE lines ("order" INT, line TEXT, quantity INT, extra BLOB, PRIMARY KEY ("order", line)) WITHOUT ROWID',
    "CREATE TABLE journal (what TEXT, amount NUMERIC, body TEXT)",
    "CREATE TABLE readings (name TEXT PRIMARY KEY, value REAL, doubled REAL AS (value * 2) STORED)",
)
_KEYS: dict[str, tuple[str, ...]] = {
    "accounts": ("id",), "lines": ("order", "line"), "journal": (), "readings": ("name",),
}  # fmt: skip
_SIZES = {"large": 3000, "huge": 900, "medium": 300}


class SqliteHarness:
    MOVES: ClassVar[Mapping[str, float]] = {
        "small": 60, "savepoints": 8, "rolled_back": 6, "medium": 2, "large": 0.4, "huge": 1, "ddl": 2, "vacuum": 0.3,
    }  # fmt: skip
    SPILLED: ClassVar[str] = "huge"
    COUNTS_DDL: ClassVar[bool] = True
    # In chunks: a key that may be NULL is one, and a table without one is not told apart.
    COPIED: ClassVar[tuple[str, ...]] = ("accounts", "lines")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ids = itertools.count(1)

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        return _KEYS

    def create(self) -> None:
        with contextlib.closing(self._connect()) as db:
            db.execute("PRAGMA journal_mode = wal")
            for table in _TABLES:
                db.execute(table)
            db.execute("CREATE TABLE counted (name TEXT, op TEXT, n INT DEFAULT 0, PRIMARY KEY (name, op))")
            for table, key in _KEYS.items():
                for op in ("insert", "update", "delete"):
                    db.execute("INSERT INTO counted (name, op) VALUES (?, ?)", [table, op])
                moved = " OR ".join(f'OLD."{c}" IS NOT NEW."{c}"' for c in key) or "0"
                for name, event, when, ops in (
                    ("i", "INSERT", "1", ("insert",)), ("d", "DELETE", "1", ("delete",)),
                    ("u", "UPDATE", f"NOT ({moved})", ("update",)), ("k", "UPDATE", moved, ("delete", "insert")),
                ):  # fmt: skip
                    counts = "".join(
                        f" UPDATE counted SET n = n + 1 WHERE name = '{table}' AND op = '{op}';" for op in ops
                    )
                    trigger = f"CREATE TRIGGER count_{table}_{name} AFTER {event} ON {table} WHEN {when}"
                    db.execute(f"{trigger} BEGIN{counts} END")

    def source(self, name: str) -> dict[str, Any]:
        config = {"id": name, "path": str(self.path), "tables": list(_KEYS), "window_rows": 400, "trim_seconds": 0.2}
        return {"type": "sqlite", "config": config}

    def ready(self) -> bool:
        with contextlib.closing(self._connect()) as db:
            there = db.execute("SELECT 1 FROM sqlite_schema WHERE name = '_tidemill_readers'").fetchone()
            return bool(there and db.execute("SELECT 1 FROM _tidemill_readers").fetchone())

    def fill(self, count: int) -> None:
        """Rows of before, which nobody has recorded."""
        with contextlib.closing(self._connect()) as db:
            rows = [(n, n / 3, f"there before {n}") for n in range(1, count)]
            db.executemany("INSERT INTO accounts (id, balance, note) VALUES (?, ?, ?)", rows)
            db.executemany("INSERT INTO lines VALUES (?, 'a', 1, NULL)", [(n,) for n in range(1, 16)])

    def last_change(self) -> int:
        """The last one may be of a table that is not captured: one more that is."""
        with contextlib.closing(self._connect()) as db:
            db.execute("UPDATE accounts SET balance = 1 WHERE id = (SELECT min(id) FROM accounts)")
            (last,) = db.execute("SELECT seq FROM sqlite_sequence WHERE name = '_tidemill_changes'").fetchone()
            return int(last)

    def session(self) -> SqliteSession:
        return SqliteSession(self._connect(), self._ids)

    def restart(self, ending: Ending) -> None:
        """There is no server: the WAL is written back and cut, as when the last program closes the file."""
        with contextlib.closing(self._connect()) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def rows(self, table: str) -> list[Row]:
        with contextlib.closing(self._connect()) as db:
            cursor = db.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            return [{n: _shown(n, v) for n, v in zip(names, row, strict=True)} for row in cursor]

    def tally(self) -> Tally:
        with contextlib.closing(self._connect()) as db:
            return Counter({(name, op): n for name, op, n in db.execute("SELECT name, op, n FROM counted") if n})

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None, timeout=20, check_same_thread=False)
        db.execute("PRAGMA synchronous = NORMAL")
        # For the counting triggers, which otherwise miss what REPLACE deletes; ours need it not.
        db.execute("PRAGMA recursive_triggers = ON")
        return db


def _shown(name: str, value: Any) -> Any:
    """As docs/events.md promises it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if name == "amount" and value is not None:  # NUMERIC: SQLite keeps 7.0 as an integer, Arrow has a double
        return float(value)
    return bool(value) if name == "open" and value is not None else value


class SqliteSession:
    """Does one transaction per move. What the file refuses, a key that is taken or a lock, is rolled back."""

    def __init__(self, db: sqlite3.Connection, ids: itertools.count[int]) -> None:
        self._db, self._ids = db, ids

    def close(self) -> None:
        self._db.close()

    def move(self, kind: str, dice: Random) -> int:
        try:
            if kind == "vacuum":
                self._db.execute("VACUUM")
                return 10
            self._db.execute("BEGIN IMMEDIATE")
            getattr(self, f"_{kind}")(dice)
            if self._db.in_transaction:
                self._db.execute("COMMIT")
        except sqlite3.Error:  # a key that is taken, a lock not had in time: ordinary life of a client
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        return _SIZES.get(kind, 10)

    def run(self, statement: str, *values: Any) -> None:
        self._db.execute(statement, values)

    def next_id(self) -> int:
        return next(self._ids)

    def _small(self, dice: Random) -> None:
        for _ in range(dice.randint(1, 6)):
            dice.choice(_STATEMENTS)(self, dice)

    def _savepoints(self, dice: Random) -> None:
        self._small(dice)
        self.run("SAVEPOINT a")
        self._bulk(dice.choice((3, 200)))
        self.run(dice.choice(("ROLLBACK TO a", "RELEASE a")))
        self._small(dice)

    def _rolled_back(self, dice: Random) -> None:
        self._small(dice)
        self._bulk(dice.choice((2, 500)))
        self.run("ROLLBACK")

    def _medium(self, dice: Random) -> None:
        self._bulk(_SIZES["medium"])

    def _huge(self, dice: Random) -> None:
        self._bulk(_SIZES["huge"])

    def _large(self, dice: Random) -> None:
        self._bulk(_SIZES["large"])
        self.run("DELETE FROM accounts WHERE id > 1000000 AND id % 3 > 0")

    def _ddl(self, dice: Random) -> None:
        self.run(dice.choice(("DROP INDEX IF EXISTS by_value", "CREATE INDEX by_value ON readings (value)")))
        self._small(dice)

    def _bulk(self, count: int) -> None:
        first = 1_000_000 + 5000 * self.next_id()
        rows = [(first + i, i / 7, f"bulk {first + i}") for i in range(count)]
        self._db.executemany("INSERT INTO accounts (id, balance, note) VALUES (?, ?, ?)", rows)


def _open(db: SqliteSession, dice: Random) -> None:
    db.run(
        "INSERT INTO accounts (id, balance, note) VALUES (?, ?, ?)", db.next_id(),
        dice.choice((None, 0.1, -1e300, 5.0)), dice.choice((None, f"ключ {db.next_id()}", f"n{dice.randint(1, 30)}")),
    )  # fmt: skip


def _replace(db: SqliteSession, dice: Random) -> None:
    """Of one key, of another unique column, or of both at once."""
    db.run("REPLACE INTO accounts VALUES (?, ?, ?, 0)", dice.randint(1, 60), dice.random(), f"n{dice.randint(1, 30)}")


def _deposit(db: SqliteSession, dice: Random) -> None:
    low = dice.randint(1, 60)
    db.run("UPDATE accounts SET balance = id * 1.5, open = 1 - open WHERE id BETWEEN ? AND ?", low, low + 9)


def _renumber(db: SqliteSession, dice: Random) -> None:
    there, here = dice.randint(1, 80), dice.randint(1, 60)
    db.run("UPDATE OR REPLACE accounts SET id = ?, note = 'moved' WHERE id = ?", there, here)


def _close(db: SqliteSession, dice: Random) -> None:
    db.run("DELETE FROM accounts WHERE id = ?", dice.randint(1, 80))


def _line(db: SqliteSession, dice: Random) -> None:
    db.run(
        'INSERT INTO lines VALUES (?, ?, 1, ?) ON CONFLICT ("order", line) DO UPDATE SET quantity = quantity + 1',
        dice.randint(1, 15), dice.choice("aäb'c\""), dice.choice((None, b"", dice.randbytes(200))),
    )  # fmt: skip


def _move_lines(db: SqliteSession, dice: Random) -> None:
    """Part of the key changes for several rows, onto keys that others had a moment ago."""
    left, right = dice.sample(range(1, 16), 2)
    db.run('DELETE FROM lines WHERE "order" = ?', left)
    db.run('UPDATE lines SET "order" = ?, quantity = 0 WHERE "order" = ?', left, right)


def _note(db: SqliteSession, dice: Random) -> None:
    """Often the same row twice: without a key they are told apart by nothing."""
    for _ in range(dice.choice((1, 2))):
        amount, body = dice.choice((None, 1.5, -7.0)), dice.choice((None, "x" * 3000))
        db.run("INSERT INTO journal VALUES (?, ?, ?)", f"wé{dice.randint(1, 9)}", amount, body)


def _renote(db: SqliteSession, dice: Random) -> None:
    db.run("UPDATE journal SET amount = 7.0 WHERE what = ?", f"wé{dice.randint(1, 9)}")


def _unnote(db: SqliteSession, dice: Random) -> None:
    db.run("DELETE FROM journal WHERE what = ?", f"wé{dice.randint(1, 9)}")


def _measure(db: SqliteSession, dice: Random) -> None:
    clause = dice.choice(("", "OR REPLACE", "OR IGNORE"))
    name, value = f"r{dice.randint(1, 40)}", dice.choice((1.5, -1e-30))
    db.run(f"INSERT {clause} INTO readings (name, value) VALUES (?, ?)", name, value)


Statement = Callable[[SqliteSession, Random], None]
_STATEMENTS: tuple[Statement, ...] = (
    _open, _open, _replace, _deposit, _renumber, _close, _line, _line, _move_lines, _note, _note, _renote, _unnote,
    _measure, _measure,
)  # fmt: skip
