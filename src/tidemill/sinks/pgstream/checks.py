"""What `tidemill doctor` asks of the queue's database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.contracts import Check, Outcome
from tidemill.errors import DeliveryError
from tidemill.sinks._shared.pg_checks import check_connection, may_make_schemas, may_write
from tidemill.sinks._shared.pg_client import condition, connect

if TYPE_CHECKING:
    from tidemill.sinks._shared.pg_client import Connection
    from tidemill.sinks.pgstream import PgstreamConfig

_OLDEST = 130000  # gen_random_uuid without an extension


def run_checks(config: PgstreamConfig, where: str) -> Iterator[Check]:
    import psycopg

    try:
        db = connect(config, where)
    except DeliveryError as error:
        yield Check("server", Outcome.FAIL, error.what, error.fix)
        return
    with db:
        try:
            yield from check_connection(db, oldest=_OLDEST)
            yield _queue(db, config.queue_schema)
        except psycopg.Error as error:
            yield Check("server", Outcome.FAIL, condition(error), "See the server's log.")


def _queue(db: Connection, schema: str) -> Check:
    found = db.execute("SELECT to_regclass(format('%%I.messages', %s::text))", [schema]).fetchone()
    if found is None or found[0] is None:
        return may_make_schemas(db, "queue", schema)
    if may_write(db, found[0]):
        return Check("queue", Outcome.PASS, f"schema {schema}")
    fix = f"GRANT USAGE ON SCHEMA {schema} and SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema}."
    return Check("queue", Outcome.FAIL, f"{found[0]} cannot be written", fix)
