"""What was delivered, kept in the target database and changed in the transaction that delivers it.

The table `tidemill_positions` has a line per pipeline, sink and lane with the lane's last record (`resume`), and
one line with lane -1: the plan (bounds and lanes of the batch) that is being delivered. Every delivery holds a
share lock on that line. A delivery of another plan must change the line, and so waits until deliveries of the plan
before it have ended, also those of a worker that everybody believed dead; then it reads what they recorded. The line
also has the plan's epoch: a worker that wakes up late finds a later one, or a batch that begins after its own, and is
refused, whatever `rewind` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import orjson
from pydantic import Field

from tidemill.contracts import SinkConfig
from tidemill.errors import DeliveryError, Refused
from tidemill.model.delivery import Delivery, Epoch
from tidemill.sinks._shared.pg_client import PostgresTarget
from tidemill.sinks._shared.resume import Delivered, RecordedResumption, ShareRecord, superseded_error

if TYPE_CHECKING:
    from psycopg import sql

    from tidemill.sinks._shared.pg_client import Connection

Rewind = Literal["refuse", "apply"]

_CREATE = """
CREATE TABLE IF NOT EXISTS {table} (
    pipeline text NOT NULL,
    sink text NOT NULL,
    lane integer NOT NULL,
    chunk integer NOT NULL DEFAULT 0,
    lanes integer NOT NULL,
    start_offset bigint NOT NULL,
    end_offset bigint NOT NULL,
    record bytea,
    written_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, sink, lane, chunk)
)
"""


class StateConfig(SinkConfig, PostgresTarget):
    """Base of sinks that keep their position in the target database."""

    state_schema: str = Field(
        default="public", min_length=1, description="Schema of the sink's own tables; made if missing."
    )


class Positions:
    """One per connection. `begin` is called inside the delivery's transaction, `commit` just before it ends."""

    def __init__(self, db: Connection, schema: str, sink: str, *, rewind: Rewind, where: str) -> None:
        self._db = db
        self._table = _qualify(schema, "tidemill_positions")
        self._schema = schema
        self._sink = sink
        self._rewind = rewind
        self._where = where

    def create(self, *more: sql.Composed) -> None:
        """This table, and what else the sink keeps. Idempotent, and safe when many workers do it at once."""
        from psycopg import sql

        if self._exists():
            return
        with self._db.transaction():
            self._db.execute("SELECT pg_advisory_xact_lock(hashtextextended('tidemill', 0))")
            if not self._db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self._schema]).fetchone():
                self._db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._schema)))
            self._db.execute(sql.SQL(_CREATE).format(table=self._table))
            for statement in more:
                self._db.execute(statement)

    def settle(self, delivery: Delivery) -> None:
        """Makes this delivery's plan the current one, in a transaction of its own. Before `begin`."""
        if delivery.redelivered:
            return
        plan, epoch = _plan(delivery), _encode(delivery.epoch)
        if self._current(delivery, "") == (plan, epoch):
            return
        from psycopg import sql

        with self._db.transaction():
            # Waits for deliveries of another plan, never for those of this one: they change nothing about it.
            found = self._current(
                delivery,
                "AND (start_offset, end_offset, lanes, coalesce(record, '')) <> (%s, %s, %s, %s) FOR UPDATE",
                *plan, epoch,
            )  # fmt: skip
            if found is None:
                insert = sql.SQL(
                    "INSERT INTO {} (pipeline, sink, lane, lanes, start_offset, end_offset, record) "
                    "VALUES (%s, %s, -1, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
                ).format(self._table)
                values = [delivery.pipeline, self._sink, delivery.lanes, delivery.start, delivery.end, epoch]
                self._db.execute(insert, values)
                return
            other, theirs = found[0], _read(found[1])
            if theirs and delivery.epoch and delivery.epoch.superseded(delivery.start, theirs, other[0]):
                raise superseded_error(delivery, other[0], self._where)
            if other[0] > delivery.start:
                if self._rewind == "refuse":
                    return  # `begin` says so
                # Older events come again on purpose: what was delivered after them comes again too.
                forget = sql.SQL("DELETE FROM {} WHERE pipeline = %s AND sink = %s AND lane <> -1").format(self._table)
                self._db.execute(forget, [delivery.pipeline, self._sink])
            update = sql.SQL(
                "UPDATE {} SET start_offset = %s, end_offset = %s, lanes = %s, record = %s, written_at = now() "
                "WHERE pipeline = %s AND sink = %s AND lane = -1"
            ).format(self._table)
            self._db.execute(update, [*plan, epoch, delivery.pipeline, self._sink])

    def begin(self, delivery: Delivery) -> PostgresResumption:
        """Inside the transaction: holds the plan still, and knows what of it is delivered already. A dead letter that
        is sent again is no part of any plan: it is taken as it comes, and leaves the positions alone."""
        if delivery.redelivered:
            return PostgresResumption(self, delivery, Delivered())
        found = self._current(delivery, "FOR SHARE")
        if found is None or found != (_plan(delivery), _encode(delivery.epoch)):
            if found is not None and found[0][0] > delivery.start and self._rewind == "refuse":
                raise Refused(
                    f"events come again from offset {delivery.start}, but the target has the batch from "
                    f"{found[0][0]} on",
                    where=self._where,
                    fix="A worker of an earlier run may have woken up late: then nothing is to do. If the checkpoint"
                    " was moved back or the state was lost on purpose, set rewind: apply.",
                )
            raise PlanChanged("another worker changed the plan at the same time", where=self._where)
        # The same lane may be under way twice (a task that Spark believed lost): one after the other.
        self._db.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
            [f"tidemill/{delivery.pipeline}/{self._sink}/{delivery.lane}"],
        )
        # Only records of this very batch are read: there are none unless it is a replay.
        return PostgresResumption(self, delivery, self._load(delivery))

    def save(self, delivery: Delivery, records: dict[str, ShareRecord]) -> None:
        from psycopg import sql

        statement = sql.SQL(
            "INSERT INTO {} (pipeline, sink, lane, chunk, lanes, start_offset, end_offset, record) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (pipeline, sink, lane, chunk) DO UPDATE "
            "SET lanes = EXCLUDED.lanes, start_offset = EXCLUDED.start_offset, end_offset = EXCLUDED.end_offset, "
            "record = EXCLUDED.record, written_at = now()"
        ).format(self._table)
        for key, record in records.items():
            chunk = int(key.rpartition("/")[2])
            values: list[Any] = [
                delivery.pipeline, self._sink, delivery.lane, chunk, delivery.lanes, record.start, record.end,
                record.encode(),
            ]  # fmt: skip
            self._db.execute(statement, values)
        self._db.execute(
            sql.SQL("DELETE FROM {} WHERE pipeline = %s AND sink = %s AND lane = %s AND chunk >= %s").format(
                self._table
            ),
            [delivery.pipeline, self._sink, delivery.lane, len(records)],
        )

    def _current(self, delivery: Delivery, more: str, *values: int | bytes) -> tuple[tuple[int, ...], bytes] | None:
        """The plan and its epoch, as it is written."""
        from psycopg import sql

        row = self._db.execute(
            sql.SQL(
                "SELECT start_offset, end_offset, lanes, coalesce(record, '') FROM {} "
                "WHERE pipeline = %s AND sink = %s AND lane = -1 {}"
            ).format(self._table, sql.SQL(more)),
            [delivery.pipeline, self._sink, *values],
        ).fetchone()
        return None if row is None else ((int(row[0]), int(row[1]), int(row[2])), bytes(row[3]))

    def _load(self, delivery: Delivery) -> Delivered:
        from psycopg import sql

        rows = self._db.execute(
            sql.SQL(
                "SELECT lane, chunk, record FROM {} WHERE pipeline = %s AND sink = %s AND lane <> -1 "
                "AND start_offset <= %s AND end_offset > %s"
            ).format(self._table),
            [delivery.pipeline, self._sink, delivery.start, delivery.start],
        ).fetchall()
        return Delivered({f"{lane}/{chunk}": ShareRecord.decode(record) for lane, chunk, record in rows})

    def _exists(self) -> bool:
        found = self._db.execute(
            "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'tidemill_positions'", [self._schema]
        )
        return found.fetchone() is not None


class PlanChanged(DeliveryError):
    """Two plans of one batch at the same time; whoever comes again sees what the other delivered."""

    code = "plan-changed"


class PostgresResumption(RecordedResumption):
    """One delivery's transaction: which events are new, and the note of them in the same transaction."""

    def __init__(self, positions: Positions, delivery: Delivery, delivered: Delivered) -> None:
        super().__init__(delivery, str(delivery.lane), delivered)
        self._positions = positions

    def note(self) -> None:
        if self.events and not self._delivery.redelivered:
            self._positions.save(self._delivery, self.records)


def _plan(delivery: Delivery) -> tuple[int, ...]:
    return delivery.start, delivery.end, delivery.lanes


def _encode(epoch: Epoch | None) -> bytes:
    return orjson.dumps([epoch.version, epoch.since]) if epoch else b""


def _read(text: bytes) -> Epoch | None:
    return Epoch(*orjson.loads(text)) if text else None


def _qualify(schema: str, name: str) -> sql.Identifier:
    from psycopg import sql

    return sql.Identifier(schema, name)
