"""What stands around a row in JSON: our own event, and Debezium's. docs/events.md describes every field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numba import njit

from tidemill import __version__
from tidemill.formats._program import Odd, Program, Texts, quoted, render
from tidemill.model.block import Block, Op, Side
from tidemill.model.types import JsonForm

UNAVAILABLE = "__debezium_unavailable_value"
_DEBEZIUM_OP = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.TRUNCATE: "t", Op.MESSAGE: "m", Op.READ: "r"}


def native(block: Block, source: str, tail: bytes) -> Program:
    table, meta, rare = block.table, _Meta.of(block), Rare.of(block)
    p = Program(block.rows)
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
    p.text(b'},"ddl":null,')
    p.mark()
    p.text(b'"before":')
    _old_image(p, block, rare)
    p.text(b',"after":')
    _image(p, block, Side.AFTER, rare, b"null")
    p.text(b',"size_bytes":')
    p.size(less=len(b'"before":,"after":'))
    if rare.lists is not None:
        p.names(b',"unchanged":', rare.lists, _names(block), omit=rare.complete)
    p.text(b"}" + tail)
    return p


def debezium(block: Block, source: str, tail: bytes) -> Program:
    """Debezium 3's fields for PostgreSQL. Times are the commit's, so that a replay gives the same bytes."""
    table, meta, rare = block.table, _Meta.of(block), Rare.of(block, placeholder=UNAVAILABLE)
    micros = meta.commit_time.cast(pa.int64())
    times = {
        "ts_ms": pa.compute.divide(micros, 1000),
        "ts_us": micros,
        "ts_ns": pa.compute.multiply(micros, 1000),
    }
    lsn = _lsn(meta)
    p = Program(block.rows)
    if Op.MESSAGE in meta.op:  # a block of messages holds nothing else
        p.text(b'{"message":')
    else:
        p.text(b'{"before":')
        _old_image(p, block, rare)
        p.text(b',"after":')
    _image(p, block, Side.AFTER, rare, b"null")
    p.text(b',"source":{"version":' + quoted(__version__) + b',"connector":"postgresql","name":')
    p.text(quoted(source) + b",")
    for name, time in times.items():
        p.field(name, time, JsonForm.NUMBER)
    p.text(b'"snapshot":')
    p.lookup(meta.op, _by_op({op: "true" if op is Op.READ else "false" for op in Op}))
    p.text(b',"db":' + quoted(table.database) + b',"sequence":"[\\"')
    p.value(lsn, JsonForm.NUMBER)
    p.text(b'\\",\\"')
    p.value(meta.ordinal, JsonForm.NUMBER)
    p.text(b'\\"]","schema":' + quoted(table.schema) + b',"table":' + quoted(table.name) + b',"txId":')
    p.value(meta.tx_id, JsonForm.NUMBER)
    p.text(b',"lsn":')
    p.value(lsn, JsonForm.NUMBER)
    p.text(b',"xmin":null},"transaction":null,"op":')
    p.lookup(meta.op, _by_op(_DEBEZIUM_OP))
    p.text(b",")
    for name, time in times.items():
        p.field(name, time, JsonForm.NUMBER)
    p.close(b"}" + tail)
    return p


def key(block: Block) -> tuple[Program, np.ndarray[Any, np.dtype[np.bool_]]]:
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
    p.text(b"{")
    for column in block.table.key_columns() if sides else ():
        # With the structs' own nulls: what stands under a null image is nobody's key.
        images = [block.struct(side.name.lower()) or {} for side, _ in sides]
        values = [image[column.name] for image in images if column.name in image]
        odd = _first_odd([(present[side], rare.odd(side, column.name)) for side, _ in sides], block.rows)
        p.field(column.name, pa.compute.coalesce(*values), column.type.json, odd=odd)
    p.close(b"}")
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


def _old_image(p: Program, block: Block, rare: Rare) -> None:
    """The old row, else the old key, else null."""
    if block.column("before") is None:
        _image(p, block, Side.KEY, rare, b"null")
        return
    done = _image(p, block, Side.BEFORE, rare, None)
    _image(p, block, Side.KEY, rare, b"null")
    p.land(done)


def _image(p: Program, block: Block, side: Side, rare: Rare, otherwise: bytes | None) -> list[int]:
    """An object, or `otherwise` in rows without this image. With None, returns the jumps past what comes next."""
    array = _side(block, side)
    if array is None:
        p.text(otherwise or b"")
        return []
    absent = p.jump_if_null(array) if array.null_count else None
    p.text(b"{")
    forms = {c.name: c.type.json for c in block.table.columns}
    for name, child in _children(block, side).items():
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


def _lsn(meta: _Meta) -> pa.Array:
    """Positions as numbers; null where a position is not of the form `16/B374D848`."""
    words = meta.dictionary.cast(pa.large_string())
    offsets, data = words.buffers()[1:]
    numbers = np.zeros(len(words), np.uint64)
    if len(words):
        ends = np.frombuffer(offsets, np.int64)[words.offset : words.offset + len(words) + 1]
        good = _parse_lsn(ends, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), numbers)
        return pa.array(numbers, mask=~good).take(pa.array(meta.position, mask=meta.position < 0))
    return pa.nulls(len(meta.position), pa.uint64())


@njit(cache=True, nogil=True)
def _parse_lsn(ends: Any, data: Any, numbers: Any) -> Any:
    good = np.zeros(len(numbers), np.bool_)
    for i in range(len(numbers)):
        high, word, slashes, valid = np.int64(0), np.int64(0), 0, ends[i + 1] - ends[i] >= 3
        for at in range(ends[i], ends[i + 1]):
            byte = np.int64(data[at])
            if byte == 47:
                high, word, slashes = word, np.int64(0), slashes + 1
            elif 48 <= byte <= 57:
                word = word * 16 + byte - 48
            elif 65 <= (byte & 0xDF) <= 70:
                word = word * 16 + (byte & 0xDF) - 55
            else:
                valid = False
        good[i] = valid and slashes == 1 and high < 2**32 and word < 2**32
        numbers[i] = np.uint64(high) << np.uint64(32) | np.uint64(word)
    return good
