"""What `tidemill doctor` asks of a target database: is it there, may it be written, are tables as they must be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.contracts import Check, Outcome
from tidemill.errors import DeliveryError
from tidemill.sinks._shared.pg_client import condition, connect

if TYPE_CHECKING:
    from tidemill.sinks._shared.pg_client import Connection
    from tidemill.sinks._shared.pg_resume import StateConfig
    from tidemill.sinks.postgres import PostgresSinkConfig

_OLDEST = 120000  # pg_my_temp_schema, hashtextextended and generated columns in the catalog


def examine(config: PostgresSinkConfig, where: str) -> Iterator[Check]:
    """The state is kept in a schema; tables are created in others, which the first event names."""
    import psycopg

    try:
        db = connect(config, where)
    except DeliveryError as error:
        yield Check("server", Outcome.FAIL, error.what, error.fix)
        return
    with db:
        try:
            yield from reached(db)
            yield state(db, config)
            yield _creating(db, config)
            yield from _tables(db, config)
        except psycopg.Error as error:
            yield Check("server", Outcome.FAIL, condition(error), "See the server's log.")


def reached(db: Connection, *, oldest: int = _OLDEST) -> Iterator[Check]:
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


def state(db: Connection, config: StateConfig) -> Check:
    """Whether the sink's own tables can be made and written."""
    schema = config.state_schema
    row = db.execute(
        "SELECT has_schema_privilege(nspname, 'CREATE'), "
        "to_regclass(format('%%I.tidemill_positions', nspname)) FROM pg_namespace WHERE nspname = %s",
        [schema],
    ).fetchone()
    if row is None:
        return may_make_schemas(db, "state", schema)
    may_create, table = row
    if table is not None:
        if may_write(db, table):
            return Check("state", Outcome.PASS, f"{schema}.tidemill_positions")
        fix = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, {schema}.tidemill_tables TO the sink's role."
        return Check("state", Outcome.FAIL, f"{table} cannot be written", fix)
    if may_create:
        return Check("state", Outcome.PASS, f"{schema}.tidemill_positions will be made")
    fix = f"GRANT CREATE ON SCHEMA {schema} TO the sink's role, or set state_schema to a schema of its own."
    return Check("state", Outcome.FAIL, f"no table can be made in schema {schema}", fix)


def _creating(db: Connection, config: PostgresSinkConfig) -> Check:
    if not config.create_tables:
        return Check("tables", Outcome.PASS, "are not created by the sink")
    return may_make_schemas(db, "tables", "of the tables")


def may_make_schemas(db: Connection, name: str, schema: str) -> Check:
    may = db.execute("SELECT has_database_privilege(current_database(), 'CREATE')").fetchone()
    if may == (True,):
        return Check(name, Outcome.PASS, "missing schemas and tables will be made")
    fix = "GRANT CREATE ON DATABASE ... TO the sink's role, or create the schema and let the role create tables in it."
    return Check(name, Outcome.WARN, f"schema {schema} cannot be made if it is missing", fix)


def _tables(db: Connection, config: PostgresSinkConfig) -> Iterator[Check]:
    """Tables this sink has written: still there, and still its to write?"""
    may_read = db.execute(
        "SELECT has_table_privilege(to_regclass(%s), 'SELECT')", [f'"{config.state_schema}".tidemill_tables']
    ).fetchone()
    if may_read != (True,):  # not there yet, or the check of the state has said so
        return
    from psycopg import sql

    known = db.execute(
        sql.SQL(
            "SELECT schema_name || '.' || table_name, to_regclass(format('%I.%I', schema_name, table_name)) FROM {}"
        ).format(sql.Identifier(config.state_schema, "tidemill_tables"))
    ).fetchall()
    for name, table in known:
        if table is None:
            yield Check(name, Outcome.WARN, "is gone; it will be made anew, without its rows", "Load it again.")
            continue
        if not may_write(db, table):
            fix = f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON {table} TO the sink's role."
            yield Check(name, Outcome.FAIL, "cannot be written", fix)
    if known:
        yield Check("known tables", Outcome.PASS, str(len(known)))


def may_write(db: Connection, table: str) -> bool:
    found = db.execute(
        "SELECT bool_and(has_table_privilege(%s::regclass, p)) FROM unnest(%s::text[]) p",
        [table, ["SELECT", "INSERT", "UPDATE", "DELETE"]],
    )
    return found.fetchone() == (True,)
