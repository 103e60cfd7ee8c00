"""Redis or Valkey streams: one entry per event, its id made of the event's offset, so that none is there twice.

    XADD <stream> [MAXLEN ~ n] <offset + 1>-<sub>
         op <op> table <schema.table> id <event id> [key <key>] event <document>

`sub` is 0, or counts the events that processors made of one.

Ids must rise in a stream, so all of a batch comes in one lane and is sent in the order of its offsets. Commands go in
transactions (MULTI), one after the other: were an event refused (OOM) and a later one taken, the stream could never
take the first again. After a crash the stream's own last id says where to go on (`resume`). With `appendonly
yes` and `appendfsync always` an answered XADD is on disk; otherwise a crash of Redis may lose the last second.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from tidemill.contracts import BaseSink, Capabilities, Check, Format, Place, SinkConfig
from tidemill.errors import DeliveryError, Poisoned, Refused
from tidemill.model.block import Block, Op
from tidemill.model.columns import Ints
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.derived import sub_ordinals
from tidemill.model.position import Offset
from tidemill.model.template import Template
from tidemill.net.tls import TlsConfig
from tidemill.sinks._shared.encoded import EncodedSinkConfig, encoder, no_headers
from tidemill.sinks._shared.in_order import event_ids, groups
from tidemill.sinks._shared.places import hosts
from tidemill.sinks._shared.routing import check_template, destinations, documents
from tidemill.sinks.redis import commands
from tidemill.sinks.redis.client import RedisAddress, RedisClient
from tidemill.sinks.redis.dead_letter import append
from tidemill.sinks.redis.errors import Overtaken, explain_errors
from tidemill.sinks.redis.resume import Claim, StreamEnds, StreamEvents, note_key, split_identity

_LARGEST = 512 << 20  # proto-max-bulk-len: a server closes the connection on more


class RedisConfig(EncodedSinkConfig):
    uri: str = Field(
        json_schema_extra={"secret": True},
        description="redis://user:password@host:6379/0, rediss:// for TLS, unix://; redis+cluster://host:port,... and "
        "redis+sentinel://host:26379,.../master/0 (rediss+ for TLS; the sentinels' own login as ?sentinel_username=&"
        "sentinel_password=).",
    )
    stream: str = Field(min_length=1, description="Key of the stream, or a template: orders, cdc:${source.table}.")
    format: Literal["json", "avro", "protobuf", "arrow"] = Field(
        default="json", description="Wire format of the entry's `event` and `key`."
    )
    maxlen: int | None = Field(
        default=None,
        ge=1,
        description="Entries to keep, about (MAXLEN ~): older ones go, read or not. All if left out.",
    )
    tls: TlsConfig = Field(default=TlsConfig(), description="Certificates, for rediss://.")
    connect_timeout_seconds: float = Field(default=10.0, gt=0, description="How long connecting may take.")
    timeout_seconds: float = Field(default=30.0, gt=0, description="How long an answer may take before a new try.")

    @field_validator("uri")
    @classmethod
    def _uri_parses(cls, uri: str) -> str:
        RedisAddress.parse(uri)
        return uri

    @field_validator("stream")
    @classmethod
    def _stream_parses(cls, text: str) -> str:
        return check_template(text)

    @model_validator(mode="after")
    def _documents_only(self) -> RedisConfig:
        return no_headers(self)

    def occupies(self) -> tuple[Place, ...]:
        """Ids are offsets and must rise: a second writer's entries are refused, or taken for repeated ones."""
        scheme, _, rest = self.uri.partition("://")
        place, _, path = rest.rpartition("@")[2].partition("?")[0].partition("/")
        where = f"/{path}" if scheme == "unix" else f"{hosts(place.split(','), 6379)}/{path or '0'}"
        return (Place(f"redis://{where}/{self.stream}"),)

    @property
    def where(self) -> str:
        scheme, _, rest = self.uri.partition("://")
        place = f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"  # no login
        return f'sink "{self.id}", {place}'


class RedisSink(BaseSink[RedisConfig]):
    Config: ClassVar[type[SinkConfig]] = RedisConfig
    mechanism: ClassVar[str] = (
        "An entry's id is made of the event's offset: the server refuses a second one, and a replay goes on after the "
        "stream's last id."
    )
    capabilities = Capabilities(single_lane=True, formats=frozenset({"json", "avro", "protobuf", "arrow"}))
    tier: ClassVar[Tier] = Tier.EFFECTIVELY_ONCE
    config: RedisConfig

    def __init__(self, config: RedisConfig) -> None:
        super().__init__(config)
        self._stream = Template(config.stream)
        self._format: Format = encoder(config)
        self._client: RedisClient | None = None
        self._ends: StreamEnds | None = None
        self._sender: ThreadPoolExecutor | None = None

    def write(self, delivery: Delivery) -> Receipt:
        began = time.perf_counter()
        try:
            with explain_errors(self.config.where):
                sending = self._send(delivery)
        except Poisoned:
            self.close()
            raise
        except Refused as error:
            self.close()
            raise Refused(error.what, where=error.where or self.config.where, fix=error.fix) from error
        except DeliveryError:
            self.close()  # replies may still be owed
            raise
        seconds = time.perf_counter() - began - sending.encode_seconds
        return Receipt(
            self.config.id, delivery.lane, sending.events, sending.bytes, sending.skipped,
            encode_seconds=sending.encode_seconds, write_seconds=seconds,
        )  # fmt: skip

    def close(self) -> None:
        if self._sender is not None:
            self._sender.shutdown()
        if self._client is not None:
            self._client.close()
        self._client = self._ends = self._sender = None

    def doctor(self) -> Iterable[Check]:
        from tidemill.sinks.redis.checks import run_checks

        return run_checks(self.config, self._stream)

    def _send(self, delivery: Delivery) -> _RedisDelivery:
        if self._client is None:
            self._client = RedisClient(self.config)
        if self._ends is None:
            self._ends = StreamEnds(self._client.redis, self.config.where, self.config.id)
        if self._sender is None:
            self._sender = ThreadPoolExecutor(1, thread_name_prefix="redis")
        sending = _RedisDelivery(self.config, self._stream, self._format, self._client, self._ends, delivery)
        if delivery.redelivered:
            redis, limit = self._client.redis, self.config.maxlen
            sending.events, sending.bytes = append(redis, self._ends, self._stream, self._format, delivery, limit)
            return sending
        under_way: Future[None] | None = None
        for group in groups(delivery):
            streams, entries, of = sending.encode(group)
            if under_way is not None:
                under_way.result()
            under_way = self._sender.submit(sending.send, streams, entries, of)
        if under_way is not None:
            under_way.result()
        return sending


@dataclasses.dataclass(slots=True)
class _RedisDelivery:
    """One delivery on its way. A group is encoded while another thread sends the one before."""

    config: RedisConfig
    template: Template
    format: Format
    client: RedisClient
    ends: StreamEnds
    delivery: Delivery
    events: int = 0
    bytes: int = 0
    skipped: int = 0
    encode_seconds: float = 0.0
    proven: dict[str, Offset] = dataclasses.field(default_factory=dict)
    first: dict[str, tuple[Offset, str]] = dataclasses.field(default_factory=dict)

    def send(self, streams: list[str], entries: commands.Entries, of: Ints) -> None:
        order = np.argsort(entries.offsets, kind="stable")
        fresh = self._fresh(streams, entries, of, order)
        self.events += len(fresh)
        self.skipped += len(order) - len(fresh)
        place = np.array([self.client.place(stream) for stream in streams], np.int64)[of[fresh]]
        for number in np.unique(place).tolist():
            for rows in entries.transactions(fresh[place == number]):
                self._run(number, streams, entries, of, rows)
        for number, rows in _by_stream(of, fresh):
            self.ends.advance(streams[number], int(entries.offsets[rows[-1]]))

    def _run(self, place: int, streams: list[str], entries: commands.Entries, of: Ints, rows: Ints) -> None:
        """One transaction, in which each stream's note says how far it now is."""
        parts = [(streams[number], some) for number, some in _by_stream(of, rows)]
        notes = [(note_key(stream), str(int(entries.offsets[some[-1]]) + 1)) for stream, some in parts]
        inside = [
            commands.command("HSET", key, "reach", reach) for key, reach in notes if self.client.place(key) == place
        ]
        packed = entries.pack(rows, b"".join(inside))
        self.bytes += len(packed)
        try:
            self.client.wire(place).run(packed, commands.replies(len(rows) + len(inside)))
        except Overtaken:
            for stream, some in parts:
                self.ends.overrun(self.delivery, _observe(stream, entries, some))
            raise
        if len(inside) < len(notes):  # names with odd braces, whose notes a cluster keeps elsewhere
            for key, reach in notes:
                self.client.redis.hset(key, "reach", reach)

    def encode(self, group: list[Block]) -> tuple[list[str], commands.Entries, Ints]:
        """The streams met, the rows as entries, and which stream each row goes to."""
        began = time.perf_counter()
        source, limit = self.delivery.source, self.config.maxlen
        named = [destinations(self.template, block, source) for block in group]
        streams = sorted({name for d in named for name in d.dictionary.to_pylist()})
        number = {name: i for i, name in enumerate(streams)}
        of = np.concatenate(
            [np.array([number[n] for n in d.dictionary.to_pylist()], np.int64)[d.indices.to_numpy()] for d in named]
        )
        encoded = [documents(self.format, block, source, d) for block, d in zip(group, named, strict=True)]
        strings = commands.OptionalStrings.of_array(pa.concat_arrays([values for values, _ in encoded]))
        key_strings = commands.OptionalStrings.of_array(pa.concat_arrays([keys for _, keys in encoded]))
        offsets = np.concatenate([block.offsets() for block in group]).astype(np.int64)
        self._check_sizes(offsets, strings, key_strings)
        kinds = commands.OptionalStrings.of([_kind(block, op) for block in group for op in _OPS])
        kind = [np.int64(len(_OPS) * i - 1) + block.batch.column("op").to_numpy() for i, block in enumerate(group)]
        entries = commands.Entries(
            heads=commands.OptionalStrings.of([commands.head(s, fields, limit) for s in streams for fields in (4, 5)]),
            head=(2 * of + key_strings.there).astype(np.int64),
            kinds=kinds,
            kind=np.concatenate(kind).astype(np.int64),
            offsets=offsets,
            subs=np.concatenate([_subs(block) for block in group]),
            ids=commands.OptionalStrings.of_array(pa.concat_arrays([event_ids(block, source) for block in group])),
            keys=key_strings,
            events=strings,
        )
        self.encode_seconds += time.perf_counter() - began
        return streams, entries, of

    def _fresh(self, streams: list[str], entries: commands.Entries, of: Ints, order: Ints) -> Ints:
        """The rows that are not in their streams yet, in order of their offsets."""
        self.ends.learn(streams)
        last = np.array([self.ends[s] for s in streams], np.int64)
        there = entries.offsets[order] <= last[of[order]]
        claims = {}
        for number, rows in _by_stream(of, order):
            stream = streams[number]
            old = rows[(entries.offsets[rows] <= last[number]) & (entries.offsets[rows] > self.proven.get(stream, -1))]
            if len(old):
                seen = _observe(stream, entries, old)
                self.proven[stream] = self.ends.confirm(self.delivery, seen, noted=stream not in self.first)
            elif stream in self.first:
                continue
            self.first.setdefault(stream, (int(entries.offsets[rows[0]]), _identity(entries, int(rows[0]))))
            claims[stream] = Claim(*self.first[stream], reach=self.proven.get(stream, int(last[number])) + 1)
        if claims:
            self.ends.claim(self.delivery, claims)
        return order[~there]

    def _check_sizes(self, offsets: Ints, *strings: commands.OptionalStrings) -> None:
        large = np.zeros(len(offsets), bool)
        for t in strings:
            large |= t.sizes > _LARGEST
        if large.any():
            reason = "larger than the 512 MB that Redis takes in one piece"
            raise Poisoned({int(o): reason for o in offsets[large]}, where=self.config.where)


_OPS = tuple(Op)


def _subs(block: Block) -> Ints:
    found = sub_ordinals(block)
    return np.zeros(block.rows, np.int64) if found is None else found.astype(np.int64)


def _kind(block: Block, op: Op) -> bytes:
    arguments = (b"op", op.label.encode(), b"table", block.table.full_name.encode(), b"id")
    return b"".join(map(commands.bulk, arguments))


def _by_stream(of: Ints, rows: Ints) -> Iterator[tuple[int, Ints]]:
    """The rows of each stream, in the order they come."""
    numbers = of[rows]
    by = np.argsort(numbers, kind="stable")
    met, starts = np.unique(numbers[by], return_index=True)
    yield from zip(met.tolist(), np.split(rows[by], starts[1:]), strict=False)  # no rows split into one empty part


def _observe(stream: str, entries: commands.Entries, rows: Ints) -> StreamEvents:
    offsets = entries.offsets[rows]

    def identity(offset: Offset) -> str | None:
        at = int(np.searchsorted(offsets, offset))
        return _identity(entries, int(rows[at])) if at < len(rows) and offsets[at] == offset else None

    return StreamEvents(stream, offsets, identity)


def _identity(entries: commands.Entries, row: int) -> str:
    return split_identity(bytes(entries.ids.data[entries.ids.ends[row] : entries.ids.ends[row + 1]]).decode())[0]


component = RedisSink
