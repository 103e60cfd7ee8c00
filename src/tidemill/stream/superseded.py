"""Follows the keys of dead letters: a dead letter whose row has newer events at its sink is *superseded*.

Sent again to a sink that holds rows, such a dead letter would put the row back to an older state
(service/redelivery/resend.py skips it). The driver compares each batch that every sink of a group has, before the
checkpoint covers it, and only blocks of tables that have records: by a hash of the key, a column at a time, then
exactly where a hash is met. A batch that comes again finds the same.

    wholly    every key of the dead letter has a newer event that carried all columns, or the table was emptied
    partly    a newer event did not carry all columns (unchanged TOAST), or only one of two keys has one (the record
              changes its key), or the dead letter's key cannot be compared with those of newer events: it has other
              columns, or these had other types
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.dlq import DeadLetterRecord, DeadLetters, Mark
from tidemill.log import LogReader, codec
from tidemill.log.requeued import is_kept_back
from tidemill.model.block import Block, Op, Side
from tidemill.model.keyhash import key_hashes
from tidemill.model.position import Offset
from tidemill.model.quarantine import Quarantine
from tidemill.model.table import Table
from tidemill.model.types import DataType
from tidemill.telemetry.events import emit

_NEW, _OLD = ("after", "key", "before"), ("key", "before", "after")
_ROWS = [int(op) for op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)]


@dataclass(slots=True)
class Key:
    """One key of a record; `by` is the newest event of it so far, `whole` whether one of them carried all columns."""

    hash: int
    text: str
    by: Offset | None = None
    whole: bool = False


@dataclass(slots=True)
class Followed:
    """A record that may be superseded. `reach` says by what: events of its `keys`, any event of its table, or nothing
    but a TRUNCATE (rows without a key)."""

    number: int
    sink: str
    offset: Offset
    reach: str
    columns: tuple[str, ...] = ()  # of the key, with their types
    keys: list[Key] = field(default_factory=list)
    by: Offset | None = None
    wholly: bool = False

    def to_json(self) -> str:
        keys = [[key.hash, key.text, key.by, key.whole] for key in self.keys]
        return orjson.dumps([self.reach, self.columns, keys, self.by]).decode()

    @classmethod
    def of(cls, number: int, sink: str, offset: Offset, keys: str) -> Followed:
        reach, columns, found, by = orjson.loads(keys)
        return cls(number, sink, offset, reach, tuple(columns), [Key(*key) for key in found], by)

    @classmethod
    def of_event(cls, number: int, sink: str, offset: Offset, block: Block) -> Followed:
        """`block` is the dead letter's event alone."""
        table, op = block.table, Op(block.batch.column("op")[0].as_py())
        if op is Op.TRUNCATE:
            return cls(number, sink, offset, "table")
        if op in (Op.DDL, Op.MESSAGE) or not table.key:
            return cls(number, sink, offset, "nothing")
        found: dict[str, Key] = {}
        for sides in (_NEW, _OLD):
            hashes, columns = key_hashes(block, table.key, sides), _columns(block, table.key, sides)
            if hashes is None or _odd_in_key(block):
                return cls(number, sink, offset, "table")  # in doubt it is not sent over a newer row
            text = _text(column[0] for column in columns)
            found[text] = Key(int(hashes[0]), text)
        return cls(number, sink, offset, "keys", _key_types(table), list(found.values()))

    def mark(self) -> Mark:
        how = "wholly" if self.wholly else "partly"
        return Mark(self.number, how, self.by or 0, self.to_json())


class Watched:
    """The dead letters of one table that may yet be superseded, found by the hashes of their keys."""

    def __init__(self) -> None:
        # By the key's columns and their types: hash and text of a value depend on its type.
        self._keyed: dict[tuple[str, ...], dict[int, list[tuple[Followed, Key]]]] = {}
        self._hashes: dict[tuple[str, ...], Any] = {}
        self._others: list[Followed] = []
        self.entries: dict[int, Followed] = {}

    def add(self, entry: Followed) -> None:
        self.entries[entry.number] = entry
        if entry.reach != "keys":
            self._others.append(entry)
        for key in entry.keys:
            self._keyed.setdefault(entry.columns, {}).setdefault(key.hash, []).append((entry, key))
        self._hashes.pop(entry.columns, None)

    def discard(self, entry: Followed) -> None:
        """Its hashes stay among those that are looked for, and find nothing."""
        del self.entries[entry.number]
        if entry.reach != "keys":
            self._others.remove(entry)
        for key in entry.keys:
            self._keyed[entry.columns][key.hash].remove((entry, key))

    def of_key(self, hashed: int, columns: tuple[str, ...]) -> list[tuple[Followed, Key]]:
        return self._keyed[columns][hashed]

    def hashes(self, columns: tuple[str, ...]) -> Any:
        """Sorted."""
        if columns not in self._hashes:
            found = self._keyed.get(columns, {})
            self._hashes[columns] = np.sort(np.fromiter(found, np.uint64, len(found)))
        return self._hashes[columns]

    def without_this_key(self, columns: tuple[str, ...]) -> Iterator[Followed]:
        """Records that any row event supersedes: their keys cannot be compared with one of these columns."""
        yield from (entry for entry in self._others if entry.reach == "table")
        for other, found in self._keyed.items():
            if other != columns:
                yield from (entry for entries in found.values() for entry, _ in entries)


class Follower:
    """The dead letters of some sinks that may yet be superseded. One thread."""

    def __init__(self, store: DeadLetters, sinks: Collection[str], pipeline: str) -> None:
        self._store, self._sinks, self._pipeline = store, tuple(sinks), pipeline
        self._tables: dict[str, Watched] = {}
        self._last = 0

    def begin(self, reached: Offset) -> None:
        """Reads them all. Records from before dead letters were followed are followed from `reached` on."""
        self._tables, self._last = {}, 0
        self.refresh(reached)

    def refresh(self, reached: Offset) -> None:
        """Those that were kept since."""
        new: list[Followed] = []
        for dead_letter, keys in self._store.open_dead_letters(self._sinks, after=self._last):
            self._last = dead_letter.number
            entry = follow(self._store, dead_letter, keys)
            if entry is not None:
                self._tables.setdefault(dead_letter.table, Watched()).add(entry)
                if not keys:
                    new.append(entry)
        if new:
            self._store.follow([(entry.number, reached, entry.to_json()) for entry in new])

    def compare(
        self, log: LogReader, start: Offset, end: Offset, left_out: Mapping[str, Collection[Offset]],
        quarantines: Sequence[Quarantine] = (),
    ) -> None:  # fmt: skip
        """The group's sinks have the events from `start` to `end` that do not wait in quarantine, each without those
        `left_out` for it. What they supersede is durable when it returns."""
        changed = find_superseded(self._tables, log, start, end, left_out, quarantines)
        if not changed:
            return
        self._store.mark([entry.mark() for entry in changed])
        for table, watched in list(self._tables.items()):
            for entry in changed:
                if entry.wholly and entry.number in watched.entries:
                    watched.discard(entry)
            if not watched.entries:
                del self._tables[table]
        emit("stream.dead_letters_superseded", pipeline=self._pipeline, dead_letters=len(changed), before=end)


def follow(store: DeadLetters, dead_letter: DeadLetterRecord, keys: str = "") -> Followed | None:
    """The dead letter as its follower left it, or from its event; None if it was purged just now."""
    if keys:
        return Followed.of(dead_letter.number, dead_letter.sink, dead_letter.offset, keys)
    whole = store.dead_letter(dead_letter.number)
    if whole is None:
        return None
    return Followed.of_event(
        dead_letter.number, dead_letter.sink, dead_letter.offset, codec.load(pa.py_buffer(whole.payload))
    )


def find_superseded(
    tables: Mapping[str, Watched],
    log: LogReader,
    start: Offset,
    end: Offset,
    left_out: Mapping[str, Collection[Offset]],
    quarantines: Sequence[Quarantine] = (),
) -> list[Followed]:
    """Those of the followed records that events of the range supersede, changed accordingly; not those of which this
    was known."""
    changed: dict[int, Followed] = {}
    for ref in log.refs(start, end) if tables and start < end else ():
        if ref.table in tables and not is_kept_back(ref, quarantines):
            for entry in find_superseded_in(log.read(ref), tables[ref.table], left_out):
                changed[entry.number] = entry
    return list(changed.values())


def find_superseded_in(
    block: Block, watched: Watched, left_out: Mapping[str, Collection[Offset]]
) -> Iterator[Followed]:
    """The same for one block of their table."""
    key_columns, typed = block.table.key, _key_types(block.table)
    offsets, ops = block.offsets(), block.batch.column("op").to_numpy()
    emptied = offsets[(ops == int(Op.TRUNCATE)) | _drops(block, ops)]
    rows = np.isin(ops, _ROWS)
    if len(emptied):
        for entry in watched.entries.values():
            if _supersede(entry, _got(emptied, entry, left_out), whole=True):
                yield entry
    if not rows.any():
        return
    for entry in watched.without_this_key(typed):
        if entry.by is None and _supersede(entry, _got(offsets[rows], entry, left_out), whole=False):
            yield entry
    hashes = watched.hashes(typed)
    new = key_hashes(block, key_columns, _NEW) if len(hashes) else None
    if new is None:
        return
    same = block.column("key") is None and block.column("before") is None
    old = new if same else key_hashes(block, key_columns, _OLD)
    if old is None:
        return
    whole, moved = _carries_all(block, ops), rows & (new != old)
    # By its old key a row is met where the event moved it away from there: nothing of the record is left at that key.
    for found, sides, of, enough in ((new, _NEW, rows, whole), (old, _OLD, moved, moved)):
        met = np.flatnonzero(of)
        met = met[_among(found[met], hashes)]
        for value in np.unique(found[met]):
            at = met[found[met] == value]
            for entry, key in watched.of_key(int(value), typed):
                newer = at[np.isin(offsets[at], _got(offsets[at], entry, left_out))]
                newer = _exactly(block, newer, sides, key.text)
                if len(newer) and _supersede_key(entry, key, int(offsets[newer[-1]]), whole=bool(enough[newer].any())):
                    yield entry


def _among(found: Any, wanted: Any) -> Any:
    """As `np.isin`, which sorts both: the many are looked up in the few, which are sorted already."""
    return wanted[np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)] == found


def _supersede_key(entry: Followed, key: Key, by: Offset, *, whole: bool) -> bool:
    """Whether that says more than was known."""
    if entry.wholly or (key.by is not None and (key.whole or not whole)):
        return False
    key.by = entry.by = by
    key.whole = whole
    entry.wholly = all(each.whole for each in entry.keys)
    return True


def _got(offsets: Any, entry: Followed, left_out: Mapping[str, Collection[Offset]]) -> Any:
    """Those that the record's sink has and that are newer. The record's own event may have been taken by now."""
    missing = np.array(sorted(left_out.get(entry.sink, ())), np.uint64)
    return offsets[(offsets >= np.uint64(entry.offset)) & ~np.isin(offsets, missing)]


def _supersede(entry: Followed, by: Any, *, whole: bool) -> bool:
    if entry.wholly or not len(by):
        return False
    entry.by, entry.wholly = int(by[-1]), whole
    return True


def _exactly(block: Block, at: Any, sides: Sequence[str], text: str) -> Any:
    """Different keys may have one hash; as a rule they have not, and then one comparison is enough for all rows."""
    columns = [column.take(pa.array(at)) for column in _columns(block, block.table.key, sides)]
    if all(len(column.unique()) == 1 for column in columns):
        return at if len(at) and _text(column[0] for column in columns) == text else at[:0]
    return at[[_text(row) == text for row in zip(*columns, strict=True)]] if len(at) else at


def _key_types(table: Table) -> tuple[str, ...]:
    """The key's columns, equal where their values can be compared: whole numbers of any width can."""
    types = {column.name: column.type for column in table.columns}
    return tuple(f"{name} {_kind(types[name])}" for name in table.key)


def _kind(of: DataType) -> str:
    return "integer" if pa.types.is_integer(of.arrow) else f"{of.native.partition('(')[0]} {of.arrow}"


def _columns(block: Block, key: tuple[str, ...], sides: Sequence[str]) -> list[pa.Array]:
    images = [image for image in (block.struct(side) for side in sides) if image is not None]
    found = [[image[name] for image in images if name in image] for name in key]
    return [each[0] if len(each) == 1 else pc.coalesce(*each) for each in found if each]


def _text(values: Iterable[pa.Scalar]) -> str:
    return repr([value.as_py() for value in values])


def _carries_all(block: Block, ops: Any) -> Any:
    """Rows after which nothing of a dead letter's values can be missing: every column was sent, or the row is gone."""
    unchanged = block.column("unchanged")
    if unchanged is None:
        return np.ones(block.rows, bool)
    lengths = pc.fill_null(pc.list_value_length(unchanged), 0).to_numpy(zero_copy_only=False)
    return (lengths == 0) | (ops == int(Op.DELETE))


def _drops(block: Block, ops: Any) -> Any:
    """Where the table itself was dropped. Any other statement leaves rows, and with them the dead letters' sense."""
    found = np.zeros(block.rows, bool)
    documents = block.column("ddl")
    if documents is not None:
        for row in np.flatnonzero(ops == int(Op.DDL)):
            text = documents[int(row)].as_py()
            found[row] = bool(text) and orjson.loads(text).get("kind") == "drop"
    return found


def _odd_in_key(block: Block) -> bool:
    """A key with a value that its column's type cannot hold (NaN, infinity): the columns do not tell it."""
    odd = block.column("odd")
    values = odd[0].as_py() if odd is not None and odd[0].is_valid else None
    names = [column.name for column in block.table.columns]
    return any(names[each["column"]] in block.table.key and each["side"] in list(Side) for each in values or ())
