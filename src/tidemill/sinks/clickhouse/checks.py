"""What `tidemill doctor` asks of ClickHouse: is it there, is it new enough, may we do what we do, do the tables fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.contracts import Check, Outcome
from tidemill.errors import DeliveryError
from tidemill.model.template import Template
from tidemill.net.clickhouse import MIN_VERSION, connect, explain_errors, quote
from tidemill.sinks.clickhouse.server_table import IS_DELETED, VERSION

if TYPE_CHECKING:
    from tidemill.sinks.clickhouse import ClickHouseConfig


def run_checks(config: ClickHouseConfig, where: str) -> Iterator[Check]:
    try:
        client = connect(config, where)
    except ImportError:
        yield Check("client", Outcome.FAIL, "clickhouse-connect is not installed", "pip install 'tidemill[clickhouse]'")
        return
    except DeliveryError as error:
        yield Check("server", Outcome.FAIL, error.what, error.fix)
        return
    try:
        yield _version(str(client.server_version))
        with explain_errors(where):
            yield from _database(client, config)
    except DeliveryError as error:
        yield Check("server", Outcome.FAIL, error.what, error.fix)
    finally:
        client.close()


def _version(version: str) -> Check:
    if tuple(int(part) for part in version.split(".")[:2]) >= MIN_VERSION:
        return Check("server", Outcome.PASS, f"ClickHouse {version}")
    needed = ".".join(map(str, MIN_VERSION))
    return Check("server", Outcome.FAIL, f"ClickHouse {version} is older than {needed}", f"Update it to {needed}.")


def _database(client: Any, config: ClickHouseConfig) -> Iterator[Check]:
    template = Template(config.database)
    if not template.is_literal:
        yield Check("database", Outcome.PASS, f'"{config.database}": known with the first event')
        return
    known = client.query("SELECT 1 FROM system.databases WHERE name = {d:String}", {"d": config.database}).result_rows
    if known:
        yield Check("database", Outcome.PASS, f'"{config.database}" exists')
    elif config.create_tables:
        yield Check("database", Outcome.PASS, f'"{config.database}" will be created')
    else:
        yield Check(
            "database", Outcome.FAIL, f'"{config.database}" does not exist', "Create it, or set create_tables: true."
        )
        return
    yield _privileges(client, config)
    if known:
        yield from _tables(client, config)


def _privileges(client: Any, config: ClickHouseConfig) -> Check:
    from clickhouse_connect.driver.exceptions import DatabaseError

    needed = ["SELECT", "INSERT", "ALTER", "TRUNCATE", "CREATE TABLE"]
    scope = f"ON {quote(config.database)}.*"
    try:
        lacking = [p for p in needed if int(client.command(f"CHECK GRANT {p} {scope}")) != 1]
    except DatabaseError:  # CHECK GRANT came with 24.11
        return Check("privileges", Outcome.WARN, "this version cannot say", f"Grant {', '.join(needed)}.")
    if lacking:
        fix = f"GRANT {', '.join(lacking)} ON {config.database}.* TO the user."
        return Check("privileges", Outcome.FAIL, f"missing: {', '.join(lacking)}", fix)
    return Check("privileges", Outcome.PASS, ", ".join(needed))


def _tables(client: Any, config: ClickHouseConfig) -> Iterator[Check]:
    """Tables that earlier runs of this sink wrote, or the one that is named."""
    rows = client.query(
        "SELECT t.name, t.engine_full, countIf(c.name = {v:String}) FROM system.tables t LEFT JOIN system.columns c "
        "ON c.database = t.database AND c.table = t.name WHERE t.database = {d:String} GROUP BY 1, 2 ORDER BY 1",
        {"d": config.database, "v": VERSION if config.mode == "upsert" else "_offset"},
    ).result_rows  # fmt: skip
    literal = config.table if Template(config.table).is_literal else None
    for name, engine, versioned in rows:
        if name != literal and not versioned:
            continue
        fits = f"{VERSION}, {IS_DELETED})" in engine if config.mode == "upsert" else "MergeTree" in engine
        short = engine.partition(" ORDER")[0]
        if fits and config.mode == "changelog" and not config.shared_tables and "Replacing" not in engine:
            fix = "docs/sinks/clickhouse.md says how to make it a ReplacingMergeTree (Replays)."
            yield Check(
                f"table {name}",
                Outcome.WARN,
                f"{short} keeps an event twice if a worker that was given up wakes up",
                fix,
            )
        elif fits and versioned:
            yield Check(f"table {name}", Outcome.PASS, short)
        else:
            fix = f'Choose another "table", or create it as docs/sinks/clickhouse.md shows for mode {config.mode}.'
            yield Check(f"table {name}", Outcome.FAIL, f"engine {short} does not fit mode {config.mode}", fix)
