"""Changes of one table as a block: images from cells, a change of the key as a DELETE and an INSERT (ADR 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.decoders._shared.sides import list_unchanged, meta, side_values
from tidemill.decoders.sqlite.cells import NULL, SqliteCells
from tidemill.decoders.sqlite.columns import key_to_arrow, odd_strings, to_arrow
from tidemill.decoders.sqlite.structure import SqliteTable, describe_table
from tidemill.model.block import COMMIT_TIME, DDL, POSITION, Block, Op, Side
from tidemill.model.change import SUBTX
from tidemill.model.columns import Ints, booleans, column
from tidemill.model.table import Table
from tidemill.schema.ddl_document import write_document

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Events of one table in order. `old` and `new` have a row for each; which of them count is in `has_old` and
    `has_new`. `key` has the key columns of old rows of which nothing else is known. `unsent[column, row]`: `new` lacks
    it, and the database has a value there."""

    table: Table
    op: npt.NDArray[np.uint8]
    old: SqliteCells | None
    new: SqliteCells | None
    has_old: Mask
    has_new: Mask
    key: SqliteCells | None = None
    has_key: Mask | None = None
    unsent: Mask | None = None


def block_of(
    changes: RowChanges,
    offset: Ints,
    ordinal: Ints,
    committed: tuple[pa.Array, Ints, Ints] | None,
) -> Block:
    """`committed` are positions, transaction numbers (0: none) and times in microseconds; None for rows of a
    transaction that is still open to the log."""
    own = meta(offset, changes.op, ordinal)
    if committed is None:
        own["subtx"] = column(np.zeros(len(offset), np.uint64), SUBTX)
    else:
        positions, number, micros = committed
        own["position"] = pc.dictionary_encode(positions).cast(POSITION)
        own["tx_id"] = column(number.astype(np.uint64), pa.uint64(), number == 0)
        own["commit_time"] = column(np.ascontiguousarray(micros), COMMIT_TIME)
    return Block(changes.table, pa.RecordBatch.from_pydict({**own, **_images(changes)}))


def _images(changes: RowChanges) -> dict[str, pa.Array]:
    table = changes.table
    keys = [i for i, c in enumerate(table.columns) if c.name in table.key]
    every = list(range(len(table.columns)))
    odd: list[tuple[Ints, Side, int, pa.Array]] = []
    columns: dict[str, pa.Array] = {}
    sides = (
        ("key", Side.KEY, changes.key, changes.has_key, keys),
        ("before", Side.BEFORE, changes.old, changes.has_old, every),
        ("after", Side.AFTER, changes.new, changes.has_new, every),
    )
    for name, side, cells, present, wanted in sides:
        if cells is None or present is None or not wanted or not present.any():
            continue
        if not present.all():
            kind = np.where(present, cells.kind, np.uint8(NULL))
            cells = SqliteCells(kind, cells.number, cells.size, cells.heap)
        children = []
        for j in wanted:
            declared = table.columns[j].type
            array, bad = key_to_arrow(cells, j, declared) if j in keys else to_arrow(cells, j, declared.arrow)
            children.append(array)
            if bad is not None:
                where = np.flatnonzero(bad)
                base64 = j in keys and pa.types.is_binary(declared.arrow)
                odd.append((where, side, j, odd_strings(cells, j, where, beside_base64=base64)))
        fields = [pa.field(table.columns[j].name, table.columns[j].type.arrow) for j in wanted]
        mask = None if present.all() else booleans(~present)
        columns[name] = pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    if changes.unsent is not None and changes.unsent.any():
        columns["unchanged"] = list_unchanged(changes.unsent)
    if odd:
        columns["odd"] = side_values(odd, len(changes.op))
    return columns


@dataclass(frozen=True, slots=True)
class SchemaStatement:
    """What became of a table: `create`, `alter` or `drop`. `table` is as it was left; `before` and `after` are None
    where it was not there."""

    table: Table
    text: str
    kind: str
    changes: list[dict[str, object]]
    before: SqliteTable | None = None
    after: SqliteTable | None = None


def ddl_block(
    statement: SchemaStatement, offset: int, ordinal: int, committed: tuple[str, int, int] | None = None
) -> Block:
    """`committed` are position, transaction number (0: none) and microseconds; None as in `block_of`."""
    document = write_document(
        statement.text, statement.kind, statement.changes,
        describe_table(statement.before), describe_table(statement.after),
    )  # fmt: skip
    return _single(statement.table, Op.DDL, offset, ordinal, committed, {"ddl": pa.array([document], DDL)})


def truncate_block(table: Table, committed: tuple[str, int, int]) -> Block:
    """All of its rows are gone. The first event of its append."""
    return _single(table, Op.TRUNCATE, 0, 0, committed, {})


def _single(
    table: Table,
    op: Op,
    offset: int,
    ordinal: int,
    committed: tuple[str, int, int] | None,
    columns: dict[str, pa.Array],
) -> Block:
    found = meta(np.array([offset]), np.array([int(op)], np.uint8), np.array([ordinal])) | columns
    if committed is None:
        found["subtx"] = pa.array([0], SUBTX)
    else:
        position, tx_id, micros = committed
        found["position"] = pa.array([position], pa.string()).dictionary_encode().cast(POSITION)
        found["tx_id"] = pa.array([tx_id or None], pa.uint64())
        found["commit_time"] = pa.array([micros], pa.int64()).cast(COMMIT_TIME)
    return Block(table, pa.RecordBatch.from_pydict(found))
