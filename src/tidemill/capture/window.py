"""What of a chunk may still be said when the log has moved on: the rule that makes a copy of a changing table right.

A chunk's rows are as old as its read; the log may hold newer events of the same keys, in the chunk's *window*. The
event wins: its key leaves the chunk. But where what the events carry has holes (`unchanged` columns), the row is
completed from the chunk and stays. A row that was deleted in the window, or truncated, is never brought back (ADR 28).

A window may begin earlier than it had to: its first events may be older than the chunk's read. So a row that moved to
another key and left columns out is not completed here, since the chunk's row of the old key may be a later one. Both
keys leave the chunk, and the new one is read again when the table's last chunk is in the log (`model/rowkeys.py`).

Pure: blocks in, blocks out. Whole columns are compared; only rows with holes are looked at one by one.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import ODD, Block, Op, Side
from tidemill.model.columns import column, values
from tidemill.model.position import Offset
from tidemill.model.rowkeys import bits, keys_of, old_keys_of, take_rows
from tidemill.model.table import Table

_SMALL_BYTES = 1 << 20
_ROWS = (int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE), int(Op.TRUNCATE), int(Op.DDL))


class Verdict(enum.Enum):
    AS_IT_IS = "as it is"
    FILTERED = "filtered"
    AGAIN = "again"  # what the window holds cannot be told from the chunk's rows: read the chunk once more


@dataclass(frozen=True, slots=True)
class Windowed:
    """`blocks` of a verdict FILTERED: what is left, offsets counted from 0. Ordinals are those of the chunk."""

    verdict: Verdict
    blocks: tuple[Block, ...] = ()


class ChunkWindow:
    """The events of windows that end together: of one chunk, or of chunks that wait. They are looked at before any row
    of a chunk is read, and then once for each piece of it: a chunk may be larger than memory."""

    def __init__(self, events: Iterable[Block], table: Table) -> None:
        """`events` are the table's blocks in the window, in order of their offsets; rows of snapshots among them do not
        count. `table` is the chunk's."""
        self._table = table
        self._parts: deque[_WindowPart] = deque()
        self._touched: pa.Array | None = None  # keys of all parts, once somebody asks
        self.extend(events)

    def extend(self, events: Iterable[Block]) -> None:
        """The log has gone on: blocks that follow those it has."""
        for block in events:
            if (part := _WindowPart.of(block, self._table)) is not None:
                self._parts.append(part)
                self._touched = None

    def drop_before(self, offset: Offset) -> None:
        """No chunk needs what came before."""
        while self._parts and self._parts[0].last < offset:
            self._parts.popleft()
            self._touched = None

    @property
    def why(self) -> str:
        """Why a chunk has to be read again; empty if it need not."""
        if any(part.redefines for part in self._parts):
            return "the table's structure changed"
        if self._parts and not self._truncated and not self._table.key:
            return "rows of a table without a key changed while it was read"
        return ""

    @property
    def verdict(self) -> Verdict:
        if not self._parts:
            return Verdict.AS_IT_IS
        return Verdict.AGAIN if self.why else Verdict.FILTERED

    @property
    def _truncated(self) -> bool:
        return any(part.truncates for part in self._parts)

    def filter(self, chunk: Sequence[Block]) -> Windowed:
        """What is left of a piece of the chunk. A key is in one piece only, so that pieces do not know each other."""
        verdict = self.verdict
        if verdict is not Verdict.FILTERED:
            return Windowed(verdict)
        if self._truncated:
            return Windowed(Verdict.FILTERED)  # what came after it stands in the window as an insert
        if self._touched is None:
            both = [keys for part in self._parts for keys in (part.old, part.new)]
            self._touched = pa.chunked_array(both, pa.binary()).drop_null().unique()
        mine = [keys_of(block, "after") for block in chunk]
        hits = [pc.fill_null(pc.is_in(keys, value_set=self._touched), False) for keys in mine]
        if not any(pc.any(hit).as_py() for hit in hits):
            return Windowed(Verdict.AS_IT_IS)
        merged = _merge(mine, hits, self._parts)
        return Windowed(Verdict.FILTERED, _renumber(_leave_out(chunk, hits, merged)))


class _WindowPart:
    """One block of a window, without the rows that are no events, and the keys that it touches."""

    def __init__(self, block: Block, last: Offset, *, redefines: bool) -> None:
        self.block, self.last, self.redefines = block, last, redefines
        self.ops = values(block.batch.column("op"), np.uint8)
        self.redefines |= bool((self.ops == int(Op.DDL)).any())
        self.truncates = bool((self.ops == int(Op.TRUNCATE)).any())

    @classmethod
    def of(cls, block: Block, table: Table) -> _WindowPart | None:
        """None: there is no event in it."""
        rows = np.flatnonzero(np.isin(values(block.batch.column("op"), np.uint8), _ROWS))
        if not len(rows):
            return None
        # A small one is copied: it would keep a mapping of the whole segment, and there may be thousands.
        small = block.batch.nbytes < _SMALL_BYTES
        mine = Block(block.table, _take(block.batch, rows)) if small or len(rows) < block.rows else block
        return cls(mine, int(block.offsets()[-1]), redefines=block.table.fingerprint != table.fingerprint)

    @cached_property
    def old(self) -> pa.Array:
        return old_keys_of(self.block)

    @cached_property
    def new(self) -> pa.Array:
        return keys_of(self.block, "after")


_GONE, _FULL = "gone", "full"
_Overlay = tuple[int, int]  # block of the window, row of it


@dataclass(frozen=True, slots=True)
class _Open:
    """A row of the chunk with the events on top that leave something of it: what it is now has to be said."""

    base: tuple[int, int]  # block of the chunk, row of it
    overlays: tuple[_Overlay, ...]


def _merge(
    mine: list[pa.Array], hits: list[pa.Array], parts: Collection[_WindowPart]
) -> dict[tuple[int, int], list[tuple[Block, int]]]:
    """Rows of the chunk that stay, each with the events that lie over it."""
    window = [part.block for part in parts]
    if all((unchanged := block.column("unchanged")) is None or unchanged.null_count == len(unchanged)
           for block in window):  # fmt: skip
        return {}
    state: dict[bytes, _Open | str] = {}
    for number, (keys, hit) in enumerate(zip(mine, hits, strict=True)):
        for row in np.flatnonzero(bits(hit)).tolist():
            state[keys[row].as_py()] = _Open((number, row), ())
    for number, part in enumerate(parts):
        unchanged = part.block.column("unchanged")
        holes = [False] * part.block.rows if unchanged is None else unchanged.is_valid().to_pylist()
        for row, (was, now) in enumerate(zip(part.old.to_pylist(), part.new.to_pylist(), strict=True)):
            op = int(part.ops[row])
            before = now if was is None else was
            if op == int(Op.UPDATE) and holes[row] and before == now:
                if isinstance(known := state.get(now), _Open):
                    state[now] = _Open(known.base, (*known.overlays, (number, row)))
            elif op == int(Op.DELETE):
                state[before] = _GONE
            else:
                if before != now:
                    state[before] = _GONE
                state[now] = _FULL
    return {
        kept.base: [(window[number], row) for number, row in kept.overlays]
        for kept in state.values() if isinstance(kept, _Open)
    }  # fmt: skip


def _leave_out(
    chunk: Sequence[Block], hits: list[pa.Array], merged: dict[tuple[int, int], list[tuple[Block, int]]]
) -> list[Block]:
    """The chunk's blocks without what an event replaced, completed rows in their places."""
    found = []
    for number, (block, hit) in enumerate(zip(chunk, hits, strict=True)):
        keep = ~bits(hit)
        rewritten = {row: overlays for (owner, row), overlays in merged.items() if owner == number}
        keep[list(rewritten)] = True
        rows = np.flatnonzero(keep)
        if not len(rows):
            continue
        batch = _take(block.batch, rows)
        changes = {int(np.searchsorted(rows, row)): overlays for row, overlays in rewritten.items() if overlays}
        found.append(_overlaid(Block(block.table, batch), changes) if changes else Block(block.table, batch))
    return found


def _overlaid(block: Block, changes: dict[int, list[tuple[Block, int]]]) -> Block:
    """With the events' columns in the rows of `changes`, but those that an event left out."""
    places = len(block.table.columns)
    odd = block.column("odd")
    strings: list[list[dict[str, Any]]] = [list(items or ()) for items in odd.to_pylist()] if odd is not None else [
        [] for _ in range(block.rows)
    ]  # fmt: skip
    image = block.column("after")
    assert image is not None
    cells: list[list[pa.Array]] = [[] for _ in range(places)]  # of each column, the values that are not the chunk's
    where: list[list[int]] = [[] for _ in range(places)]
    for row, overlays in changes.items():
        last: dict[int, tuple[Block, int]] = {}
        for event, at in overlays:
            unchanged = event.batch.column("unchanged")[at].as_py() or ()
            last |= {place: (event, at) for place in range(places) if place not in unchanged}
        for place, (event, at) in last.items():
            source = event.batch.column("after")
            cells[place].append(source.field(place).slice(at, 1))
            where[place].append(row)
            own = event.column("odd")
            items = (own[at].as_py() if own is not None else None) or ()
            strings[row] = [item for item in strings[row] if item["column"] != place]
            strings[row] += [item for item in items if item["column"] == place and item["side"] == int(Side.AFTER)]
    children = [
        _replace(image.field(place), where[place], cells[place]) if where[place] else image.field(place)
        for place in range(places)
    ]
    after = pa.StructArray.from_arrays(children, fields=list(image.type))
    columns = dict(zip(block.batch.schema.names, block.batch.columns, strict=True)) | {"after": after}
    columns.pop("odd", None)
    if any(strings):
        columns["odd"] = pa.array([items or None for items in strings], ODD)
    return Block(block.table, pa.RecordBatch.from_pydict(columns))


def _replace(array: pa.Array, rows: list[int], cells: list[pa.Array]) -> pa.Array:
    index = np.arange(len(array))
    index[rows] = len(array) + np.arange(len(rows))
    return take_rows(pa.concat_arrays([array, *cells]), index)


def _renumber(blocks: list[Block]) -> tuple[Block, ...]:
    made, first = [], 0
    for block in blocks:
        offsets = column(np.arange(first, first + block.rows, dtype=np.uint64), pa.uint64())
        place = block.batch.schema.get_field_index("offset")
        made.append(Block(block.table, block.batch.set_column(place, block.batch.schema.field(place), offsets)))
        first += block.rows
    return tuple(made)


def _take(batch: pa.RecordBatch, rows: np.ndarray[Any, Any]) -> pa.RecordBatch:
    return batch.take(column(rows.astype(np.int64), pa.int64()))
