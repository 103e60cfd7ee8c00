"""The rows that a sink's events amount to: what a consumer has who applied them all, for `tidemill verify`.

Events are applied as the documentation tells consumers to (docs/events.md, docs/delivery.md): the last event of a key
counts, by its offset, so that one which comes twice changes nothing; columns that are `unchanged` keep their value; a
delete removes the row, a truncate all rows before it. The source's rows are encoded by the sink's own format and read
back in the same way, so that both sides have the same form, whatever the type.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import orjson

from tidemill.contracts import Format, RowDifference, RowFault
from tidemill.errors import Refused
from tidemill.model.block import Block
from tidemill.model.snapshot import Bound
from tidemill.model.table import Table
from tidemill.model.types import JsonForm
from tidemill.model.unlogged import with_place
from tidemill.sinks._shared.audit_store import AuditStore
from tidemill.sinks._shared.encoded import EncodedSinkConfig
from tidemill.sinks._shared.exact_json import load_exact, show_exact

Document = dict[str, Any]
_UNAVAILABLE = "__debezium_unavailable_value"
_OPS = {"c": "insert", "u": "update", "d": "delete", "t": "truncate", "r": "read"}
_AT_ONCE = 5000


class EventReader(Protocol):
    """What was delivered of one table, in the order in which it counts."""

    def fresh(self) -> Iterator[bytes]:
        """Events that were delivered since the last call, as they were sent; the first call begins with the oldest."""

    def close(self) -> None: ...


class ReplayedAudit:
    """`source` is the pipeline's source. Nothing of the sink is changed."""

    left_out: tuple[str, ...] = ()

    def __init__(
        self, config: EncodedSinkConfig, encode: Format, events: EventReader, table: Table, source: str, *,
        values: bool,
    ) -> None:  # fmt: skip
        where = f'sink "{config.id}"'
        if config.format != "json":
            raise Refused(
                f"events in {config.format} are not read back", where=where,
                fix="verify replays events in JSON. Compare a sink that keeps rows, or one with format: json.",
            )  # fmt: skip
        if not table.key:
            raise Refused(
                f"rows of {table.full_name} cannot be told apart: it has no key", where=where,
                fix="Only tables with a primary key are compared.",
            )  # fmt: skip
        self._encode, self._events, self._table, self._source = encode, events, table, source
        self._where, self._values = where, values
        self._store = AuditStore()
        self._arrived = 0
        self._truncated = -1  # everything before this place is gone, whenever it is read

    def compare(self, block: Block, *, note: bool) -> list[RowDifference]:
        self._catch_up()
        documents = self._encode.encode(with_place(block), self._source).to_pylist()
        rows = [_Event(load_exact(document)).after or {} for document in documents]
        keys = [self._key(row) for row in rows]
        if note:
            self._store.note(keys)
        found = []
        for number, (key, row) in enumerate(zip(keys, rows, strict=True)):
            held = self._store.get(key)
            if held is None or held[1] is None:
                found.append(RowDifference(number, RowFault.MISSING))
            elif unlike := _unlike(row, orjson.loads(held[1])):
                values = tuple(unlike.values()) if self._values else ()
                found.append(RowDifference(number, RowFault.DIFFERENT, tuple(unlike), values))
        return found

    def extra(self, most: int) -> list[Bound]:
        self._catch_up()
        return [self._bound(orjson.loads(document)) for document in self._store.held_unseen(most)]

    def has(self, key: Bound) -> bool:
        self._catch_up()
        row = {name: self._value(name, text) for name, text in zip(self._table.key, key, strict=True)}
        held = self._store.get(self._key(row))
        return held is not None and held[1] is not None

    def remove(self, keys: Sequence[Bound], is_gone: Callable[[Bound], bool]) -> int:
        raise Refused(
            "extra rows stay: the sink keeps events, and nobody can take one back",
            where=self._where,
            fix="Tell its consumers to delete these keys.",
        )

    def close(self) -> None:
        self._store.close()
        self._events.close()

    def _catch_up(self) -> None:
        """Applies what was delivered since the last look."""
        pending: dict[bytes, tuple[int, bytes | None]] = {}
        for document in self._events.fresh():
            self._arrived += 1
            event = _Event(load_exact(document))
            if event.table not in (("", ""), (self._table.schema, self._table.name)):
                continue
            place = self._arrived if event.place is None else event.place
            if event.op == "truncate":
                self._flush(pending)
                self._truncated = max(self._truncated, place)
                self._store.truncate(place)
            elif event.op in ("insert", "update", "read", "delete"):
                self._apply(event, place, pending)
            if len(pending) >= _AT_ONCE:
                self._flush(pending)
        self._flush(pending)

    def _apply(self, event: _Event, place: int, pending: dict[bytes, tuple[int, bytes | None]]) -> None:
        old = self._key_of(event.before)
        if event.after is None:
            if old is not None:
                _put(pending, old, place, None)
            return
        new, row = self._key(event.after), dict(event.after)
        if event.unchanged:
            known = pending.get(old or new) or self._store.get(old or new)
            kept = orjson.loads(known[1]) if known is not None and known[1] is not None else {}
            row |= {name: kept[name] for name in event.unchanged if name in kept}
        if old is not None and old != new:  # an update with holes that changed the key comes in one piece
            _put(pending, old, place, None)
        _put(pending, new, place, orjson.dumps(row))

    def _flush(self, pending: dict[bytes, tuple[int, bytes | None]]) -> None:
        self._store.hold(
            (key, place, None if place < self._truncated else document) for key, (place, document) in pending.items()
        )
        pending.clear()

    def _key(self, row: Document) -> bytes:
        return orjson.dumps([row.get(name) for name in self._table.key])

    def _key_of(self, row: Document | None) -> bytes | None:
        return None if row is None or any(row.get(name) is None for name in self._table.key) else self._key(row)

    def _bound(self, row: Document) -> Bound:
        """The key as `Chunk.points` has it: bytes in hex."""
        forms = {column.name: column.type.json for column in self._table.columns}
        return tuple(
            base64.b64decode(row[name]).hex() if forms[name] is JsonForm.BASE64 else show_exact(row[name]) or ""
            for name in self._table.key
        )

    def _value(self, name: str, text: str) -> Any:
        """A part of a key as events have it."""
        column = next(column for column in self._table.columns if column.name == name)
        match column.type.json:
            case JsonForm.BASE64:
                return base64.b64encode(bytes.fromhex(text)).decode()
            case JsonForm.NUMBER:
                return text if text in ("NaN", "Infinity", "-Infinity") else load_exact(text)
            case JsonForm.BOOL:
                return text == "true"
        if column.type.native.startswith(("timestamp", "datetime")):
            return text.replace(" ", "T", 1)
        return text


class _Event:
    """What counts of an event, whatever its envelope. `place` is its offset; None where the envelope has none."""

    __slots__ = ("after", "before", "op", "place", "table", "unchanged")
    before: Document | None
    after: Document | None
    op: str
    place: int | None
    table: tuple[str, str]
    unchanged: Sequence[str]

    def __init__(self, document: Document) -> None:
        if "payload" in document and "schema" in document:
            document = document["payload"] or {}
        data: Document = document.get("data") or {} if "specversion" in document else document
        self.before, self.after = data.get("before"), data.get("after")
        if "event_id" in data:
            self.op, self.table, self.place = data["op"], (data["schema"], data["table"]), int(data["offset"])
            self.unchanged = data.get("unchanged") or ()
            return
        self.op = _OPS.get(data.get("op") or "", "")
        at, self.place = data.get("source") or {}, None
        self.table = (at.get("schema") or at.get("db") or "", at.get("table") or "")
        row = self.after or {}
        self.unchanged = tuple(name for name, value in row.items() if value == _UNAVAILABLE)


def _put(pending: dict[bytes, tuple[int, bytes | None]], key: bytes, place: int, document: bytes | None) -> None:
    if key not in pending or pending[key][0] <= place:
        pending[key] = (place, document)


def _unlike(ours: Document, theirs: Document) -> dict[str, tuple[str | None, str | None]]:
    """Columns that differ, with both values. One that an event lacks, because it came later, counts as NULL."""
    return {
        name: (show_exact(ours[name]), show_exact(theirs.get(name)))
        for name in ours
        if orjson.dumps(ours[name]) != orjson.dumps(theirs.get(name))
    }
