"""The shop of `tidemill demo --source sqlite`: a file in place of a server, the same tables and restless customers.

It counts what it commits, as `shop.Shop` does, and does some things in SQLite's own ways: REPLACE, upserts.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill.lab.shop import CITIES, GOODS, NAMES, NEXT, SALE_ORDERS, Pace, tides

_SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL);
CREATE TABLE products (sku TEXT PRIMARY KEY, name TEXT NOT NULL, price INTEGER NOT NULL, stock INTEGER NOT NULL);
CREATE TABLE orders (
  id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, status TEXT NOT NULL DEFAULT 'placed', total INTEGER NOT NULL
);
CREATE TABLE order_items (
  order_id INTEGER REFERENCES orders ON DELETE CASCADE, line INTEGER, sku TEXT NOT NULL, quantity INTEGER NOT NULL,
  PRIMARY KEY (order_id, line)
) WITHOUT ROWID;
"""


class SqliteShop:
    """`committed` counts changes per (table, operation) as delivered: a replaced row is a delete and an insert."""

    def __init__(self, path: Path, seed: int = 18) -> None:
        self.committed: Counter[tuple[str, str]] = Counter()
        self.transactions = 0
        self.rolled_back = 0
        self._path = path
        self._dice = random.Random(seed)
        self._open: list[tuple[int, str, int]] = []  # orders that are not delivered yet: number, status, lines
        self._skus = [f"{name[:3].upper()}-{number:03}" for number, name in enumerate(GOODS, start=1)]
        self._pending: Counter[tuple[str, str]] = Counter()

    def create(self) -> None:
        with self._connect() as db:
            db.execute("PRAGMA journal_mode = wal")
            db.executescript(_SCHEMA)

    def open(self) -> None:
        """Goods on the shelves and the first customers: one transaction."""
        with self._connect() as db:
            self._transaction(db, self._stock_up)

    def serve(self, stop: threading.Event, seconds: float, pace: Pace = tides) -> None:
        """Works until told to stop or time is up; half-way there is a sale."""
        with self._connect() as db:
            start = due = time.monotonic()
            sale = False
            while not stop.is_set() and (elapsed := time.monotonic() - start) < seconds:
                if not sale and elapsed > seconds / 2:
                    sale = True
                    self._transaction(db, self._flash_sale)
                self._transaction(db, self._pick())
                due = max(due + 1 / pace(elapsed), time.monotonic() - 0.1)  # after a stall, do not catch up in a rush
                stop.wait(max(0.0, due - time.monotonic()))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """What the file holds now, every value as text."""
        with self._connect() as db:
            cursor = db.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            return [{n: None if v is None else str(v) for n, v in zip(names, row, strict=True)} for row in cursor]

    @contextlib.contextmanager
    def _connect(self) -> Any:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None, timeout=30)) as db:
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA synchronous = NORMAL")
            yield db

    def _pick(self) -> Callable[[sqlite3.Connection], None]:
        actions = {
            self._order: 40, self._advance: 60, self._cancel: 6, self._join: 12, self._move: 10, self._reprice: 10,
            self._replace: 4,
        }  # fmt: skip
        return self._dice.choices(list(actions), list(actions.values()))[0]

    def _transaction(self, db: sqlite3.Connection, action: Callable[[sqlite3.Connection], None]) -> None:
        self._pending.clear()
        regret = self.transactions > 0 and self._dice.random() < 0.02
        before = list(self._open)
        db.execute("BEGIN IMMEDIATE")
        action(db)
        db.execute("ROLLBACK" if regret else "COMMIT")
        if regret:
            self.rolled_back += 1
            self._open = before
        else:
            self.transactions += 1
            self.committed.update(self._pending)

    def _count(self, table: str, op: str, count: int = 1) -> None:
        self._pending[table, op] += count

    def _stock_up(self, db: sqlite3.Connection) -> None:
        rows = [(sku, name, self._price(), 100_000) for sku, name in zip(self._skus, GOODS, strict=True)]
        db.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", rows)
        self._count("products", "insert", len(rows))
        for _ in range(20):
            self._join(db)

    def _join(self, db: sqlite3.Connection) -> None:
        person = (self._dice.choice(NAMES), self._dice.choice(CITIES))
        db.execute("INSERT INTO customers (name, city) VALUES (?, ?)", person)
        self._count("customers", "insert")

    def _move(self, db: sqlite3.Connection) -> None:
        city, number = self._dice.choice(CITIES), self._dice.randint(1, 20)
        db.execute("UPDATE customers SET city = ? WHERE id = ?", (city, number))
        self._count("customers", "update")

    def _order(self, db: sqlite3.Connection) -> None:
        lines = [(self._dice.choice(self._skus), self._dice.randint(1, 4)) for _ in range(self._dice.randint(1, 4))]
        placed = db.execute("INSERT INTO orders (customer_id, total) VALUES (?, ?)", (self._dice.randint(1, 20), 999))
        order = placed.lastrowid
        assert order is not None
        self._count("orders", "insert")
        for line, (sku, quantity) in enumerate(lines, start=1):
            db.execute("INSERT INTO order_items VALUES (?, ?, ?, ?)", (order, line, sku, quantity))
            db.execute("UPDATE products SET stock = stock - ? WHERE sku = ?", (quantity, sku))
        self._count("order_items", "insert", len(lines))
        self._count("products", "update", len(lines))
        self._open = [*self._open[-499:], (order, "placed", len(lines))]

    def _flash_sale(self, db: sqlite3.Connection) -> None:
        # One large transaction: it arrives whole or not at all.
        for _ in range(SALE_ORDERS):
            order = db.execute("INSERT INTO orders (customer_id, total) VALUES (1, 999)").lastrowid
            db.execute("INSERT INTO order_items VALUES (?, 1, ?, 1)", (order, self._skus[0]))
        self._count("orders", "insert", SALE_ORDERS)
        self._count("order_items", "insert", SALE_ORDERS)

    def _advance(self, db: sqlite3.Connection) -> None:
        if not self._open:
            return
        at = self._dice.randrange(len(self._open))
        order, status, lines = self._open[at]
        db.execute("UPDATE orders SET status = ? WHERE id = ?", (NEXT[status], order))
        self._count("orders", "update")
        moved = [] if NEXT[status] == "delivered" else [(order, NEXT[status], lines)]
        self._open = [*self._open[:at], *moved, *self._open[at + 1 :]]

    def _cancel(self, db: sqlite3.Connection) -> None:
        """The lines go by the foreign key's cascade."""
        if not self._open:
            return
        order, _, lines = self._open[-1]
        db.execute("DELETE FROM orders WHERE id = ?", (order,))
        self._count("orders", "delete")
        self._count("order_items", "delete", lines)
        self._open = self._open[:-1]

    def _reprice(self, db: sqlite3.Connection) -> None:
        """An upsert."""
        db.execute(
            "INSERT INTO products VALUES (?, '', ?, 0) ON CONFLICT (sku) DO UPDATE SET price = excluded.price",
            (self._dice.choice(self._skus), self._price()),
        )
        self._count("products", "update")

    def _replace(self, db: sqlite3.Connection) -> None:
        """The old row goes without a DELETE trigger of its own; a consumer still sees it go."""
        row = (self._dice.randint(1, 20), self._dice.choice(NAMES))
        db.execute("REPLACE INTO customers VALUES (?, ?, 'Hobart')", row)
        self._count("customers", "delete")
        self._count("customers", "insert")

    def _price(self) -> int:
        return self._dice.randint(200, 90_000)
