"""What `tidemill doctor` says about a PostgreSQL source. Looks only; the checks of the setup are asked one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psycopg

from tidemill.contracts import Check, Outcome, Resting
from tidemill.errors import TidemillError
from tidemill.sources.postgres import ddl_trigger, errors, identity, resume, setup, witness
from tidemill.sources.postgres.client import Endpoint, connect, login
from tidemill.sources.postgres.lsn import parse_lsn
from tidemill.sources.postgres.table_checks import check_tables
from tidemill.sources.postgres.witness import Ask

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig

_MIB = 1 << 20


def run_checks(config: PostgresConfig, resting: Resting | None = None) -> Iterator[Check]:
    try:
        db = connect(config)
    except TidemillError as error:
        yield Check("connection", Outcome.FAIL, error.what, error.fix)
        return
    with db:
        yield from _connection(db, config)
        if resting is not None and (other := identity.other_server(db, resting.recall)):
            yield Check("server", Outcome.FAIL, other, witness.RESTORED)
            return  # what else is missing here says nothing
        yield _ask("version", f"PostgreSQL {_version(db)}", lambda: setup.check_version(db, config))
        yield _ask("wal_level", "logical", lambda: setup.check_wal_level(db, config))
        yield _ask("privilege", "the role may use replication", lambda: setup.check_privilege(db, config))
        yield from check_tables(db, config, resting)
        with errors.translate(""):
            yield ddl_trigger.check(db, config)
        yield from _slot(db, config, resting)
        yield from _settings(db)
        yield from _stream(db, config, resting)


def _ask(name: str, detail: str, question: Callable[[], object]) -> Check:
    try:
        with errors.translate(""):
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


def _slot(db: psycopg.Connection, config: PostgresConfig, resting: Resting | None) -> Iterator[Check]:
    name = config.slot_name
    with errors.translate(""):
        slot = resume.read(db, name)
    if slot is None and resting is not None:
        yield Check(
            "slot", Outcome.FAIL, f'"{name}" is gone, and what followed {resting.after} with it', errors.RECOVER
        )
        return
    if slot is None:
        yield _ask("slot", f'"{name}" does not exist yet, and there is room for it',
                   lambda: setup.check_free_slot(db, config))  # fmt: skip
        return
    checked = _ask("slot", f'"{name}" is ready, {slot.retained_bytes / _MIB:.0f} MiB of WAL kept for it',
                   lambda: resume.verify(db, slot, config))  # fmt: skip
    if checked.outcome is Outcome.PASS and slot.active_pid is not None and slot.holder != config.application_name:
        checked = Check("slot", Outcome.FAIL, f'"{name}" is in use by "{slot.holder}"', errors.IN_USE_FIX)
    yield checked
    if resting is not None:
        end = resume.wal_end(db)
        yield _ask("position", f"the slot has all that follows {resting.after}",
                   lambda: resume.resume(slot, resting.after, resting.confirmed, end, config))  # fmt: skip
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


def _stream(db: psycopg.Connection, config: PostgresConfig, resting: Resting | None) -> Iterator[Check]:
    """A login for replication, which pg_hba.conf and max_wal_senders may refuse although queries work. Over it the
    server says who it is."""
    compared: list[Check] = []

    def compare(ask: Ask) -> None:
        if resting is not None and (memory := witness.recall(resting.recall)) is not None:
            compared.append(_ask("server", "the one that was captured before", lambda: _same(db, resting, memory, ask)))

    try:
        sock, _ = login(config, Endpoint.of(db), compare)
        sock.close()
    except TidemillError as error:
        yield Check("replication login", Outcome.FAIL, error.what, error.fix)
        return
    yield Check("replication login", Outcome.PASS, "accepted")
    yield from compared


def _same(db: psycopg.Connection, resting: Resting, memory: witness.WitnessMemory, ask: Ask) -> None:
    now = witness.identify(ask, recovering=resume.in_recovery(db))
    known = parse_lsn(resting.after or resting.confirmed or "0/0")
    witness.check_end(witness.check_server(memory, now, known, ask, ""), resume.wal_end(db), "")
