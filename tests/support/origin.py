"""A real source database beside a sink under test: what was done to it comes out as blocks, cut into deliveries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from tests.support.pgstream import Recording, decode
from tidemill.decoders.pgoutput.messages import Relation
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.block import Block, Op
from tidemill.model.change import Committed
from tidemill.model.delivery import Delivery
from tidemill.model.keyhash import key_hashes
from tidemill.model.table import Table
from tidemill.sources.postgres.catalog import RelationCatalog
from tidemill.sources.postgres.client import SESSION


class Origin:
    """`db` prints values as a replication session does. `blocks` has everything since the beginning, offsets dense."""

    def __init__(self, server: Postgres, name: str) -> None:
        self._server, self._name = server, name
        self.db = session(server.dsn(name))
        self.db.execute("CREATE PUBLICATION p FOR ALL TABLES")
        self.db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        self.end = 0

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.db.execute(statement.encode())

    def blocks(self) -> list[Block]:
        catalog = RelationCatalog(lambda: session(self._server.dsn(self._name), path=""), "tests")

        def describe(relation: Relation, names: Mapping[int, str]) -> Table:
            return catalog.describe(relation, names).with_fingerprint()

        with Recording(self._server, self._name, dbname=self._name, protocol=3) as recording:
            recording.catch_up()
            stream = recording.data
        found, at = [], 0
        for change in decode(stream, describe, capacity=1 << 16):
            assert isinstance(change, Committed)
            for block in change.blocks:
                offsets = pa.array(block.offsets() + np.uint64(at))
                batch = block.batch.set_column(0, block.batch.schema.field(0), offsets)
                found.append(Block(block.table, batch))
            at += change.events
        catalog.close()
        self.end = at
        return found

    def deliveries(self, start: int = 0, *, lanes: int = 1) -> list[Delivery]:
        """One batch of everything from `start` on."""
        blocks = self.blocks()
        return [deal(blocks, start, self.end, lane, lanes) for lane in range(lanes)]

    def rows(self, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        return rows(self.db, table, columns)


def deal(blocks: Sequence[Block], start: int, end: int, lane: int, lanes: int) -> Delivery:
    """As the stream deals: by key, or by table where rows depend on more than their own key."""
    shares = []
    for block in blocks:
        part = block.slice(start, end)
        if not part.rows:
            continue
        hashes = key_hashes(part, part.table.key) if part.table.key else None
        if hashes is None or (part.batch.column("op").to_numpy() == Op.TRUNCATE).any():
            hashes = np.full(part.rows, len(part.table.name), np.uint64)
        mine = np.flatnonzero(hashes % np.uint64(lanes) == lane)
        if len(mine):
            shares.append(part.take(mine))
    return Delivery("shop", "orders", start, end, lane, lanes, lambda: iter(shares))


def rows(db: psycopg.Connection[Any], table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """All rows, each as the text of its values, in order."""
    text = f"SELECT r::text FROM (SELECT {columns} FROM {table}) r ORDER BY 1"
    return db.execute(text.encode()).fetchall()


@contextmanager
def origin(server: Postgres, name: str) -> Iterator[Origin]:
    with server.database(name):
        made = Origin(server, name)
        try:
            yield made
        finally:
            made.db.close()


def session(dsn: str, *, path: str = "public") -> psycopg.Connection[Any]:
    """Prints values as the replication session does."""
    db = psycopg.connect(dsn, autocommit=True)
    for name, value in SESSION.items():
        db.execute("SELECT set_config(%s, %s, false)", [name, path if name == "search_path" else value])
    return db
