"""A message queue in PostgreSQL: events as messages that consumer groups pull, hold for a while, and ack.

Messages stand in one table, numbered per stream in the order of their commit, so that a consumer's cursor misses none.
The event's identity is unique there: a message is never in a stream twice. Consumers use `Client`, the command
`tidemill stream`, or the SQL functions of the queue's schema (`_pgstream_sql`): docs/pgstream.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import orjson
import pyarrow as pa
from pydantic import Field, field_validator

from tidemill.component import Check, Component, Config, Format, SinkConfig
from tidemill.errors import DeliveryError, Poisoned
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.position import Offset
from tidemill.model.template import Template
from tidemill.sinks import _pgstream_copy as wire
from tidemill.sinks import _pgstream_sql as queue
from tidemill.sinks._encoding import EVERY_FORMAT, EncodedSinkConfig, encoder, examine_registry
from tidemill.sinks._inorder import event_ids, groups
from tidemill.sinks._pgsink_connection import PostgresTarget, address, connect, explained
from tidemill.sinks._pgsink_positions import PlanChanged, Positions
from tidemill.sinks._pgstream_client import Claimed, Client, Group, Message
from tidemill.sinks._routing import documents, names, parsed
from tidemill.telemetry.events import warn

if TYPE_CHECKING:
    from tidemill.sinks._pgsink_connection import Connection

__all__ = ["Claimed", "Client", "Group", "Message", "PgstreamConfig", "PgstreamSink"]

_LARGEST = (1 << 30) - (1 << 20)  # a row of PostgreSQL ends at 1 GiB
_TURNS = 5
_COLUMNS = (
    'stream_id, id, "offset", event_id, op, table_name, position, lsn, commit_time, key, payload, content_type, headers'
)


class Retention(Config):
    acked_seconds: float | None = Field(
        default=86_400.0, ge=0, description="How long messages stay that every group has acked; null keeps them."
    )
    max_age_seconds: float | None = Field(default=None, gt=0, description="Older messages go, acked or not.")
    max_bytes: int | None = Field(
        default=None, gt=0, description="Payload bytes of a stream; beyond it the oldest messages go, acked or not."
    )
    every_seconds: float = Field(default=60.0, gt=0, description="How often the sink looks for messages to remove.")


class PgstreamConfig(EncodedSinkConfig, PostgresTarget):
    stream: str = Field(
        min_length=1, description="Name of the stream, or a template: orders, ${source.schema}.${source.table}."
    )
    queue_schema: str = Field(
        default="pgstream", min_length=1, max_length=63, description="Schema of the queue's tables; made if missing."
    )
    retention: Retention = Field(default=Retention(), description="When messages are removed.")

    @field_validator("stream")
    @classmethod
    def _stream_parses(cls, text: str) -> str:
        return parsed(text)


class PgstreamSink(Component[PgstreamConfig]):
    Config: ClassVar[type[SinkConfig]] = PgstreamConfig
    mechanism: ClassVar[str] = (
        "The event's identity is a unique key, and the record of what was delivered is in the same transaction."
    )
    single_lane: ClassVar[bool] = True  # messages are numbered in the order of their offsets
    formats: ClassVar[frozenset[str]] = EVERY_FORMAT
    tier = Tier.EFFECTIVELY_ONCE
    config: PgstreamConfig

    def __init__(self, config: PgstreamConfig) -> None:
        super().__init__(config)
        self._stream = Template(config.stream)
        self._where = f'sink "{config.id}", {address(config.dsn)}'
        self._format: Format = encoder(config)
        self._db: Connection | None = None
        self._swept = 0.0

    def write(self, delivery: Delivery) -> Receipt:
        began = time.perf_counter()
        db = self._connection()
        positions = Positions(db, self.config.queue_schema, self.config.id, rewind="apply", where=self._where)
        with explained(self._where):
            for turn in range(_TURNS):
                positions.settle(delivery)
                try:
                    with db.transaction():
                        taking = positions.begin(delivery)
                        work = _Sending(self.config, self._stream, self._format, db, delivery)
                        with ThreadPoolExecutor(1, thread_name_prefix="pgstream") as sender:
                            for group in groups(delivery):
                                blocks = [block for b in group if (block := taking.fresh(b)) is not None]
                                if blocks:
                                    work.send(blocks, sender)
                            work.wait()
                        work.finish()
                        taking.save()
                    break
                except PlanChanged:
                    if turn == _TURNS - 1:
                        raise
        seconds = time.perf_counter() - began - work.encode_seconds
        if time.monotonic() - self._swept >= self.config.retention.every_seconds:
            self._sweep(db)
        return Receipt(
            self.config.id, delivery.lane, work.events, work.bytes, taking.skipped + work.known,
            encode_seconds=work.encode_seconds, write_seconds=seconds,
        )  # fmt: skip

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    def doctor(self) -> Iterable[Check]:
        from tidemill.sinks._pgstream_doctor import examine

        yield from examine(self.config, self._where)
        yield from examine_registry(self.config)

    def _connection(self) -> Connection:
        if self._db is None or self._db.closed:
            self._db = connect(self.config, self._where)
            with explained(self._where):
                queue.install(self._db, self.config.queue_schema)
                positions = Positions(
                    self._db, self.config.queue_schema, self.config.id, rewind="apply", where=self._where
                )
                positions.create()
        return self._db

    def _sweep(self, db: Connection) -> None:
        """After the delivery, which is durable by now: it does not fail for this. What is not removed this time is
        removed the next."""
        from tidemill.sinks._pgstream_client import sweep

        self._swept = time.monotonic()
        limits = self.config.retention
        try:
            with explained(self._where):
                removed = sweep(
                    db, self.config.queue_schema, limits.acked_seconds, limits.max_age_seconds, limits.max_bytes
                )
        except DeliveryError as error:
            warn("sink.messages_not_removed", sink=self.config.id, reason=error.what)
            self.close()
            return
        for stream, (_, unacked) in removed.items():
            if unacked:
                warn("sink.unacked_messages_removed", sink=self.config.id, stream=stream, messages=unacked)


@dataclass(slots=True)
class _Stream:
    """A stream whose line is locked until the delivery ends: nobody else numbers messages meanwhile."""

    number: int
    last: int
    bytes: int = 0


_Sizes = dict[int, tuple[int, int]]  # by a stream's number: messages, bytes


@dataclass(slots=True)
class _Sending:
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
        named = [names(self.template, block, source) for block in blocks]
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
        lines = wire.Lines(len(offsets))
        lines.integers(of, size=4)
        lines.integers(ids)
        lines.integers(offsets)
        lines.texts(put([event_ids(block, source) for block in blocks]))
        lines.texts(put([_LABELS.take(block.batch.column("op")) for block in blocks]))
        lines.texts(put([pa.repeat(pa.scalar(block.table.full_name), block.rows) for block in blocks]))
        lines.texts(positions)
        lines.numbers(_lsns(positions))
        lines.moments(put([block.batch.column("commit_time") for block in blocks]))
        lines.texts(keys)
        lines.texts(payloads)
        lines.constant(self.format.content_type.encode())
        headers = [_headers(self.format, block, source) for block in blocks]
        present = [h for h in headers if h is not None]
        if len(present) == len(headers):
            lines.texts(put(present), before=b"\x01")
        else:
            lines.nothing()
        total = {int(n): (int((of == n).sum()), int(sizes[of == n].sum())) for n in np.unique(of)}
        return lines.finish(), total

    def _number(self, streams: pa.Array) -> tuple[wire.Ints, wire.Ints]:
        """Each message's stream, and its number there: in order, after the last one of the stream."""
        coded = streams.dictionary_encode()
        of, ids = np.zeros(len(streams), np.int64), np.zeros(len(streams), np.int64)
        for code, name in sorted(enumerate(coded.dictionary.to_pylist()), key=lambda pair: pair[1]):
            mine = np.flatnonzero(coded.indices.to_numpy() == code)
            stream = self._locked(name)
            of[mine] = stream.number
            ids[mine] = stream.last + 1 + np.arange(len(mine))
            stream.last += len(mine)
        return of, ids

    def _locked(self, name: str) -> _Stream:
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
    """Attributes that travel beside the event (CloudEvents in binary mode), as one JSON document per row."""
    attributes = format.attributes(block, source)
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


component = PgstreamSink
