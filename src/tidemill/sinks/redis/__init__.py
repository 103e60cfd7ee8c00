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
from collections.abc import Iterable
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
from tidemill.sinks.redis.resume import RedisResumption, StreamEnds, StreamEvents, reach_notes

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
            self.config.id, delivery.lane, sending.events, sending.bytes, sending.resumption.skipped,
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
        sending = _RedisDelivery(
            self.config, self._stream, self._format, self._client, self._ends, delivery,
            RedisResumption(self._ends, delivery),
        )  # fmt: skip
        if delivery.redelivered:
            redis, limit = self._client.redis, self.config.maxlen
            sending.events, sending.bytes = append(redis, self._ends, self._stream, self._format, delivery, limit)
            return sending
        under_way: Future[None] | None = None
        for group in groups(delivery):
            encoded = sending.encode(group)
            if under_way is not None:
                under_way.result()
            under_way = self._sender.submit(sending.send, encoded)
        if under_way is not None:
            under_way.result()
        sending.resumption.note()
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
    resumption: RedisResumption
    events: int = 0
    bytes: int = 0
    encode_seconds: float = 0.0

    def send(self, group: commands.EncodedGroup) -> None:
        fresh = self.resumption.fresh(group)
        if fresh is None:
            return
        self.events += len(fresh.rows)
        place = np.array([self.client.place(stream) for stream in fresh.streams], np.int64)[fresh.of[fresh.rows]]
        for number in np.unique(place).tolist():
            for rows in fresh.entries.transactions(fresh.rows[place == number]):
                self._run(number, fresh.of_rows(rows))
        for stream, rows in fresh.by_stream():
            self.ends.advance(stream, int(fresh.entries.offsets[rows[-1]]))

    def _run(self, place: int, sent: commands.EncodedGroup) -> None:
        """One transaction, in which each stream's note says how far it now is."""
        rows, notes = sent.rows, reach_notes(sent)
        inside = [
            commands.command("HSET", key, "reach", reach) for key, reach in notes if self.client.place(key) == place
        ]
        packed = sent.entries.pack(rows, b"".join(inside))
        self.bytes += len(packed)
        try:
            self.client.wire(place).run(packed, commands.replies(len(rows) + len(inside)))
        except Overtaken:
            for stream, some in sent.by_stream():
                self.ends.overrun(self.delivery, StreamEvents.of(stream, sent.entries, some))
            raise
        if len(inside) < len(notes):  # names with odd braces, whose notes a cluster keeps elsewhere
            for key, reach in notes:
                self.client.redis.hset(key, "reach", reach)

    def encode(self, group: list[Block]) -> commands.EncodedGroup:
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
        return commands.EncodedGroup(streams, entries, of, np.argsort(offsets, kind="stable"))

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


component = RedisSink
