"""What `tidemill doctor` asks of a target database: is it there, may it be written, are tables as they must be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.contracts import Check, Outcome
from tidemill.sinks._shared import pg_checks
from tidemill.sinks._shared.pg_checks import may_make_schemas, may_write

if TYPE_CHECKING:
    from tidemill.sinks._shared.pg_client import Connection
    from tidemill.sinks._shared.pg_resume import StateConfig
    from tidemill.sinks.postgres import PostgresSinkConfig


def run_checks(config: PostgresSinkConfig, where: str) -> Iterator[Check]:
    """The state is kept in a schema; tables are created in others, which the first event names."""

    def ask(db: Connection) -> Iterator[Check]:
        yield state(db, config)
        yield _check_creation(db, config)
        yield from _tables(db, config)

    return pg_checks.run_checks(config, where, ask)


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


def _check_creation(db: Connection, config: PostgresSinkConfig) -> Check:
    if not config.create_tables:
        return Check("tables", Outcome.PASS, "are not created by the sink")
    return may_make_schemas(db, "tables", "of the tables")


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
