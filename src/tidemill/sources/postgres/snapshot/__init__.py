"""Reads PostgreSQL tables in chunks, each in one short transaction, by `COPY` (ADR 28).

What a read does not see must have committed after the observation that it proves (`observation.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from tidemill.contracts.catalog_scan import CatalogScan
from tidemill.errors import ConnectionLost, StructureChanged, TableLocked
from tidemill.model.block import Block
from tidemill.model.position import Position
from tidemill.model.snapshot import Bound, Chunk, SnapshotTable
from tidemill.model.table import Table
from tidemill.sources.postgres import tables as table_names
from tidemill.sources.postgres.catalog import RelationCatalog
from tidemill.sources.postgres.client import SESSION, CopySession, Endpoint, connect
from tidemill.sources.postgres.config import PostgresConfig
from tidemill.sources.postgres.errors import PublicationProblem, ServerBusy, TableRedefined, translate
from tidemill.sources.postgres.lsn import parse_lsn
from tidemill.sources.postgres.publication.published import (
    Publication,
    Published,
    PublishedRelation,
    streamed_relations,
)
from tidemill.sources.postgres.relations import announce, identifier, signature_query
from tidemill.sources.postgres.scan import scan_catalog
from tidemill.sources.postgres.snapshot.chunk_query import TableToken, copy_command, table_name
from tidemill.sources.postgres.snapshot.chunk_ranges import (
    KeyRange,
    Pages,
    check_file,
    file_query,
    measure_keys,
    measure_pages,
    next_bound,
    next_key,
    operator_schemas,
)
from tidemill.sources.postgres.snapshot.copy_out import CopyMemory, CopyOut
from tidemill.sources.postgres.snapshot.observation import REPLAYED, Observation, prove
from tidemill.telemetry.failpoints import failpoint

# A partitioned table has rows in its leaves, and its own size is 0. -1: it was never analyzed.
_FILLED = (
    "SELECT EXISTS (SELECT FROM (SELECT relid FROM pg_partition_tree(%s::regclass) WHERE isleaf"
    " UNION ALL SELECT %s::regclass) AS one (relid) JOIN pg_class c ON c.oid = one.relid"
    " WHERE pg_relation_size(c.oid) > 0 AND c.reltuples <> 0)"
)
_HIGH = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
_CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8"
_BEGAN = "SELECT extract(epoch FROM pg_postmaster_start_time())::text"
_SILENCE_SECONDS = 300.0  # of a server that looks for the first row of a chunk
_REPLAY_SECONDS = 60.0

_Copied = tuple[PublishedRelation, list[int]]
"""What the stream calls the rows, and the partitions that hold them; none for a plain table."""


def reader_of(config: PostgresConfig) -> PostgresSnapshotReader:
    """Of the server itself, or of the standby that its `snapshot` block names."""
    standby = config.snapshot.dsn if config.snapshot is not None else None
    if not standby:
        return PostgresSnapshotReader(config)
    return PostgresSnapshotReader(config.model_copy(update={"dsn": standby}), config)


class PostgresSnapshotReader:
    """For one thread. Pickled, it is its configuration; connections are made when first needed."""

    def __init__(self, config: PostgresConfig, captured: PostgresConfig | None = None) -> None:
        """`captured` is how to reach the server whose changes are captured, if `config` is to be a standby of it."""
        self._config, self._captured = config, captured
        self._captured_began = ""
        self._db: psycopg.Connection | None = None
        self._endpoint: Endpoint | None = None
        self._session: CopySession | None = None
        self._memory: CopyMemory | None = None
        self._ranges: dict[tuple[str, str], KeyRange] = {}  # by table and part
        self._pages: dict[tuple[str, str], Pages | None] = {}  # the same of tables without a key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._config, self._captured)

    def tables(self, names: Sequence[str] = ()) -> list[SnapshotTable]:
        config, patterns = self._config, [table_names.parse(name) for name in names]
        with self._connect() as db:
            published = Published.read(db, config)
            if published.publication is None:
                raise PublicationProblem(
                    f'there is no publication "{config.publication_name}" yet', where=config.where,
                    fix="Capture makes it when the pipeline starts.",
                )  # fmt: skip
            copied = [
                (relation, leaves)
                for unit in published.units.values()
                for relation, leaves in streamed_relations(published, unit)
                if not patterns or any(p.matches(relation.schema, relation.name) for p in patterns)
            ]
            return self._describe(db, published, published.publication, copied)

    def structures(self) -> list[Table]:
        with self._connect() as db:
            published = Published.read(db, self._config)
            publication, catalog = published.publication, RelationCatalog(lambda: db, self._config.where)
            oid, generated = (publication.oid, publication.generated) if publication is not None else (0, False)
            # One that is not published yet is added when capture starts.
            relations = [
                relation
                for unit in published.units.values()
                for relation in [copied for copied, _ in streamed_relations(published, unit)] or [unit.table]
            ]
            said = announce(db, {each.oid: each.columns for each in relations}, oid, generated=generated)
            with catalog.prefetch(one.relation for one in said.values()):
                return [catalog.describe(one.relation, {}) for one in said.values() if one.relation.columns]

    def names_with_rows(self) -> list[str]:
        """By the catalog: who captures may not read the tables."""
        tables = self.structures()
        with self._connect() as db:
            return [
                table.full_name for table in tables
                if db.execute(_FILLED, [identifier(table.schema, table.name)] * 2).fetchone() == (True,)
            ]  # fmt: skip

    def scan_catalog(self, seconds: float) -> CatalogScan:
        return scan_catalog(self._config, seconds)

    def _describe(
        self, db: psycopg.Connection, published: Published, publication: Publication, copied: Sequence[_Copied]
    ) -> list[SnapshotTable]:
        """With as many queries for thousands of tables as for one."""
        lists = {relation.oid: relation.columns for relation, _ in copied}
        said = announce(db, lists, publication.oid, generated=publication.generated)
        catalog = RelationCatalog(lambda: db, self._config.where)
        with catalog.prefetch(one.relation for one in said.values()):
            tables = {oid: catalog.describe(one.relation, {}) for oid, one in said.items() if one.relation.columns}
        # At last: the structures hold at `high` or before it.
        sizes, high = self._measure(db, [oid for relation, leaves in copied for oid in leaves or [relation.oid]])
        pages = "update" in publication.kinds
        operators = operator_schemas(db, {kind for one in said.values() for kind in one.key_types})
        found = []
        for relation, leaves in copied:
            if relation.oid not in tables:
                continue
            one = said[relation.oid]
            held = [sizes.get(oid, (0, 0)) for oid in leaves or [relation.oid]]
            estimate = sum(rows for rows, _ in held)
            most = sum(rows for _, rows in held) if all(rows >= 0 for _, rows in held) else -1
            token = TableToken(
                relation.oid, publication.oid, one.signature, one.key_types, relation.filter, pages, most,
                tuple(operators.get(kind, "pg_catalog") for kind in one.key_types) if operators else (),
            )  # fmt: skip
            leaf_names = ((published.relations[leaf].schema, published.relations[leaf].name) for leaf in leaves)
            parts = tuple(identifier(*name) for name in leaf_names)
            if leaves or relation.kind == "r":
                parts = parts or ("",)
            found.append(SnapshotTable(tables[relation.oid], one.key, estimate, high, parts, token.to_json()))
        return found

    def _measure(self, db: psycopg.Connection, tables: Sequence[int]) -> tuple[dict[int, tuple[int, int]], Position]:
        """About how many rows each has (one that was never analyzed by its size), and how many at most: a heap page
        has room for 291 (MaxHeapTuplesPerPage), and other table methods are not known. And the end of the WAL."""
        rows = db.execute(
            "SELECT c.oid::int8, CASE WHEN c.reltuples < 0 THEN s.bytes / 64 ELSE c.reltuples::int8 END,"
            " CASE WHEN c.relam = 2 AND current_setting('block_size') = '8192' THEN s.bytes / 8192 * 291 ELSE -1 END"
            " FROM pg_class c CROSS JOIN LATERAL (SELECT pg_relation_size(c.oid) AS bytes) s WHERE c.oid = ANY (%s)",
            [list(tables)],
        ).fetchall()
        (high,) = db.execute(f"SELECT ({_HIGH})::text".encode()).fetchone() or ("",)
        return {oid: (int(about or 0), -1 if most is None else int(most)) for oid, about, most in rows}, Position(high)

    def plan(self, table: SnapshotTable, part: str, after: Bound | None, rows: int) -> Bound | None:
        token = TableToken.from_json(table.token)
        if after is None and 0 <= token.most <= rows:
            return None  # of many small tables the server is not asked for each
        try:
            if not table.key:
                return self._plan_pages(table, part, after, rows) if token.pages else None
            return self._plan_keys(table, token, part, after, rows)
        except ServerBusy as error:
            raise TableLocked(error.what, where=error.where) from error

    def _plan_keys(
        self, table: SnapshotTable, token: TableToken, part: str, after: Bound | None, rows: int
    ) -> Bound | None:
        name, key = part or table_name(table), token.key(table.key)
        with self._connect() as db:
            if after is None or (table.name, part) not in self._ranges:
                self._ranges[table.name, part] = measure_keys(db, name, key)
            return next_key(db, name, key, self._ranges[table.name, part], after, rows)

    def _plan_pages(self, table: SnapshotTable, part: str, after: Bound | None, rows: int) -> Bound | None:
        with self._connect() as db:
            if after is None or (table.name, part) not in self._pages:
                self._pages[table.name, part] = measure_pages(db, part or table_name(table))
        pages = self._pages[table.name, part]
        if pages is not None and after is not None and after[1] != pages[2]:
            raise StructureChanged(f"{table.name} was written anew: its rows are in other pages")
        return None if pages is None else next_bound(pages, after, rows)

    def observe(self, logged: Position) -> str:
        with self._connect() as db:
            deadline = time.monotonic() + _REPLAY_SECONDS
            while True:
                (replayed,) = db.execute(f"SELECT {REPLAYED}".encode()).fetchone() or (None,)
                if replayed is None:
                    break
                if parse_lsn(replayed) >= parse_lsn(logged):
                    return Observation(logged, None).to_json()
                if time.monotonic() > deadline:
                    raise self._lags(replayed, logged)
                time.sleep(0.05)
            self._check_captured(lambda command: db.execute(command.encode()).fetchall())
            locked = db.execute(
                "SELECT transactionid::text::int8 FROM pg_locks"
                " WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted"
            ).fetchall()
            return Observation(logged, tuple(sorted(int(number) for (number,) in locked))).to_json()

    def _lags(self, replayed: str, logged: str) -> ConnectionLost:
        return ConnectionLost(
            f"the standby has come to {replayed}, not yet to {logged}", where=self._config.where,
            fix="It is tried again. If that repeats, the standby does not follow its primary.",
        )  # fmt: skip

    def _check_captured(self, ask: Callable[[str], list[tuple[Any, ...]]]) -> None:
        """Of a server that is no standby. One that was promoted has a history of its own since."""
        if self._captured is None:
            return
        ((began,),) = ask(_BEGAN)
        if str(began) != self._captured_began:  # a server that was started anew is asked anew
            with connect(self._captured) as db:
                self._captured_began = str((db.execute(_BEGAN.encode()).fetchone() or ("",))[0])
        if str(began) != self._captured_began:
            raise ConnectionLost(
                "the server of snapshot.dsn is no standby, and not the one that is captured", where=self._config.where,
                fix="If it was promoted, name a standby of the server in `dsn`, or leave snapshot.dsn out.",
            )  # fmt: skip

    def get_ready(self) -> None:
        if self._endpoint is None:
            with self._connect() as db:
                self._endpoint = Endpoint.of(db)
        self._session = self._session or CopySession(self._config, self._endpoint)

    @contextmanager
    def read(self, chunk: Chunk, table: SnapshotTable, observations: Sequence[str]) -> Iterator[PostgresChunkReading]:
        token, config = TableToken.from_json(table.token), self._config
        self.get_ready()
        session, self._session = self._session, None
        assert session is not None
        try:
            replayed = self._find_replayed(session)  # before the read's snapshot: that sees it, or more
            # Locked before the first snapshot: statements that write a table anew do not keep its rows for older ones.
            locked = [f"ONLY {table_name(table)}", *([f"ONLY {chunk.part}"] if chunk.part else [])]
            begin = (
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                "SET LOCAL row_security = off",  # a policy that hides rows is an error
                f"SET LOCAL lock_timeout = {int(config.lock_timeout_seconds * 1000)}",
                f"LOCK TABLE {', '.join(locked)} IN ACCESS SHARE MODE",
            )
            try:
                session.ask("; ".join(begin))  # together: a server and a reader that take turns lose time at each
            except TableRedefined as error:
                raise StructureChanged(f"a part of {table.name} is gone: {error.what}", where=config.where) from error
            if not table.key and (chunk.lower or chunk.upper):
                ((file,),) = session.ask(file_query(chunk.part or table_name(table)))
                check_file(chunk, str(file), config.where)
            signature = signature_query(token.oid, token.publication)
            ((snapshot, high, clock, now),) = session.ask(
                f"SELECT pg_current_snapshot()::text, ({_HIGH})::text, {_CLOCK}::text, ({signature})"
            )
            if now != token.signature:
                raise StructureChanged(f"table {table.name} has another structure, or is gone", where=config.where)
            memory, self._memory = self._memory or CopyMemory(), None
            out = CopyOut(*session.socket(), config.where, _SILENCE_SECONDS, memory)
            seen = [Observation.from_json(each) for each in observations]
            proven = prove(str(snapshot), replayed, seen)
            if replayed is not None and seen and proven is None:
                raise self._lags(replayed, seen[0].logged)
            yield PostgresChunkReading(
                Position(str(high)), proven, int(str(clock)), out, copy_command(chunk, table, token), table,
            )  # fmt: skip
            if out.idle:
                session.ask("ROLLBACK")
                self._session = session  # a login takes longer than a small table
                self._memory = memory
        finally:
            if self._session is not session:
                session.close()

    def _find_replayed(self, session: CopySession) -> str | None:
        """None of a server that is no standby, which no session sees change."""
        if session.of_primary:
            return None
        ((replayed,),) = session.ask(f"SELECT {REPLAYED}")
        if replayed is None:
            self._check_captured(session.ask)
            session.of_primary = True
        return None if replayed is None else str(replayed)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _connect(self) -> Iterator[psycopg.Connection]:
        """Values are printed as in the stream: bounds go from session to session as text."""
        with translate(self._config.where):
            if self._db is None or self._db.closed or self._db.broken:
                self._db = connect(self._config)
                settings = SESSION | {"lock_timeout": str(int(self._config.lock_timeout_seconds * 1000))}
                self._db.execute(
                    "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS s (name, value)",
                    [list(settings), list(settings.values())],
                )
                self._db.execute("SET row_security = off")
            yield self._db


@dataclass(frozen=True, slots=True)
class PostgresChunkReading:
    high: Position
    observation: int | None
    commit_time: int
    _out: CopyOut
    _command: str
    _table: SnapshotTable

    def blocks(self) -> Iterator[Block]:
        failpoint("snapshot.read")
        return self._out.blocks(self._command, self._table.table)
