"""What stands around a row in JSON: our own event, Debezium's, a CloudEvent. docs/events.md describes every field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from tidemill import __version__
from tidemill.formats import _cloudevents, _connect_schema
from tidemill.formats._debezium import OPS, UNAVAILABLE, Connector, Origin, times
from tidemill.formats._program import Odd, Program, Texts, quoted, render
from tidemill.model.block import Block, Op, Side
from tidemill.model.table import Table
from tidemill.model.types import JsonForm


def native(block: Block, source: str, tail: bytes) -> Program:
    p = Program(block.rows)
    _native(p, block, source, _Meta.of(block))
    p.text(tail)
    return p


def cloudevent(block: Block, source: str, tail: bytes) -> Program:
    """Structured mode: the attributes, and our own event as the data."""
    meta, attributes = _Meta.of(block), _cloudevents.attributes(block, source)
    p = Program(block.rows)
    p.text(b"{")
    for name, value in attributes.items():
        if isinstance(value, str):
            p.text(quoted(name) + b":" + quoted(value) + b",")
        else:
            missing = value.is_null().to_numpy(zero_copy_only=False).astype(np.uint8) if value.null_count else None
            p.field(name, value, JsonForm.STRING, omit=missing)
    p.text(b'"datacontenttype":"application/json","data":')
    _native(p, block, source, meta)
    p.text(b"}" + tail)
    return p


def _native(p: Program, block: Block, source: str, meta: _Meta) -> None:
    table, rare = block.table, Rare.of(block)
    p.text(b'{"event_id":' + quoted(f"{source}:")[:-1])
    p.lookup(meta.position, meta.positions, bare=True)
    p.text(b":")
    p.value(meta.ordinal, JsonForm.NUMBER)
    p.text(b'","source_id":' + quoted(source) + b',"database":' + quoted(table.database))
    p.text(b',"schema":' + quoted(table.schema) + b',"table":' + quoted(table.name) + b',"op":')
    p.lookup(meta.op, _by_op({op: op.label for op in Op}))
    p.text(b',"tx_id":')
    p.value(meta.tx_id, JsonForm.NUMBER)
    p.text(b',"position":')
    p.lookup(meta.position, meta.positions)
    p.text(b',"ordinal":')
    p.value(meta.ordinal, JsonForm.NUMBER)
    p.text(b',"offset":')
    p.value(meta.offset, JsonForm.NUMBER)
    p.text(b',"timestamp":')
    p.value(meta.commit_time, JsonForm.STRING)
    p.text(b',"schema_version":' + quoted(table.fingerprint) + b',"schema_sequence":%d' % table.sequence)
    p.text(b',"checkpoint":{"position":')
    p.lookup(meta.position, meta.positions)
    p.text(b'},"ddl":')
    if (ddl := block.column("ddl")) is None:
        p.text(b"null")
    else:
        p.value(ddl, JsonForm.RAW)
    p.text(b",")
    p.mark()
    p.text(b'"before":')
    _old_image(p, block, rare)
    p.text(b',"after":')
    _image(p, block, Side.AFTER, rare, b"null")
    p.size(b',"size_bytes":', less=len(b'"before":,"after":'))
    if rare.lists is not None:
        p.names(b',"unchanged":', rare.lists, _names(block), omit=rare.complete)
    p.text(b"}")


def debezium(block: Block, source: str, tail: bytes, *, with_schema: bool = False) -> Program:
    """Debezium 3's fields. Times are the commit's, so that a replay gives the same bytes.

    With its schema an event must look as that says, so that JSON columns are strings.
    """
    table, meta, rare = block.table, _Meta.of(block), Rare.of(block, placeholder=UNAVAILABLE)
    origin, moments = Origin.of(block), times(meta.commit_time)
    message = Op.MESSAGE in meta.op  # a block of messages holds nothing else
    statement = Op.DDL in meta.op  # and so does a block of statements
    p = Program(block.rows)
    if with_schema and statement:
        p.text(b'{"schema":null,"payload":')
    elif with_schema:
        null = _without_value(block, rare)
        schema = _connect_schema.envelope(table, source, origin.connector, message, null)
        p.text(b'{"schema":' + schema + b',"payload":')
    if statement:
        p.text(b"{")
        _source(p, source, meta, origin, table)
        _statement(p, block, moments)
        p.close((b"}}" if with_schema else b"}") + tail)
        return p
    if message:
        p.text(b'{"message":')
    else:
        p.text(b'{"before":')
        _old_image(p, block, rare, whole=True, plain=with_schema)
        p.text(b',"after":')
    _image(p, block, Side.AFTER, rare, b"null", whole=True, plain=with_schema)
    p.text(b",")
    _source(p, source, meta, origin, table)
    p.text(b',"transaction":null,"op":')
    p.lookup(meta.op, _by_op(OPS))
    p.text(b",")
    for name, moment in moments.items():
        p.field(name, moment, JsonForm.NUMBER)
    p.close((b"}}" if with_schema else b"}") + tail)
    return p


def _without_value(block: Block, rare: Rare) -> frozenset[str]:
    """Required columns that some row shows as null: the catalog that said NOT NULL may be newer than the row, and a
    binlog may have less than the whole of an old row."""
    wanted = _connect_schema.required(block.table)
    found: set[str] = set()
    old = np.zeros(block.rows, np.bool_)
    for side in (Side.BEFORE, Side.AFTER, Side.KEY):
        array = _side(block, side)
        if array is None:
            continue
        there = np.asarray(array.is_valid())
        if side is Side.BEFORE:
            old = there
        there = there & ~old if side is Side.KEY else there
        children = _children(block, side)
        for name in wanted - found if there.any() else ():
            child, odd = children.get(name), rare.odd(side, name)
            if child is None:
                found.add(name)
            elif child.null_count:
                gone = np.asarray(child.is_null()) & there
                found |= {name} if (gone if odd is None else gone & (odd.index < 0)).any() else set()
    return frozenset(found)


def _source(p: Program, source: str, meta: _Meta, origin: Origin, table: Table) -> None:
    p.text(b'"source":{"version":' + quoted(__version__) + b',"connector":' + quoted(str(origin.connector)))
    p.text(b',"name":' + quoted(source) + b",")
    moments = times(meta.commit_time)
    p.field("ts_ms", moments["ts_ms"], JsonForm.NUMBER)
    p.text(b'"snapshot":')
    p.lookup(meta.op, _by_op({op: "true" if op is Op.READ else "false" for op in Op}))
    p.text(b',"db":' + quoted(table.database) + b',"sequence":')
    if origin.connector is Connector.POSTGRESQL:
        p.text(b'"[\\"')
        p.value(origin.lsn, JsonForm.NUMBER)
        p.text(b'\\",\\"')
        p.value(meta.ordinal, JsonForm.NUMBER)
        p.text(b'\\"]"')
    else:
        p.text(b"null")
    p.text(b",")
    for name in ("ts_us", "ts_ns"):
        p.field(name, moments[name], JsonForm.NUMBER)
    if origin.connector is Connector.POSTGRESQL:
        _postgresql(p, meta, origin, table)
    else:
        _mysql(p, meta, origin, table)
    p.text(b"}")


def _statement(p: Program, block: Block, moments: dict[str, pa.Array]) -> None:
    """What Debezium sends to its topic of schema changes. They are few, so one by one is fine."""
    table = block.table
    documents = [orjson.loads(text) for text in block.batch.column("ddl").to_pylist()]
    name = f'"{table.database}"."{table.name}"'
    kinds = {"create": "CREATE", "drop": "DROP"}
    changes = [orjson.dumps([{"type": kinds.get(d["kind"], "ALTER"), "id": name}]).decode() for d in documents]
    p.text(b',"databaseName":' + quoted(table.database) + b',"schemaName":null,')
    p.field("ddl", pa.array([d["text"] for d in documents], pa.string()), JsonForm.STRING)
    p.field("tableChanges", pa.array(changes, pa.string()), JsonForm.RAW)
    for moment, values in moments.items():
        p.field(moment, values, JsonForm.NUMBER)


def _postgresql(p: Program, meta: _Meta, origin: Origin, table: Table) -> None:
    p.text(b'"schema":' + quoted(table.schema) + b',"table":' + quoted(table.name) + b',"txId":')
    p.value(meta.tx_id, JsonForm.NUMBER)
    p.text(b',"lsn":')
    p.value(origin.lsn, JsonForm.NUMBER)
    p.text(b',"xmin":null,"origin":null,"origin_lsn":null')


def _mysql(p: Program, meta: _Meta, origin: Origin, table: Table) -> None:
    """A position is a set of GTIDs, or a file and a byte of it: the others are null, and so is what we do not read."""
    p.text(b'"table":' + quoted(table.name) + b',"server_id":null,"gtid":')
    p.value(origin.gtid, JsonForm.STRING)
    p.text(b',"file":')
    p.value(origin.file, JsonForm.STRING)
    p.text(b',"pos":')
    p.value(origin.pos, JsonForm.NUMBER)
    p.text(b',"row":')
    p.value(meta.ordinal, JsonForm.NUMBER)
    p.text(b',"thread":null,"query":null')


def key(block: Block, head: bytes = b"", tail: bytes = b"") -> tuple[Program, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The key columns, from the newest image that has them, and which rows have a key at all.

    A key column that the source left out of the new image (TOAST) is the same in the old one.
    """
    rare = Rare.of(block)
    sides = [(side, array) for side in (Side.AFTER, Side.BEFORE, Side.KEY) if (array := _side(block, side)) is not None]
    present = {side: np.asarray(array.is_valid()) for side, array in sides}
    found = np.zeros(block.rows, np.bool_)
    for valid in present.values():
        found |= valid
    if not block.table.key:
        found[:] = False
    p = Program(block.rows)
    absent = p.jump_if_null(pa.array(np.ones(block.rows, np.uint8), mask=~found))
    p.text(head + b"{")
    for column in block.table.key_columns() if sides else ():
        # With the structs' own nulls: what stands under a null image is nobody's key.
        images = [block.struct(side.name.lower()) or {} for side, _ in sides]
        values = [image[column.name] for image in images if column.name in image]
        odd = _first_odd([(present[side], rare.odd(side, column.name)) for side, _ in sides], block.rows)
        p.field(column.name, pa.compute.coalesce(*values), column.type.json, odd=odd)
    p.close(b"}" + tail)
    p.land([absent])
    return p, found


@dataclass(frozen=True, slots=True)
class _Meta:
    """Meta columns in the shape that programs take them."""

    op: np.ndarray[Any, np.dtype[np.int32]]
    position: np.ndarray[Any, np.dtype[np.int32]]
    dictionary: pa.Array
    positions: Texts
    tx_id: pa.Array
    ordinal: pa.Array
    offset: pa.Array
    commit_time: pa.Array

    @classmethod
    def of(cls, block: Block) -> _Meta:
        batch = block.batch
        position = batch.column("position")
        if not pa.types.is_dictionary(position.type):
            position = position.dictionary_encode()
        elif len(position.dictionary) > 2 * block.rows + 16:
            # A slice keeps the dictionary of the whole append.
            position = position.dictionary_decode().dictionary_encode()
        index = position.indices.cast(pa.int32()).fill_null(-1).to_numpy()
        return cls(
            batch.column("op").to_numpy().astype(np.int32), index, position.dictionary,
            render(position.dictionary, JsonForm.STRING), batch.column("tx_id"), batch.column("ordinal"),
            batch.column("offset"), batch.column("commit_time"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rare:
    """What few blocks have: unchanged columns, and values beyond their Arrow type."""

    rows: int
    lists: pa.Array | None  # columns left out, by number
    complete: np.ndarray[Any, np.dtype[np.uint8]]  # 1 where nothing was left out
    omitted: dict[str, np.ndarray[Any, np.dtype[np.uint8]]]  # column -> 1 where it was left out
    odds: dict[tuple[Side, str], Odd]

    @classmethod
    def of(cls, block: Block, placeholder: str = "") -> Rare:
        """With a placeholder, a column that was left out shows that text instead of being omitted."""
        names = [c.name for c in block.table.columns]
        odds: dict[tuple[Side, str], Odd] = {}
        if (odd := block.column("odd")) is not None:
            values, rows = odd.flatten(), _parents(odd)
            side, number = (values.field(i).to_numpy(zero_copy_only=False) for i in (0, 1))
            texts = values.field(2).cast(pa.string())
            for code in np.unique(side.astype(np.int64) << 16 | number):
                places = np.flatnonzero((side == code >> 16) & (number == code & 0xFFFF))
                index = np.full(block.rows, -1, np.int32)
                index[rows[places]] = places
                odds[Side(int(code >> 16)), names[code & 0xFFFF]] = Odd(index, texts)
        lists, complete = block.column("unchanged"), np.ones(block.rows, np.uint8)
        omitted: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        if lists is not None:
            number, rows = lists.flatten().to_numpy(zero_copy_only=False), _parents(lists)
            complete[rows] = 0
            for column in np.unique(number):
                mask = np.zeros(block.rows, np.uint8)
                mask[rows[number == column]] = 1
                if placeholder:
                    _show(odds, names[column], mask, placeholder)
                else:
                    omitted[names[column]] = mask
        return cls(block.rows, lists, complete, omitted, odds)

    def odd(self, side: Side, column: str) -> Odd | None:
        return self.odds.get((side, column))


def _show(odds: dict[tuple[Side, str], Odd], column: str, mask: np.ndarray[Any, np.dtype[np.uint8]], text: str) -> None:
    """Replaces the column's value by `text` where the mask says so."""
    known = odds.get((Side.AFTER, column))
    texts = pa.array([text], pa.string())
    if known is None:
        odds[Side.AFTER, column] = Odd(mask.astype(np.int32) - 1, texts)
        return
    index = np.where(mask == 1, len(known.texts), known.index).astype(np.int32)
    odds[Side.AFTER, column] = Odd(index, pa.concat_arrays([known.texts, texts]))


def _old_image(p: Program, block: Block, rare: Rare, *, whole: bool = False, plain: bool = False) -> None:
    """The old row, else the old key, else null."""
    if block.column("before") is None:
        _image(p, block, Side.KEY, rare, b"null", whole=whole, plain=plain)
        return
    done = _image(p, block, Side.BEFORE, rare, None, whole=whole, plain=plain)
    _image(p, block, Side.KEY, rare, b"null", whole=whole, plain=plain)
    p.land(done)


def _image(
    p: Program, block: Block, side: Side, rare: Rare, otherwise: bytes | None, *, whole: bool = False,
    plain: bool = False,
) -> list[int]:  # fmt: skip
    """An object, or `otherwise` in rows without this image. With None, returns the jumps past what comes next.
    `whole` has all columns, those that the image lacks as null; `plain` shows JSON columns as strings instead of
    embedding them."""
    array = _side(block, side)
    if array is None:
        p.text(otherwise or b"")
        return []
    absent = p.jump_if_null(array) if array.null_count else None
    p.text(b"{")
    forms = {c.name: c.type.json for c in block.table.columns}
    if plain:
        forms = {name: JsonForm.STRING if form is JsonForm.RAW else form for name, form in forms.items()}
    children = _children(block, side)
    for name in forms if whole else children:
        child = children.get(name)
        if child is None:
            p.text(quoted(name) + b":null,")
            continue
        omit = rare.omitted.get(name) if side is Side.AFTER else None
        p.field(name, child, forms[name], odd=rare.odd(side, name), omit=omit)
    p.close(b"}")
    done = [p.jump()] if absent is not None or otherwise is None else []
    if absent is not None:
        p.land([absent])
    if otherwise is None:
        return done
    if done:
        p.text(otherwise)
        p.land(done)
    return []


def _side(block: Block, side: Side) -> pa.StructArray | None:
    return block.column(side.name.lower())


def _children(block: Block, side: Side) -> dict[str, pa.Array]:
    """Children by name, without the struct's own nulls: rows without the image are jumped over."""
    array = _side(block, side)
    if array is None:
        return {}
    keep = set(block.table.key) if side is Side.KEY and block.table.key else {f.name for f in array.type}
    return {f.name: array.field(i) for i, f in enumerate(array.type) if f.name in keep}


def _first_odd(sides: list[tuple[np.ndarray[Any, np.dtype[np.bool_]], Odd | None]], rows: int) -> Odd | None:
    """Odd texts of the newest image a row has."""
    known = [odd for _, odd in sides if odd is not None]
    if not known:
        return None
    index, taken = np.full(rows, -1, np.int32), np.zeros(rows, np.bool_)
    for valid, odd in sides:
        if odd is not None:
            index = np.where(valid & ~taken, odd.index, index)
        taken |= valid
    return Odd(index.astype(np.int32), known[0].texts)  # one block has one list of texts


def _parents(lists: pa.ListArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The row of each element of `lists.flatten()`."""
    sizes = pa.compute.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), sizes)


def _names(block: Block) -> Texts:
    return _texts([c.name for c in block.table.columns])


def _by_op(labels: dict[Op, str]) -> Texts:
    return _texts([labels.get(Op(code)) if code in {int(op) for op in Op} else None for code in range(max(Op) + 1)])


def _texts(values: list[str | None]) -> Texts:
    texts = [orjson.dumps(v) for v in values]
    return Texts(pa.py_buffer(b"".join(texts)), np.cumsum([0, *map(len, texts)]).astype(np.int64))
