"""One delivery on its way into the queue: events encoded, numbered in their streams, and copied.

A group of blocks is encoded while the one before it is sent, by another thread. The connection belongs to whoever has
waited for that.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa

from tidemill.contracts import Format
from tidemill.errors import Poisoned
from tidemill.model.block import Block, Op
from tidemill.model.columns import Ints
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.model.template import Template
from tidemill.sinks._shared.in_order import event_ids
from tidemill.sinks._shared.routing import destinations, documents, routed_headers
from tidemill.sinks.pgstream import copy_binary as wire

if TYPE_CHECKING:
    from tidemill.sinks._shared.pg_client import Connection
    from tidemill.sinks.pgstream import PgstreamConfig

_LARGEST = (1 << 30) - (1 << 20)  # a row of PostgreSQL ends at 1 GiB
_COLUMNS = (
    'stream_id, id, "offset", event_id, op, table_name, position, lsn, commit_time, key, payload, content_type, headers'
)


@dataclass(slots=True)
class _Stream:
    """A stream whose line is locked until the delivery ends: nobody else numbers messages meanwhile."""

    number: int
    last: int
    bytes: int = 0


_Sizes = dict[int, tuple[int, int]]  # by a stream's number: messages, bytes


@dataclass(slots=True)
class PgstreamDelivery:
    config: PgstreamConfig
    template: Template
    format: Format
    db: Connection
    delivery: Delivery
    events: int = 0
    bytes: int = 0
    known: int = 0  # already in their stream: a replay from before the last batch
    encode_seconds: float = 0.0
    streams: dict[str, _Stream] = field(default_factory=dict)
    staged: bool = False
    under_way: Future[None] | None = None
    waited_seconds: float = 0.0

    def send(self, blocks: list[Block], sender: ThreadPoolExecutor) -> None:
        """Messages of one group of blocks, in the order of their offsets; encoded while the group before is sent."""
        began, waited = time.perf_counter(), self.waited_seconds
        content, sizes = self._encode(blocks)
        self.encode_seconds += time.perf_counter() - began - (self.waited_seconds - waited)
        self.bytes += content.size
        self.wait()
        self.under_way = sender.submit(self._put, content, sizes)

    def wait(self) -> None:
        """Until the connection is free."""
        began = time.perf_counter()
        if self.under_way is not None:
            self.under_way.result()
        self.under_way = None
        self.waited_seconds += time.perf_counter() - began

    def _put(self, content: pa.Buffer, sizes: _Sizes) -> None:
        import psycopg

        if not self.staged:
            try:
                with self.db.transaction():  # a savepoint
                    self._copy("messages", content)
                self._count(sizes)
                return
            except psycopg.errors.UniqueViolation:
                self.staged = True  # some are there: from here on, look first
        self._copy(self._stage(), content)
        added = self._merge()
        self.known += sum(rows for rows, _ in sizes.values()) - sum(rows for rows, _ in added.values())
        self._count(added)

    def finish(self) -> None:
        from psycopg import sql

        schema = self.config.queue_schema
        update = sql.SQL("UPDATE {} SET last_id = %s, bytes = bytes + %s WHERE id = %s").format(
            sql.Identifier(schema, "streams")
        )
        for name, stream in self.streams.items():
            self.db.execute(update, [stream.last, stream.bytes, stream.number])
            self.db.execute("SELECT pg_notify(%s, %s)", [schema, name])

    def _copy(self, table: str, content: pa.Buffer) -> None:
        from psycopg import sql

        into = sql.Identifier(self.config.queue_schema, table) if table == "messages" else sql.Identifier(table)
        statement = sql.SQL("COPY {} ({}) FROM STDIN WITH (FORMAT binary)").format(into, sql.SQL(_COLUMNS))
        with self.db.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(wire.HEAD)
            copy.write(memoryview(content))
            copy.write(wire.TAIL)

    def _count(self, added: _Sizes) -> None:
        for stream in self.streams.values():
            rows, size = added.get(stream.number, (0, 0))
            stream.bytes += size
            self.events += rows

    def _stage(self) -> str:
        from psycopg import sql

        messages = sql.Identifier(self.config.queue_schema, "messages")
        create = (
            "CREATE TEMPORARY TABLE IF NOT EXISTS tidemill_messages ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA"
        )
        self.db.execute(sql.SQL(create).format(sql.SQL(_COLUMNS), messages))
        return "tidemill_messages"

    def _merge(self) -> _Sizes:
        """Adds what is not there yet: messages and bytes by stream."""
        from psycopg import sql

        added = self.db.execute(
            sql.SQL(
                "WITH added AS (INSERT INTO {} ({}) SELECT {} FROM tidemill_messages ORDER BY stream_id, id "
                "ON CONFLICT (stream_id, event_id) DO NOTHING RETURNING stream_id, octet_length(payload) AS size) "
                "SELECT stream_id, count(*), sum(size) FROM added GROUP BY stream_id"
            ).format(sql.Identifier(self.config.queue_schema, "messages"), sql.SQL(_COLUMNS), sql.SQL(_COLUMNS))
        ).fetchall()
        self.db.execute("TRUNCATE tidemill_messages")
        return {int(stream): (int(rows), int(size)) for stream, rows, size in added}

    def _encode(self, blocks: list[Block]) -> tuple[pa.Buffer, _Sizes]:
        source = self.delivery.source
        named = [destinations(self.template, block, source) for block in blocks]
        encoded = [documents(self.format, block, source, d) for block, d in zip(blocks, named, strict=True)]
        offsets = np.concatenate([block.offsets() for block in blocks]).astype(np.int64)
        order = np.argsort(offsets, kind="stable")
        sorted_already = bool((order[:-1] < order[1:]).all())

        def put(arrays: list[pa.Array]) -> pa.Array:
            whole = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
            return whole if sorted_already else whole.take(pa.array(order))

        payloads, keys = put([values for values, _ in encoded]), put([keys for _, keys in encoded])
        sizes = pa.compute.binary_length(payloads).to_numpy(zero_copy_only=False)
        offsets = offsets[order]
        self._check_sizes(offsets, sizes)
        of, ids = self._number(put([d.cast(pa.string()) for d in named]))
        positions = put([block.batch.column("position").cast(pa.string()) for block in blocks])
        lines = wire.CopyRows(len(offsets))
        lines.integers(of, size=4)
        lines.integers(ids)
        lines.integers(offsets)
        lines.strings(put([event_ids(block, source) for block in blocks]))
        lines.strings(put([_LABELS.take(block.batch.column("op")) for block in blocks]))
        lines.strings(put([pa.repeat(pa.scalar(block.table.full_name), block.rows) for block in blocks]))
        lines.strings(positions)
        lines.numbers(_lsns(positions))
        lines.timestamps(put([block.batch.column("commit_time") for block in blocks]))
        lines.strings(keys)
        lines.strings(payloads)
        lines.constant(self.format.content_type.encode())
        headers = [_headers(self.format, block, source) for block in blocks]
        if any(h is not None for h in headers):
            present = [
                pa.nulls(b.rows, pa.large_binary()) if h is None else h for h, b in zip(headers, blocks, strict=True)
            ]
            lines.strings(put(present), before=b"\x01")
        else:
            lines.nothing()
        total = {int(n): (int((of == n).sum()), int(sizes[of == n].sum())) for n in np.unique(of)}
        return lines.finish(), total

    def _number(self, streams: pa.Array) -> tuple[Ints, Ints]:
        """Each message's stream, and its number there: in order, after the last one of the stream."""
        coded = streams.dictionary_encode()
        of, ids = np.zeros(len(streams), np.int64), np.zeros(len(streams), np.int64)
        for code, name in sorted(enumerate(coded.dictionary.to_pylist()), key=lambda pair: pair[1]):
            mine = np.flatnonzero(coded.indices.to_numpy() == code)
            stream = self._lock(name)
            of[mine] = stream.number
            ids[mine] = stream.last + 1 + np.arange(len(mine))
            stream.last += len(mine)
        return of, ids

    def _lock(self, name: str) -> _Stream:
        from psycopg import sql

        if name not in self.streams:
            self.wait()
            table = sql.Identifier(self.config.queue_schema, "streams")
            self.db.execute(sql.SQL("INSERT INTO {} (name) VALUES (%s) ON CONFLICT DO NOTHING").format(table), [name])
            row = self.db.execute(
                sql.SQL("SELECT id, last_id FROM {} WHERE name = %s FOR UPDATE").format(table), [name]
            ).fetchone()
            assert row is not None
            self.streams[name] = _Stream(int(row[0]), int(row[1]))
        return self.streams[name]

    def _check_sizes(self, offsets: np.ndarray, sizes: np.ndarray) -> None:
        large: list[Offset] = offsets[sizes > _LARGEST].tolist()
        if large:
            raise Poisoned(dict.fromkeys(large, "the message is larger than a row of PostgreSQL can be, 1 GiB"))


_LABELS = pa.array(["", *(op.label for op in Op)])


def _lsns(positions: pa.Array) -> pa.Array:
    """Positions of the form 16/B374D848 as numbers; null for those of other databases."""
    coded = positions.dictionary_encode()
    numbers = [_lsn(text) for text in coded.dictionary.to_pylist()]
    return pa.array(numbers, pa.uint64()).take(coded.indices)


def _lsn(text: str) -> int | None:
    high, slash, low = text.partition("/")
    try:
        return int(high, 16) << 32 | int(low, 16) if slash and len(high) <= 8 and len(low) <= 8 else None
    except ValueError:
        return None


def _headers(format: Format, block: Block, source: str) -> pa.Array | None:
    """What travels beside the event (attributes of CloudEvents in binary mode, headers that a processor gave), as one
    JSON document per row."""
    attributes = {**format.attributes(block, source), **routed_headers(block)}
    if not attributes:
        return None
    names_, columns = list(attributes), []
    for name in names_:
        value = attributes[name]
        columns.append([value] * block.rows if isinstance(value, str) else value.to_pylist())
    rows = [
        orjson.dumps({n: v.decode() if isinstance(v, bytes) else v for n, v in zip(names_, row, strict=True) if v})
        for row in zip(*columns, strict=True)
    ]
    return pa.array(rows, pa.large_binary())
