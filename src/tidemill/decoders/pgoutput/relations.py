"""Which structure each relation has at which place of the stream: as the server announces it, and as statements say.

An announcement that differs from what is in force counts where its first row stands. The server also announces what no
row comes of (a partition whose rows come as those of its root), and a savepoint may be rolled back between the two.
Until then `scan` does not know the relation and asks (`meet`): that is where a change of the table becomes an event.

Bytes that are scanned again are announced again, so that everything can be taken back to a place in the buffer
(`unlearn`). What happens in a streamed transaction holds for that one alone until it commits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tidemill.decoders.pgoutput.messages import Relation
from tidemill.decoders.pgoutput.rows import Slots, TableStatement
from tidemill.errors import DecodeError
from tidemill.model.table import Table

_FIRST_MARK = 1 << 32  # beyond every transaction number


@dataclass(frozen=True, slots=True)
class Announcement:
    """A table from some place on. `relation` is how the server announces it, None where nobody has seen that. `stated`:
    a statement said it. `since`: that place, 0 where it is not known."""

    relation: Relation | None
    table: Table
    stated: bool = False
    since: int = field(default=0, compare=False)

    def is_same(self, other: Announcement) -> bool:
        return self.table.lineage == other.table.lineage and self.relation in (None, other.relation)


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The transaction in which something stands. `lsn` is where it commits; of a streamed one (`xid`), which has not
    committed yet, it is the least that this can be. `tx` is the number of one that has committed."""

    lsn: int
    xid: int = 0
    tx: int = 0


class RelationTables(Protocol):
    """What the decoder asks its source."""

    def describe(
        self, relation: Relation, types: Mapping[int, str], before: Announcement | None, place: StreamPlace
    ) -> Table:
        """What the stream does not say (type names, keys), and the table's version."""

    def recall(self, relation: Relation, before: Announcement | None, place: StreamPlace) -> Table | None:
        """What was made of this announcement when the transaction came before; None if it did not."""

    def in_force(self, relation: Relation, lsn: int) -> Announcement | None:
        """How the table was right before the transaction that commits at `lsn`, as earlier connections know it too;
        None if it is met for the first time."""

    def tell(self, before: Announcement | None, now: Announcement) -> Sequence[TableStatement]:
        """The change as events, at most two: none where nothing differs, or somebody else tells it."""

    def lasts(self, now: Announcement) -> bool:
        """Whether statements tell whatever becomes of the table, so that the catalog, which may be ahead of the stream,
        is not asked while the server announces it in the same way."""

    def number(self, relation: Relation, table: Table, lsn: int) -> Table:
        """A structure that is known and was not met yet, with its version."""

    def correct(self, table: Table, lsn: int) -> Table:
        """A structure that rows proved, with its version, in the place of the one that was described."""

    def record(self, lsn: int, now: Announcement) -> None:
        """The table is so from the transaction that commits at `lsn` on. Durable when it returns; again changes
        nothing."""


@dataclass(frozen=True, slots=True)
class DescribedBy:
    """For who needs no events of changes, nor a history: only descriptions."""

    tables: Callable[[Relation, Mapping[int, str]], Table]

    def describe(
        self, relation: Relation, types: Mapping[int, str], before: Announcement | None, place: StreamPlace
    ) -> Table:
        return self.tables(relation, types)

    def recall(self, relation: Relation, before: Announcement | None, place: StreamPlace) -> Table | None:
        return None

    def in_force(self, relation: Relation, lsn: int) -> Announcement | None:
        return None

    def tell(self, before: Announcement | None, now: Announcement) -> Sequence[TableStatement]:
        return ()

    def lasts(self, now: Announcement) -> bool:
        return now.stated

    def number(self, relation: Relation, table: Table, lsn: int) -> Table:
        return table

    def correct(self, table: Table, lsn: int) -> Table:
        return table.with_fingerprint()

    def record(self, lsn: int, now: Announcement) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Meeting:
    """The first row of a relation as it is now. `changed`: the table had another structure before."""

    oid: int
    now: Announcement
    statements: tuple[TableStatement, ...]
    changed: bool


@dataclass(frozen=True, slots=True)
class _Provisional:
    """What holds in a streamed transaction, since its subtransaction `sub`. `marks` are those of the events that tell
    it."""

    oid: int
    sub: int
    now: Announcement
    marks: tuple[int, ...] = ()


@dataclass(slots=True)
class _Learned:
    """By oid. `awaited` are announced, and no row of them has come."""

    slots: dict[int, int] = field(default_factory=dict)
    awaited: dict[int, Announcement] = field(default_factory=dict)
    in_force: dict[int, Announcement] = field(default_factory=dict)

    def copy(self) -> _Learned:
        return _Learned(dict(self.slots), dict(self.awaited), dict(self.in_force))


class Relations:
    """Of one connection."""

    def __init__(self, tables: RelationTables) -> None:
        self.slots = Slots()
        self.types: dict[int, str] = {}
        self._tables = tables
        self._described: dict[Relation, Table] = {}
        self._numbered: dict[tuple[Relation, Table], Table] = {}
        self._asked: set[Relation] = set()  # in this feed: what it brings was committed before its first question
        self._slot_of: dict[tuple[Relation, Table, object], int] = {}
        self._learned, self._before_feed = _Learned(), _Learned()
        self._journal: list[tuple[int, str, int, Any]] = []  # (place in the buffer, what, oid, value) of this feed
        self._open: dict[int, list[_Provisional]] = {}  # by streamed transaction
        self._dropped: dict[int, set[int]] = {}  # marks of events whose savepoint was rolled back
        self._next_mark = _FIRST_MARK

    def begin(self) -> None:
        """A feed begins."""
        self._before_feed = self._learned.copy()
        self._journal.clear()
        self._asked.clear()

    def unlearn(self, position: int) -> None:
        """Bytes from `position` on are scanned again."""
        self._learned = self._before_feed.copy()
        self._journal = [each for each in self._journal if each[0] < position]
        for _, what, oid, value in self._journal:
            self._set(what, oid, value)
        self.slots.point(self._learned.slots)

    def announce(self, at: int, relation: Relation, place: StreamPlace, *, known: bool) -> None:
        """`known`: the transaction is in the log already, and so is what it changed."""
        before = self._tables.in_force(relation, place.lsn) if known else self._find(relation, place)
        if before is not None and before.relation == relation and self._tables.lasts(before):
            now = replace(before, table=self._number(relation, before.table, place.lsn))
        else:
            earlier = self._tables.recall(relation, before, place)
            table = earlier or self._describe(relation, before, place)
            now = Announcement(relation, table, since=place.lsn)
        if known:
            self._learn(at, "in_force", relation.oid, None)  # the next transaction asks what it is by then
        if known or before is None or not before.is_same(now):
            self._await(at, relation.oid, now)
        else:
            self._point(at, relation.oid, now)

    def meet(self, oid: int, place: StreamPlace) -> Meeting | None:
        """A row came of a relation that `scan` does not know; None if it was never announced. Changes nothing."""
        now = self._learned.awaited.get(oid)
        if now is None or now.relation is None:
            return None
        before = self._find(now.relation, place)
        changed = before is not None and not before.is_same(now)
        return Meeting(oid, now, tuple(self._tables.tell(before, now)), changed)

    def settle(self, at: int, met: Meeting, place: StreamPlace, sub: int) -> list[int]:
        """The table is so from here on. Marks for the subtransaction column of the events that tell it: `commit` says
        which of them leave nothing."""
        marks: list[int] = []
        if place.xid:
            marks = [self._next_mark + number for number in range(len(met.statements))]
            self._next_mark += len(marks)
            self._open.setdefault(place.xid, []).append(_Provisional(met.oid, sub, met.now, tuple(marks)))
        else:
            self._hold(at, met.oid, met.now, place.lsn)
        self._learn(at, "awaited", met.oid, None)
        self._point(at, met.oid, met.now)
        return marks or [sub] * len(met.statements)

    def state(self, at: int, statement: TableStatement, place: StreamPlace, sub: int) -> None:
        """A statement left the table so."""
        relation = statement.relation
        if relation is None:
            return
        now = Announcement(relation, statement.table, stated=True, since=place.lsn)
        if place.xid:
            self._open.setdefault(place.xid, []).append(_Provisional(relation.oid, sub, now))
        else:
            self._hold(at, relation.oid, now, place.lsn)

    def commit(self, at: int, xid: int, lsn: int) -> set[int]:
        """The streamed transaction counts. Answers the marks of events that leave nothing: what they tell was rolled
        back, or came before by another transaction."""
        dropped = self._dropped.pop(xid, set())
        for each in self._open.pop(xid, ()):
            relation = each.now.relation
            assert relation is not None
            before = self._find(relation, StreamPlace(lsn))
            if each.marks and not self._tables.tell(before, each.now):
                dropped.update(each.marks)
            self._hold(at, each.oid, each.now, lsn)
        return dropped

    def abort(self, at: int, xid: int, sub: int) -> None:
        """The streamed transaction or one of its savepoints. Where the table was not changed in there, the next row
        comes without an announcement."""
        kept = []
        for each in self._open.pop(xid, []):
            if sub in (xid, each.sub):
                self._await(at, each.oid, each.now)
                self._dropped.setdefault(xid, set()).update(each.marks)
            else:
                kept.append(each)
        if sub == xid:
            self._dropped.pop(xid, None)
        elif kept:
            self._open[xid] = kept

    def forget(self, xid: int) -> None:
        """A streamed transaction of which nothing is to come."""
        self._open.pop(xid, None)
        self._dropped.pop(xid, None)

    def _find(self, relation: Relation, place: StreamPlace) -> Announcement | None:
        if place.xid:
            for each in reversed(self._open.get(place.xid, ())):
                if each.oid == relation.oid:
                    return each.now
        known = self._learned.in_force
        if relation.oid not in known:
            found = self._tables.in_force(relation, place.lsn)
            if found is None:
                return None
            known[relation.oid] = found
        return known[relation.oid]

    def _hold(self, at: int, oid: int, now: Announcement, lsn: int) -> None:
        self._tables.record(lsn, now)
        self._learn(at, "in_force", oid, now)

    def _await(self, at: int, oid: int, now: Announcement) -> None:
        self._learn(at, "awaited", oid, now)
        if oid in self._learned.slots:
            self._learn(at, "slots", oid, None)
            self.slots.point(self._learned.slots)

    def _point(self, at: int, oid: int, now: Announcement) -> None:
        assert now.relation is not None
        self._learn(at, "slots", oid, self._slot(now.relation, now.table))
        self.slots.point(self._learned.slots)

    def _learn(self, at: int, what: str, oid: int, value: Any) -> None:
        self._journal.append((at, what, oid, value))
        self._set(what, oid, value)

    def _set(self, what: str, oid: int, value: Any) -> None:
        learned: dict[int, Any] = getattr(self._learned, what)
        if value is None:
            learned.pop(oid, None)
        else:
            learned[oid] = value

    def admit_nulls(self, slot: int, columns: Collection[str], lsn: int) -> Table:
        """Whether a column is NOT NULL is not announced, and the catalog that says so may be ahead of rows from before.
        For the rest of this connection the slot's columns may be null."""
        table = self.slots.tables[slot]
        made = tuple(replace(c, nullable=True) if c.name in columns else c for c in table.columns)
        found = self.slots.tables[slot] = self._tables.correct(replace(table, columns=made), lsn)
        return found

    def _slot(self, relation: Relation, table: Table) -> int:
        known = relation, table, table.lineage
        if known not in self._slot_of:
            self._slot_of[known] = self.slots.add(table)
        return self._slot_of[known]

    def _number(self, relation: Relation, table: Table, lsn: int) -> Table:
        if table.version:
            return table
        if (relation, table) not in self._numbered:
            self._numbered[relation, table] = self._tables.number(relation, table, lsn)
        return self._numbered[relation, table]

    def _describe(self, relation: Relation, before: Announcement | None, place: StreamPlace) -> Table:
        """The stream names a key only where it is the identity (d, i), and never says which column is which over time.
        The catalog has both, and is asked whenever the server announces the relation anew: it does so when anything
        about the table changed."""
        if relation not in self._asked:
            table = self._tables.describe(relation, self.types, before, place)
            if len(table.columns) != len(relation.columns):
                raise DecodeError(f"table {table.full_name}: {len(relation.columns)} columns announced, not "
                                  f"{len(table.columns)}")  # fmt: skip
            self._described[relation] = table
            self._asked.add(relation)
        return self._described[relation]
