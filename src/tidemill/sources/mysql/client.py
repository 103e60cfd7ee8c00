"""Ways to one server: sessions for ordinary statements, and a logged-in session whose socket the stream takes over.

PyMySQL does login and TLS for both; its socket is a plain Python socket, so the stream can go on with it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql

from tidemill.net.buffered import keep_alive
from tidemill.sources.mysql.errors import connection_error, translate

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig

_OPTIONS = ("ssl_mode", "ssl_ca", "ssl_cert", "ssl_key", "unix_socket")
SSL_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")


@dataclass(frozen=True, slots=True)
class Dsn:
    """`mysql://user:password@host:port/database?ssl_mode=verify_identity&ssl_ca=/path`, read."""

    user: str
    password: str = field(repr=False)
    host: str
    port: int
    database: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Dsn:
        """`ValueError` without the text in it: it holds a password."""
        try:
            parts = urlsplit(text)
            port = parts.port or 3306
        except ValueError:
            raise ValueError("not a URI like mysql://user:password@host:3306/database") from None
        if parts.scheme not in ("mysql", "mariadb") or "/" in parts.path[1:]:
            raise ValueError("not a URI like mysql://user:password@host:3306/database")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(options.keys() - set(_OPTIONS)):
            raise ValueError(f"unknown option {unknown[0]} in the dsn; known: {', '.join(_OPTIONS)}")
        if (mode := options.get("ssl_mode")) and mode.lower() not in SSL_MODES:
            raise ValueError(f"ssl_mode is one of {', '.join(SSL_MODES)}")
        return cls(
            unquote(parts.username or ""), unquote(parts.password or ""), parts.hostname or "localhost", port,
            unquote(parts.path[1:]), options,
        )  # fmt: skip


class MysqlSession:
    """An ordinary connection in autocommit; every error as one of ours."""

    def __init__(self, connection: Any, where: str) -> None:
        self.connection = connection
        self.where = where

    def rows(self, statement: str, params: Sequence[Any] = ()) -> list[dict[str, Any]]:
        with translate(self.where), self.connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(statement, tuple(params) or None)
            return list(cursor.fetchall())

    def row(self, statement: str, params: Sequence[Any] = ()) -> dict[str, Any]:
        found = self.rows(statement, params)
        return found[0] if found else {}

    def value(self, statement: str, params: Sequence[Any] = ()) -> Any:
        return next(iter(self.row(statement, params).values()), None)

    def each(self, statement: str) -> Iterator[dict[str, Any]]:
        """Rows as they come, for answers that may not fit into memory. Nothing else may be asked until it is done."""
        with translate(self.where), self.connection.cursor(pymysql.cursors.SSDictCursor) as cursor:
            cursor.execute(statement)
            yield from cursor

    def execute(self, statement: str) -> None:
        with translate(self.where), self.connection.cursor() as cursor:
            cursor.execute(statement)

    @property
    def encrypted(self) -> bool:
        return isinstance(self.connection._sock, ssl.SSLSocket)

    def close(self) -> None:
        self.connection.close() if self.connection.open else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def connect(config: MysqlConfig, answer_seconds: float = 300) -> MysqlSession:
    """`LoginRefused`, `TlsFailed` or `ConnectionLost` if it cannot be made. A catalog of many tables takes its time, so
    an answer is waited for longer than a sign of life; a peer that is gone is noticed by the keepalives."""
    dsn = config.parsed_dsn
    given: dict[str, Any] = {"host": dsn.host, "port": dsn.port}
    if path := dsn.options.get("unix_socket"):
        given = {"unix_socket": path}
    try:
        connection = pymysql.connect(
            user=dsn.user, password=dsn.password, database=dsn.database or None, **given, **_tls(config),
            charset="utf8mb4", autocommit=True, program_name="tidemill",
            connect_timeout=max(1, int(config.connect_timeout_seconds)),
            read_timeout=answer_seconds, write_timeout=config.network_timeout_seconds,
        )  # fmt: skip
    except (pymysql.MySQLError, OSError, RuntimeError, ValueError) as error:
        raise connection_error(error, config.where) from error
    keep_alive(connection._sock, config.network_timeout_seconds)
    return MysqlSession(connection, config.where)


def _tls(config: MysqlConfig) -> dict[str, Any]:
    """PyMySQL's words for an ssl_mode: a context is TLS or nothing, no word at all is TLS if the server has it."""
    if config.tls_mode == "disabled":
        return {"ssl_disabled": True}
    if config.tls_mode == "preferred":
        return {}
    verify = config.tls_mode in ("verify_ca", "verify_identity")
    context = ssl.create_default_context(cafile=config.tls_path("ca") or None)
    # Since 3.13 Python refuses authorities without a key usage extension; the server's own tools make such ones.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = config.tls_mode == "verify_identity"
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    if certificate := config.tls_path("cert"):
        context.load_cert_chain(certificate, config.tls_path("key") or None)
    return {"ssl": context}
