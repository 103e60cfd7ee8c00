"""A connection to ClickHouse over HTTP: its settings, its names, and what its errors mean for a retry."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, field_validator

from tidemill.errors import DeliveryError, Refused
from tidemill.model.config import Config
from tidemill.net.tls import distrust_error

MIN_VERSION = (23, 2)
"""ReplacingMergeTree(version, is_deleted) came with 23.2."""

_AUTHENTICATION = {192, 193, 194, 516}  # UNKNOWN_USER, WRONG_PASSWORD, REQUIRED_PASSWORD, AUTHENTICATION_FAILED
_ACCESS = {164, 291, 497}  # READONLY, DATABASE_ACCESS_DENIED, ACCESS_DENIED
_SCHEMA = {
    10: "NOT_FOUND_COLUMN_IN_BLOCK",
    15: "DUPLICATE_COLUMN",
    16: "NO_SUCH_COLUMN_IN_TABLE",
    20: "NUMBER_OF_COLUMNS_DOESNT_MATCH",
    36: "BAD_ARGUMENTS",
    44: "ILLEGAL_COLUMN",
    47: "UNKNOWN_IDENTIFIER",
    48: "NOT_IMPLEMENTED",
    50: "UNKNOWN_TYPE",
    56: "UNKNOWN_STORAGE",
    57: "TABLE_ALREADY_EXISTS",
    60: "UNKNOWN_TABLE",
    62: "SYNTAX_ERROR",
    81: "UNKNOWN_DATABASE",
    115: "UNKNOWN_SETTING",
    452: "SETTING_CONSTRAINT_VIOLATION",
    524: "ALTER_OF_COLUMN_IS_FORBIDDEN",
}
#: Errors about a row's values: the row is looked for, and named.
DATA_ERRORS = {
    6, 7, 25, 26, 27, 32, 33, 38, 41, 53, 69, 70, 72, 117, 131, 190, 321, 349, 376, 407, 467, 469, 675, 676, 691,
}  # fmt: skip
_UNREADABLE = re.compile(r"\(([A-Z][A-Z0-9_]{3,})\)")


class ConnectionConfig(Config):
    """Where the server is. `url` says all in one; what it leaves out comes from the other fields."""

    url: str = Field(
        default="",
        description="http(s)://user:password@host:port, instead of host, port, user, password and secure.",
        json_schema_extra={"secret": True},
    )
    host: str = Field(default="127.0.0.1", description="Name or address of the server.")
    port: int = Field(default=0, ge=0, le=65535, description="HTTP port; 0 is 8123, or 8443 with TLS.")
    user: str = Field(default="default", description="The user to log in as.")
    password: SecretStr = Field(default=SecretStr(""), description="The user's password.")
    secure: bool = Field(default=False, description="Use TLS.")
    ca_file: str = Field(default="", description="File of certificate authorities to trust; empty for the system's.")
    client_cert_file: str = Field(default="", description="Certificate of the client, where the server asks for one.")
    client_key_file: str = Field(default="", description="Key of the client's certificate, if it is not in that file.")
    verify: bool = Field(default=True, description="Check the server's certificate and name.")
    connect_timeout_seconds: float = Field(default=10, gt=0, description="How long to wait for a connection.")
    request_timeout_seconds: float = Field(default=300, gt=0, description="How long to wait for an answer.")

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise ValueError("it must look like http://host:8123 or https://user:password@host:8443")
        return url


def connect(config: ConnectionConfig, where: str, session: str | None = None) -> Any:
    """A client of clickhouse-connect. Each thread needs its own. `session`: temporary tables live as long as that."""
    import clickhouse_connect

    # What it logs it also raises, and the server's words, which it logs whole, may quote values.
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)
    address = urlsplit(config.url)
    secure = address.scheme == "https" if config.url else config.secure
    with explain_errors(where):
        return clickhouse_connect.get_client(
            host=address.hostname or config.host,
            port=address.port or config.port or (8443 if secure else 8123),
            username=unquote(address.username or "") or config.user,
            password=unquote(address.password or "") or config.password.get_secret_value(),
            secure=secure, verify=config.verify, ca_cert=config.ca_file or None,
            client_cert=config.client_cert_file or None, client_cert_key=config.client_key_file or None,
            connect_timeout=math.ceil(config.connect_timeout_seconds),  # the driver knows whole seconds only
            send_receive_timeout=math.ceil(config.request_timeout_seconds),
            compress=False,  # blocks are compressed inside Arrow, by column
            autogenerate_session_id=False,  # a session takes one statement at a time
            query_retries=0,  # the stream retries, and counts it
            dedicated_pool=True,
            # What is read decides what is written: behind a load balancer another replica must not answer with less.
            settings={"select_sequential_consistency": 1} | ({"session_timeout": 3600} if session else {}),
            session_id=session,
        )  # fmt: skip


def address(config: ConnectionConfig) -> str:
    """For messages: never the user's password."""
    target = urlsplit(config.url)
    host = target.hostname or config.host
    port = target.port or config.port
    return f"{host}:{port}" if port else host


def quote(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def code_of(error: BaseException) -> int:
    """The server's error code; 0 for what did not come from the server."""
    return int(getattr(error, "code", None) or 0)


def name_of(error: BaseException) -> str:
    """The error's name and nothing else: the text may quote values."""
    known = getattr(error, "name", None)
    found = [known] if known else _UNREADABLE.findall(str(error))
    code = code_of(error)
    return f"{found[-1] if found else _SCHEMA.get(code, 'error')} ({code})"


@contextlib.contextmanager
def explain_errors(where: str) -> Iterator[None]:
    """Errors of the driver as ours."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    try:
        yield
    except ClickHouseError as error:
        raise explain(error, where) from error


def explain(error: Exception, where: str) -> DeliveryError:
    from clickhouse_connect.driver.exceptions import ProgrammingError

    code = code_of(error)
    if isinstance(error, ProgrammingError):  # the driver itself, before it asked the server
        return Refused(f"the ClickHouse driver refuses: {error}", where=where, fix='Check "settings" of the sink.')
    if code in _AUTHENTICATION:
        return Refused(f"ClickHouse does not let us in: {name_of(error)}", where=where, fix="Check user and password.")
    if code in _ACCESS:
        fix = "Grant it what docs/sinks/clickhouse.md lists."
        return Refused(f"ClickHouse does not allow it: {name_of(error)}", where=where, fix=fix)
    if code in _SCHEMA or code in DATA_ERRORS:
        return Refused(
            f"ClickHouse refused a statement: {name_of(error)}", where=where,
            fix="Compare the table with the source (docs/sinks/clickhouse.md); the server's log has the statement.",
        )  # fmt: skip
    if code:
        return DeliveryError(
            f"ClickHouse could not do it now: {name_of(error)}", where=where, fix="The server's log says more."
        )
    if distrust_error(error):
        return Refused(
            "the server's certificate is not trusted, or it does not trust ours", where=where,
            fix="Check ca_file, client_cert_file and the name in url; verify: false trusts any server.",
        )  # fmt: skip
    return DeliveryError("ClickHouse cannot be reached, or did not answer in time", where=where,
                         fix="Is the server up, and is it the HTTP port?")  # fmt: skip
