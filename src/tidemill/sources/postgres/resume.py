"""The replication slot: read its state, make it, and decide from where it can be read without a gap.

The slot is the only thing that keeps the server from throwing away what we have not delivered. It is never dropped
here, and never made anew once a position is known: that would jump over changes (invariant 7).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from tidemill.errors import ConnectionLost, PositionLost, SetupError
from tidemill.model.position import Position
from tidemill.sources.postgres import errors
from tidemill.sources.postgres.lsn import format_lsn, parse_lsn
from tidemill.telemetry import events

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig


@dataclass(frozen=True, slots=True)
class ReplicationSlot:
    """A row of pg_replication_slots. `holder` is the application name of the session that reads it."""

    plugin: str
    database: str
    active_pid: int | None
    holder: str
    restart: int
    confirmed: int
    wal_status: str
    lost_because: str
    retained_bytes: int
    safe_bytes: int | None

    @property
    def lost(self) -> bool:
        return self.wal_status == "lost" or bool(self.lost_because)


def read(db: psycopg.Connection, name: str) -> ReplicationSlot | None:
    version = db.info.server_version
    reason = "s.invalidation_reason" if version >= 170000 else ("CASE WHEN s.conflicting THEN 'conflict' END"
                                                               if version >= 160000 else "NULL")  # fmt: skip
    row = db.execute(
        f"""
        SELECT s.plugin, s.database, s.active_pid, a.application_name, s.restart_lsn::text, s.confirmed_flush_lsn::text,
               s.wal_status, {reason}, pg_wal_lsn_diff({_NOW}, s.restart_lsn)::bigint, s.safe_wal_size
        FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
        WHERE s.slot_name = %s
        """.encode(),
        [name],
    ).fetchone()
    if row is None:
        return None
    plugin, database, pid, holder, restart, confirmed, status, because, retained, safe = row
    return ReplicationSlot(
        plugin or "", database or "", pid, holder or "", parse_lsn(restart or "0/0"), parse_lsn(confirmed or "0/0"),
        status or "", because or "", retained or 0, safe,
    )  # fmt: skip


_NOW = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"


def in_recovery(db: psycopg.Connection) -> bool:
    row = db.execute("SELECT pg_is_in_recovery()").fetchone()
    return bool(row and row[0])


def wal_end(db: psycopg.Connection) -> int:
    """How far the server's WAL reaches now."""
    row = db.execute(f"SELECT ({_NOW})::text".encode()).fetchone()
    return parse_lsn(row[0]) if row and row[0] else 0


def create(db: psycopg.Connection, config: PostgresConfig) -> None:
    """Waits for transactions that are open now: the slot begins where all of them have ended."""
    more = ", false, %s" if db.info.server_version >= 170000 else ""
    call = f"SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false{more})"
    db.execute("SELECT set_config('statement_timeout', %s, false)", [str(int(config.setup_timeout_seconds * 1000))])
    try:
        with errors.translate(config.where, errors.NoReplicationPrivilege, errors.privilege_error("").fix):
            db.execute(call.encode(), [config.slot_name, *([config.failover] if more else [])])
    except errors.ServerBusy as error:
        oldest = db.execute(
            "SELECT pid, xact_start::text FROM pg_stat_activity"
            " WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1"
        ).fetchone()
        who = f"The oldest is of process {oldest[0]}, open since {oldest[1]}." if oldest else ""
        raise errors.ServerBusy(
            f'the slot "{config.slot_name}" could not be made: it waits for open transactions to end',
            where=config.where,
            fix=f"Let them end, or raise setup_timeout_seconds. {who}".strip(),
        ) from error
    finally:
        db.execute("SELECT set_config('statement_timeout', '0', false)")


def verify(db: psycopg.Connection, slot: ReplicationSlot, config: PostgresConfig) -> None:
    """The slot is of our kind, still has its WAL, and nobody else reads it."""
    name = config.slot_name
    if slot.lost:
        because = f" ({slot.lost_because})" if slot.lost_because else ""
        raise errors.SlotLost(
            f'replication slot "{name}" was invalidated{because}: the WAL it needs was removed',
            where=f"{config.where}, last acknowledged {format_lsn(slot.confirmed)}",
            fix=f"{errors.RECOVER} Raise max_slot_wal_keep_size to keep more.",
        )
    if (slot.plugin, slot.database) != ("pgoutput", db.info.dbname):
        raise errors.SlotMismatch(
            f'replication slot "{name}" is of plugin "{slot.plugin}" in database "{slot.database}",'
            f' not of "pgoutput" in "{db.info.dbname}"',
            where=config.where,
            fix="Choose another name for `slot`.",
        )
    if slot.active_pid is not None and slot.holder != config.application_name:
        raise _in_use(slot, config)


def wait_until_free(db: psycopg.Connection, config: PostgresConfig, *, take_over: bool = False) -> None:
    """Our own connection of a moment ago may still hold the slot, until the server notices that it is gone. With
    `take_over` it is that of a process which may not go on: it is ended, because a server notices a host that is cut
    off only after wal_sender_timeout."""
    deadline = time.monotonic() + (
        config.slot_wait_seconds if config.slot_wait_seconds is not None else _sender_timeout(db) + 5
    )
    ended: int | None = None
    while (slot := read(db, config.slot_name)) is not None and slot.active_pid is not None:
        if slot.holder != config.application_name or time.monotonic() >= deadline:
            raise _in_use(slot, config)
        if take_over and slot.active_pid != ended:
            ended = slot.active_pid
            with suppress(psycopg.errors.InsufficientPrivilege):  # of another role: then it is waited for
                db.execute("SELECT pg_terminate_backend(%s)", [ended])
                events.warn("source.predecessor_ended", slot=config.slot_name, process=ended)
        time.sleep(0.1)


def _in_use(slot: ReplicationSlot, config: PostgresConfig) -> errors.SlotInUse:
    return errors.SlotInUse(
        f'replication slot "{config.slot_name}" is in use by process {slot.active_pid} ("{slot.holder}")',
        where=config.where,
        fix=errors.IN_USE_FIX,
    )


def _sender_timeout(db: psycopg.Connection) -> float:
    row = db.execute("SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'").fetchone()
    return row[0] / 1000 if row and row[0] else 60.0


def first_position(slot: ReplicationSlot, wanted: str, end: int, config: PostgresConfig) -> int:
    """Where a source begins that has no position yet: `earliest` is all that the slot has, `latest` is from now."""
    match wanted:
        case "earliest":
            return slot.confirmed
        case "latest":
            return max(slot.confirmed, end)
    lsn = parse_lsn(wanted)
    if not slot.confirmed <= lsn <= end:
        raise SetupError(
            f'start_position {wanted} is not in what slot "{config.slot_name}" has:'
            f" {format_lsn(slot.confirmed)} to {format_lsn(end)}",
            where=config.where,
            fix="Choose a position in that range, `earliest` or `latest`.",
        )
    return lsn


def resume(slot: ReplicationSlot, after: Position, confirmed: Position | None, end: int, config: PostgresConfig) -> int:
    """Where to go on after `after`, or `PositionLost` if the slot no longer has what follows it.

    The server begins at the slot's confirmed position whatever we ask for. So that must not be past `after`, unless
    we confirmed it ourselves (`confirmed`): an idle source is acknowledged beyond its last change.
    """
    known = max(parse_lsn(after), parse_lsn(confirmed) if confirmed else 0)
    if slot.confirmed > known:
        raise PositionLost(
            f'replication slot "{config.slot_name}" stands at {format_lsn(slot.confirmed)}, past our last position'
            f" {format_lsn(known)}: someone else has read or made it anew",
            where=config.where,
            fix=errors.RECOVER,
        )
    if parse_lsn(after) > end:
        raise PositionLost(
            f"our last position {after} is beyond the end of the server's WAL, {format_lsn(end)}:"
            " this is another server, or it was restored from a backup",
            where=config.where,
            fix=f"Check the dsn. If the server was restored: {errors.RECOVER}",
        )
    return max(parse_lsn(after), slot.confirmed)


def wait_for_standby(end: int, known: Position, remembered: int, config: PostgresConfig) -> None:
    """`ConnectionLost`, which is tried again, while a standby has not come to what we have and remember."""
    if max(parse_lsn(known), remembered) > end:
        raise ConnectionLost(
            f"the standby has come to {format_lsn(end)}, not yet to our last position {known}",
            where=config.where,
            fix="It is tried again. If that repeats, the standby does not follow its primary.",
        )
