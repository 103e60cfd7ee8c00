"""Two ways to one server: psycopg for ordinary queries, and a logged-in bare socket for the replication stream.

libpq reads the dsn (URI or keywords, environment, password file, several hosts) and finds the server; the stream
follows it to the same host with the same credentials, so there is one place that knows how to connect. pg8000 does
SCRAM and TLS on a socket that Python owns, which can be taken over once it is logged in.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pg8000.exceptions
import pg8000.native
import psycopg
from psycopg.conninfo import conninfo_to_dict

from tidemill.net.buffered import keep_alive
from tidemill.net.pgsession import PgSession
from tidemill.sources.postgres.errors import connection_error, from_server, translate
from tidemill.sources.postgres.witness import Ask

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig

# Everything that changes how a value is printed, so that the same row gives the same text on every server
# and at every time. Given in the startup packet, they also hold in a WAL sender.
SESSION = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    "search_path": "",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}


_BYTEA = 17

# A catalog of many tables takes its time, so an answer is waited for longer than a sign of life.
_ANSWER_SECONDS = 300.0


def connect(config: PostgresConfig) -> psycopg.Connection:
    """An ordinary connection in autocommit. Its search path is empty, so type names come qualified."""
    given: dict[str, Any] = {k: v for k, v in conninfo_to_dict(config.dsn).items() if k != "replication"}
    for name in ("sslmode", "sslrootcert", "sslcert", "sslkey"):
        if value := getattr(config, name):
            given[name] = str(value)
    given |= {
        "application_name": config.application_name,
        "connect_timeout": max(2, int(config.connect_timeout_seconds)),
    }
    try:
        db = PgSession.connect(**given, autocommit=True)
    except psycopg.OperationalError as error:
        raise connection_error(str(error), config.where, error.sqlstate or "") from error
    # What the server itself may wait for, 0 for ever, and time for its word that it waited in vain.
    waits = (_ANSWER_SECONDS, config.lock_timeout_seconds, config.setup_timeout_seconds)
    db.silence_seconds = max(waits) + config.network_timeout_seconds if all(waits) else math.inf
    try:
        with translate(config.where):
            db.execute("SELECT set_config('search_path', '', false), set_config('lock_timeout', %s, false)",
                       [str(int(config.lock_timeout_seconds * 1000))])  # fmt: skip
    except BaseException:
        db.close()
        raise
    return db


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where libpq ended up and with what: of several hosts the one that answered, the password from wherever it was."""

    host: str
    address: str
    port: int
    user: str
    database: str
    password: str | None = field(repr=False)
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, db: psycopg.Connection) -> Endpoint:
        options = {o.keyword.decode(): o.val.decode() for o in db.pgconn.info if o.val is not None}
        info = db.info
        address = info.hostaddr or info.host
        return cls(info.host, address, info.port, info.user, info.dbname, info.password or None, options)


def login(
    config: PostgresConfig,
    to: Endpoint,
    first: Callable[[Ask], None] = lambda ask: None,
) -> tuple[socket.socket, bytes]:
    """A socket on which the server waits for a command of the replication protocol, and bytes of it that were read
    ahead. `first` may send commands that are answered with rows."""
    session = _session(config, to, replication="database")
    try:
        first(lambda command: _ask(session, command, config.where))
    except BaseException:
        session._usock.close()
        raise
    sock, unread = _take_over(session)
    session._sock.close()  # the file, not the socket: the socket closes when both have been closed
    return sock, unread


class CopySession:
    """An ordinary session whose socket is read directly while the server answers a COPY, again and again."""

    def __init__(self, config: PostgresConfig, to: Endpoint) -> None:
        self._where = config.where
        self._session = _session(config, to)
        self.of_primary = False
        """It is known that the server is no standby."""

    def ask(self, command: str) -> list[tuple[object, ...]]:
        """Rows that the server answers with, as text."""
        return _ask(self._session, command, self._where)

    def socket(self) -> tuple[socket.socket, bytes]:
        """As of `login`. Until the answer to the COPY was read to its end, nothing is asked."""
        return _take_over(self._session)

    def close(self) -> None:
        with contextlib.suppress(OSError, pg8000.exceptions.InterfaceError):
            self._session.close()


def _session(config: PostgresConfig, to: Endpoint, replication: str | None = None) -> Any:
    sock = _reach(config, to.address, to.port)
    try:
        return pg8000.native.Connection(
            to.user, host=to.host, port=to.port, database=to.database, password=to.password, sock=sock,
            ssl_context=False if to.host.startswith("/") else tls(to.options),
            application_name=config.application_name, startup_params=SESSION,
            replication=replication,
        )  # fmt: skip
    except pg8000.exceptions.DatabaseError as error:
        sock.close()
        fields = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        raise connection_error(str(fields.get("M", error)), config.where, str(fields.get("C", ""))) from error
    except (pg8000.exceptions.InterfaceError, OSError, ValueError) as error:
        sock.close()
        raise connection_error(str(error), config.where) from error


def _ask(session: Any, command: str, where: str) -> list[tuple[object, ...]]:
    # The content of a timeline's history was called bytea before 15, and is its text as it is.
    session.register_in_adapter(_BYTEA, str)
    try:
        # A WAL sender takes no commands of the extended protocol, in which pg8000 runs everything else.
        return [tuple(row) for row in session.execute_simple(command).rows or ()]
    except pg8000.exceptions.DatabaseError as error:
        fields = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        raise from_server(str(fields.get("C", "")), str(fields.get("M", error)), where) from error
    except (pg8000.exceptions.InterfaceError, OSError) as error:
        raise connection_error(str(error), where) from error


def _take_over(session: Any) -> tuple[socket.socket, bytes]:
    # pg8000 reads through a buffered file; what it read beyond the login (a notice, rarely) must not be lost.
    sock: socket.socket = session._usock
    sock.setblocking(False)
    unread = b""
    with contextlib.suppress(ssl.SSLWantReadError, BlockingIOError):
        unread = session._sock.read1(len(session._sock.peek()))
    return sock, bytes(unread)


def _reach(config: PostgresConfig, host: str, port: int) -> socket.socket:
    try:
        if host.startswith("/"):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(config.connect_timeout_seconds)
            sock.connect(f"{host}/.s.PGSQL.{port}")
            return sock
        sock = socket.create_connection((host, port), config.connect_timeout_seconds)
    except OSError as error:
        raise connection_error(str(error), config.where) from error
    keep_alive(sock, config.network_timeout_seconds)
    return sock


def tls(known: Mapping[str, str]) -> ssl.SSLContext | bool | None:
    """pg8000's word for an sslmode: False is plain, None is TLS if the server has it, a context is TLS or nothing."""
    mode, root = known.get("sslmode", "prefer"), known.get("sslrootcert", "")
    if mode == "disable":
        return False
    if mode in ("allow", "prefer"):
        return None
    context = ssl.create_default_context(cafile=root if root not in ("", "system") else None)
    # Since 3.13 Python refuses authorities without a key usage extension; libpq accepts them.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "verify-full"
    # As libpq does: `require` together with a root certificate verifies it.
    if mode == "require" and not root:
        context.verify_mode = ssl.CERT_NONE
    if known.get("sslcert"):
        context.load_cert_chain(known["sslcert"], known.get("sslkey"), known.get("sslpassword"))
    return context
