"""The proof's Turso file: written by this process, captured by another, both with `multiprocess_wal`.

Sessions count what they commit themselves: Turso keeps no account but the table that is captured. There is no server to
restart, and no statement that changes a table: how many events that gives depends on when capture looks.
"""

from __future__ import annotations

import base64
import itertools
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from tests.crash.harness import Ending, Row, Tally

_TABLES = (
    "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance REAL, note TEXT)",
    "CREATE TABLE readings (name TEXT PRIMARY KEY, value REAL, extra BLOB)",
)
_KEYS: dict[str, tuple[str, ...]] = {"accounts": ("id",), "readings": ("name",)}


class TursoHarness:
    MOVES: ClassVar[Mapping[str, float]] = {
        "small": 60,
        "rolled_back": 6,
        "medium": 2,
        "large": 0.4,
        "huge": 1,
        "ddl": 1,
    }
    SPILLED: ClassVar[str] = "huge"
    COUNTS_DDL: ClassVar[bool] = True
    COPIED: ClassVar[tuple[str, ...]] = ("accounts", "readings")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turso = pytest.importorskip("turso", reason='pyturso is not installed: pip install "tidemill[turso]"')
        self._ids = itertools.count(1)
        self._counted: Tally = Counter()
        self._lock = threading.Lock()

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        return _KEYS

    def create(self) -> None:
        db = self.connect()
        for table in _TABLES:
            db.execute(table)
        db.execute("PRAGMA capture_data_changes_conn('full')")
        db.execute("INSERT INTO accounts VALUES (0, 0, 'before capture begins')")
        db.close()
        self._counted["accounts", "insert"] += 1

    def connect(self) -> Any:
        return self._turso.connect(str(self.path), isolation_level=None, experimental_features="multiprocess_wal")

    def source(self, name: str) -> dict[str, Any]:
        config = {"id": name, "path": str(self.path), "start_position": "earliest", "trim_seconds": 0.2}
        return {"type": "turso", "config": config}

    def ready(self) -> bool:
        return True  # it begins with the first change that is recorded

    def fill(self, count: int) -> None:
        """Rows of before, which nobody has recorded."""
        db = self.connect()
        db.execute("BEGIN")
        for n in range(1, count):
            db.execute("INSERT INTO accounts VALUES (?, ?, ?)", (n, n / 3, f"there before {n}"))
            db.execute("INSERT INTO readings VALUES (?, ?, NULL)", (f"r{n}", n / 7))
        db.execute("COMMIT")
        db.close()
        self._ids = itertools.count(count)

    def last_change(self) -> int:
        db = self.connect()
        last = db.execute("SELECT max(change_id) FROM turso_cdc").fetchone()[0]
        db.close()
        return int(last)

    def session(self) -> TursoSession:
        return TursoSession(self.connect(), self._ids, self._count)

    def _count(self, done: Tally) -> None:
        with self._lock:
            self._counted.update(done)

    def restart(self, ending: Ending) -> None:
        raise NotImplementedError("there is no server")

    def rows(self, table: str) -> list[Row]:
        db = self.connect()
        cursor = db.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        rows = [{n: _shown(v) for n, v in zip(names, row, strict=True)} for row in cursor.fetchall()]
        db.close()
        return rows

    def tally(self) -> Tally:
        with self._lock:
            return Counter(self._counted)


def _shown(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


class TursoSession:
    """Does one transaction per move; one that Turso refuses is rolled back and not counted."""

    def __init__(self, db: Any, ids: itertools.count[int], count: Any) -> None:
        self._db, self._ids, self._count = db, ids, count
        self._done: Tally = Counter()
        db.execute("PRAGMA busy_timeout = 5000")
        db.execute("PRAGMA capture_data_changes_conn('full')")

    def close(self) -> None:
        self._db.close()

    def move(self, kind: str, dice: Random) -> int:
        self._done = Counter()
        begun = False
        try:
            self._db.execute("BEGIN IMMEDIATE")
            begun = True
            if kind in ("medium", "huge", "large"):
                self._bulk({"medium": 200, "huge": 900, "large": 2000}[kind])
            else:
                for _ in range(dice.randint(1, 5)):
                    self._one(dice)
            if kind == "rolled_back":
                self._db.execute("ROLLBACK")
                return 10
            self._db.execute("COMMIT")
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "turso":
                raise
            if begun:
                self._db.execute("ROLLBACK")
            return 10
        self._count(self._done)
        return self._done.total()

    def _bulk(self, count: int) -> None:
        for _ in range(count):
            self._insert(None)

    def _insert(self, note: str | None) -> None:
        self._db.execute("INSERT INTO accounts VALUES (?, ?, ?)", (next(self._ids), 0.1, note))
        self._done["accounts", "insert"] += 1

    def _one(self, dice: Random) -> None:
        low = dice.randint(1, 200)
        match dice.randint(0, 5):
            case 0 | 1:
                self._insert(dice.choice((None, "", "ключ\n", "x" * 3000)))
            case 2:
                changed = self._db.execute("UPDATE accounts SET balance = ? WHERE id = ?", (dice.random(), low))
                self._done["accounts", "update"] += changed.rowcount
            case 3:
                gone = self._db.execute("DELETE FROM accounts WHERE id = ?", (low,))
                self._done["accounts", "delete"] += gone.rowcount
            case 4:
                moved = self._db.execute("UPDATE accounts SET id = ? WHERE id = ?", (next(self._ids), low))
                self._done["accounts", "delete"] += moved.rowcount
                self._done["accounts", "insert"] += moved.rowcount
            case _:
                name, extra = f"r{dice.randint(1, 30)}", dice.randbytes(dice.choice((0, 100)))
                gone = self._db.execute("DELETE FROM readings WHERE name = ?", (name,))
                self._done["readings", "delete"] += gone.rowcount
                self._db.execute("INSERT INTO readings VALUES (?, ?, ?)", (name, dice.random(), extra))
                self._done["readings", "insert"] += 1
