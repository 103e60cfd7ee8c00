"""Fills in what the stream does not say about a table: type names, element types, the primary key, NOT NULL.

The stream decides which columns there are and in which order (invariant 6); the catalog, which may be ahead of the
stream, only adds to them. What it no longer knows gets a safe answer: text, nullable, no key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import psycopg

from tidemill.decoders.pgoutput import Relation, RelationColumn
from tidemill.errors import ConnectionLost
from tidemill.model import postgres_types
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType
from tidemill.sources.postgres.client import SESSION
from tidemill.sources.postgres.errors import RECOVER, NoReplicaIdentity, translate
from tidemill.sources.postgres.lineage import StoredAttribute
from tidemill.sources.postgres.tables import PARTITIONS

Answer = TypeVar("Answer")
_IDENTITY = {"d": "key", "i": "key", "f": "full", "n": "nothing"}


_VISIBLE_SECONDS, _LOOK_SECONDS = 5.0, 0.01  # a standby may be gone for good


@dataclass(frozen=True, slots=True)
class _Type:
    """`element` is set for true arrays only: int2vector and its like have elements, but not an array's text."""

    name: str
    base: int
    base_typmod: int
    element: int
    delimiter: str


@dataclass(frozen=True, slots=True)
class RelationAttribute:
    not_null: bool
    generated: bool
    primary: bool
    number: int


class RelationCatalog:
    """Describes relations as the decoder meets them. Connects when first asked, and again if that connection broke."""

    def __init__(self, connect: Callable[[], psycopg.Connection], where: str) -> None:
        self._connect = connect
        self._where = where
        self._db: psycopg.Connection | None = None
        self._types: dict[tuple[int, int], _Type | None] = {}
        self._files: dict[int, dict[int, int]] = {}
        self._prefetched: dict[int, tuple[dict[int, int], dict[str, RelationAttribute]]] = {}

    def describe(
        self, relation: Relation, type_names: Mapping[int, str], keys: Sequence[tuple[str, ...]] = ()
    ) -> Table:
        """The table, not yet numbered. `type_names` are the names that Type messages gave, for types dropped since;
        `keys` are the one that the table's last version had, and those that it had since."""
        return self._again(lambda: self._describe(relation, type_names, keys))

    def describe_as(self, relation: Relation, attributes: Mapping[str, RelationAttribute]) -> Table:
        """The same, of a table whose columns are known as they were: only types are asked for."""

        def describe() -> Table:
            if self._db is None:
                self._db = self._connect()
            numbers = {name: f"{relation.oid}.{attribute.number}" for name, attribute in attributes.items()}
            with translate(self._where):
                return self._table(self._db, relation, attributes, numbers, {}, ())

        return self._again(describe)

    def await_visible(self, tx: int) -> None:
        """The server sends a transaction once it is durable, and shows what it did a little later; with synchronous
        replication once a standby has it. A catalog that is asked between has the table as it was before."""
        deadline = time.monotonic() + _VISIBLE_SECONDS
        while not self.ask(lambda db: _is_visible(db, tx)) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def ask(self, question: Callable[[psycopg.Connection], Answer]) -> Answer:
        def step() -> Answer:
            if self._db is None:
                self._db = self._connect()
            with translate(self._where):
                return question(self._db)

        return self._again(step)

    def _again(self, step: Callable[[], Answer]) -> Answer:
        try:
            return step()
        except ConnectionLost:  # an idle connection may have been cut; a new one tells whether the server is there
            self.close()
            return step()

    @contextmanager
    def prefetch(self, relations: Iterable[Relation | None]) -> Iterator[None]:
        """What the server is asked for each of these is asked for all of them at once, and holds for descriptions that
        are made inside."""
        wanted = [relation.oid for relation in relations if relation is not None]
        if self._db is None or self._db.closed or self._db.broken:
            self._db = self._connect()
        with translate(self._where):
            self._prefetched = self._look_up(wanted)
        try:
            yield
        finally:
            self._prefetched = {}

    def emit(self, prefix: str, content: str) -> None:
        """Writes a logical message in a transaction of its own, which waits for no standby."""
        if self._db is None:
            self._db = self._connect()
        with translate(self._where):
            self._db.execute(
                "SELECT set_config('synchronous_commit', 'local', true), pg_logical_emit_message(true, %s, %s)",
                [prefix, content],
            )

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _describe(self, relation: Relation, type_names: Mapping[int, str], before: Sequence[tuple[str, ...]]) -> Table:
        if self._db is None:
            self._db = self._connect()
        with translate(self._where):
            files, known = self._prefetched.get(relation.oid) or self._look_up([relation.oid])[relation.oid]
            sent = {c.name for c in relation.columns}
            self._files.pop(relation.oid, None)
            if sent == {name for name, attribute in known.items() if name in sent or not attribute.generated}:
                self._files[relation.oid] = files
            return self._table(self._db, relation, known, _numbers(relation, known), type_names, before)

    def _table(
        self, db: psycopg.Connection, relation: Relation, known: Mapping[str, RelationAttribute],
        numbers: Mapping[str, str], type_names: Mapping[int, str], before: Sequence[tuple[str, ...]],
    ) -> Table:  # fmt: skip
        columns = tuple(
            replace(self._column(c, relation, known.get(c.name), type_names), origin=numbers.get(c.name, ""))
            for c in relation.columns
        )
        key, identity = _key(relation, known, before), _identity(relation)
        if identity == "full" and self._partial(relation.oid, key):
            identity = "key"
        return Table(db.info.dbname, relation.schema, relation.name, columns, key, identity)

    def _partial(self, relation: int, key: tuple[str, ...]) -> bool:
        """Whether a partition of it logs less than whole rows. The server sends rows of partitions under the identity
        of their root, so that the rest of an old row looks like NULL."""
        assert self._db is not None
        rows = self._db.execute(
            f"""
            WITH RECURSIVE {PARTITIONS}
            SELECT c.oid::regclass::text, array_remove(array_agg(a.attname::text), NULL)
            FROM parts p JOIN pg_class c ON c.oid = p.oid AND p.oid <> p.root
            LEFT JOIN pg_index i ON i.indrelid = c.oid
                AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
            LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
            WHERE c.relkind = 'r' AND c.relreplident <> 'f' GROUP BY c.oid
            """.encode(),
            [[relation]],
        ).fetchall()
        for name, logged in rows:
            if logged and not set(key) <= set(logged):
                raise NoReplicaIdentity(
                    f"partition {name} logs {', '.join(logged)} of old rows, not the key of the table it belongs to:"
                    f" {', '.join(key)}",
                    where=self._where,
                    fix=f"ALTER TABLE {name} REPLICA IDENTITY FULL. {RECOVER}",
                )
        return bool(rows)

    def _column(
        self, column: RelationColumn, relation: Relation, known: RelationAttribute | None, type_names: Mapping[int, str]
    ) -> Column:
        kind = self._data_type(column.type_oid, column.typmod, type_names)
        in_key = column.key and relation.identity in "di"  # key columns are NOT NULL; FULL marks every column
        not_null = in_key or bool(known and known.not_null)
        return Column(column.name, kind, nullable=not not_null, generated=bool(known and known.generated))

    def _data_type(self, oid: int, typmod: int, type_names: Mapping[int, str]) -> DataType:
        found = self._type(oid, typmod)
        if found is None:
            return postgres_types.data_type(0, -1, type_names.get(oid, f"oid {oid}"))
        if found.base:
            # The base says how to read it; the domain is what the source calls it.
            return replace(self._data_type(found.base, found.base_typmod, type_names), native=found.name)
        element = self._data_type(found.element, typmod, type_names) if found.element else None
        return postgres_types.data_type(oid, typmod, found.name, element=element, delimiter=found.delimiter)

    def _type(self, oid: int, typmod: int) -> _Type | None:
        if (oid, typmod) not in self._types:
            assert self._db is not None
            row = self._db.execute(
                """
                SELECT format_type(t.oid, %(typmod)s), t.typbasetype, t.typtypmod,
                       CASE WHEN e.typarray = t.oid THEN e.oid ELSE 0 END, coalesce(e.typdelim::text, ',')
                FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = %(oid)s
                """,
                {"oid": oid, "typmod": typmod},
            ).fetchone()
            self._types[oid, typmod] = _Type(*row) if row else None
        return self._types[oid, typmod]

    def _look_up(self, relations: list[int]) -> dict[int, tuple[dict[int, int], dict[str, RelationAttribute]]]:
        """Files and columns of each. The files first: one that the table was given since is another one later."""
        files = self._find_files(relations)
        known = self._attributes(relations)
        return {oid: (files.get(oid, {}), known.get(oid, {})) for oid in relations}

    def _attributes(self, relations: list[int]) -> dict[int, dict[str, RelationAttribute]]:
        assert self._db is not None
        rows = self._db.execute(
            """
            SELECT a.attrelid, a.attname, a.attnotnull, a.attgenerated <> '',
                   coalesce(a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false), a.attnum
            FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
            WHERE a.attrelid = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum
            """,
            [relations],
        )
        found: dict[int, dict[str, RelationAttribute]] = {}
        for relation, name, *rest in rows:
            found.setdefault(int(relation), {})[name] = RelationAttribute(*rest)
        return found

    def stored_attributes(self, relation: int) -> list[StoredAttribute]:
        """By their numbers, as they are now, with those that were dropped."""
        assert self._db is not None
        with translate(self._where):
            rows = self._db.execute(
                "SELECT attnum, attname, attisdropped, attgenerated <> '', format_type(atttypid, atttypmod)"
                " FROM pg_attribute WHERE attrelid = %s AND attnum > 0 ORDER BY attnum",
                [relation],
            ).fetchall()
        return [StoredAttribute(*row) for row in rows]

    def storage_then(self, relation: int) -> dict[int, int] | None:
        """`storage` as it was when the relation was described, if the catalog had its columns and no others: what they
        were added with is older. None where the catalog was ahead of the stream."""
        return self._files.get(relation)

    def storage(self, relation: int) -> dict[int, int]:
        """The file of each table that holds the relation's rows: itself, or its partitions. A table that is written
        anew gets another one."""
        with translate(self._where):
            return self._find_files([relation]).get(relation, {})

    def _find_files(self, relations: list[int]) -> dict[int, dict[int, int]]:
        assert self._db is not None
        rows = self._db.execute(
            f"""
            WITH RECURSIVE {PARTITIONS}
            SELECT p.root, c.oid, pg_relation_filenode(c.oid)
            FROM parts p JOIN pg_class c ON c.oid = p.oid WHERE c.relkind IN ('r', 'm')
            """.encode(),
            [relations],
        ).fetchall()
        found: dict[int, dict[int, int]] = {}
        for relation, oid, file in rows:
            if file is not None:
                found.setdefault(int(relation), {})[int(oid)] = int(file)
        return found

    def missing(self, tables: list[int], column: str) -> dict[int, str]:
        """What rows from before the column was added have in it, as text, by table. None where it is NULL, or where the
        table was written anew since: pg_attribute.attmissingval."""
        assert self._db is not None
        with translate(self._where):
            for name in ("DateStyle", "IntervalStyle", "TimeZone", "extra_float_digits", "bytea_output", "lc_monetary"):
                self._db.execute("SELECT set_config(%s, %s, false)", [name, SESSION[name]])
            rows = self._db.execute(
                "SELECT attrelid, (attmissingval::text::text[])[1] FROM pg_attribute "
                "WHERE attrelid = ANY (%s) AND attname = %s AND atthasmissing AND NOT attisdropped",
                [tables, column],
            ).fetchall()
        return {int(oid): text for oid, text in rows}


def _numbers(relation: Relation, known: Mapping[str, RelationAttribute]) -> dict[str, str]:
    """What the columns are known by, if the catalog has exactly these, in this order, and at most later ones besides.
    Otherwise it is ahead of the stream, and a name may be another column's by now."""
    names = [c.name for c in relation.columns]
    if not names or not set(names) <= known.keys():
        return {}
    last = max(known[name].number for name in names)
    found = [n for n, a in known.items() if a.number <= last and (n in names or not a.generated)]
    return {name: f"{relation.oid}.{known[name].number}" for name in names} if found == names else {}


def _key(
    relation: Relation, known: Mapping[str, RelationAttribute], before: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    """In the order of the table's columns, which the stream gives, so that a replay has the same key. `before` are
    the keys that the table had.

    Where the stream does not name the key (FULL, NOTHING) the catalog has it, and may be ahead of the stream: which of
    several keys holds for a row between them is not known (invariant 6). Columns of all tell apart whatever one did, so
    a key grows and does not shrink. One that the catalog has under other names by now was still the key of this row.
    But a table without a primary key has none: rows that only it told apart would become one at the target.
    """
    names = [c.name for c in relation.columns]
    if relation.identity in "di":
        return tuple(c.name for c in relation.columns if c.key)
    primary = {name for name, attribute in known.items() if attribute.primary}
    if known and not primary:
        return ()
    now = primary if primary <= set(names) else set()  # a key that lost a column since is no key
    kept = {name for key in before if set(key) <= set(names) for name in key}
    return tuple(name for name in names if name in now | kept)


def _identity(relation: Relation) -> str:
    if relation.identity == "d" and not any(c.key for c in relation.columns):
        return "nothing"  # "default" means the primary key, and there is none
    return _IDENTITY.get(relation.identity, "nothing")


def _is_visible(db: psycopg.Connection, tx: int) -> bool:
    """`tx` has 32 bits, as the stream has it."""
    row = db.execute("SELECT pg_current_snapshot()::text").fetchone()
    _, after, running = (row[0] if row else "0:0:").split(":")
    begun = (tx - int(after)) & 0xFFFFFFFF >= 1 << 31  # before the first that had not ended
    return begun and tx not in {int(each) & 0xFFFFFFFF for each in running.split(",") if each}
