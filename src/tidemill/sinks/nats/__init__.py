"""NATS JetStream: one message per event, with the event's identity as `Nats-Msg-Id`.

With `exclusive` (the default) the stream is this sink's alone. Each message then names the sequence and the id that it
follows (`Nats-Expected-Last-Sequence`, `Nats-Expected-Last-Msg-Id`): none can be stored twice, and after one that was
not stored none is. So a window of messages needs an answer only for its first and last, and after a crash the stream's
last message says where to go on.

Without it every message is acknowledged for itself, and the server drops repetitions as long as it remembers ids (its
`duplicate_window`, two minutes unless set); beyond that a replay is delivered again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote

import pyarrow as pa
from pydantic import Field, SecretStr, field_validator, model_validator

from tidemill.contracts import BaseSink, Capabilities, Check, Place, SinkConfig
from tidemill.errors import DeliveryError, Poisoned
from tidemill.model import cloudevents
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.template import Template
from tidemill.net.tls import TlsConfig
from tidemill.sinks._shared.encoded import EncodedSinkConfig, encoder
from tidemill.sinks._shared.in_order import event_ids, groups
from tidemill.sinks._shared.places import hosts
from tidemill.sinks._shared.resume_scheme import fresh_units
from tidemill.sinks._shared.routing import check_template, destinations, documents, routed_headers
from tidemill.sinks.nats import resume as stream
from tidemill.sinks.nats.client import NatsClient
from tidemill.sinks.nats.errors import check

_WINDOW_BYTES = 4 << 20


class NatsConfig(EncodedSinkConfig):
    servers: tuple[str, ...] = Field(
        min_length=1, description="Servers to try: [nats://host:4222]; tls://host:4222 with TLS."
    )
    stream: str = Field(pattern=r"^[^\s.*>/\\]+$", description="Name of the JetStream stream.")
    subject: str = Field(min_length=1, description="Subject, or a template: cdc.${source.schema}.${source.table}.")
    format: Literal["json", "avro", "protobuf", "arrow"] = Field(
        default="json", description="Wire format of a message."
    )
    exclusive: bool = Field(
        default=True,
        description="Nobody else publishes to the stream: every event is there once. Without it only as long as the "
        "stream's duplicate window.",
    )
    create_stream: bool = Field(default=True, description="Whether to create the stream if it is missing.")
    subjects: tuple[str, ...] = Field(
        default=(), description="Subjects of a stream the sink creates; from the subject template if left out."
    )
    replicas: int = Field(default=1, ge=1, le=5, description="Replicas of a stream the sink creates.")
    duplicate_window_seconds: float = Field(
        default=120.0, ge=0.1, description="How long a stream the sink creates remembers message ids."
    )
    max_in_flight: int = Field(default=4096, ge=2, description="Messages sent and not yet acknowledged.")
    user: str | None = Field(default=None, description="User name.")
    password: SecretStr | None = Field(default=None, description="The user's password.")
    token: SecretStr | None = Field(default=None, description="Token, instead of a user.")
    nkey_seed: SecretStr | None = Field(default=None, description="Seed of an nkey (SU...), instead of a user.")
    credentials_file: Path | None = Field(
        default=None, description="A .creds file with JWT and nkey; every worker needs it."
    )
    connect_timeout_seconds: float = Field(default=10.0, gt=0, description="How long connecting may take.")
    timeout_seconds: float = Field(default=30.0, gt=0, description="How long an acknowledgement may take.")
    tls: TlsConfig = Field(default=TlsConfig(), description="Certificates, for tls://.")

    @field_validator("servers")
    @classmethod
    def _servers_have_no_login(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            if not server.startswith(("nats://", "tls://", "ws://", "wss://")):
                raise ValueError("a server is nats://host:4222 or tls://host:4222")
            if "@" in server:
                raise ValueError("the server holds credentials, which would be shown. Use user and password, or token.")
        return servers

    @field_validator("subject")
    @classmethod
    def _subject_parses(cls, text: str) -> str:
        return check_template(text)

    @model_validator(mode="after")
    def _one_login(self) -> NatsConfig:
        given = [self.user, self.token, self.nkey_seed, self.credentials_file]
        if sum(g is not None for g in given) > 1:
            raise ValueError("user, token, nkey_seed and credentials_file are four ways to log in. Give one of them.")
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together. Give both or none.")
        return self

    def occupies(self) -> tuple[Place, ...]:
        return (Place(f"nats://{hosts(self.servers, 4222)}/{self.stream}"),) if self.exclusive else ()

    @property
    def where(self) -> str:
        return f'sink "{self.id}", {", ".join(self.servers)}'


class NatsSink(BaseSink[NatsConfig]):
    Config: ClassVar[type[SinkConfig]] = NatsConfig
    mechanism: ClassVar[str] = (
        "With exclusive, each message names the sequence it follows and a replay goes on after the stream's last "
        "message; without, the server drops repeated message ids within its duplicate window."
    )
    capabilities = Capabilities(single_lane=True, formats=frozenset({"json", "avro", "protobuf", "arrow"}))
    config: NatsConfig

    def __init__(self, config: NatsConfig) -> None:
        super().__init__(config)
        self._subject = Template(config.subject)
        self._format = encoder(config)
        self._client: NatsClient | None = None

    @property
    def tier(self) -> Tier:
        """effectively once with `exclusive` (the default), else at least once"""
        return Tier.EFFECTIVELY_ONCE if self.config.exclusive else Tier.AT_LEAST_ONCE

    def write(self, delivery: Delivery) -> Receipt:
        began = time.perf_counter()
        try:
            if self._client is None:
                self._client = NatsClient(self.config)
            sending = _NatsDelivery(self, self._client, delivery)
            resumption = self._client.run(sending.begin())
            for messages in fresh_units(map(sending.encode, groups(delivery)), resumption):
                self._client.run(sending.send(messages))
            self._client.run(sending.finish())
            resumption.note()
        except BaseException:
            self.close()
            raise
        seconds = time.perf_counter() - began - sending.encode_seconds
        return Receipt(
            self.config.id, delivery.lane, sending.events - sending.dropped, sending.bytes,
            resumption.skipped + sending.dropped,
            encode_seconds=sending.encode_seconds, write_seconds=seconds,
        )  # fmt: skip

    def doctor(self) -> Iterable[Check]:
        from tidemill.sinks.nats.checks import run_checks

        return run_checks(self.config, self._subject)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


class _NatsDelivery:
    """One delivery on its way."""

    def __init__(self, sink: NatsSink, client: NatsClient, delivery: Delivery) -> None:
        self.events = self.bytes = 0
        self.dropped = 0  # of those that were sent: the server knew their ids
        self.encode_seconds = 0.0
        self._config = sink.config
        self._template = sink._subject
        self._format = sink._format
        self._client = client
        self._delivery = delivery
        self._end = stream.End(0)
        self._before = ""  # id of the message that was sent last
        self._under_way: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._sent = self._answered = 0
        self._room = 0

    async def begin(self) -> stream.NatsResumption:
        js, config = self._client.js, self._config
        info = await stream.ensure(js, config, self._template)
        limits = [self._client.nc.max_payload, getattr(info.config, "max_msg_size", -1) or -1]
        self._room = min(limit for limit in limits if limit > 0)
        if config.exclusive:
            if stream.retention(info) != "limits":
                raise stream.unsuited_error(config)
            self._end = await stream.end(js, config, self._delivery, info)
        return stream.NatsResumption(self._client, config, self._delivery, info, self._end)

    def encode(self, group: list[Block]) -> list[stream.Message]:
        """In the order of their places. `Poisoned` for those that are too large."""
        began = time.perf_counter()
        source, mine = self._delivery.source, stream.owner(self._delivery, self._config.id)
        messages = []
        for block in group:
            named = destinations(self._template, block, source)
            subjects = [_subject(text) for text in named.dictionary.to_pylist()]
            payloads, _ = documents(self._format, block, source, named)
            beside = self._format.attributes(block, source)
            extra = _headers(beside, block)
            places = stream.places(block)
            ids = pa.array(event_ids(block, source)).to_pylist()
            for row, number in enumerate(named.indices.to_pylist()):
                headers = {
                    "Nats-Msg-Id": _escape(ids[row].decode()),
                    **stream.place_header(mine, places[row]),
                    "Nats-Expected-Stream": self._config.stream,
                    **(extra[row] if extra else {}),
                }
                if self._delivery.redelivered and places[row] <= self._end.place:
                    # It comes after later events: how far the stream is must still be seen from its last message.
                    headers |= {**stream.place_header(mine, self._end.place), stream.REACHED: self._end.identity}
                messages.append((places[row], subjects[number], payloads[row].as_py(), headers))
        messages.sort(key=lambda message: message[0])
        self._check_sizes(messages)
        self.encode_seconds += time.perf_counter() - began
        return messages

    async def send(self, fresh: list[stream.Message]) -> None:
        # What is sent again may still be remembered by its id: it is dropped then, and no sequence follows it.
        exclusive = self._config.exclusive and not self._delivery.redelivered
        window = self._config.max_in_flight // 2
        at = size = 0
        for number, (_, subject, payload, headers) in enumerate(fresh):
            if exclusive:
                headers["Nats-Expected-Last-Sequence"] = str(self._end.sequence + self.events)
                if self._before:  # else a sequence that others reached meanwhile would look like ours
                    headers["Nats-Expected-Last-Msg-Id"] = self._before
                self._before = headers["Nats-Msg-Id"]
            size += len(payload)
            ends = number == len(fresh) - 1 or number - at == window - 1 or size >= _WINDOW_BYTES
            answered = not exclusive or number == at or ends
            answer = await self._client.publish(subject, payload, headers, answered=answered)
            self.events += 1
            self.bytes += len(payload)
            if answer is not None:
                self._under_way.append((self.events, answer))
            if ends:
                await self._settle(self._config.max_in_flight // 2)
                at, size = number + 1, 0

    async def finish(self) -> None:
        await self._settle(0)

    async def _settle(self, left: int) -> None:
        """Waits until at most so many messages are without an answer."""
        while self._under_way and self.events - self._answered > left:
            count, answer = self._under_way.popleft()
            answered = await self._client.wait(answer)
            try:
                duplicate = check(answered, self._config.where)
            except DeliveryError:
                await self._await_answers()
                raise
            self._answered = count
            if duplicate and self._config.exclusive and not self._delivery.redelivered:
                raise DeliveryError(
                    "the stream still remembers ids of events that were removed from it", where=self._config.where,
                    fix="It goes on when the stream's duplicate window is over.",
                )  # fmt: skip
            self.dropped += duplicate

    async def _await_answers(self) -> None:
        """One message was refused. Those sent after it are taken or refused before the next try looks at the stream's
        end: it would be overtaken by them."""
        if self._under_way:
            await asyncio.wait([answer for _, answer in self._under_way], timeout=self._config.timeout_seconds)

    def _check_sizes(self, messages: list[stream.Message]) -> None:
        large = {}
        for place, _, payload, headers in messages:
            beside = 64 + sum(len(name) + len(value) + 4 for name, value in headers.items())
            if len(payload) + beside > self._room:
                large[stream.offset_of(place)] = (
                    f"larger than the {self._room} bytes that the server or the stream takes"
                )
        if large:
            fix = "Raise max_payload of the server, or max_msg_size of the stream."
            raise Poisoned(large, where=self._config.where, fix=fix)


def _subject(text: str) -> str:
    """Spaces and wildcards have no place in a subject; empty tokens neither."""
    tokens = ["".join("_" if c.isspace() or c in "*>" else c for c in token) for token in text.split(".")]
    return ".".join(token or "_" for token in tokens)


def _headers(beside: Any, block: Block) -> list[dict[str, str]]:
    """Headers that a processor gave, and CloudEvents attributes (the NATS binding: `ce-` before each name, that of the
    content's type too), by row."""
    given = {_header_name(name): values.to_pylist() for name, values in routed_headers(block).items()}
    if not beside and not given:
        return []
    fixed = {f"ce-{name}": cloudevents.header(value) for name, value in beside.items() if isinstance(value, str)}
    lists = {f"ce-{name}": value.to_pylist() for name, value in beside.items() if not isinstance(value, str)}
    lists |= given
    return [
        fixed | {name: cloudevents.header(values[row]) for name, values in lists.items() if values[row]}
        for row in range(block.rows)
    ]


def _header_name(text: str) -> str:
    """One that cannot end a header or be one of the server's own."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in text)
    return f"_{name}" if name.lower().startswith("nats-") else name


def _escape(text: str) -> str:
    return quote(text, safe=" !#$&'()*+,;=:/?@[]{}|^`<>~-._")


component = NatsSink
