"""What stands around a row in JSON: our own event, Debezium's, a CloudEvent. docs/events.md describes every field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from tidemill import __version__
from tidemill.encoding.program import Program, StringColumn, quote, render
from tidemill.formats._shared import connect_schema
from tidemill.formats._shared.debezium import OPS, UNAVAILABLE, Connector, PositionOrigin, times
from tidemill.formats._shared.row_images import Rare, columns_of, image, image_of, newest_odd, old_image
from tidemill.model import cloudevents
from tidemill.model.block import Block, Op, Side
from tidemill.model.identity import ordinals
from tidemill.model.table import Table
from tidemill.model.types import JsonForm


def native(block: Block, source: str, tail: bytes) -> Program:
    p = Program(block.rows)
    _native(p, block, source, _Meta.of(block))
    p.text(tail)
    return p


def cloudevent(block: Block, source: str, tail: bytes) -> Program:
    """Structured mode: the attributes, and our own event as the data."""
    meta, attributes = _Meta.of(block), cloudevents.attributes(block, source)
    p = Program(block.rows)
    p.text(b"{")
    for name, value in attributes.items():
        if isinstance(value, str):
            p.text(quote(name) + b":" + quote(value) + b",")
        else:
            missing = value.is_null().to_numpy(zero_copy_only=False).astype(np.uint8) if value.null_count else None
            p.field(name, value, JsonForm.STRING, omit=missing)
    p.text(b'"datacontenttype":"application/json","data":')
    _native(p, block, source, meta)
    p.text(b"}" + tail)
    return p


def _native(p: Program, block: Block, source: str, meta: _Meta) -> None:
    table, rare = block.table, Rare.of(block)
    p.text(b'{"event_id":' + quote(f"{source}:")[:-1])
    p.lookup(meta.position, meta.positions, bare=True)
    p.text(b":")
    p.value(*meta.place)
    p.text(b'","source_id":' + quote(source) + b',"database":' + quote(table.database))
    p.text(b',"schema":' + quote(table.schema) + b',"table":' + quote(table.name) + b',"op":')
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
    p.text(b',"schema_version":' + quote(table.fingerprint) + b',"schema_sequence":%d' % table.sequence)
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
    old_image(p, block, rare)
    p.text(b',"after":')
    image(p, block, Side.AFTER, rare, b"null")
    p.size(b',"size_bytes":', less=len(b'"before":,"after":'))
    if rare.lists is not None:
        p.names(b',"unchanged":', rare.lists, _names(block), omit=rare.complete)
    p.text(b"}")


def debezium(block: Block, source: str, tail: bytes, *, with_schema: bool = False) -> Program:
    """Debezium 3's fields. Times are the commit's, so that a replay gives the same bytes.

    With its schema an event must look as that says, so that JSON columns are strings.
    """
    table, meta, rare = block.table, _Meta.of(block), Rare.of(block, placeholder=UNAVAILABLE)
    origin, timestamps = PositionOrigin.of(block), times(meta.commit_time)
    message = Op.MESSAGE in meta.op  # a block of messages holds nothing else
    statement = Op.DDL in meta.op  # and so does a block of statements
    p = Program(block.rows)
    if with_schema and statement:
        p.text(b'{"schema":null,"payload":')
    elif with_schema:
        null = _without_value(block, rare)
        schema = connect_schema.envelope(table, source, origin.connector, message, null)
        p.text(b'{"schema":' + schema + b',"payload":')
    if statement:
        p.text(b"{")
        _source(p, source, meta, origin, table)
        _statement(p, block, timestamps, origin)
        p.close((b"}}" if with_schema else b"}") + tail)
        return p
    if message:
        p.text(b'{"message":')
    else:
        p.text(b'{"before":')
        old_image(p, block, rare, whole=True, plain=with_schema)
        p.text(b',"after":')
    image(p, block, Side.AFTER, rare, b"null", whole=True, plain=with_schema)
    p.text(b",")
    _source(p, source, meta, origin, table)
    p.text(b',"transaction":null,"op":')
    p.lookup(meta.op, _by_op(OPS))
    p.text(b",")
    for name, name_of_time in timestamps.items():
        p.field(name, name_of_time, JsonForm.NUMBER)
    p.close((b"}}" if with_schema else b"}") + tail)
    return p


def _without_value(block: Block, rare: Rare) -> frozenset[str]:
    """Required columns that some row shows as null: the catalog that said NOT NULL may be newer than the row, and a
    binlog may have less than the whole of an old row."""
    wanted = connect_schema.require(block.table)
    found: set[str] = set()
    old = np.zeros(block.rows, np.bool_)
    for side in (Side.BEFORE, Side.AFTER, Side.KEY):
        array = image_of(block, side)
        if array is None:
            continue
        there = np.asarray(array.is_valid())
        if side is Side.BEFORE:
            old = there
        there = there & ~old if side is Side.KEY else there
        children = columns_of(block, side)
        for name in wanted - found if there.any() else ():
            child, odd = children.get(name), rare.odd(side, name)
            if child is None:
                found.add(name)
            elif child.null_count:
                gone = np.asarray(child.is_null()) & there
                found |= {name} if (gone if odd is None else gone & (odd.index < 0)).any() else set()
    return frozenset(found)


def _source(p: Program, source: str, meta: _Meta, origin: PositionOrigin, table: Table) -> None:
    p.text(b'"source":{"version":' + quote(__version__) + b',"connector":' + quote(str(origin.connector)))
    p.text(b',"name":' + quote(source) + b",")
    timestamps = times(meta.commit_time)
    p.field("ts_ms", timestamps["ts_ms"], JsonForm.NUMBER)
    p.text(b'"snapshot":')
    p.lookup(meta.op, _by_op({op: "true" if op is Op.READ else "false" for op in Op}))
    p.text(b',"db":' + quote(table.database) + b',"sequence":')
    if origin.connector is Connector.POSTGRESQL:
        p.text(b'"[\\"')
        p.value(origin.lsn, JsonForm.NUMBER)
        p.text(b'\\",\\"')
        p.value(*meta.place)
        p.text(b'\\"]"')
    else:
        p.text(b"null")
    p.text(b",")
    for name in ("ts_us", "ts_ns"):
        p.field(name, timestamps[name], JsonForm.NUMBER)
    if origin.connector is Connector.POSTGRESQL:
        _postgresql(p, meta, origin, table)
    else:
        _mysql(p, meta, origin, table)
    p.text(b"}")


def _statement(p: Program, block: Block, timestamps: dict[str, pa.Array], origin: PositionOrigin) -> None:
    """What Debezium sends to its topic of schema changes, and `op`, by which it is known among rows. They are few, so
    one by one is fine."""
    table = block.table
    documents = [orjson.loads(text) for text in block.batch.column("ddl").to_pylist()]
    schema = table.schema if origin.connector is Connector.POSTGRESQL else None
    name = ".".join(f'"{part}"' for part in (table.database, schema, table.name) if part is not None)
    kinds = {"create": "CREATE", "drop": "DROP"}
    changes = [
        orjson.dumps([{"type": kind, "id": name, "table": None if kind == "DROP" else _describe_table(table)}]).decode()
        for kind in (kinds.get(d["kind"], "ALTER") for d in documents)
    ]
    p.text(
        b',"op":"ddl","databaseName":'
        + quote(table.database)
        + b',"schemaName":'
        + (quote(schema) if schema is not None else b"null")
        + b","
    )
    p.field("ddl", pa.array([d["text"] for d in documents], pa.string()), JsonForm.STRING)
    p.field("tableChanges", pa.array(changes, pa.string()), JsonForm.RAW)
    for name_of_time, values in timestamps.items():
        p.field(name_of_time, values, JsonForm.NUMBER)


def _describe_table(table: Table) -> dict[str, Any]:
    """As far as we know it: no JDBC types, lengths or scales."""
    columns = [
        {"name": c.name, "typeName": c.type.native, "position": place, "optional": c.nullable, "generated": c.generated}
        for place, c in enumerate(table.columns, 1)
    ]
    return {"primaryKeyColumnNames": list(table.key), "columns": columns}


def _postgresql(p: Program, meta: _Meta, origin: PositionOrigin, table: Table) -> None:
    p.text(b'"schema":' + quote(table.schema) + b',"table":' + quote(table.name) + b',"txId":')
    p.value(meta.tx_id, JsonForm.NUMBER)
    p.text(b',"lsn":')
    p.value(origin.lsn, JsonForm.NUMBER)
    p.text(b',"xmin":null,"origin":null,"origin_lsn":null')


def _mysql(p: Program, meta: _Meta, origin: PositionOrigin, table: Table) -> None:
    """A position is a set of GTIDs, or a file and a byte of it: the others are null, and so is what we do not read."""
    p.text(b'"table":' + quote(table.name) + b',"server_id":null,"gtid":')
    p.value(origin.gtid, JsonForm.STRING)
    p.text(b',"file":')
    p.value(origin.file, JsonForm.STRING)
    p.text(b',"pos":')
    p.value(origin.pos, JsonForm.NUMBER)
    p.text(b',"row":')
    p.value(meta.ordinal, JsonForm.NUMBER)
    p.text(b',"thread":null,"query":null')


def keys(block: Block, head: bytes = b"", tail: bytes = b"") -> pa.LargeBinaryArray:
    """The key columns as a document, `{"id":1}`; null where the table or the event has no key (TRUNCATE)."""
    program, found = key(block, head, tail)
    return program.run().array(found)


def key(block: Block, head: bytes = b"", tail: bytes = b"") -> tuple[Program, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The key columns, from the newest image that has them, and which rows have a key at all.

    A key column that the source left out of the new image (TOAST) is the same in the old one.
    """
    rare = Rare.of(block)
    sides = [
        (side, array) for side in (Side.AFTER, Side.BEFORE, Side.KEY) if (array := image_of(block, side)) is not None
    ]
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
        odd = newest_odd([(present[side], rare.odd(side, column.name)) for side, _ in sides], block.rows)
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
    positions: StringColumn
    tx_id: pa.Array
    ordinal: pa.Array
    offset: pa.Array
    commit_time: pa.Array
    place: tuple[pa.Array, JsonForm]  # the ordinal as an event's id has it

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
            batch.column("offset"), batch.column("commit_time"), _place(block),
        )  # fmt: skip


def _place(block: Block) -> tuple[pa.Array, JsonForm]:
    if block.column("sub") is None:
        return block.batch.column("ordinal"), JsonForm.NUMBER
    return ordinals(block), JsonForm.RAW


def _names(block: Block) -> StringColumn:
    return _strings([c.name for c in block.table.columns])


def _by_op(labels: dict[Op, str]) -> StringColumn:
    return _strings([labels.get(Op(code)) if code in {int(op) for op in Op} else None for code in range(max(Op) + 1)])


def _strings(values: list[str | None]) -> StringColumn:
    strings = [orjson.dumps(v) for v in values]
    return StringColumn(pa.py_buffer(b"".join(strings)), np.cumsum([0, *map(len, strings)]).astype(np.int64))
