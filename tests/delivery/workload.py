"""A change log of random events with a known outcome: what every destination is given, and what it must hold then.

The same seed gives the same log. `orders` sees inserts, updates, updates that leave a large column unchanged, deletes,
a TRUNCATE and a new column; `customers` is small and busy, so that a key has many events in one batch.
"""

from __future__ import annotations

import datetime
import decimal
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support.blocks import COLUMNS, EPOCH_US, make_table, position
from tidemill.log import LogConfig, LogWriter
from tidemill.model.barrier import Barrier
from tidemill.model.block import COMMIT_TIME, META, POSITION, UNCHANGED, Block, Op
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.model.table import Column, Table

Row = dict[str, Any]
_NOTE = [column.name for column in COLUMNS].index("note")
_LARGE = "large value that is stored out of line " * 4


@dataclass(frozen=True, slots=True)
class Event:
    table: Table
    op: Op
    key: int | None
    after: Row | None = None
    unchanged: tuple[int, ...] = ()


@dataclass
class Workload:
    """`tables` is the outcome: rows by id. `events` counts what the log holds."""

    seed: int
    tables: dict[str, dict[int, Row]] = field(default_factory=lambda: {"orders": {}, "customers": {}})
    events: int = 0
    truncate: bool = True

    def write(self, uri: str, transactions: int = 60) -> None:
        """Fills a new log, one append per transaction."""
        dice = Random(self.seed)
        orders, customers = typed(make_table("orders")), typed(make_table("customers"))
        log = LogWriter.open(uri, LogConfig.model_validate({"fsync": False}))
        try:
            for number in range(1, transactions + 1):
                if number == transactions // 2:
                    orders = replace(
                        orders, columns=(*orders.columns, Column("added", COLUMNS[6].type)), version=2, sequence=3
                    ).with_fingerprint()
                if self.truncate and number == transactions // 3:
                    self.tables["customers"].clear()
                    log.append(_append([Event(customers, Op.TRUNCATE, None)], number, barrier=Barrier.TRUNCATE))
                    self.events += 1
                    continue
                events = [
                    self._event(dice, orders if dice.random() < 0.6 else customers)
                    for _ in range(dice.choice((1, 3, 8, 30)))
                ]
                barrier = any(e.table.version == 2 for e in events) and number == transactions // 2
                kind = Barrier.SCHEMA_CHANGE if barrier else Barrier.NONE
                log.append(_append(events, number, barrier=kind))
                self.events += len(events)
        finally:
            log.close()

    def _event(self, dice: Random, table: Table) -> Event:
        rows = self.tables[table.name]
        kind = dice.random()
        if not rows or kind < 0.45:
            free = [n for n in range(6) if n not in rows] if table.name == "customers" else []
            key = free[0] if free else self._unused(dice, rows)
            rows[key] = _row(dice, table, key)
            return Event(table, Op.INSERT, key, dict(rows[key]))
        key = dice.choice(sorted(rows))
        if kind < 0.6:
            del rows[key]
            return Event(table, Op.DELETE, key)
        fresh = _row(dice, table, key)
        if kind < 0.75:
            fresh["note"] = rows[key]["note"]
            rows[key] = fresh
            return Event(table, Op.UPDATE, key, fresh | {"note": None}, (_NOTE,))
        rows[key] = fresh
        return Event(table, Op.UPDATE, key, dict(fresh))

    @staticmethod
    def _unused(dice: Random, rows: dict[int, Row]) -> int:
        while (key := dice.randrange(1, 1 << 40)) in rows:
            pass
        return key


def typed(table: Table) -> Table:
    """The number of a table's version starts as the registry's would."""
    return replace(table, sequence=1 if table.name == "orders" else 2).with_fingerprint()


def _row(dice: Random, table: Table, key: int) -> Row:
    row: Row = {
        "id": key,
        "customer": dice.choice(
            ("Zürich", "O'Brien", "line\nbreak", "tab\there", 'quote"d', "back\\slash", "日本", "")
        ),
        "quantity": dice.choice((None, 0, -5, 2_147_483_647)),
        "price": dice.choice((None, decimal.Decimal("0.01"), decimal.Decimal("-9999999999.99"), decimal.Decimal(7))),
        "paid": dice.choice((None, True, False)),
        "weight": dice.choice((None, 0.1, -1e300, 12345.6789)),
        "note": dice.choice((None, _LARGE + str(key), "short")),
        "placed_at": datetime.datetime.fromtimestamp(dice.randrange(1 << 31), datetime.UTC)
        + datetime.timedelta(microseconds=dice.randrange(1_000_000)),
    }
    if len(table.columns) > len(COLUMNS):
        row["added"] = dice.choice((None, "new"))
    return row


def _append(events: list[Event], number: int, *, barrier: Barrier) -> Committed:
    tables = list(dict.fromkeys(event.table.name for event in events))
    blocks = tuple(
        _block([(at, e) for at, e in enumerate(events) if e.table.name == name], Position(position(number)), number)
        for name in tables
    )
    return Committed(blocks, len(events), ((len(events), Position(position(number))),), barrier)


def _block(numbered: list[tuple[int, Event]], at: Position, number: int) -> Block:
    table = numbered[0][1].table
    events = [event for _, event in numbered]
    offsets = [offset for offset, _ in numbered]
    names = [column.name for column in table.columns]
    columns: dict[str, pa.Array] = {
        "offset": pa.array(offsets, pa.uint64()),
        "op": pa.array([int(e.op) for e in events], pa.uint8()),
        "position": pa.array([at] * len(events), pa.string()).dictionary_encode().cast(POSITION),
        "tx_id": pa.array([number] * len(events), pa.uint64()),
        "ordinal": pa.array(offsets, pa.uint32()),
        "commit_time": pa.array([EPOCH_US + number] * len(events), pa.int64()).cast(COMMIT_TIME),
    }
    old = np.array([e.op is not Op.DELETE for e in events])
    if not old.all():
        ids = pa.array([e.key if e.op is Op.DELETE else 0 for e in events], pa.int64())
        columns["key"] = pa.StructArray.from_arrays([ids], fields=[table.arrow_struct()[0]], mask=pa.array(old))
    gone = np.array([e.after is None for e in events])
    if not gone.all():
        images = [
            pa.array([(e.after or {}).get(name, 0 if name == "id" else None) for e in events], kind.type)
            for name, kind in zip(names, table.arrow_struct(), strict=True)
        ]
        columns["after"] = pa.StructArray.from_arrays(images, fields=list(table.arrow_struct()), mask=pa.array(gone))
    if any(e.unchanged for e in events):
        columns["unchanged"] = pa.array([list(e.unchanged) or None for e in events], UNCHANGED)
    fields = [META.field(name) if name in META.names else pa.field(name, a.type) for name, a in columns.items()]
    return Block(table, pa.record_batch(list(columns.values()), schema=pa.schema(fields)))
