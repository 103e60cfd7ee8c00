"""A message queue in PostgreSQL: events as messages that consumer groups pull, hold for a while, and ack.

Messages stand in one table, numbered per stream in the order of their commit, so that a consumer's cursor misses none.
The event's identity is unique there: a message is never in a stream twice. Consumers use `Client`, the command
`tidemill stream`, or the SQL functions of the queue's schema (`tables`): docs/sinks/pgstream.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, field_validator

from tidemill.contracts import BaseSink, Capabilities, Check, Config, Format, Place, SinkConfig
from tidemill.errors import DeliveryError
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.template import Template
from tidemill.sinks._shared.encoded import EVERY_FORMAT, EncodedSinkConfig, check_registry, encoder
from tidemill.sinks._shared.in_order import groups
from tidemill.sinks._shared.pg_client import PostgresTarget, address, connect, explain_errors
from tidemill.sinks._shared.places import database
from tidemill.sinks._shared.resume_scheme import fresh_units
from tidemill.sinks._shared.routing import check_template
from tidemill.sinks.pgstream import tables as queue
from tidemill.sinks.pgstream.consumer import Claimed, Client, Group, Message
from tidemill.sinks.pgstream.resume import PlanChanged, Positions
from tidemill.sinks.pgstream.write import PgstreamDelivery
from tidemill.telemetry.events import warn

if TYPE_CHECKING:
    from tidemill.sinks._shared.pg_client import Connection

__all__ = ["Claimed", "Client", "Group", "Message", "PgstreamConfig", "PgstreamSink"]

_TURNS = 5


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
        return check_template(text)

    def occupies(self) -> tuple[Place, ...]:
        """An event is in a stream once, whichever sink of the pipeline brings it."""
        where = database(self.dsn)
        place = Place(f"pgstream://{where}/{self.queue_schema}/{self.stream}", per_pipeline=True)
        return (place,) if where else ()


class PgstreamSink(BaseSink[PgstreamConfig]):
    Config: ClassVar[type[SinkConfig]] = PgstreamConfig
    mechanism: ClassVar[str] = (
        "The event's identity is a unique key, and the record of what was delivered is in the same transaction."
    )
    # One lane: messages are numbered in the order of their offsets.
    capabilities = Capabilities(single_lane=True, formats=EVERY_FORMAT)
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
        with explain_errors(self._where):
            for turn in range(_TURNS):
                positions.settle(delivery)
                try:
                    with db.transaction():
                        resumption = positions.begin(delivery)
                        work = PgstreamDelivery(self.config, self._stream, self._format, db, delivery)
                        with ThreadPoolExecutor(1, thread_name_prefix="pgstream") as sender:
                            for group in groups(delivery):
                                if blocks := list(fresh_units(group, resumption)):
                                    work.send(blocks, sender)
                            work.wait()
                        work.finish()
                        resumption.note()
                    break
                except PlanChanged:
                    if turn == _TURNS - 1:
                        raise
        seconds = time.perf_counter() - began - work.encode_seconds
        if time.monotonic() - self._swept >= self.config.retention.every_seconds:
            self._sweep(db)
        return Receipt(
            self.config.id, delivery.lane, work.events, work.bytes, resumption.skipped + work.known,
            encode_seconds=work.encode_seconds, write_seconds=seconds,
        )  # fmt: skip

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    def doctor(self) -> Iterable[Check]:
        from tidemill.sinks.pgstream.checks import run_checks

        yield from run_checks(self.config, self._where)
        yield from check_registry(self.config)

    def _connection(self) -> Connection:
        if self._db is None or self._db.closed:
            self._db = connect(self.config, self._where)
            with explain_errors(self._where):
                queue.install(self._db, self.config.queue_schema)
                positions = Positions(
                    self._db, self.config.queue_schema, self.config.id, rewind="apply", where=self._where
                )
                positions.create()
        return self._db

    def _sweep(self, db: Connection) -> None:
        """After the delivery, which is durable by now: it does not fail for this. What is not removed this time is
        removed the next."""
        from tidemill.sinks.pgstream.consumer import sweep

        self._swept = time.monotonic()
        limits = self.config.retention
        try:
            with explain_errors(self._where):
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


component = PgstreamSink
