"""Two looks at a publication, and what became of its tables in between.

Nothing is marked that is proven whole. A table that is published as soon as it is made (a publication for all tables or
for its schema, a partition made as one) is whole from its birth; one that joined later is whole if its file was still
empty afterwards: a row is in the file before it is in the WAL. What is not proven is marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tidemill.sources.postgres.publication.marks import DROPPED, INCOMPLETE, TableMark
from tidemill.sources.postgres.publication.published import Publication, Published, PublishedRelation, Unit


class RowEvidence(Protocol):
    """What the tables themselves say, asked after the second look."""

    def untouched(self, tables: list[int]) -> bool:
        """No row was ever written to any of them, by anybody, committed or not."""

    def rewritten(self, tables: list[int]) -> bool:
        """Any of them has another file than it was made with: it may have been unlogged before."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`before` was seen at `since`; `now` was in force at `until`. Both have a publication, the same one.
    `ended` are tables that were marked as not published and are now: the caller says until when."""

    before: Published
    now: Published
    since: str
    until: str
    rows: RowEvidence
    ended: frozenset[str]

    def marks(self) -> Iterator[TableMark]:
        """What happened, in order of cause; the caller merges them."""
        before, now = self.before.units, self.now.units
        altered = _describe_alteration(self.before.publication, self.now.publication)
        for oid, unit in now.items():
            known = before.get(oid)
            if altered and known and known.published and unit.published:
                yield self._incomplete(unit.name, altered)
            yield from self._find_appeared(unit) if known is None else self._compare_kept(known, unit)
        for oid, unit in before.items():
            if unit.published and oid not in now:
                yield self._mark_gone(unit)

    def _find_appeared(self, unit: Unit) -> Iterator[TableMark]:
        if not unit.published:
            if not self._untouched(unit):
                yield self._mark_missing(unit)
            return
        if not self._newborn(unit) and not self._untouched(unit):
            yield from self._find_joined(unit)

    def _newborn(self, unit: Unit) -> bool:
        """It was published with its first row, under the name that it has."""
        if unit.table.oid in self.before.relations or not unit.table.original:
            return False
        if not unit.routes & self.before.newborn_routes() & self.now.newborn_routes():
            return False
        if unit.table.kind == "p":
            return all(self._whole(self.now.relations[leaf], links) for leaf, links in unit.leaves.items())
        return not self.rows.rewritten([unit.table.oid])

    def _compare_kept(self, before: Unit, unit: Unit) -> Iterator[TableMark]:
        if before.name != unit.name and unit.published and not self._untouched(unit):
            reason = f"it was called {before.name} until then, and its earlier rows stand under that name"
            yield TableMark(INCOMPLETE, unit.name, "", self.until, (reason,))
        elif unit.published and _returned(before.table, unit.table) and not self._untouched(unit):
            yield self._incomplete(unit.name, "it had another name or schema meanwhile")
        if before.published and not unit.published:
            if unit.wanted:
                yield self._mark_missing(unit)
        elif unit.published and not before.published:
            if not self._untouched(unit):
                yield from self._find_joined(unit)
        elif unit.published and not before.routes & unit.routes:
            yield self._incomplete(unit.name, _describe_rerouting(before.table, unit.table))
        if before.published and unit.published:
            yield from self._partitions(before, unit)

    def _partitions(self, before: Unit, unit: Unit) -> Iterator[TableMark]:
        assert self.now.publication is not None
        for leaf in sorted(unit.leaves.keys() | before.leaves.keys()):
            was, links = before.leaves.get(leaf), unit.leaves.get(leaf)
            if was == links:
                continue
            table = self.now.relations.get(leaf) or self.before.relations[leaf]
            subject = unit.name if self.now.publication.via_root else table.full_name
            if links is None:
                how = "was detached" if leaf in self.now.relations else "was dropped"
                yield self._incomplete(subject, f"partition {table.full_name} {how}, which deletes no rows elsewhere")
            elif was is not None:
                yield self._incomplete(subject, f"partition {table.full_name} was detached and attached again")
            elif not self._whole(table, links):
                yield self._incomplete(subject, f"partition {table.full_name} was attached with rows in it")

    def _whole(self, leaf: PublishedRelation, links: tuple[str, ...]) -> bool:
        """Every row of a new partition was written through the table, or as its partition."""
        if self.rows.untouched([leaf.oid]):
            return True
        chain = [self.now.relations[int(link.split()[0])] for link in links]
        born = all(self._linked_before(relation) or relation.made_as_partition for relation in chain)
        return born and leaf.oid not in self.before.relations and not self.rows.rewritten([leaf.oid])

    def _linked_before(self, relation: PublishedRelation) -> bool:
        known = self.before.relations.get(relation.oid)
        return known is not None and known.link == relation.link

    def _mark_gone(self, unit: Unit) -> TableMark:
        table = self.now.relations.get(unit.table.oid)
        if table is None:
            reason = f"{unit.name} was dropped"
        elif table.persistence != "p":
            return TableMark(INCOMPLETE, unit.name, self.since, "", ("it is not logged any more (SET UNLOGGED)",))
        elif (root := self.now.relations.get(table.parent)) is not None:
            reason = f"{unit.name} became a partition of {root.full_name}"
        else:
            reason = f"{table.full_name} left the publication, and `tables` does not name it"
        return TableMark(DROPPED, unit.name, self.since, self.until, (reason,))

    def _find_joined(self, unit: Unit) -> Iterator[TableMark]:
        if unit.name not in self.ended:
            reason = "it had rows when it came into the publication"
            yield TableMark(INCOMPLETE, unit.name, "", self.until, (reason,), absent=self.since)

    def _mark_missing(self, unit: Unit) -> TableMark:
        return TableMark(INCOMPLETE, unit.name, self.since, "", ("it was not in the publication",))

    def _incomplete(self, table: str, reason: str) -> TableMark:
        return TableMark(INCOMPLETE, table, self.since, self.until, (reason,))

    def _untouched(self, unit: Unit) -> bool:
        return self.rows.untouched(list(unit.leaves) if unit.table.kind == "p" else [unit.table.oid])


def _describe_alteration(before: Publication | None, now: Publication | None) -> str:
    """What happened to the publication as a whole, in words; empty if nothing that matters did."""
    assert before is not None
    assert now is not None
    if before.kinds != now.kinds:
        return f"the publication had {_list(before.kinds)} before, and {_list(now.kinds)} since"
    if before.altered == now.altered:
        return ""
    if (before.owner, before.via_root, before.generated) == (now.owner, now.via_root, now.generated):
        return "the publication was altered and altered back"
    return "the publication was altered, and what it left out meanwhile is not known"


def _returned(before: PublishedRelation, now: PublishedRelation) -> bool:
    """It has its name again, and had another one. Another owner changes the row of the type as well."""
    if before.placed and before.placed != now.placed:
        return True
    return bool(before.typed and before.owner) and before.typed != now.typed and before.owner == now.owner


def _describe_rerouting(before: PublishedRelation, now: PublishedRelation) -> str:
    if (before.filter, before.columns) == (now.filter, now.columns):
        return "it was taken out of the publication and put back"
    changed = [
        f"{what} {f'is {after} since' if after else 'was removed'}"
        for what, earlier, after in (
            ("the row filter", before.filter, now.filter),
            ("the column list", ", ".join(before.columns), ", ".join(now.columns)),
        )
        if earlier != after
    ]
    return " and ".join(changed)


def _list(kinds: tuple[str, ...]) -> str:
    return ", ".join(kinds) or "nothing"
