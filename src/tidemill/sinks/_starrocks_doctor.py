"""What `tidemill doctor` asks of StarRocks: both ports, the login, and whether a load would be led to a backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.component import Check, Outcome
from tidemill.errors import DeliveryError
from tidemill.model.template import Template
from tidemill.sinks._starrocks_rows import AUDIT
from tidemill.sinks._starrocks_tables import Name

if TYPE_CHECKING:
    from tidemill.sinks.starrocks import Session, StarRocksSink


def examine(sink: StarRocksSink) -> Iterator[Check]:
    try:
        session = sink.connect()
    except DeliveryError as error:
        yield Check("mysql port", Outcome.FAIL, error.what, error.fix)
        return
    try:
        version = session.tables.run("SELECT current_version()")
        yield Check("mysql port", Outcome.PASS, f"StarRocks {version[0][0]}")
        database = sink.config.database if Template(sink.config.database).is_literal else "information_schema"
        session.loads.state(database, "tidemill_doctor")
        yield Check("http port", Outcome.PASS, sink.config.url)
        yield from _table(session, sink)
    except DeliveryError as error:
        yield Check("frontend", Outcome.FAIL, error.what, error.fix)
    finally:
        session.connection.close()


def _table(session: Session, sink: StarRocksSink) -> Iterator[Check]:
    config = sink.config
    if not (Template(config.table).is_literal and Template(config.database).is_literal):
        return
    name = Name(config.database, config.table)
    there = session.tables.describe(name)
    lacking = [column for column in AUDIT if column not in there]
    if not there and not config.create_tables:
        yield Check("table", Outcome.FAIL, f"{name.plain} does not exist", "Create it, or set create_tables: true.")
    elif not there:
        yield Check("table", Outcome.PASS, f"{name.plain} will be created")
    elif lacking:
        yield Check("table", Outcome.PASS, f"{name.plain} will be given {', '.join(lacking)}")
    else:
        yield Check("table", Outcome.PASS, f"{name.plain} has {len(there)} columns")
