"""PostgreSQL 14 to 18 through logical replication (pgoutput).

The capture loop calls it:

    source.setup(after, schemas)             once per process; idempotent
    source.open(after, schemas)              connects; again after ConnectionLost
    source.changes(wait)                     what came, decoded
    source.due(delivered)                    what may be confirmed to the server now
    source.acknowledge(position)             only what a checkpoint covers (invariant 2)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tidemill.contracts import ByteStreamSource, Check, Notice, Passage, Resting, Schemas
from tidemill.decoders.pgoutput import WITNESS, PgOutputDecoder, Relation, StreamPlace
from tidemill.errors import ConnectionLost, RegistryError, TidemillError
from tidemill.model.columns import Ints
from tidemill.model.position import Ordering, Position
from tidemill.model.table import Table
from tidemill.sources.postgres import ddl_trigger, identity, resume, setup, skip
from tidemill.sources.postgres import stream as wire
from tidemill.sources.postgres.announced import AnnouncedTables
from tidemill.sources.postgres.catalog import RelationCatalog
from tidemill.sources.postgres.checks import run_checks
from tidemill.sources.postgres.client import Endpoint, connect, login
from tidemill.sources.postgres.config import PostgresConfig
from tidemill.sources.postgres.errors import RECOVER, DecodingFailed, SlotLost, translate
from tidemill.sources.postgres.lsn import compare_lsn, format_lsn, parse_lsn
from tidemill.sources.postgres.numbering import TableNumbering
from tidemill.sources.postgres.publication import triggers, watch
from tidemill.sources.postgres.schema_statements import SchemaStatements
from tidemill.sources.postgres.snapshot import PostgresSnapshotReader, reader_of
from tidemill.sources.postgres.witness import SLACK_BYTES, Ask, WalWitness, identify, place
from tidemill.telemetry import events

__all__ = ["PostgresConfig", "PostgresSource", "component"]

_LONGEST_SILENCE, _HASTE_SECONDS = 3600.0, 0.2


class PostgresSource(ByteStreamSource[PostgresConfig, PgOutputDecoder]):
    """One stream of one database. For one thread."""

    Config = PostgresConfig
    takes_over = False

    def __init__(self, config: PostgresConfig) -> None:
        super().__init__(config)
        self.catalog = RelationCatalog(lambda: connect(config), config.where)
        self._watch = watch.PublicationWatch(config)
        self.slot_bytes, self.note_copied = self._watch.slot_bytes, self._watch.note_copied
        self._numbering = TableNumbering(config, self.catalog, lambda: connect(config))
        self._stream: wire.WalConnection | None = None
        self._flushed = 0  # what the caller acknowledged
        self._confirmed = 0  # what the server already has as confirmed
        self._wal_end = 0  # how far the server says it has sent
        self._reported = self._heard = self._confirmed_at = 0.0
        self._silence = self._first_silence = config.heartbeat_seconds + config.network_timeout_seconds
        self._farthest = 0  # acknowledged over any connection
        self._witness: WalWitness | None = None
        self._reached = 0  # what the server could forget if nothing had to be remembered
        self._noted_at = self._emitted_at = self._hastened_at = 0.0
        self._may_emit, self._streams = False, config.streaming
        self._decoded = 0  # the end of the last transaction that came over this connection
        self._announced: AnnouncedTables | None = None
        self.began = Position("")

    def setup(self, after: Position | None = None, schemas: Schemas | None = None) -> setup.PreparedPostgres:
        """Makes the database ready; a second call changes nothing.

        With `after` (a position we already have), a missing slot or publication is an error: a new one would skip
        what happened since (invariant 7). Before that, another server than the one of `schemas` is one.
        """
        did: list[str] = []
        with connect(self.config) as db:

            def before_slot() -> None:
                did.extend(triggers.ensure(db, self.config, self._watch, schemas))  # before the baseline: see there
                if schemas is not None:
                    self._watch.baseline(db, schemas)
                    self._numbering.baseline(db, schemas)

            prepared = setup.prepare(db, self.config, after, schemas, before_slot)
            return replace(prepared, did=(*prepared.did, *did, *triggers.ensure(db, self.config, self._watch, schemas)))

    def trigger_script(self) -> str:
        with connect(self.config) as db:
            return ddl_trigger.script(db.info.server_version)

    def remove_triggers(self) -> list[str]:
        with connect(self.config) as db:
            return ddl_trigger.remove(db, self.config)

    def other_server(self, after: Position, schemas: Schemas) -> str:
        with connect(self.config) as db, translate(self.config.where):
            return identity.other_server(db, schemas.recall)

    def pass_over(
        self, after: Position, through: Position | None, schemas: Schemas, *, confirmed: Position | None
    ) -> Passage:
        if through is not None:
            passage = skip.up_to(self.config, after, through, confirmed)
            place(schemas, parse_lsn(passage.to))  # a transaction need not end there
            return passage
        reader = PostgresSource(self.config.model_copy(update={"streaming": False}))
        try:
            return skip.next_transaction(reader, after, confirmed)
        finally:
            reader.close()

    def accept(self, subject: str, schemas: Schemas) -> tuple[Notice, ...]:
        return watch.accept(schemas, subject)

    def compare(self, a: Position, b: Position) -> Ordering | None:
        return compare_lsn(a, b)

    def renew(self, schemas: Schemas | None = None) -> Position:
        """A new slot in the place of the lost one; tables and publication as `setup` wants them."""
        with connect(self.config) as db, translate(self.config.where):
            slot = resume.read(db, self.config.slot_name)
            if slot is not None:
                resume.wait_until_free(db, self.config, take_over=self.takes_over)
                db.execute("SELECT pg_drop_replication_slot(%s)", [self.config.slot_name])
        begin = Position(self.setup(None, schemas).position)
        if schemas is not None:
            with connect(self.config) as db, translate(self.config.where):
                identity.begin_anew(db, self.config, schemas)
            self._watch.open(schemas)
        return begin

    def open(
        self, after: Position | None, schemas: Schemas, *, confirmed: Position | None = None, mark_events: int = 1000
    ) -> None:
        """Connects (see `start`); tables are numbered as the decoder of this connection meets them."""

        def describe(relation: Relation, types: Mapping[int, str], before: Table | None, place: StreamPlace) -> Table:
            self._watch.hint()
            return self._numbering.number(relation, types, schemas, place, self.began, before)

        def observe(lsn: Ints, end: Ints, xid: Ints, time: Ints, again: bool) -> None:
            witness.observe(lsn, end, xid, time, again)
            self._decoded = int(end[-1])

        self._witness = witness = WalWitness(self.config, schemas)
        statements = SchemaStatements(self.config, self.catalog, schemas)
        by_triggers = self.config.ddl.capture == "trigger"
        self._announced = AnnouncedTables(
            schemas, describe, self._numbering.keep, tells=self.config.ddl.capture != "off",
            by_statements=by_triggers and self._watch.untriggered is None,
            since=triggers.find_since(self.config, self._watch, schemas), oldest=lambda: self._confirmed,
        )  # fmt: skip
        self._decoder = PgOutputDecoder(
            self._announced, self.server_message, observe=observe, messages=self.config.messages,
            mark_events=mark_events, statements=statements.read if by_triggers else None,
        )  # fmt: skip
        self._decoded = 0
        self.began = self.start(after, confirmed, witness)
        self._decoder.resume(parse_lsn(self.began))
        self._watch.begin()

    def snapshot_reader(self) -> PostgresSnapshotReader:
        return reader_of(self.config)

    def reached(self, high: Position, logged: Position) -> bool:
        return parse_lsn(self.reached_position(logged)) >= parse_lsn(high)

    def reached_position(self, logged: Position) -> Position:
        """By commits, which come in the order of the WAL, or by how far an idle server says it has sent."""
        decoder = self.decoder
        return format_lsn(max(self._decoded, decoder.wal_end, parse_lsn(logged)) if decoder.idle else self._decoded)

    def hasten(self, high: Position) -> None:
        """Writes a message, where that is allowed; and asks how far the server is."""
        now = time.monotonic()
        if now - self._hastened_at < _HASTE_SECONDS:
            return
        self._hastened_at = now
        self._emit(now, hurried=True)
        self._report(self._flushed if self._flushed > self._confirmed else 0, ask=True)

    def register(self, tables: Sequence[Table], schemas: Schemas, position: Position) -> list[Table]:
        return self._numbering.register(tables, schemas, position, self.began, self._announced)

    def due(self, delivered: Position | None, *, caught_up: bool) -> Position | None:
        """Answers the server's questions on the way. A caught-up stream moves on to where the server says it has sent
        everything: nothing lies between, so that an idle database need not keep WAL that others write."""
        decoder = self.decoder
        self._watch.check()  # nothing is read while the log is full
        self.keepalive(decoder.wal_end, decoder.reply_requested())
        done = parse_lsn(delivered) if delivered else 0
        idle = caught_up and decoder.idle
        target = max(done, decoder.wal_end) if idle else done
        self._report_if_due()
        if self._witness is not None:
            if decoder.idle:
                self._witness.judge(decoder.wal_end)
            target = self._hold(self._witness, target, done, idle)
        # Also not what the slot was already past when we connected: noted as confirmed, it would be taken back, and the
        # next start would take the slot for one that somebody else moved.
        if target <= max(self._flushed, self._confirmed):
            return None
        if time.monotonic() - self._confirmed_at < self.config.feedback_seconds:
            return None
        self._confirmed_at = time.monotonic()
        return format_lsn(target)

    def _hold(self, witness: WalWitness, target: int, done: int, idle: bool) -> int:
        """How much of `target` may be confirmed, so that the last transaction we remember comes again."""
        self._reached = max(self._reached, target)
        now = time.monotonic()
        if now - self._noted_at >= self.config.feedback_seconds:
            self._noted_at = now
            witness.note()
        if witness.pending:
            return 0
        last = witness.last
        if idle and (last is None or done > last.lsn or target - last.end > SLACK_BYTES):
            self._emit(now)
        if last is None or (not self._may_emit and target - last.end > 16 * SLACK_BYTES):
            return target
        return min(target, last.lsn)

    def _emit(self, now: float, *, hurried: bool = False) -> None:
        """Makes a transaction to remember on a database where there is no other, or one that is waited for."""
        soon = self._emitted_at and now - self._emitted_at < self.config.heartbeat_seconds
        if not self._may_emit or (soon and not hurried):
            return
        self._emitted_at = now
        try:
            self.catalog.emit(WITNESS, self.config.slot_name)
        except ConnectionLost:
            self.catalog.close()
        except TidemillError as error:
            self._may_emit = False
            events.warn("source.no_witness", error=error.what, where=error.where)

    def notices(self) -> tuple[Notice, ...]:
        return self._watch.notices()

    def lag_bytes(self) -> int | None:
        """From what was confirmed to the server to what it says it has sent."""
        return max(0, self._wal_end - max(self._reached, self._flushed, self._confirmed)) if self._stream else None

    def start(
        self, after: Position | None, confirmed: Position | None = None, witness: WalWitness | None = None
    ) -> Position:
        """Connects and streams what was committed after `after`; answers where the stream begins.

        `after` is the end of the log, or the checkpoint; `confirmed` is the last position acknowledged to the server,
        written down before it was sent. Without either, `start_position` decides. With a `witness`, the stream begins
        earlier, and is compared. May be called again at any time.
        """
        self.close()
        config = self.config
        with connect(config) as db, translate(config.where):
            slot = resume.read(db, config.slot_name)
            if slot is None:
                raise SlotLost(f'replication slot "{config.slot_name}" is gone', where=config.where, fix=RECOVER)
            resume.verify(db, slot, config)
            resume.wait_until_free(db, config, take_over=self.takes_over)
            slot = resume.read(db, config.slot_name) or slot  # its last reader may have moved it
            recovering, end = resume.in_recovery(db), resume.wal_end(db)
            known = after or confirmed
            if known is None:
                begin = resume.first_position(slot, config.start_position, end, config)
                if witness is not None:
                    witness.forget()
            else:
                last = witness.last if witness is not None else None
                if recovering:
                    resume.wait_for_standby(end, known, last.end if last else 0, config)
                begin = resume.resume(slot, known, confirmed, end, config)

            def compare(ask: Ask) -> None:
                if witness is not None:
                    witness.meet(identify(ask, recovering=recovering), parse_lsn(known or "0/0"), end, ask)

            sock, unread = login(config, Endpoint.of(db), compare)
            stream = wire.WalConnection(sock, config.where, unread, gather_seconds=config.gather_ms / 1000)
            try:
                first = begin
                if witness is not None:
                    first = witness.rewind(begin, slot.confirmed)
                    self._watch.open(witness.schemas)  # not before the server is known to be the same
                command = wire.start_command(config, first, db.info.server_version, streaming=self._streams)
                stream.begin(command, config.network_timeout_seconds)
            except BaseException:
                stream.close()
                raise
        self._stream = stream
        self._flushed, self._confirmed, self._wal_end = 0, slot.confirmed, begin
        self._reported = self._heard = time.monotonic()
        self._reached, self._may_emit = 0, config.heartbeat_seconds > 0 and not recovering
        return format_lsn(begin)

    def read(self, wait: float = 0.2) -> memoryview:
        """Bytes of the stream not yet consumed: CopyData frames, the last one maybe cut. Empty after a quiet `wait`.

        Holds until the next call. Keeps the connection alive, so call it at least every few seconds (or `acknowledge`).
        """
        stream = self._open_stream()
        self._watch.check()
        self._report_if_due()
        view = stream.read(wait)
        if self.config.heartbeat_seconds and stream.quiet > self._silence:
            silence = self._silence
            # One that is only busy, with a transaction of which we want nothing, begins it anew for the next
            # connection: it gets longer each time, until something comes of it.
            self._silence = max(silence, min(2 * silence, _LONGEST_SILENCE))
            raise ConnectionLost(
                f"the server has sent nothing for {silence:.0f} seconds, although it was asked how far it is",
                where=self.config.where,
                fix="It is made anew. If that repeats, pg_stat_activity says what the server's WAL sender waits for.",
            )
        return view

    def consumed(self, count: int) -> None:
        if count:
            self._heard = time.monotonic()
        self._open_stream().consumed(count)

    def keepalive(self, wal_end: int, reply_requested: bool) -> None:
        """What the decoder saw in keepalives: how far the server has sent, and whether it waits for an answer."""
        self._wal_end = max(self._wal_end, wal_end)
        if reply_requested:
            # The server asks when it is stopping, and does not stop before all it sent is confirmed, which may take
            # as long as a sink is down. An answer without a flush position lets it go by what we received;
            # nothing is lost, since the slot does not move by it.
            self._report(self._flushed if self._flushed > self._confirmed else 0)

    def acknowledge(self, position: Position | None = None) -> None:
        """Everything up to `position` may be forgotten by the server. Sent with the next report; never goes back.

        The caller gives only what a checkpoint covers (invariant 2). Without a position, only keeps the connection
        alive.
        """
        if position is not None:
            self._flushed = max(self._flushed, parse_lsn(position))
            if self._flushed > self._farthest:
                self._farthest, self._silence = self._flushed, self._first_silence
        self._report_if_due()

    def server_message(self, kind: str, body: bytes) -> None:
        """For frames that the decoder meets and that are no data: raises what they mean."""
        try:
            wire.server_message(kind, body, self.config.where)
        except DecodingFailed as error:
            # Seen of 15 to 18: a table that is altered in a savepoint which is rolled back, and again after that,
            # cannot be decoded while the transaction is open. The next connection asks for whole transactions.
            if self._streams:
                self._streams = False
                events.warn("source.streaming_off", error=error.what, where=error.where)
            raise

    def close(self) -> None:
        """Sends the last acknowledgement and hangs up. The slot stays."""
        if self._stream is not None:
            if self._witness is not None:
                with contextlib.suppress(RegistryError):  # what is remembered so far holds as well
                    self._witness.close()
            with contextlib.suppress(ConnectionLost):
                if self._flushed > self._confirmed:
                    self._report(self._flushed)
            self._stream.close()
            self._stream = None
        self.catalog.close()
        self._numbering.close()
        self._watch.close()

    def doctor(self, resting: Resting | None = None) -> Iterable[Check]:
        return run_checks(self.config, resting)

    def _report_if_due(self) -> None:
        now = time.monotonic()
        if now - self._reported >= self.config.feedback_seconds:
            quiet = self.config.heartbeat_seconds and now - self._heard >= self.config.heartbeat_seconds
            self._report(self._flushed, ask=bool(quiet))

    def _report(self, flushed: int, *, ask: bool = False) -> None:
        # Servers before 18 would let a confirmed position go back.
        if flushed <= self._confirmed:
            flushed = self._confirmed if flushed else 0
        self._open_stream().status(max(self._wal_end, flushed), flushed, reply=ask)
        self._reported = time.monotonic()
        self._confirmed = max(self._confirmed, flushed)

    def _open_stream(self) -> wire.WalConnection:
        if self._stream is None:
            raise RuntimeError("start() was not called")
        return self._stream


component = PostgresSource
