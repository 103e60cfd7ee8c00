"""What a publication delivers, as the catalog has it at one moment: a value that can be kept and compared.

A walsender decodes each change with the catalog of that change's position, and leaves out what was not published then,
without a word. So what is published, since when and without interruption, is known only to who looks (`watch`).
Rows of pg_publication_rel and pg_publication_namespace never change: a table that was taken out and put back, or got
another row filter or column list, has another row, with another oid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import psycopg

from tidemill.sources._shared.patterns import Unmatched
from tidemill.sources.postgres import tables as table_names
from tidemill.sources.postgres.tables import FoundTable

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig

KINDS = ("insert", "update", "delete", "truncate")


@dataclass(frozen=True, slots=True)
class Publication:
    """`altered` is the transaction that last changed the row: what was changed and changed back is seen by it.
    `schemas` are those that are published as a whole, with the oid of the row that says so. `ours`: we may alter it."""

    oid: int
    altered: str
    owner: int
    all_tables: bool
    via_root: bool
    kinds: tuple[str, ...]
    generated: bool
    schemas: tuple[tuple[str, int], ...]
    ours: bool

    @property
    def missing_kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if kind not in self.kinds)


@dataclass(frozen=True, slots=True)
class PublishedRelation:
    """`member` is the oid of its row in pg_publication_rel, 0 if it has none; `filter` and `columns` stand there.
    `parent` is what it is a partition of; `link` the transaction that made it so; `made_as_partition`: by the statement
    that made the table. `placed` is the transaction that put it into its schema, `typed` the one that last changed its
    name, schema or owner, empty if unknown; `original`: it has all three from its birth on.
    """

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    member: int
    filter: str
    columns: tuple[str, ...]
    parent: int
    link: str
    typed: str
    ours: bool
    owner: int = 0
    placed: str = ""
    original: bool = False
    made_as_partition: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Unit:
    """A table that is captured or should be: a plain one, or the root of a tree of partitions. `routes` are the
    catalog rows by which it is published, none if it is not. `leaves` are the partitions that hold its rows, each with
    the links that lead to it from the root."""

    table: PublishedRelation
    wanted: bool
    routes: frozenset[str]
    leaves: dict[int, tuple[str, ...]]

    @property
    def name(self) -> str:
        return self.table.full_name

    @property
    def published(self) -> bool:
        return bool(self.routes)

    @property
    def found(self) -> FoundTable:
        t = self.table
        return FoundTable(t.oid, t.schema, t.name, t.kind, t.persistence, t.oid)


@dataclass(frozen=True)
class Published:
    """All tables of the database, and what the publication says of them; `publication` is None if there is none."""

    publication: Publication | None
    relations: dict[int, PublishedRelation]
    patterns: tuple[str, ...]
    unmatched: tuple[Unmatched, ...] = ()

    @classmethod
    def read(cls, db: psycopg.Connection, config: PostgresConfig) -> Published:
        """By one snapshot."""
        with db.transaction():
            db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            publication = _publication(db, config.publication_name)
            relations = list(_relations(db, publication.oid if publication else 0))
            names = [(r.schema, r.name) for r in relations if r.persistence == "p"]
            patterns = [table_names.parse(text) for text in config.tables or ("*.*",)]
            unmatched: Sequence[Unmatched] = ()
            if not all(any(pattern.matches(*name) for name in names) for pattern in patterns):
                _, unmatched = table_names.find(db, config.tables)  # which also looks for views and near names
        return cls(publication, {r.oid: r for r in relations}, config.tables, tuple(unmatched))

    @cached_property
    def units(self) -> dict[int, Unit]:
        """Of tables that are wanted or published, by oid."""
        patterns = [table_names.parse(text) for text in self.patterns] or [table_names.parse("*.*")]
        logged = {r.oid: r for r in self.relations.values() if r.persistence == "p"}
        wanted: set[int] = set()
        leaves: dict[int, dict[int, tuple[str, ...]]] = {}
        for relation in logged.values():
            root, links = self._climb(relation)
            if relation.kind == "r" and links:
                leaves.setdefault(root.oid, {})[relation.oid] = links
            if any(pattern.matches(relation.schema, relation.name) for pattern in patterns):
                wanted.add(root.oid)
        found = {}
        for table in logged.values():
            routes = frozenset(self._routes(table))
            if table.parent not in self.relations and (routes or table.oid in wanted):
                found[table.oid] = Unit(table, table.oid in wanted, routes, leaves.get(table.oid, {}))
        return found

    @property
    def lacking(self) -> list[Unit]:
        return [unit for unit in self.units.values() if unit.wanted and not unit.published]

    def newborn_routes(self) -> frozenset[str]:
        """By which a table is published from its first moment on."""
        if self.publication is None:
            return frozenset()
        schemas = {f"schema {oid}" for _, oid in self.publication.schemas}
        return frozenset(schemas | ({"all"} if self.publication.all_tables else set()))

    def _routes(self, table: PublishedRelation) -> Iterator[str]:
        if self.publication is not None:
            if self.publication.all_tables:
                yield "all"
            for schema, oid in self.publication.schemas:
                if schema == table.schema:
                    yield f"schema {oid}"
            if table.member:
                yield f"table {table.member}"

    def _climb(self, relation: PublishedRelation) -> tuple[PublishedRelation, tuple[str, ...]]:
        links: list[str] = []
        while (parent := self.relations.get(relation.parent)) is not None:
            links.append(f"{relation.oid} {relation.link}")
            relation = parent
        return relation, tuple(links)

    def as_data(self) -> dict[str, Any]:
        return {
            "publication": asdict(self.publication) if self.publication else None,
            "relations": [[getattr(r, name) for name in _FIELDS] for r in self.relations.values()],
            "patterns": self.patterns,
        }

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> Published:
        """As it was kept: it knows the patterns of then, and not what they did not match."""
        publication = None
        if (kept := data["publication"]) is not None:
            schemas = tuple((schema, oid) for schema, oid in kept["schemas"])
            publication = Publication(**kept | {"kinds": tuple(kept["kinds"]), "schemas": schemas})
        rows = [_relation(row) for row in data["relations"]]
        return cls(publication, {r.oid: r for r in rows}, tuple(data["patterns"]))


def streamed_relations(published: Published, unit: Unit) -> Iterator[tuple[PublishedRelation, list[int]]]:
    """What the stream calls the unit's rows, each with the partitions that hold them; none for a plain table."""
    if not unit.published or (published.publication and "insert" not in published.publication.kinds):
        return
    if unit.table.kind == "r":
        yield unit.table, []
    elif published.publication is not None and published.publication.via_root:
        yield unit.table, sorted(unit.leaves)
    else:
        for leaf in sorted(unit.leaves):
            yield published.relations[leaf], []


def _relation(row: list[Any]) -> PublishedRelation:
    values = [*row[:_COLUMNS], tuple(row[_COLUMNS]), *row[_COLUMNS + 1 :]]
    return PublishedRelation(*values)


_FIELDS = tuple(field.name for field in fields(PublishedRelation))
_COLUMNS = _FIELDS.index("columns")


def _publication(db: psycopg.Connection, name: str) -> Publication | None:
    version = db.info.server_version
    generated = "pubgencols = 's'" if version >= 180000 else "false"
    row = db.execute(
        "SELECT oid, xmin::text, pubowner, puballtables, pubviaroot, pubinsert, pubupdate, pubdelete, pubtruncate,"
        f" {generated}, pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s".encode(),
        [name],
    ).fetchone()
    if row is None:
        return None
    oid, altered, owner, everything, via_root, *kinds, stored, ours = row
    schemas: Sequence[tuple[str, int]] = ()
    if version >= 150000:
        schemas = db.execute(
            "SELECT n.nspname, p.oid FROM pg_publication_namespace p JOIN pg_namespace n ON n.oid = p.pnnspid"
            " WHERE p.pnpubid = %s ORDER BY 1",
            [oid],
        ).fetchall()
    published = tuple(kind for kind, on in zip(KINDS, kinds, strict=True) if on)
    return Publication(oid, altered, owner, everything, via_root, published, stored, tuple(schemas), ours)


def _relations(db: psycopg.Connection, publication: int) -> Iterator[PublishedRelation]:
    # The row of a system column (b) is written with its table and never again: transaction and command are its birth.
    # A row that somebody tried to delete (xmax) does not tell its command any more. ATTACH and DETACH change the rows
    # of all columns: a table with one that inherits since its birth (a) was never without its parent. The row of the
    # row type (t) is changed with the table's name, schema and owner; the one that binds it to a schema (d) with that.
    filtered = db.info.server_version >= 150000
    limits = "coalesce(pg_get_expr(m.prqual, m.prrelid), ''), m.prattrs::int2[]" if filtered else "'', NULL::int2[]"
    rows = db.execute(
        f"""
        SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, coalesce(m.oid, 0), {limits},
               coalesce(i.inhparent, 0), coalesce(i.xmin::text, ''), coalesce(t.xmin::text, ''),
               pg_has_role(c.relowner, 'USAGE'), c.relowner, coalesce(d.xmin::text, ''),
               coalesce(t.xmin = b.xmin AND t.cmin = b.cmin AND t.xmax = '0' AND b.xmax = '0', false),
               c.relispartition AND EXISTS (
                   SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attinhcount > 0
                   AND a.xmin = b.xmin AND a.cmin = b.cmin AND a.xmax = '0' AND b.xmax = '0')
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pg_publication_rel m ON m.prrelid = c.oid AND m.prpubid = %s
        LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND c.relispartition
        LEFT JOIN pg_attribute b ON b.attrelid = c.oid AND b.attname = 'tableoid'
        LEFT JOIN pg_type t ON t.oid = c.reltype
        LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
                              AND d.refclassid = 'pg_namespace'::regclass
        WHERE c.relkind IN ('r', 'p') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
        ORDER BY c.oid
        """.encode(),
        [publication],
    ).fetchall()
    names = _column_names(db, [row[0] for row in rows if row[7]])
    for oid, schema, name, kind, persistence, member, condition, numbers, *others in rows:
        columns = tuple(names.get((oid, number), "?") for number in numbers or ())
        yield PublishedRelation(oid, schema, name, kind, persistence, member, condition, columns, *others)


def _column_names(db: psycopg.Connection, tables: list[int]) -> dict[tuple[int, int], str]:
    if not tables:
        return {}
    rows = db.execute("SELECT attrelid, attnum, attname FROM pg_attribute WHERE attrelid = ANY (%s)", [tables])
    return {(table, number): name for table, number, name in rows}
