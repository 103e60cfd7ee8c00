"""How the sinks postgres and pgstream reach their server, and what its errors mean for a delivery."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from tidemill.errors import DeliveryError, Refused

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

# How values are read must not depend on the server's settings, nor on those of the role.
_SESSION = {
    "client_encoding": "UTF8",
    "default_transaction_isolation": "read committed",  # whoever waited for a lock must see what its holder wrote
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "lc_monetary": "C",
    "standard_conforming_strings": "on",
    "xmloption": "content",
}


class PostgresTarget(BaseModel):
    """Settings both sinks have."""

    dsn: str = Field(
        description="postgresql://user@host/database, with sslmode and certificates as libpq takes them.",
        json_schema_extra={"secret": True},
    )
    connect_timeout_seconds: float = Field(default=10.0, gt=0, description="How long to wait for a connection.")
    statement_timeout_seconds: float = Field(
        default=300.0, gt=0, description="How long one statement may take before the batch fails and is tried again."
    )
    lock_timeout_seconds: float = Field(
        default=30.0, gt=0, description="How long to wait for a lock that another session holds."
    )


def connect(config: PostgresTarget, where: str) -> Connection:
    """In autocommit: transactions are opened where they are meant."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        given: dict[str, Any] = dict(conninfo_to_dict(config.dsn))
        given.setdefault("application_name", "tidemill")
        given["connect_timeout"] = max(2, round(config.connect_timeout_seconds))
        db = psycopg.connect(**_WATCHED | given, autocommit=True)
    except psycopg.Error as error:
        raise _unreachable(error, where) from error
    try:
        with explained(where):
            for name, value in _session(config).items():
                db.execute("SELECT set_config(%s, %s, false)", [name, value])
            db.execute(_DURABLE)
    except BaseException:
        db.close()
        raise
    return db


#: A receipt says that the rows are durable: not so if a commit does not wait for the disk. Stricter settings stay.
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"


#: Timeouts of statements are the server's to keep. One that vanished without a word is noticed by these, in 90 seconds.
_WATCHED = {
    "keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 6,
    "tcp_user_timeout": 90_000,
}  # fmt: skip


def _session(config: PostgresTarget) -> dict[str, str]:
    return _SESSION | {
        "statement_timeout": str(round(config.statement_timeout_seconds * 1000)),
        "lock_timeout": str(round(config.lock_timeout_seconds * 1000)),
    }


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Errors of the server as ours. What the rows themselves caused is found before this (`is_data_error`)."""
    import psycopg

    try:
        yield
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
        raise Refused(
            f"PostgreSQL does not allow it: {condition(error)}{_about(error)}", where=where,
            fix='Grant the role what is missing; "tidemill doctor" names it.',
        ) from error  # fmt: skip
    except psycopg.errors.LockNotAvailable as error:
        raise DeliveryError(
            "a lock did not come free in time", where=where,
            fix="Another session holds it: see pg_stat_activity and lock_timeout_seconds.",
        ) from error  # fmt: skip
    except (psycopg.errors.SyntaxErrorOrAccessRuleViolation, psycopg.errors.FeatureNotSupported) as error:
        raise Refused(
            f"PostgreSQL refused a statement: {condition(error)}{_about(error)}", where=where,
            fix="Does the table at the target still have the columns and the key of the source?",
        ) from error  # fmt: skip
    except psycopg.Error as error:
        if is_data_error(error):
            raise Refused(f"PostgreSQL refused the data: {reason(error)}", where=where) from error
        raise DeliveryError(
            f"PostgreSQL did not take the batch: {condition(error)}", where=where,
            fix="Is the server up and reachable? Its log says more.",
        ) from error  # fmt: skip


def is_data_error(error: psycopg.Error) -> bool:
    """Whether the rows are at fault: their values (class 22), a constraint (23), a size limit (54), a trigger (P0)."""
    return (error.sqlstate or "")[:2] in ("22", "23", "54", "P0")


def reason(error: psycopg.Error) -> str:
    """Why a row was refused. The server's own words quote values, so they are not repeated."""
    return condition(error) + _about(error)


def condition(error: psycopg.Error) -> str:
    """PostgreSQL's name of the error, as its manual lists them, and its number."""
    if not error.sqlstate:
        return "the connection was lost"
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    return f"{name} (SQLSTATE {error.sqlstate})"


def _about(error: psycopg.Error) -> str:
    diag = error.diag
    column = diag.column_name
    if not column and (found := re.match(r"COPY \S+, line \d+, column ([^:]+)", diag.context or "")):
        column = found[1]
    parts = [
        f"{what} {name}"
        for what, name in (("table", diag.table_name), ("column", column), ("constraint", diag.constraint_name))
        if name
    ]
    return f" at {', '.join(parts)}" if parts else ""


def _unreachable(error: psycopg.Error, where: str) -> DeliveryError:
    words = str(error)
    lost = ("authentication failed", "pg_hba.conf", "no password supplied", "FATAL:  role", "FATAL:  database")
    if any(part in words for part in lost):
        return Refused("the server refused the login", where=where, fix="Check user, password and database of the dsn.")
    if "invalid connection option" in words or 'missing "="' in words or "invalid URI" in words:
        return Refused("the dsn cannot be read", where=where, fix="Write postgresql://user@host/database.")
    if any(part in words for part in ("certificate", "does not support SSL", "sslmode")):
        return Refused("no trusted connection", where=where, fix="Check sslmode and sslrootcert of the dsn.")
    return DeliveryError("the server cannot be reached", where=where, fix="Check host, port and the server.")


def address(dsn: str) -> str:
    """Host, port and database for error texts; never the password."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(dsn)
    except psycopg.Error:
        return "an unreadable dsn"
    return f"{given.get('host', 'localhost')}:{given.get('port', 5432)}/{given.get('dbname', '')}"
