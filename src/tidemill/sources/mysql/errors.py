"""What can keep MySQL and MariaDB from being captured: one type for each thing a person has to do something else about.

SetupError
├── LoginRefused           password, host or database
├── TlsFailed              no TLS, or a certificate that is not trusted
├── ServerTooOld
├── OtherFlavor            `type: mariadb` met MySQL, or the other way round
├── BinlogOff              log_bin
├── FormatNotRows          binlog_format
├── GrantMissing           names the GRANT
├── GtidOff                positions by GTID are asked for, and the server has none
└── ServerIdTaken          another replica has our server_id
SourceError
└── TableRedefined         a table or column is not what it was a moment ago
PositionLost
├── BinlogPurged           what follows our position was removed
├── OtherServer            this server does not have what we have seen
└── BinlogUnusable         the binlog itself lacks changes: statements, an incident
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pymysql

from tidemill.errors import ConnectionLost, PositionLost, SetupError, SourceError, TidemillError
from tidemill.sources._shared.errors import RECOVER, LoginRefused, ServerTooOld, TableRedefined, TlsFailed

__all__ = ["RECOVER", "LoginRefused", "ServerTooOld", "TableRedefined", "TlsFailed"]  # as part of the tree above


class OtherFlavor(SetupError):
    code = "other-flavor"


class BinlogOff(SetupError):
    code = "binlog-off"


class FormatNotRows(SetupError):
    code = "binlog-format-not-row"


class GrantMissing(SetupError):
    code = "grant-missing"


class GtidOff(SetupError):
    code = "gtid-off"


class ServerIdTaken(SetupError):
    code = "server-id-taken"


class BinlogPurged(PositionLost):
    code = "binlog-purged"


class OtherServer(PositionLost):
    code = "other-server"


class BinlogUnusable(PositionLost):
    code = "binlog-unusable"


_DENIED = {1044, 1045, 1049, 1130, 1141, 1396, 1524, 1698, 1820, 1862, 3118, 3878, 4031, 4151, 2059, 2061}
_FORBIDDEN = {1142, 1143, 1227}  # a statement that the account may not run
_WENT_AWAY = {0, 1053, 1152, 1158, 1159, 1160, 1161, 1317, 1927}  # shutdown, a killed session, a broken network
_REDEFINED = {1054, 1146, 1412}  # no such column, no such table, defined anew since the read opened
_TLS = ("ssl", "tls", "certificate")


def connection_error(error: Exception, where: str) -> TidemillError:
    """A connection that could not be made: worth a retry only if the server may simply be away for a while."""
    code, message = _parts(error)
    if any(word in message.lower() for word in _TLS) or code == 3159:  # require_secure_transport
        fix = "Check ssl_mode, and that ssl_ca is the authority that signed the server's certificate."
        return TlsFailed(f"no trusted connection: {message}", where=where, fix=fix)
    if code in _DENIED:
        fix = "Check user, password and database of the dsn, and that the account may log in from this host."
        return LoginRefused(f"the server refused the login: {message}", where=where, fix=fix)
    if isinstance(error, RuntimeError):  # PyMySQL: a package for this way to log in is not installed
        fix = 'Install it: pip install "tidemill[ed25519]", or let the account log in with caching_sha2_password.'
        return LoginRefused(message, where=where, fix=fix)
    return ConnectionLost(
        f"the server cannot be reached: {message}", where=where, fix="Check host, port and the server."
    )


def from_server(code: int, message: str, where: str) -> TidemillError:
    """An error that an ordinary statement met."""
    if code in _FORBIDDEN or code in _DENIED:
        return GrantMissing(message, where=where, fix="Grant the account what the message names.")
    if 2000 <= code < 3000 or code in _WENT_AWAY:
        return ConnectionLost(message or "the connection broke", where=where)
    if code in _REDEFINED:
        return TableRedefined(f"{message} (error {code})", where=where)
    return SourceError(f"{message} (error {code})", where=where, fix="See the server's error log for its context.")


def from_stream(code: int, message: str, where: str, server_id: int) -> TidemillError:
    """The server ended the binlog stream with an error. Almost all of them are 1236, told apart only by their words."""
    lowered = message.lower()
    if "same server_uuid" in lowered or "same server_id" in lowered:
        return server_id_error(
            f"another connection with server_id {server_id} took the stream over: {message}", where, server_id
        )
    if code == 1236 and any(part in lowered for part in _PURGED):
        fix = f"{RECOVER} Raise binlog_expire_logs_seconds to keep more."
        return BinlogPurged(f"the binlog that follows our position was removed: {message}", where=where, fix=fix)
    if code == 1236 and any(part in lowered for part in _OTHER):
        return OtherServer(
            f"the server does not have what we have seen: {message}", where=where,
            fix=f"Check the dsn: is it the same database, or a replica that has caught up? Otherwise: {RECOVER}",
        )  # fmt: skip
    if code == 1236 and "anonymous" in lowered:
        return PositionLost(
            f"the binlog holds transactions without GTID: {message}", where=where,
            fix="A first start can begin after them (start_position: latest) or read by file (positions: file).",
        )  # fmt: skip
    if code in _FORBIDDEN or code in _DENIED:
        return GrantMissing(message, where=where, fix="Run: GRANT REPLICATION SLAVE ON *.* TO the account.")
    if code == 1236:
        return PositionLost(
            f"the server cannot read its binlog from our position: {message}", where=where,
            fix=f"Look at the server's error log. If the binlog is damaged: {RECOVER}",
        )  # fmt: skip
    return from_server(code, message, where)


_PURGED = ("purged", "could not find first log file", "have been purged", "no longer")
_OTHER = ("not in the master's binlog", "not in the binlog", "has diverged", "has more gtids", "replica has more",
          "slave has more", "not available", "beyond the end", "impossible position", "> file size")  # fmt: skip


def server_id_error(what: str, where: str, server_id: int) -> ServerIdTaken:
    return ServerIdTaken(
        what, where=where,
        fix=f"Set `server_id` to a number that no replica of this server has (now {server_id}). By default it is made"
        " from the source's `id`: two pipelines with one `id` have the same. If the other one is a copy of this one"
        " that runs elsewhere, stop it there.",
    )  # fmt: skip


@contextmanager
def translate(where: str) -> Iterator[None]:
    """Errors of ordinary statements as ours."""
    try:
        yield
    except pymysql.MySQLError as error:
        code, message = _parts(error)
        raise from_server(code, message, where) from error
    except OSError as error:
        raise ConnectionLost(f"the connection broke: {error}", where=where) from error
    except UnicodeDecodeError as error:
        found = error.object[max(0, error.start - 20) : error.end + 20]
        raise SourceError(
            f"the server answered with bytes that are no UTF-8: {found!r}", where=where,
            fix="A name or a definition in its catalog has them. Find it by HEX() in information_schema and change it.",
        ) from error  # fmt: skip


def _parts(error: Exception) -> tuple[int, str]:
    args = error.args
    if len(args) >= 2 and isinstance(args[0], int):
        return args[0], str(args[1])
    return 0, " ".join(map(str, args)) or type(error).__name__
