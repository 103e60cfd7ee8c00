"""What `tidemill doctor` asks of StarRocks: both ports, the login, and whether a load would be led to a backend."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.contracts import Check, Outcome
from tidemill.errors import DeliveryError
from tidemill.model.template import Template
from tidemill.sinks.starrocks.rows import AUDIT
from tidemill.sinks.starrocks.tables import StarRocksTableName

if TYPE_CHECKING:
    from tidemill.sinks.starrocks import StarRocksSession, StarRocksSink


_MIN_VERSION = (3, 1, 3)  # https://docs.starrocks.io/docs/loading/Load_to_Primary_Key_tables/#conditional-updates


def knows_conditions(version: str) -> bool:
    """Whether partial updates may be conditional. True for what is no number: a build of somebody's own."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return found is None or tuple(map(int, found.groups())) >= _MIN_VERSION


def run_checks(sink: StarRocksSink) -> Iterator[Check]:
    try:
        session = sink.connect()
    except DeliveryError as error:
        yield Check("mysql port", Outcome.FAIL, error.what, error.fix)
        return
    try:
        version = session.tables.run("SELECT current_version()")
        if not knows_conditions(str(version[0][0])):
            fix = f"Update it to {'.'.join(map(str, _MIN_VERSION))} or newer."
            yield Check(
                "mysql port", Outcome.FAIL, f"StarRocks {version[0][0]} has no conditional partial updates", fix
            )
            return
        yield Check("mysql port", Outcome.PASS, f"StarRocks {version[0][0]}")
        database = sink.config.database if Template(sink.config.database).is_literal else "information_schema"
        session.loads.state(database, "tidemill_doctor")
        yield Check("http port", Outcome.PASS, sink.config.url)
        yield from _table(session, sink)
    except DeliveryError as error:
        yield Check("frontend", Outcome.FAIL, error.what, error.fix)
    finally:
        session.connection.close()


def _table(session: StarRocksSession, sink: StarRocksSink) -> Iterator[Check]:
    config = sink.config
    if not (Template(config.table).is_literal and Template(config.database).is_literal):
        return
    name = StarRocksTableName(config.database, config.table)
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
