"""How the stream announced tables, with where: what a Relation message is compared with, so that a change is an event.

A message comes again with every connection, and a transaction that was read before may come again too: what was in
force before it is known from here, and what was made of it then is made of it again (invariant 4). A document per table
in the schema registry has its last announcements by the transactions that brought them; a *baseline*, from before the
slot was made, has the tables that no row came of yet.

    begin(…)                       when a slot is made
    AnnouncedTables(…)             of a connection: the decoder asks it
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tidemill.contracts import Schemas
from tidemill.decoders.pgoutput import Announcement, Relation, RelationColumn, StreamPlace, TableStatement
from tidemill.model.position import Position
from tidemill.model.table import Table
from tidemill.schema.changes import change_between
from tidemill.schema.ddl_document import changes_between, structure_of, write_document
from tidemill.sources.postgres.lsn import format_lsn

_BASELINE = "announced.baseline"
_EARLIER = -1  # of another slot: its positions may be another server's


@dataclass(frozen=True, slots=True)
class _Recorded:
    """From the transaction that commits at `lsn` on."""

    lsn: int
    now: Announcement


def begin(schemas: Schemas, tables: Iterable[tuple[Relation, Table | None]], lsn: int) -> None:
    """Before there is a slot: how tables are at `lsn` that it will bring rows of. A table of None could not be
    described. Positions of an earlier slot mean nothing from here on."""
    documents = [
        {"oid": relation.oid, "name": relation.full_name, "relation": orjson.dumps(_dump_relation(relation)).decode(),
         "table": _dump_table(table) if table is not None else None}
        for relation, table in tables
    ]  # fmt: skip
    epoch = _epoch(schemas.recall(_BASELINE)) + 1
    schemas.remember(_BASELINE, zlib.compress(orjson.dumps({"epoch": epoch, "lsn": lsn, "tables": documents}), 1))


class AnnouncedTables:
    """Of one connection. `describe` asks the catalog and numbers the table; `keep` numbers one that is known. `tells`:
    changes are events; `by_statements`: event triggers tell them, and only what the server announces otherwise is told
    here. They tell everything from `since` on; None where they are not used. Before `oldest` nothing is read
    again."""

    def __init__(
        self,
        schemas: Schemas,
        describe: Callable[[Relation, Mapping[int, str], Table | None, StreamPlace], Table],
        keep: Callable[[Relation, Table, Schemas, Position], Table],
        *,
        tells: bool,
        by_statements: bool,
        since: Callable[[], int | None],
        oldest: Callable[[], int],
    ) -> None:
        self._schemas, self._describe, self._oldest, self._keep = schemas, describe, oldest, keep
        self._tells, self._by_statements, self._since = tells, by_statements, since
        self._known: dict[str, list[_Recorded]] = {}
        self._names: dict[int, str | None] = {}
        self._baseline: dict[int | str, Mapping[str, Any]] | None = None
        self._baseline_lsn = 0
        self._number = _epoch(schemas.recall(_BASELINE))

    def describe(
        self, relation: Relation, types: Mapping[int, str], before: Announcement | None, place: StreamPlace
    ) -> Table:
        return self._describe(relation, types, before.table if before is not None else None, place)

    def recall(self, relation: Relation, before: Announcement | None, place: StreamPlace) -> Table | None:
        known = self._load(relation.full_name)
        for each in known:
            here = each.lsn >= place.lsn if place.xid else each.lsn == place.lsn
            if here and each.now.relation == relation and (before is None or not before.is_same(each.now)):
                return each.now.table
        if known and known[-1].lsn >= place.lsn and before is not None and before.relation == relation:
            return before.table  # the catalog is ahead
        return None

    def in_force(self, relation: Relation, lsn: int) -> Announcement | None:
        """By its oid, whatever it was called; else by its name: it may have taken the place of another."""
        name, oid = relation.full_name, relation.oid
        was_called = self._name_of(oid)
        mine = [r.now for r in self._load(was_called) if r.lsn < lsn] if was_called is not None else []
        mine = [each for each in mine if each.relation is not None and each.relation.oid == oid]
        if found := mine[-1] if mine else self._in_baseline(oid):
            return found
        named = [r.now for r in self._load(name) if r.lsn < lsn]
        if found := named[-1] if named else self._in_baseline(name):
            return found
        known = self._schemas.in_force(name) if not self._number else None
        return Announcement(None, known) if known is not None else None

    def tell(self, before: Announcement | None, now: Announcement) -> Sequence[TableStatement]:
        """A table that was renamed is told of under its new name, where its first row stands: the old one may be
        another's by then."""
        relation = now.relation
        if not self._tells or now.stated or relation is None:
            return ()
        if before is None:
            is_new = bool(self._number) and relation.oid not in self._all_in_baseline()
            return (_statement("create", None, now),) if is_new else ()
        if before.relation is not None and before.relation.oid != relation.oid:
            return (_statement("create", before, now),)
        renamed = before.table.full_name != now.table.full_name
        if self._by_statements and not renamed and before.relation in (None, relation):
            return ()
        if not renamed and not change_between("", 0, before.table, now.table).kinds:
            return ()
        return (_statement("rename" if renamed else "alter", before, now),)

    def lasts(self, now: Announcement) -> bool:
        """A structure of before the triggers may have changed since with nobody to tell it."""
        since = self._since()
        return since is not None and (now.stated or now.since >= since)

    def number(self, relation: Relation, table: Table, lsn: int) -> Table:
        return self._keep(relation, table, self._schemas, format_lsn(lsn))

    def correct(self, table: Table, lsn: int) -> Table:
        return self._schemas.register(table, format_lsn(lsn))

    def record(self, lsn: int, now: Announcement) -> None:
        relation = now.relation
        assert relation is not None
        name, known = now.table.full_name, self._load(now.table.full_name)
        before = next((each.now for each in reversed(known) if each.lsn <= lsn), None)
        if before is not None and before == now and before.is_same(now):
            return
        first = self._in_baseline(relation.oid) if not known and not now.stated else None
        if first is not None and first.is_same(now):
            return
        later = [each for each in known if each.lsn > lsn]
        earlier = [each for each in known if each.lsn <= lsn]
        oldest = self._oldest()
        needed = [each for place, each in enumerate(earlier) if each.lsn >= oldest or place == len(earlier) - 1]
        self._known[name] = [*needed, _Recorded(lsn, now), *later]
        self._schemas.remember(_key(name), self._dump(self._known[name]))
        if self._name_of(relation.oid) != name:
            self._names[relation.oid] = name
            self._schemas.remember(_pointer(relation.oid), f"{self._number} {name}".encode())

    def meet_in_snapshot(self, relation: Relation, table: Table, lsn: int) -> None:
        """Rows of the table come by another way: what the stream announces later is compared with it."""
        if self.in_force(relation, lsn) is None and not self._load(table.full_name):
            self.record(lsn, Announcement(relation, table))

    def _load(self, name: str) -> list[_Recorded]:
        if name not in self._known:
            document = self._schemas.recall(_key(name))
            self._known[name] = self._read(document) if document else []
        return self._known[name]

    def _read(self, document: bytes) -> list[_Recorded]:
        doc = orjson.loads(document)
        found = [
            _Recorded(each["lsn"], Announcement(_load_relation(each["relation"]), _load_table(each["table"]),
                                                each["stated"], each["lsn"]))
            for each in doc["announced"]
        ]  # fmt: skip
        if doc["epoch"] == self._number:
            return found
        last = found[-1].now
        return [_Recorded(_EARLIER, replace(last, relation=None))]

    def _dump(self, known: list[_Recorded]) -> bytes:
        announced = [
            {"lsn": each.lsn, "relation": _dump_relation(each.now.relation), "table": _dump_table(each.now.table),
             "stated": each.now.stated}
            for each in known
        ]  # fmt: skip
        return orjson.dumps({"epoch": self._number, "announced": announced})

    def _name_of(self, oid: int) -> str | None:
        if oid not in self._names:
            document = self._schemas.recall(_pointer(oid))
            epoch, name = document.decode().split(" ", 1) if document else ("", "")
            self._names[oid] = name if epoch == str(self._number) else None
        return self._names[oid]

    def _in_baseline(self, which: int | str) -> Announcement | None:
        found = self._all_in_baseline().get(which)
        if found is None or found["table"] is None:
            return None
        relation, table = _load_relation(orjson.loads(found["relation"])), _load_table(found["table"])
        return Announcement(relation, table, since=self._baseline_lsn)

    def _all_in_baseline(self) -> Mapping[int | str, Mapping[str, Any]]:
        """By oid and by name. As text: of thousands of tables a few are asked for."""
        if self._baseline is None:
            document = self._schemas.recall(_BASELINE)
            found = orjson.loads(zlib.decompress(document)) if document else {"tables": []}
            self._baseline = {each[by]: each for each in found["tables"] for by in ("oid", "name")}
            self._baseline_lsn = found.get("lsn", 0)
        return self._baseline


def _statement(kind: str, before: Announcement | None, now: Announcement) -> TableStatement:
    was = before.table if before is not None else None
    changes = changes_between(was, now.table)
    return TableStatement(now.table, write_document(None, kind, changes, structure_of(was), structure_of(now.table)))


def _epoch(document: bytes | None) -> int:
    """0 where no baseline was noted."""
    return int(orjson.loads(zlib.decompress(document))["epoch"]) if document else 0


def _dump_relation(relation: Relation | None) -> list[Any] | None:
    if relation is None:
        return None
    columns = [[c.name, c.type_oid, c.typmod, c.key] for c in relation.columns]
    return [relation.oid, relation.schema, relation.name, relation.identity, columns]


def _load_relation(doc: list[Any] | None) -> Relation | None:
    if doc is None:
        return None
    oid, schema, name, identity, columns = doc
    return Relation(oid, schema, name, identity, tuple(RelationColumn(*column) for column in columns))


def _dump_table(table: Table) -> str:
    return table.to_json().decode()


def _load_table(doc: str) -> Table:
    return Table.from_json(doc)


def _key(name: str) -> str:
    return f"announced {name}"


def _pointer(oid: int) -> str:
    return f"announced as {oid}"
