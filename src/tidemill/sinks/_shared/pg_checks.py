"""What `tidemill doctor` asks of any PostgreSQL that a sink writes to: is it new enough, does it take writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tidemill.contracts import Check, Outcome
from tidemill.errors import DeliveryError
from tidemill.sinks._shared.pg_client import condition, connect

if TYPE_CHECKING:
    from tidemill.sinks._shared.pg_client import Connection, PostgresTarget

_OLDEST = 120000  # pg_my_temp_schema, hashtextextended and generated columns in the catalog


def run_checks(
    config: PostgresTarget, where: str, ask: Callable[[Connection], Iterator[Check]], *, oldest: int = _OLDEST
) -> Iterator[Check]:
    """Of the server, then what the sink `ask`s on the same connection."""
    import psycopg

    try:
        db = connect(config, where)
    except DeliveryError as error:
        yield Check("server", Outcome.FAIL, error.what, error.fix)
        return
    with db:
        try:
            yield from _check_server(db, oldest)
            yield from ask(db)
        except psycopg.Error as error:
            yield Check("server", Outcome.FAIL, condition(error), "See the server's log.")


def _check_server(db: Connection, oldest: int) -> Iterator[Check]:
    version = db.info.server_version
    if version < oldest:
        fix = f"Use PostgreSQL {oldest // 10000} or newer."
        yield Check("server", Outcome.FAIL, f"PostgreSQL {version // 10000} is too old", fix)
        return
    yield Check("server", Outcome.PASS, f"PostgreSQL {version // 10000}, database {db.info.dbname}")
    ((recovering, read_only),) = db.execute("SELECT pg_is_in_recovery(), current_setting('transaction_read_only')")
    if recovering or read_only == "on":
        fix = "Name the primary in the dsn (target_session_attrs=read-write finds it)."
        yield Check("writable", Outcome.FAIL, "the server takes no writes", fix)


def may_make_schemas(db: Connection, name: str, schema: str) -> Check:
    may = db.execute("SELECT has_database_privilege(current_database(), 'CREATE')").fetchone()
    if may == (True,):
        return Check(name, Outcome.PASS, "missing schemas and tables will be made")
    fix = "GRANT CREATE ON DATABASE ... TO the sink's role, or create the schema and let the role create tables in it."
    return Check(name, Outcome.WARN, f"schema {schema} cannot be made if it is missing", fix)


def may_write(db: Connection, table: str) -> bool:
    found = db.execute(
        "SELECT bool_and(has_table_privilege(%s::regclass, p)) FROM unnest(%s::text[]) p",
        [table, ["SELECT", "INSERT", "UPDATE", "DELETE"]],
    )
    return found.fetchone() == (True,)
