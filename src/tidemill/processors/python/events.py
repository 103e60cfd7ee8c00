"""Events as dictionaries and back, for functions of the style `event`: an object per row, and the slower way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import ProcessingError
from tidemill.model.block import ROUTE, Block, Op, Side
from tidemill.model.derived import derived_table, reshape, with_column
from tidemill.model.identity import event_ids
from tidemill.model.table import Column
from tidemill.processors._shared.types import data_type

_OPS = {op.label: int(op) for op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)}


def to_events(block: Block, source_id: str) -> list[dict[str, Any]]:
    """Events with Python's own values: int, float, str, Decimal, datetime, bytes, None."""
    table, batch = block.table, block.batch
    names = [c.name for c in table.columns]
    images: dict[str, list[Any]] = {
        side: batch.column(side).to_pylist() if block.column(side) is not None else [None] * block.rows
        for side in _SIDES
    }
    for row, side, name, text in _odd(block):
        images[side][row][name] = text
    unchanged = block.column("unchanged")
    lists = unchanged.to_pylist() if unchanged is not None else None
    meta = zip(
        event_ids(block, source_id).to_pylist(), batch.column("op").to_pylist(), batch.column("tx_id").to_pylist(),
        batch.column("position").to_pylist(), batch.column("ordinal").to_pylist(),
        batch.column("commit_time").to_pylist(), strict=True,
    )  # fmt: skip
    found = []
    for row, (event_id, op, tx_id, position, ordinal, time) in enumerate(meta):
        before = images["before"][row] if images["before"][row] is not None else images["key"][row]
        event = {
            "event_id": event_id, "source_id": source_id, "database": table.database, "schema": table.schema,
            "table": table.name, "op": Op(op).label, "tx_id": tx_id, "position": position, "ordinal": ordinal,
            "timestamp": time, "schema_version": table.fingerprint, "before": before,
            "after": images["after"][row],
        }  # fmt: skip
        if lists is not None and lists[row]:
            event["unchanged"] = [names[number] for number in lists[row]]
            for name in event["unchanged"]:
                event["after"].pop(name, None)
        found.append(event)
    return found


_SIDES = ("before", "key", "after")
_UNFIT = (pa.ArrowException, OverflowError, ValueError)
Rows = Sequence[tuple[int, dict[str, Any]]]


def copy_event(event: dict[str, Any]) -> dict[str, Any]:
    """What a function may change without changing the original; lists inside are shared."""
    return {**event, **{side: dict(row) for side in ("before", "after") if (row := event[side]) is not None}}


def keep_event(event: dict[str, Any]) -> dict[str, Any]:
    """What a function returned, as it is now: it may use the dictionaries for its next event, too. `ValueError` says
    what is not as it must be, without values."""
    images = {side: event[side] for side in ("before", "after") if event.get(side) is not None}
    for side, row in images.items():
        if not isinstance(row, dict) or not all(isinstance(name, str) for name in row):
            raise ValueError(f"{side} must be a dictionary with the names of columns, or None")
    if not isinstance(event.get("route") or {}, dict):
        raise ValueError("route must be a dictionary with topic, key and headers, or None")
    if not isinstance(event.get("op", "insert"), str):
        raise ValueError("op must be insert, update or delete")
    return {**event, **{side: dict(row) for side, row in images.items()}}


def from_events(block: Block, originals: list[dict[str, Any]], rows: Rows) -> tuple[Block, pa.Array | None]:
    """The events that the function returned, each with the row that it was called with, as a block; and routes."""
    source = np.array([row for row, _ in rows], np.int64)
    taken = block.take(source) if len(rows) else Block(block.table, block.batch.slice(0, 0))
    if not rows:
        return taken, None
    reasons: dict[int, str] = {}
    offsets = taken.offsets()
    ops = [_OPS.get(event.get("op", "insert")) for _, event in rows]
    for number, op in enumerate(ops):
        if op is None:
            reasons[int(offsets[number])] = "op must be insert, update or delete"
    if reasons:
        raise ProcessingError(reasons)
    taken = with_column(taken, "op", pa.array(ops, pa.uint8()))
    sides = _images(taken, originals, rows)
    written: dict[str, Column] = {}
    images: dict[str, pa.StructArray | None] = {}
    for side, values in sides.items():
        images[side] = _struct(taken, side, values, [originals[row] for row, _ in rows], written, reasons)
    if reasons:
        raise ProcessingError(reasons)
    own = block.table.columns
    columns = [c for c in own if c.name in written] + [c for c in written.values() if c not in own]
    table = block.table if columns == list(block.table.columns) else derived_table(block.table, columns)
    known = {c.name for c in block.table.columns}
    shaped = {side: _order(image, [c.name for c in columns]) for side, image in images.items()}
    made = reshape(_mark(taken, originals, rows), table, shaped, [c.name if c.name in known else None for c in columns])
    routes = [event.get("route") for _, event in rows]
    return made, _routes(routes, taken) if any(routes) else None


def _images(taken: Block, originals: list[dict[str, Any]], rows: Rows) -> dict[str, list[Any]]:
    """`before` of an event is its old row, or its old key where the source sent only that."""
    keyed = taken.column("key")
    old = taken.column("before")
    sides: dict[str, list[Any]] = {"after": [event.get("after") for _, event in rows], "before": [], "key": []}
    for number, (_, event) in enumerate(rows):
        only_key = keyed is not None and keyed[number].is_valid and not (old is not None and old[number].is_valid)
        sides["before"].append(None if only_key else event.get("before"))
        sides["key"].append(event.get("before") if only_key else None)
    return {
        side: rows for side, rows in sides.items() if taken.column(side) is not None or rows.count(None) < len(rows)
    }


def _struct(
    taken: Block, side: str, values: list[Any], was: list[dict[str, Any]], written: dict[str, Column],
    reasons: dict[int, str],
) -> pa.StructArray:  # fmt: skip
    known = {c.name: c for c in taken.table.columns}
    struct = taken.column(side)
    old = {f.name: struct.field(n) for n, f in enumerate(struct.type)} if struct is not None else {}
    odd: dict[str, set[int]] = {}
    for row, at, name, _ in _odd(taken):
        if at == side:
            odd.setdefault(name, set()).add(row)
    unsent = {name for event in was for name in event.get("unchanged", ())} if side == "after" else set()
    names = dict.fromkeys(
        [*(n for n in old if n in unsent), *(name for row in values if row is not None for name in row)]
    )
    arrays, fields = [], []
    for name in sorted(names, key=lambda each: list(known).index(each) if each in known else len(known)):
        cells = [None if row is None else row.get(name) for row in values]
        before = [(event["before"] if side != "after" else event["after"]) or {} for event in was]
        same = [cell is each.get(name) for cell, each in zip(cells, before, strict=True)]
        column = known.get(name) or written.get(name)
        kept = name in old and all(same) and not pa.types.is_nested(old[name].type)  # a list may have changed inside
        if name in odd and not kept:
            cells = [
                None if mine and row in odd[name] else cell
                for row, (cell, mine) in enumerate(zip(cells, same, strict=True))
            ]
        if kept:
            array = old[name]
        else:
            array = _array(cells, None if column is None else column.type.arrow, name, taken, reasons)
        if column is None:
            column = Column(name, data_type(array.type)) if not pa.types.is_null(array.type) else None
        if column is not None:
            written.setdefault(name, column)
            arrays.append(array if array.type == column.type.arrow else array.cast(column.type.arrow))
            fields.append(pa.field(name, column.type.arrow))
    mask = pa.array([row is None for row in values])
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _array(cells: list[Any], kind: pa.DataType | None, name: str, taken: Block, reasons: dict[int, str]) -> pa.Array:
    """Of a new column the first value decides that Arrow takes at all."""
    try:
        return pa.array(cells, kind)
    except _UNFIT:
        pass
    for number, cell in enumerate(cells):
        try:
            one = pa.array([cell], kind)
            kind = kind or (one.type if cell is not None else None)
        except _UNFIT:
            holds = f"holds {kind}, and " if kind is not None else ""
            reasons.setdefault(
                int(taken.offsets()[number]), f'column "{name}" {holds}was given {_describe(cell, kind)}'
            )
    return pa.nulls(len(cells), kind or pa.null())


def _describe(cell: Any, kind: pa.DataType | None) -> str:
    """Its type; and why, where the type is right or there is none yet."""
    if isinstance(cell, str) and (kind is None or pa.types.is_string(kind)):
        return "str with half of a surrogate pair"
    return f"{type(cell).__name__} that no column holds" if kind is None else type(cell).__name__


def _mark(taken: Block, originals: list[dict[str, Any]], rows: Rows) -> Block:
    """A value that the function wrote is `unchanged` no more, and has no exact text (`odd`) beside it."""
    names = [c.name for c in taken.table.columns]
    lists = taken.column("unchanged")
    if lists is not None:
        kept = [
            [n for n in marks or () if names[n] not in (event.get("after") or {})] or None
            for marks, (_, event) in zip(lists.to_pylist(), rows, strict=True)
        ]
        taken = with_column(taken, "unchanged", pa.array(kept, lists.type))
    lists = taken.column("odd")
    if lists is not None:
        strings: list[list[dict[str, Any]]] = [[] for _ in rows]
        for row, side, name, text in _odd(taken):
            image = "after" if side == "after" else "before"
            source, event = rows[row]
            if (event.get(image) or {}).get(name) is (originals[source][image] or {}).get(name):
                strings[row].append({"side": Side[side.upper()], "column": names.index(name), "text": text})
        taken = with_column(taken, "odd", pa.array([each or None for each in strings], lists.type))
    return taken


def _odd(block: Block) -> Iterator[tuple[int, str, str, str]]:
    """Row, image, column and exact text of values beyond their type."""
    lists = block.column("odd")
    for row, entries in enumerate(lists.to_pylist() if lists is not None else ()):
        for entry in entries or ():
            yield row, Side(entry["side"]).name.lower(), block.table.columns[entry["column"]].name, entry["text"]


def _order(image: pa.StructArray | None, names: list[str]) -> pa.StructArray | None:
    if image is None or [f.name for f in image.type] == [n for n in names if image.type.get_field_index(n) >= 0]:
        return image
    found = [n for n in names if image.type.get_field_index(n) >= 0]
    arrays = [image.field(image.type.get_field_index(n)) for n in found]
    fields = [image.type.field(image.type.get_field_index(n)) for n in found]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=image.is_null())


def _routes(given: list[Any], taken: Block) -> pa.Array:
    try:
        return pa.array([_route(each) for each in given], ROUTE)
    except (*_UNFIT, AttributeError, TypeError):
        pass
    reasons = {}
    for number, each in enumerate(given):
        try:
            pa.array([_route(each)], ROUTE)
        except (*_UNFIT, AttributeError, TypeError):
            reasons[int(taken.offsets()[number])] = "route must have strings: topic, key and headers by name"
    raise ProcessingError(reasons)


def _route(given: Any) -> Any:
    if not given:
        return None
    return {"topic": given.get("topic"), "key": given.get("key"), "headers": list((given.get("headers") or {}).items())}
