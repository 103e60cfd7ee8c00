"""A small shop that never sleeps: the database of `tidemill demo`, and the customers who keep it busy.

It counts what it commits, so that the demo can say at the end whether every change arrived. Some transactions are
rolled back on purpose: of those nothing may arrive.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg

KEYS = {"customers": ("id",), "products": ("sku",), "orders": ("id",), "order_items": ("order_id", "line")}

_SCHEMA = """
CREATE SCHEMA shop;
CREATE TYPE shop.status AS ENUM ('placed', 'paid', 'packed', 'shipped', 'delivered');
CREATE TABLE shop.customers (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name   text NOT NULL,
  city   text NOT NULL,
  joined timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE shop.products (
  sku   text PRIMARY KEY,
  name  text NOT NULL,
  price numeric(10,2) NOT NULL,
  stock integer NOT NULL,
  facts jsonb NOT NULL DEFAULT '{}'
);
CREATE TABLE shop.orders (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer_id bigint NOT NULL,
  status      shop.status NOT NULL DEFAULT 'placed',
  total       numeric(12,2) NOT NULL DEFAULT 0,
  placed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE shop.order_items (
  order_id bigint, line smallint, sku text NOT NULL, quantity integer NOT NULL, price numeric(10,2) NOT NULL,
  PRIMARY KEY (order_id, line)
);
"""
NAMES = ("Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "Jean", "Katherine", "Leslie", "Radia")
CITIES = ("Lisbon", "Oslo", "Kraków", "Zürich", "Nairobi", "Osaka", "Montréal", "Hobart", "Valparaíso", "Saint-Malo")
GOODS = (
    "anchor",
    "barometer",
    "buoy",
    "compass",
    "hawser",
    "lantern",
    "oilskin",
    "rudder",
    "astrolabe",
    "sluice",
    "winch",
)
NEXT = {"placed": "paid", "paid": "packed", "packed": "shipped", "shipped": "delivered"}
SALE_ORDERS = 1_000

Pace = Callable[[float], float]
"""Transactions per second to aim at, so many seconds after the start."""


def tides(seconds: float) -> float:
    """Quiet to busy and back every eight seconds."""
    return 30 + 220 * math.sin(math.pi * seconds / 8) ** 2


class Shop:
    """`committed` counts changes per (table, operation) as delivered: a change of key is a delete and an insert."""

    def __init__(self, dsn: str, seed: int = 18) -> None:
        self.committed: Counter[tuple[str, str]] = Counter()
        self.transactions = 0
        self.rolled_back = 0
        self._dsn = dsn
        self._dice = random.Random(seed)
        self._open: list[tuple[int, str]] = []  # orders that are not delivered yet, and their status
        self._skus: list[str] = []
        self._pending: Counter[tuple[str, str]] = Counter()

    def create(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            connection.execute(_SCHEMA)

    def open(self) -> None:
        """Goods on the shelves and the first customers: one transaction."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            self._transaction(connection, self._stock_up)

    def serve(self, stop: threading.Event, seconds: float, pace: Pace = tides) -> None:
        """Works until told to stop or time is up; half-way there is a sale."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            start = due = time.monotonic()
            sale = False
            while not stop.is_set() and (elapsed := time.monotonic() - start) < seconds:
                if not sale and elapsed > seconds / 2:
                    sale = True
                    self._transaction(connection, self._flash_sale)
                self._transaction(connection, self._pick())
                due = max(due + 1 / pace(elapsed), time.monotonic() - 0.1)  # after a stall, do not catch up in a rush
                stop.wait(max(0.0, due - time.monotonic()))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """What the database holds now, every value as text."""
        with psycopg.connect(self._dsn) as connection:
            columns = [c.name for c in connection.execute(f"SELECT * FROM shop.{table} LIMIT 0").description or ()]
            strings = ", ".join(f"{column}::text" for column in columns)
            found = connection.execute(f"SELECT {strings} FROM shop.{table}".encode()).fetchall()
        return [dict(zip(columns, row, strict=True)) for row in found]

    def _pick(self) -> Callable[[psycopg.Connection[Any]], None]:
        actions = {
            self._order: 40, self._advance: 60, self._cancel: 6, self._join: 12, self._move: 10,
            self._reprice: 10, self._relabel: 2,
        }  # fmt: skip
        return self._dice.choices(list(actions), list(actions.values()))[0]

    def _transaction(
        self, connection: psycopg.Connection[Any], action: Callable[[psycopg.Connection[Any]], None]
    ) -> None:
        self._pending.clear()
        regret = self.transactions > 0 and self._dice.random() < 0.02
        before = list(self._open), list(self._skus)
        with connection.transaction():
            action(connection)
            if regret:
                self.rolled_back += 1
                self._open, self._skus = before
                raise psycopg.Rollback
        if not regret:
            self.transactions += 1
            self.committed.update(self._pending)

    def _count(self, table: str, op: str, cursor: psycopg.Cursor[Any]) -> None:
        self._pending[table, op] += cursor.rowcount

    def _stock_up(self, connection: psycopg.Connection[Any]) -> None:
        self._skus = [f"{name[:3].upper()}-{number:03}" for number, name in enumerate(GOODS, start=1)]
        for sku, name in zip(self._skus, GOODS, strict=True):
            self._count("products", "insert", connection.execute(
                "INSERT INTO shop.products VALUES (%s, %s, %s, 100000, jsonb_build_object('weight_kg', %s::numeric))",
                [sku, name, self._price(), round(self._dice.uniform(0.1, 40), 1)],
            ))  # fmt: skip
        for _ in range(20):
            self._join(connection)

    def _join(self, connection: psycopg.Connection[Any]) -> None:
        self._count("customers", "insert", connection.execute(
            "INSERT INTO shop.customers (name, city) VALUES (%s, %s)",
            [self._dice.choice(NAMES), self._dice.choice(CITIES)],
        ))  # fmt: skip

    def _move(self, connection: psycopg.Connection[Any]) -> None:
        self._count("customers", "update", connection.execute(
            "UPDATE shop.customers SET city = %s WHERE id = %s", [self._dice.choice(CITIES), self._dice.randint(1, 20)]
        ))  # fmt: skip

    def _order(self, connection: psycopg.Connection[Any]) -> None:
        lines = [(self._dice.choice(self._skus), self._dice.randint(1, 4)) for _ in range(self._dice.randint(1, 4))]
        placed = connection.execute(
            "INSERT INTO shop.orders (customer_id, total) SELECT %s, sum(p.price * l.quantity) "
            "FROM unnest(%s::text[], %s::int[]) AS l(sku, quantity) JOIN shop.products p USING (sku) RETURNING id",
            [self._dice.randint(1, 20), [sku for sku, _ in lines], [quantity for _, quantity in lines]],
        )
        self._count("orders", "insert", placed)
        order = placed.fetchall()[0][0]
        for line, (sku, quantity) in enumerate(lines, start=1):
            self._count("order_items", "insert", connection.execute(
                "INSERT INTO shop.order_items SELECT %s, %s, sku, %s, price FROM shop.products WHERE sku = %s",
                [order, line, quantity, sku],
            ))  # fmt: skip
            self._count("products", "update", connection.execute(
                "UPDATE shop.products SET stock = stock - %s WHERE sku = %s", [quantity, sku]
            ))  # fmt: skip
        self._open = [*self._open[-499:], (order, "placed")]

    def _flash_sale(self, connection: psycopg.Connection[Any]) -> None:
        # One large transaction: it arrives whole or not at all.
        placed = connection.execute(
            "INSERT INTO shop.orders (customer_id, total) "
            "SELECT 1 + n %% 20, 9.99 FROM generate_series(1, %s) AS n RETURNING id",
            [SALE_ORDERS],
        )
        self._count("orders", "insert", placed)
        self._count("order_items", "insert", connection.execute(
            "INSERT INTO shop.order_items SELECT o, 1, %s, 1, 9.99 FROM unnest(%s::bigint[]) o",
            [self._dice.choice(self._skus), [row[0] for row in placed.fetchall()]],
        ))  # fmt: skip

    def _advance(self, connection: psycopg.Connection[Any]) -> None:
        if not self._open:
            return
        at = self._dice.randrange(len(self._open))
        order, status = self._open[at]
        status = NEXT[status]
        self._count("orders", "update", connection.execute(
            "UPDATE shop.orders SET status = %s WHERE id = %s", [status, order]
        ))  # fmt: skip
        moved = [] if status == "delivered" else [(order, status)]
        self._open = [*self._open[:at], *moved, *self._open[at + 1 :]]

    def _cancel(self, connection: psycopg.Connection[Any]) -> None:
        if not self._open:
            return
        order, _ = self._open[-1]
        self._count(
            "order_items", "delete", connection.execute("DELETE FROM shop.order_items WHERE order_id = %s", [order])
        )
        self._count("orders", "delete", connection.execute("DELETE FROM shop.orders WHERE id = %s", [order]))
        self._open = self._open[:-1]

    def _reprice(self, connection: psycopg.Connection[Any]) -> None:
        self._count("products", "update", connection.execute(
            "UPDATE shop.products SET price = %s WHERE sku = %s", [self._price(), self._dice.choice(self._skus)]
        ))  # fmt: skip

    def _relabel(self, connection: psycopg.Connection[Any]) -> None:
        # The key itself changes: consumers see a delete of the old and an insert of the new.
        old = self._dice.choice(self._skus)
        new = f"{old[:3]}-{int(old[4:]) + len(GOODS):03}"
        changed = connection.execute("UPDATE shop.products SET sku = %s WHERE sku = %s", [new, old])
        self._count("products", "delete", changed)
        self._count("products", "insert", changed)
        self._skus = [new if sku == old else sku for sku in self._skus]

    def _price(self) -> str:
        return f"{self._dice.uniform(2, 900):.2f}"
