"""Small, realistic tables, blocks and changes for tests that need no database.

Everything is a function of its arguments: the same call gives the same bytes, and a row's values follow from its
number, so a test can say what it expects without keeping what it wrote.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.model.barrier import Barrier
from tidemill.model.block import COMMIT_TIME, META, POSITION, Block, Op
from tidemill.model.change import SUBTX, Committed, Spilled
from tidemill.model.position import Offset, Position
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
EPOCH_US = int(EPOCH.timestamp()) * 1_000_000

COLUMNS = (
    Column("id", DataType("bigint", pa.int64(), JsonForm.NUMBER), nullable=False),
    Column("customer", DataType("text", pa.string(), JsonForm.STRING), nullable=False),
    Column("quantity", DataType("integer", pa.int32(), JsonForm.NUMBER)),
    Column("price", DataType("numeric(12,2)", pa.decimal128(12, 2), JsonForm.STRING)),
    Column("paid", DataType("boolean", pa.bool_(), JsonForm.BOOL)),
    Column("weight", DataType("double precision", pa.float64(), JsonForm.NUMBER)),
    Column("note", DataType("text", pa.string(), JsonForm.STRING)),
    Column("placed_at", DataType("timestamp with time zone", pa.timestamp("us", tz="UTC"), JsonForm.STRING)),
)


def _kind(barrier: bool | Barrier) -> Barrier:
    return Barrier.SCHEMA_CHANGE if barrier is True else Barrier(barrier)


def make_table(name: str = "orders", *, key: Sequence[str] = ("id",), identity: str = "key", version: int = 1) -> Table:
    """Eight columns of the common kinds; `note` is NULL in every third row."""
    columns = COLUMNS if version == 1 else (*COLUMNS, Column(f"added_in_{version}", COLUMNS[6].type))
    return Table(
        "shop", "public", name, columns, tuple(key), identity, version=version, sequence=version
    ).with_fingerprint()


def make_rows(table: Table, ids: Sequence[int]) -> pa.StructArray:
    """The table's rows of these ids, as a block's `after` or `before`."""
    values = {
        "id": list(ids),
        "customer": [f"customer {i % 97} — Zürich" for i in ids],
        "quantity": [i % 13 for i in ids],
        "price": [decimal.Decimal(i % 100_000) / 4 for i in ids],
        "paid": [i % 2 == 0 for i in ids],
        "weight": [i / 8 for i in ids],
        "note": [None if i % 3 == 0 else f"note {i}" for i in ids],
        "placed_at": [EPOCH + datetime.timedelta(seconds=i) for i in ids],
    }
    arrays = [pa.array(values.get(c.name, [None] * len(ids)), c.type.arrow) for c in table.columns]
    return pa.StructArray.from_arrays(arrays, fields=list(table.arrow_struct()))


def make_block(
    rows: int = 3,
    *,
    table: Table | None = None,
    ops: Op | Sequence[Op] = Op.INSERT,
    offsets: Sequence[Offset] | None = None,
    ordinals: Sequence[int] | None = None,
    positions: str | Sequence[str] | None = "0/100",
    tx_id: int = 700,
    first_id: int = 0,
    subtx: Sequence[int] | None = None,
) -> Block:
    """`rows` changes with ids from `first_id`. `positions=None` makes a piece of an open transaction."""
    table = table or make_table()
    ids = range(first_id, first_id + rows)
    kinds = [ops] * rows if isinstance(ops, Op) else list(ops)
    columns: dict[str, pa.Array] = {
        "offset": pa.array(range(rows) if offsets is None else offsets, pa.uint64()),
        "op": pa.array([int(op) for op in kinds], pa.uint8()),
    }
    if positions is not None:
        texts = [positions] * rows if isinstance(positions, str) else list(positions)
        columns["position"] = pa.array(texts, pa.string()).dictionary_encode().cast(POSITION)
        columns["tx_id"] = pa.array([tx_id] * rows, pa.uint64())
    columns["ordinal"] = pa.array(range(rows) if ordinals is None else ordinals, pa.uint32())
    if positions is not None:
        columns["commit_time"] = pa.array([EPOCH_US + tx_id] * rows, pa.int64()).cast(COMMIT_TIME)
    if subtx is not None:
        columns["subtx"] = pa.array(subtx, SUBTX)
    image = make_rows(table, ids)
    gone = np.array([op in (Op.DELETE, Op.TRUNCATE) for op in kinds], bool)
    if any(op in (Op.UPDATE, Op.DELETE) for op in kinds):
        old = np.array([op not in (Op.UPDATE, Op.DELETE) for op in kinds], bool)
        if table.identity == "full":
            columns["before"] = _masked(image, old, [c.name for c in table.columns])
        elif table.identity == "key" and table.key:
            columns["key"] = _masked(image, old, table.key)
    if not gone.all() or not rows:
        columns["after"] = _masked(image, gone, [c.name for c in table.columns])
    fields = [META.field(name) if name in META.names else pa.field(name, a.type) for name, a in columns.items()]
    return Block(table, pa.record_batch(list(columns.values()), schema=pa.schema(fields)))


def make_change(
    *sizes: int, tables: Sequence[Table] = (), number: int = 1, first_id: int = 0, barrier: bool | Barrier = False
) -> Committed:
    """One append: a transaction per size, numbered from `number` (position `0/<number, hex>00`), their rows dealt
    in turn to the tables, so that offsets inside a block are not contiguous when there are several."""
    tables = tables or (make_table(),)
    sizes = sizes or (3,)
    total = sum(sizes)
    transaction = np.repeat(np.arange(len(sizes)), sizes)
    ordinals = np.concatenate([np.arange(size) for size in sizes])
    ends = np.cumsum(sizes)
    blocks = []
    for t, table in enumerate(tables):
        offsets = np.arange(t, total, len(tables))
        if not len(offsets):
            continue
        block = make_block(
            len(offsets),
            table=table,
            offsets=offsets.tolist(),
            ordinals=ordinals[offsets].tolist(),
            positions=[position(number + int(i)) for i in transaction[offsets]],
            tx_id=700 + number,
            first_id=first_id,
        )
        blocks.append(block)
    marks = tuple((int(end), Position(position(number + i))) for i, end in enumerate(ends))
    return Committed(tuple(blocks), total, marks, _kind(barrier))


def make_spill(
    transaction: int,
    rows: int = 3,
    *,
    start: int = 0,
    table: Table | None = None,
    subtx: Sequence[int] | None = None,
    barrier: bool | Barrier = False,
) -> Spilled:
    """A piece of an open transaction: `rows` inserts, `start` events after its first one."""
    numbers = range(start, start + rows)
    block = make_block(
        rows,
        table=table,
        offsets=numbers,
        ordinals=numbers,
        positions=None,
        first_id=start,
        subtx=[transaction] * rows if subtx is None else subtx,
    )
    return Spilled(transaction, (block,), rows, _kind(barrier))


def position(number: int) -> Position:
    """The position of the transaction of this number."""
    return Position(f"0/{number:X}00")


def _masked(image: pa.StructArray, mask: np.ndarray, names: Sequence[str]) -> pa.StructArray:
    fields = [image.type.field(name) for name in names]
    return pa.StructArray.from_arrays([image.field(name) for name in names], fields=fields, mask=pa.array(mask))
