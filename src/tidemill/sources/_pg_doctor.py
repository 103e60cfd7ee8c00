"""What `tidemill doctor` says about a PostgreSQL source. Looks only; the checks of the setup are asked one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import psycopg

from tidemill.component import Check, Outcome, Resting
from tidemill.errors import ConfigError, TidemillError
from tidemill.sources import _pg_errors as errors
from tidemill.sources import _pg_setup as setup
from tidemill.sources import _pg_slot, _pg_tables
from tidemill.sources._pg_connect import Endpoint, connect, login
from tidemill.sources._pg_tables import Found

if TYPE_CHECKING:
    from tidemill.sources.postgres import PostgresConfig

_MIB = 1 << 20


def examine(config: PostgresConfig, resting: Resting | None = None) -> Iterator[Check]:
    try:
        db = connect(config)
    except TidemillError as error:
        yield Check("connection", Outcome.FAIL, error.what, error.fix)
        return
    with db:
        yield from _connection(db, config)
        yield _ask("version", f"PostgreSQL {_version(db)}", lambda: setup.check_version(db, config))
        yield _ask("wal_level", "logical", lambda: setup.check_wal_level(db, config))
        yield _ask("privilege", "the role may use replication", lambda: setup.check_privilege(db, config))
        yield from _tables(db, config)
        yield from _slot(db, config, resting)
        yield from _settings(db)
        yield _stream(db, config)


def _ask(name: str, detail: str, question: Callable[[], object]) -> Check:
    try:
        with errors.translated(""):
            question()
    except TidemillError as error:
        return Check(name, Outcome.FAIL, error.what, error.fix)
    return Check(name, Outcome.PASS, detail)


def _connection(db: psycopg.Connection, config: PostgresConfig) -> Iterator[Check]:
    yield Check("connection", Outcome.PASS, f"{db.info.host}:{db.info.port}/{db.info.dbname} as {db.info.user}")
    local = db.info.host.startswith("/") or db.info.host in ("localhost", "127.0.0.1", "::1")
    if db.pgconn.ssl_in_use:
        yield Check("tls", Outcome.PASS, "encrypted")
    elif local:
        yield Check("tls", Outcome.PASS, "not encrypted, but on this machine only")
    else:
        fix = "Set sslmode: verify-full and sslrootcert."
        yield Check("tls", Outcome.WARN, "the connection is not encrypted", fix)


def _version(db: psycopg.Connection) -> str:
    number = db.info.server_version
    return f"{number // 10000}.{number % 10000}"


def _tables(db: psycopg.Connection, config: PostgresConfig) -> Iterator[Check]:
    try:
        with errors.translated(""):
            found = _pg_tables.find(db, config.tables, "")
            publication = setup.Publication.read(db, config.publication_name)
            lacking = [f"{i.schema}.{i.name}" for i in setup.identities(db, found) if not i.usable]
            toasted = _toasted(db, found)
    except (TidemillError, ConfigError) as error:
        yield Check("tables", Outcome.FAIL, error.what, error.fix)
        return
    yield Check("tables", Outcome.PASS, f"{len(found)} found")
    yield _identity(config, lacking)
    if toasted:
        yield Check(
            "large values", Outcome.WARN, f"an update that leaves them alone does not send them: {_few(toasted)}",
            "Sinks with partial updates keep them; for whole rows always, ALTER TABLE ... REPLICA IDENTITY FULL.",
        )  # fmt: skip
    yield _publication(config, publication, found)


def _identity(config: PostgresConfig, lacking: Sequence[str]) -> Check:
    if not lacking:
        return Check("replica identity", Outcome.PASS, "every table has one")
    detail = f"none on {_few(lacking)}"
    if config.replica_identity == "keep":
        return Check("replica identity", Outcome.FAIL, detail, "Add a primary key, or set replica_identity: auto.")
    fix = "The setup will set it to FULL, which logs whole rows; add a primary key to avoid that."
    return Check("replica identity", Outcome.WARN, detail, fix)


def _toasted(db: psycopg.Connection, found: Sequence[Found]) -> list[str]:
    """Columns whose values may be stored out of line, in tables that log only the key of old rows."""
    rows = db.execute(
        """
        SELECT n.nspname || '.' || c.relname || '.' || a.attname
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.oid = ANY (%s) AND c.relreplident IN ('d', 'i') AND a.attnum > 0 AND NOT a.attisdropped
          AND a.attlen = -1 AND a.attstorage IN ('x', 'e') AND (a.atttypmod = -1 OR a.atttypmod > 2000) ORDER BY 1
        """,
        [[t.oid for t in found]],
    )
    return [name for (name,) in rows]


def _publication(config: PostgresConfig, publication: setup.Publication | None, found: Sequence[Found]) -> Check:
    name = config.publication_name
    if publication is None:
        return Check("publication", Outcome.PASS, f'"{name}" does not exist yet, the setup makes it')
    missing = [t.full_name for t in found if not publication.has(t)]
    if publication.via_root != config.publish_via_partition_root and any(t.kind == "p" for t in found):
        fix = "ALTER PUBLICATION ... SET (publish_via_partition_root = ...), or change the configuration."
        return Check("publication", Outcome.FAIL, f'"{name}" differs in publish_via_partition_root', fix)
    if missing:
        return Check("publication", Outcome.WARN, f'"{name}" lacks {_few(missing)}', "The setup will add them.")
    if publication.missing_kinds:
        kinds = ", ".join(publication.missing_kinds)
        return Check(
            "publication", Outcome.WARN, f'"{name}" leaves out {kinds}', "ALTER PUBLICATION ... SET (publish = ...)."
        )
    return Check("publication", Outcome.PASS, f'"{name}" has every table')


def _slot(db: psycopg.Connection, config: PostgresConfig, resting: Resting | None) -> Iterator[Check]:
    name = config.slot_name
    with errors.translated(""):
        slot = _pg_slot.read(db, name)
    if slot is None and resting is not None:
        yield Check("slot", Outcome.FAIL, f'"{name}" is gone, and what followed {resting.after} with it', errors.RESYNC)
        return
    if slot is None:
        yield _ask("slot", f'"{name}" does not exist yet, and there is room for it',
                   lambda: setup.check_free_slot(db, config))  # fmt: skip
        return
    checked = _ask("slot", f'"{name}" is ready, {slot.retained_bytes / _MIB:.0f} MiB of WAL kept for it',
                   lambda: _pg_slot.verify(db, slot, config))  # fmt: skip
    if checked.outcome is Outcome.PASS and slot.active_pid is not None and slot.holder != config.application_name:
        checked = Check("slot", Outcome.FAIL, f'"{name}" is in use by "{slot.holder}"', errors.IN_USE_FIX)
    yield checked
    if resting is not None:
        end = _pg_slot.wal_end(db)
        yield _ask("position", f"the slot has all that follows {resting.after}",
                   lambda: _pg_slot.resume(slot, resting.after, resting.told, end, config))  # fmt: skip
    if slot.wal_status == "unreserved" or (slot.safe_bytes is not None and slot.safe_bytes < 256 * _MIB):
        fix = "Let the pipeline catch up, or raise max_slot_wal_keep_size now."
        yield Check("slot room", Outcome.WARN, "the slot will soon be invalidated", fix)


def _settings(db: psycopg.Connection) -> Iterator[Check]:
    keep = int(setup.setting(db, "max_slot_wal_keep_size") or -1)
    if keep >= 0:
        fix = "Make it larger than the WAL of the longest outage you plan for."
        yield Check("max_slot_wal_keep_size", Outcome.WARN, f"{keep} MB: beyond it the position is lost", fix)
    else:
        yield Check("max_slot_wal_keep_size", Outcome.PASS, "no limit: watch the disk while the pipeline is down")
    timeout = int(setup.setting(db, "wal_sender_timeout") or 0)
    if 0 < timeout < 10_000:
        fix = "Set wal_sender_timeout to 60s."
        yield Check("wal_sender_timeout", Outcome.WARN, f"{timeout} ms: a pause will cut the stream", fix)
    else:
        yield Check("wal_sender_timeout", Outcome.PASS, f"{timeout // 1000} s" if timeout else "off")


def _stream(db: psycopg.Connection, config: PostgresConfig) -> Check:
    """A login for replication, which pg_hba.conf and max_wal_senders may refuse although queries work."""
    try:
        sock, _ = login(config, Endpoint.of(db))
        sock.close()
    except TidemillError as error:
        return Check("replication login", Outcome.FAIL, error.what, error.fix)
    return Check("replication login", Outcome.PASS, "accepted")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
