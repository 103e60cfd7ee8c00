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
    "extra_float_digits": "1",  # a printed float is the float
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

    from tidemill.net.pgsession import PgSession

    try:
        given: dict[str, Any] = dict(conninfo_to_dict(config.dsn))
        given.setdefault("application_name", "tidemill")
        given["connect_timeout"] = max(2, round(config.connect_timeout_seconds))
        db = PgSession.connect(**_WATCHED | given, autocommit=True)
    except psycopg.Error as error:
        raise _unreachable(error, where) from error
    db.silence_seconds = config.statement_timeout_seconds + _GRACE_SECONDS
    try:
        with explain_errors(where):
            for name, value in _session(config).items():
                db.execute("SELECT set_config(%s, %s, false)", [name, value])
            db.execute(_DURABLE)
    except BaseException:
        db.close()
        raise
    return db


#: A receipt says that the rows are durable: not so if a commit does not wait for the disk. Stricter settings stay.
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"


#: Timeouts of statements are the server's to keep; one that does not keep them is given up so much later.
_GRACE_SECONDS = 10.0

#: A machine that vanished without a word is noticed by these, in 90 seconds.
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
def explain_errors(where: str) -> Iterator[None]:
    """Errors of the server as ours. What the rows themselves caused is found before this (`is_data_error`)."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        _, kind, what, fix = next(each for each in _MEANINGS if (error.sqlstate or "").startswith(each[0]))
        raise kind(f"{what}: {reason(error)}", where=where, fix=fix) from error


#: By the beginning of the SQLSTATE, the first that fits. Worth a retry is what may pass by itself or by an operator's
#: hand at the server; a statement that is wrong for the table that is there stays wrong.
#: https://www.postgresql.org/docs/current/errcodes-appendix.html
_MEANINGS: tuple[tuple[str, type[DeliveryError], str, str], ...] = (
    ("42501", Refused, "PostgreSQL does not allow it",
     'Grant the role what is missing; "tidemill doctor" names it. Where row level security is on, that is BYPASSRLS.'),
    ("25006", DeliveryError, "the server takes no writes",
     "It may be a standby: name the primary in the dsn (target_session_attrs=read-write finds it)."),
    ("55P03", DeliveryError, "a lock did not come free in time",
     "Another session holds it: see pg_stat_activity and lock_timeout_seconds."),
    ("57014", DeliveryError, "a statement was cancelled",
     "It may have taken longer than statement_timeout_seconds: see pg_stat_activity for what it waits for."),
    ("40", DeliveryError, "another transaction was in the way", "It is tried again; the server's log names the other."),
    ("53", DeliveryError, "the server is short of something", "Disk, memory or connections: its log says which."),
    ("23503", DeliveryError, "foreign keys of the target are not kept",
     "The other table's rows may come with another lane, and then it passes. If it stays: is that table captured, and "
     "are the foreign keys DEFERRABLE INITIALLY DEFERRED?"),
    ("23505", DeliveryError, "a unique constraint of the target is not kept",
     "Rows of another lane may have to come first, and then it passes. If it stays, drop the target's constraint."),
    ("22", Refused, "PostgreSQL refused the data", ""),
    ("23", Refused, "PostgreSQL refused the data", ""),
    ("54", Refused, "PostgreSQL refused the data", ""),
    ("P0", Refused, "PostgreSQL refused the data", ""),
    ("21", Refused, "PostgreSQL refused a statement",
     "Two keys of the source may be one at the target: give its key a type and a collation that tell them apart."),
    ("42", Refused, "PostgreSQL refused a statement",
     "Does the target still have the columns and the key of the source? Triggers may name what is gone; the server's "
     "log has the statement."),
    ("3F", Refused, "a schema of the target is missing", "Create it, or set create_tables: true."),
    ("0A", Refused, "PostgreSQL cannot do it", "The server's log has the statement and says what is not supported."),
    ("", DeliveryError, "PostgreSQL did not take the batch", "Is the server up and reachable? Its log says more."),
)  # fmt: skip


def is_about_structure(error: psycopg.Error) -> bool:
    """Whether a table is not what the statement takes it for: it may have been changed since it was looked at."""
    return (error.sqlstate or "")[:2] in ("42", "3F") and error.sqlstate != "42501"


def is_data_error(error: psycopg.Error) -> bool:
    """Whether the rows are at fault: their values (class 22), a constraint (23), a size limit (54), a trigger (P0)."""
    return (error.sqlstate or "")[:2] in ("22", "23", "54", "P0")


def reason(error: psycopg.Error) -> str:
    """Why a row was refused. The server's own words quote values, so they are not repeated."""
    return condition(error) + _about(error)


def condition(error: psycopg.Error) -> str:
    """PostgreSQL's name of the error, as its manual lists them, and its number."""
    from tidemill.net.pgsession import NoAnswer

    if not error.sqlstate:
        return str(error) if isinstance(error, NoAnswer) else "the connection was lost"
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
    message = str(error)
    lost = ("authentication failed", "pg_hba.conf", "no password supplied", "FATAL:  role", "FATAL:  database")
    if any(part in message for part in lost):
        return Refused("the server refused the login", where=where, fix="Check user, password and database of the dsn.")
    if "invalid connection option" in message or 'missing "="' in message or "invalid URI" in message:
        return Refused("the dsn cannot be read", where=where, fix="Write postgresql://user@host/database.")
    if any(part in message for part in ("certificate", "does not support SSL", "sslmode")):
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
