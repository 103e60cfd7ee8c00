"""What can keep PostgreSQL from being captured: one type for each thing a person has to do something else about.

SetupError
├── LoginRefused           password, pg_hba.conf, role or database
├── TlsFailed              no TLS, or a certificate that is not trusted
├── ServerTooOld
├── WalLevelTooLow
├── NoFreeSlot             max_replication_slots
├── NoFreeSender           max_wal_senders
├── NoReplicationPrivilege
├── NoReplicaIdentity
├── PublicationProblem
├── SlotMismatch           the slot is of another plugin or database
├── SlotInUse
└── ServerBusy             a lock or an old transaction is in the way
SourceError
├── DecodingFailed         the server itself cannot decode its WAL (SQLSTATE XX000)
└── TableRedefined         a table is not there, or not there any more
PositionLost
├── SlotLost               the slot is gone, or the WAL it needs
└── PublicationLost        it was dropped, maybe made anew: what happened without it was left out
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from tidemill.errors import ConnectionLost, PositionLost, SetupError, SourceError, TableLocked, TidemillError
from tidemill.sources._shared.errors import RECOVER, LoginRefused, ServerTooOld, TableRedefined, TlsFailed

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig

__all__ = ["RECOVER", "LoginRefused", "ServerTooOld", "TableRedefined", "TlsFailed"]  # as part of the tree above


class WalLevelTooLow(SetupError):
    code = "wal-level-too-low"


class NoFreeSlot(SetupError):
    code = "no-free-slot"


class NoFreeSender(SetupError):
    code = "no-free-sender"


class NoReplicationPrivilege(SetupError):
    code = "no-replication-privilege"


class NoReplicaIdentity(SetupError):
    code = "no-replica-identity"


class PublicationProblem(SetupError):
    code = "publication-problem"


class SlotMismatch(SetupError):
    code = "slot-mismatch"


class SlotInUse(SetupError):
    code = "slot-in-use"


class ServerBusy(SetupError):
    code = "server-busy"


class DecodingFailed(SourceError):
    code = "decoding-failed"


class SlotLost(PositionLost):
    code = "slot-lost"


class PublicationLost(PositionLost):
    code = "publication-lost"


# libpq gives no SQLSTATE for a refused connection, only the server's words.
_LOGIN = ("authentication failed", "pg_hba.conf", "no password supplied", "is not permitted to log in",
          "FATAL:  role", "FATAL:  database")  # fmt: skip
_TLS = ("certificate", "server does not support SSL", "Server refuses SSL", "SSL error", "sslmode")


def connection_error(message: str, where: str, sqlstate: str = "") -> TidemillError:
    """A connection that could not be made: worth a retry only if the server may simply be away for a while."""
    message = message.strip()
    if "must be superuser or replication role" in message or "permission denied to start WAL sender" in message:
        return privilege_error(where)
    if sqlstate == "53300" and "max_wal_senders" in message:
        return no_free_sender(where)
    if sqlstate.startswith(("28", "3D")) or any(phrase in message for phrase in _LOGIN):
        fix = "Check user, password and database of the dsn, and that pg_hba.conf lets this host in."
        return LoginRefused(f"the server refused the login: {message}", where=where, fix=fix)
    if any(phrase in message for phrase in _TLS):
        fix = "Check sslmode, and that sslrootcert is the authority that signed the server's certificate."
        return TlsFailed(f"no trusted connection: {message}", where=where, fix=fix)
    return ConnectionLost(
        f"the server cannot be reached: {message}", where=where, fix="Check host, port and the server."
    )


def from_server(sqlstate: str, message: str, where: str) -> TidemillError:
    """An error the server sent, by what it means for us."""
    if sqlstate == "55006" or "is active for PID" in message:
        return SlotInUse(message, where=where, fix=IN_USE_FIX)
    lost = ("already been removed", "can no longer", "invalidat", "cannot read from logical replication slot")
    if any(phrase in message for phrase in lost) or (sqlstate == "42704" and "replication slot" in message):
        return SlotLost(message, where=where, fix=RECOVER)
    if sqlstate == "42704" and "publication" in message:
        fix = f"It must have existed at the position being read: what happened without it was left out. {RECOVER}"
        return PublicationLost(message, where=where, fix=fix)
    if sqlstate == "42501":
        return SetupError(message, where=where, fix=_remedy(message))
    if not sqlstate or sqlstate[:2] in ("08", "57"):  # connection exceptions; operator intervention (shutdown, kill)
        return ConnectionLost(message, where=where, fix="The connection is made again.")
    if sqlstate == "55P03":
        return TableLocked(message, where=where)
    if sqlstate == "42P01":
        return TableRedefined(f"{message} (SQLSTATE {sqlstate})", where=where)
    kind = DecodingFailed if sqlstate == "XX000" else SourceError
    return kind(f"{message} (SQLSTATE {sqlstate})", where=where, fix="See the server's log for its context.")


def publication_lost_error(config: PostgresConfig, what: str, when: str) -> PublicationLost:
    return PublicationLost(
        f'publication "{config.publication_name}" {what}: the server leaves out what happens without it',
        where=f"{config.where}, {when}",
        fix=RECOVER,
    )


ROW_SECURITY = (
    "A policy hides rows of the table from the role, so that a copy would lack them. Run as a superuser: ALTER ROLE ..."
    " BYPASSRLS; or let the role be the table's owner, without FORCE ROW LEVEL SECURITY."
)
IN_USE_FIX = (
    "Another process reads this slot. Stop it, or give this source a slot of its own; if the process is dead,"
    " end its session with pg_terminate_backend."
)


def privilege_error(where: str) -> NoReplicationPrivilege:
    return NoReplicationPrivilege(
        "the role may not use replication", where=where,
        fix="Run as a superuser: ALTER ROLE ... REPLICATION (on Amazon RDS: GRANT rds_replication TO ...).",
    )  # fmt: skip


def no_free_sender(where: str) -> NoFreeSender:
    return NoFreeSender(
        "all WAL senders are taken", where=where, fix="Raise max_wal_senders and restart PostgreSQL, or stop a replica."
    )


@contextmanager
def translate(where: str, denied: type[SetupError] = SetupError, remedy: str = "") -> Iterator[None]:
    """Errors of ordinary queries as ours; a missing privilege becomes `denied`, with `remedy` as its fix."""
    try:
        yield
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
        raise denied(_message(error), where=where, fix=remedy or _remedy(_message(error))) from error
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
        fix = "A session holds a lock or an old transaction is open: see pg_stat_activity, then try again."
        raise ServerBusy(_message(error), where=where, fix=fix) from error
    except psycopg.Error as error:
        raise from_server(error.sqlstate or "", _message(error), where) from error


def _remedy(message: str) -> str:
    """For a privilege that is missing."""
    return ROW_SECURITY if "row-level security" in message else "Grant the role what the message names."


def _message(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).strip()
