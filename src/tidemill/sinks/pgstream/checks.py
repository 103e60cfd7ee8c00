"""What `tidemill doctor` asks of the queue's database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.contracts import Check, Outcome
from tidemill.sinks._shared import pg_checks
from tidemill.sinks._shared.pg_checks import may_make_schemas, may_write

if TYPE_CHECKING:
    from tidemill.sinks._shared.pg_client import Connection
    from tidemill.sinks.pgstream import PgstreamConfig

_OLDEST = 130000  # gen_random_uuid without an extension


def run_checks(config: PgstreamConfig, where: str) -> Iterator[Check]:
    return pg_checks.run_checks(config, where, lambda db: iter((_queue(db, config.queue_schema),)), oldest=_OLDEST)


def _queue(db: Connection, schema: str) -> Check:
    found = db.execute("SELECT to_regclass(format('%%I.messages', %s::text))", [schema]).fetchone()
    if found is None or found[0] is None:
        return may_make_schemas(db, "queue", schema)
    if may_write(db, found[0]):
        return Check("queue", Outcome.PASS, f"schema {schema}")
    fix = f"GRANT USAGE ON SCHEMA {schema} and SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema}."
    return Check("queue", Outcome.FAIL, f"{found[0]} cannot be written", fix)
