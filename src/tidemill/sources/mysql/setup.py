"""What a server must have before it can be captured, each check its own error. Nothing is changed at the server.

flavour and version -> log_bin -> ROW format -> server_id is free -> privileges -> tables can be read
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.decoders.binlog import Flavor
from tidemill.sources.mysql import errors, tables
from tidemill.sources.mysql import server as facts
from tidemill.sources.mysql.client import MysqlSession, connect
from tidemill.sources.mysql.server import MysqlServerInfo
from tidemill.sources.mysql.stream import account, is_of_source, probe_id, register, replica_name

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig

_OLDEST = {Flavor.MYSQL: (8, 0, 0), Flavor.MARIADB: (10, 6, 0)}


@dataclass(frozen=True, slots=True)
class PreparedMysql:
    """`notes` is what a person may want to know."""

    tables: tuple[str, ...]
    server: str
    notes: tuple[str, ...]


def prepare(db: MysqlSession, config: MysqlConfig) -> PreparedMysql:
    server = MysqlServerInfo.read(db)
    check_flavor(server, config)
    check_log_bin(server, config)
    check_format(server, config)
    check_binlog_privilege(db, server, config)
    check_server_id(db, server, config)
    check_replication_privilege(config)
    found, unmatched = tables.find(db, config.selection(server))
    check_select(db, found, config)
    said = (*(pattern.what for pattern in unmatched), *notes(server))
    return PreparedMysql(tuple(f"{d}.{t}" for d, t in found), f"{server.name} {server.version_text}", said)


def check_flavor(server: MysqlServerInfo, config: MysqlConfig) -> None:
    if config.flavor is not None and config.flavor is not server.flavor:
        raise errors.OtherFlavor(
            f"the source is of type {config.flavor}, but the server is {server.name} {server.version_text}",
            where=config.where, fix=f"Write `type: {server.flavor}`.",
        )  # fmt: skip
    oldest = _OLDEST[server.flavor]
    if server.version < oldest:
        raise errors.ServerTooOld(
            f"{server.name} {server.version_text} is too old", where=config.where,
            fix=f"Use {server.name} {oldest[0]}.{oldest[1]} or newer.",
        )  # fmt: skip


def check_log_bin(server: MysqlServerInfo, config: MysqlConfig) -> None:
    if server.setting("log_bin").upper() != "ON":
        raise errors.BinlogOff(
            "the server writes no binlog: log_bin is OFF", where=config.where,
            fix="Set log_bin (and server_id) in the server's configuration file and restart it.",
        )  # fmt: skip


def check_format(server: MysqlServerInfo, config: MysqlConfig) -> None:
    found = server.setting("binlog_format").upper()
    if found not in ("ROW", ""):  # deprecated: a server without the setting has rows only
        raise errors.FormatNotRows(
            f"binlog_format is {found}: the binlog has statements, not rows", where=config.where,
            fix="Run: SET GLOBAL binlog_format = 'ROW'; and set it in the configuration file. Sessions that are open"
            " keep the old format until they end.",
        )  # fmt: skip


def check_binlog_privilege(db: MysqlSession, server: MysqlServerInfo, config: MysqlConfig) -> None:
    """Which files there are, and how far they reach: needed to judge positions."""
    try:
        facts.end_of_binlog(db, server)
        facts.binlog_files(db)
    except errors.GrantMissing as error:
        grant = "BINLOG MONITOR" if server.flavor is Flavor.MARIADB else "REPLICATION CLIENT"
        raise errors.GrantMissing(
            f"the account may not see the state of the binlog: {error.what}", where=config.where,
            fix=f"Run: GRANT {grant} ON *.* TO {account(db)};",
        ) from error  # fmt: skip


def check_replication_privilege(config: MysqlConfig) -> None:
    """Asked on a connection of its own, by doing it: grants may come through roles. Under another number than ours,
    which a running stream, or a replica that we are about to find, may hold."""
    with connect(config) as session:
        register(session, config, probe_id())


def check_server_id(db: MysqlSession, server: MysqlServerInfo, config: MysqlConfig, own: str | None = None) -> None:
    """Two replicas of one server_id end each other's streams for ever, so the one that comes later does not begin."""
    if config.replica_id == server.server_id:
        raise errors.server_id_error(
            f"server_id {config.replica_id} is the server's own", config.where, config.replica_id
        )
    if (name := _other_replica(db, server, config, own)) is not None:
        who = f' ("{name}")' if name else ""
        raise errors.server_id_error(
            f"another replica{who} has server_id {config.replica_id}", config.where, config.replica_id
        )


def wait_for_server_id(db: MysqlSession, server: MysqlServerInfo, config: MysqlConfig, own: str) -> None:
    """`check_server_id`, but a replica with our source's id may be what a pipeline left whose state directory is gone.
    The server notices by its second heartbeat that nobody reads: so long it is waited for, and never ended by us."""
    deadline = time.monotonic() + 2.5 * config.heartbeat_seconds
    while time.monotonic() <= deadline:
        name = _other_replica(db, server, config, own)
        if name is None or not is_of_source(name, config):
            break
        time.sleep(0.2)
    check_server_id(db, server, config, own)


def _other_replica(db: MysqlSession, server: MysqlServerInfo, config: MysqlConfig, own: str | None) -> str | None:
    """The name, maybe empty, of the replica that has our server_id. What this pipeline itself has left at the server
    does not count: its name has the uuid `own`. None where the pipeline is not known; then nothing that has our
    source's id counts."""
    for replica in facts.replicas(db, server):
        name = str(replica.get("host") or "")
        ours = name in (replica_name(config, own or ""), replica_name(config))  # the latter of an earlier version
        ours = ours or (own is None and is_of_source(name, config))
        if int(replica["server_id"]) == config.replica_id and not ours:
            return name
    return None


def check_select(db: MysqlSession, found: list[tuple[str, str]], config: MysqlConfig) -> None:
    """A column grant lets an account see a table in the catalog that it may not read. The answer has no column's name,
    which need not be UTF-8."""
    for database, table in found:
        name = f"{tables.quote(database)}.{tables.quote(table)}"
        try:
            db.rows(f"SELECT COUNT(*) AS n FROM (SELECT * FROM {name} LIMIT 0) AS q")
        except errors.GrantMissing as error:
            raise errors.GrantMissing(
                f"the account may not read {database}.{table}: {error.what}", where=config.where,
                fix=f"Run: GRANT SELECT ON {name} TO {account(db)};",
            ) from error  # fmt: skip


def notes(server: MysqlServerInfo) -> tuple[str, ...]:
    """What changes the events without being wrong."""
    found = []
    image = server.setting("binlog_row_image").upper()
    if image == "MINIMAL":
        found.append(
            "binlog_row_image is MINIMAL: an update has only the columns it set, the others are `unchanged`; `before`"
            " has only the key"
        )
    elif image == "NOBLOB":
        found.append("binlog_row_image is NOBLOB: large columns that an update leaves alone are `unchanged`")
    if not server.full_metadata:
        found.append(
            "binlog_row_metadata is not FULL: names and types come from the schema history, which follows the DDL of"
            " the binlog"
        )
    return tuple(found)
