"""What `tidemill doctor` says about a MySQL or MariaDB source. Looks only; the setup's checks are asked one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tidemill.contracts import Check, Outcome, Resting
from tidemill.decoders.binlog import BinlogPlace, Flavor, MariadbGtids, MysqlGtids
from tidemill.errors import ConfigError, TidemillError
from tidemill.sources.mysql import resume as position
from tidemill.sources.mysql import server as facts
from tidemill.sources.mysql import setup, tables
from tidemill.sources.mysql.client import MysqlSession, connect
from tidemill.sources.mysql.server import MysqlServerInfo
from tidemill.sources.mysql.stream import own_uuid

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig

_MIB = 1 << 20
_DAY = 86_400
_SIZE_LIMITS = ("max_binlog_total_size", "binlog_space_limit")  # MariaDB 11.4, Percona


def run_checks(config: MysqlConfig, resting: Resting | None = None) -> Iterator[Check]:
    try:
        db = connect(config)
    except TidemillError as error:
        yield Check("connection", Outcome.FAIL, error.what, error.fix)
        return
    with db:
        try:
            server = MysqlServerInfo.read(db)
        except TidemillError as error:
            yield Check("connection", Outcome.FAIL, error.what, error.fix)
            return
        yield from _connection(db, config)
        yield _ask("version", f"{server.name} {server.version_text}", lambda: setup.check_flavor(server, config))
        yield _ask("log_bin", "on", lambda: setup.check_log_bin(server, config))
        yield _ask("binlog_format", "ROW", lambda: setup.check_format(server, config))
        yield _row_image(server)
        yield _metadata(server)
        yield _gtid(server, config)
        yield _ask("binlog privilege", "the account may see the binlog's state",
                   lambda: setup.check_binlog_privilege(db, server, config))  # fmt: skip
        yield _ask("replication privilege", "the account may read the binlog",
                   lambda: setup.check_replication_privilege(config))  # fmt: skip
        yield _ask("server_id", f"{config.replica_id}, used by no other replica that is known",
                   lambda: setup.check_server_id(db, server, config, own_uuid(resting.recall) if resting else None),
        )  # fmt: skip
        yield from _tables(db, server, config)
        yield from retention(db, server)
        yield _position(db, server, config, resting)


def _ask(name: str, detail: str, question: Callable[[], None]) -> Check:
    try:
        question()
    except TidemillError as error:
        return Check(name, Outcome.FAIL, error.what, error.fix)
    return Check(name, Outcome.PASS, detail)


def _connection(db: MysqlSession, config: MysqlConfig) -> Iterator[Check]:
    dsn = config.parsed_dsn
    yield Check("connection", Outcome.PASS, f"{dsn.host}:{dsn.port}/{dsn.database} as {dsn.user}")
    if db.encrypted:
        yield Check("tls", Outcome.PASS, "encrypted")
    elif dsn.host in ("localhost", "127.0.0.1", "::1") or "unix_socket" in dsn.options:
        yield Check("tls", Outcome.PASS, "not encrypted, but on this machine only")
    else:
        fix = "Set ssl_mode: verify_identity and ssl_ca."
        yield Check("tls", Outcome.WARN, "the connection is not encrypted", fix)


def _row_image(server: MysqlServerInfo) -> Check:
    match server.setting("binlog_row_image").upper():
        case "MINIMAL":
            detail = "MINIMAL: an update has only what it set (the rest is `unchanged`), `before` only the key"
            if server.flavor is Flavor.MARIADB:
                detail += "; virtual columns and what REPLACE sets to its default are missing"
        case "NOBLOB":
            detail = "NOBLOB: large columns that an update leaves alone are `unchanged`"
        case image:
            return Check("binlog_row_image", Outcome.PASS, image)
    fix = "Sinks with partial updates keep such columns; for whole rows always, SET GLOBAL binlog_row_image = 'FULL'."
    return Check("binlog_row_image", Outcome.WARN, detail, fix)


def _metadata(server: MysqlServerInfo) -> Check:
    if server.full_metadata:
        return Check("binlog_row_metadata", Outcome.PASS, "FULL")
    detail = f"{server.setting('binlog_row_metadata') or 'MINIMAL'}: names and types come from the schema history"
    fix = "SET GLOBAL binlog_row_metadata = 'FULL' makes every row event describe itself; new events only."
    return Check("binlog_row_metadata", Outcome.WARN, detail, fix)


def _gtid(server: MysqlServerInfo, config: MysqlConfig) -> Check:
    try:
        used = position.by_gtid(server, config)
    except TidemillError as error:
        return Check("gtid", Outcome.FAIL, error.what, error.fix)
    if not used:
        fix = "With gtid_mode=ON capture could follow a failover." if server.flavor is Flavor.MYSQL else (
            "With positions: gtid capture could follow a failover.")  # fmt: skip
        return Check("gtid", Outcome.WARN, "positions are file and byte: they hold for this server only", fix)
    if server.flavor is Flavor.MARIADB and server.setting("gtid_strict_mode").upper() != "ON":
        fix = "SET GLOBAL gtid_strict_mode = ON; without it, numbers of a domain may repeat after a failover."
        return Check("gtid", Outcome.WARN, "gtid_strict_mode is off", fix)
    return Check("gtid", Outcome.PASS, "positions are GTID sets: capture can follow a failover")


def _tables(db: MysqlSession, server: MysqlServerInfo, config: MysqlConfig) -> Iterator[Check]:
    try:
        found, unmatched = tables.find(db, config.selection(server))
        setup.check_select(db, found, config)
        bare = _without_key(db, found)
        children = [] if server.logs_cascades else _children(db, found)
    except (TidemillError, ConfigError) as error:
        yield Check("tables", Outcome.FAIL, error.what, error.fix)
        return
    yield Check("tables", Outcome.PASS, f"{len(found)} found")
    for pattern in unmatched:
        yield Check("tables", Outcome.WARN, pattern.what, pattern.fix)
    if bare:
        yield Check(
            "keys", Outcome.WARN, f"no primary key on {_few(bare)}",
            "Their events have no key: order is kept per table only, and state sinks cannot update. Add a primary key.",
        )  # fmt: skip
    else:
        yield Check("keys", Outcome.PASS, "every table has a primary key")
    if children:
        yield Check(
            "foreign keys", Outcome.WARN,
            f"this server does not log what ON DELETE and ON UPDATE change: {_few(children)}",
            "Delete and update rows of these tables by statements of their own, with RESTRICT. MySQL 9.6 and newer log"
            " such changes, unless innodb_native_foreign_keys is ON.",
        )  # fmt: skip


def _children(db: MysqlSession, found: Sequence[tuple[str, str]]) -> list[str]:
    """Captured tables whose rows change with those of another, inside the engine."""
    rows = db.rows(
        "SELECT DISTINCT CONSTRAINT_SCHEMA AS d, TABLE_NAME AS t FROM information_schema.REFERENTIAL_CONSTRAINTS"
        " WHERE DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL')"
    )
    changed = {(row["d"], row["t"]) for row in rows}
    return [f"{d}.{t}" for d, t in found if (d, t) in changed]


def _without_key(db: MysqlSession, found: Sequence[tuple[str, str]]) -> list[str]:
    rows = db.rows(
        "SELECT DISTINCT TABLE_SCHEMA AS d, TABLE_NAME AS t FROM information_schema.STATISTICS"
        " WHERE INDEX_NAME = 'PRIMARY'"
    )
    keyed = {(row["d"], row["t"]) for row in rows}
    return [f"{d}.{t}" for d, t in found if (d, t) not in keyed]


def retention(db: MysqlSession, server: MysqlServerInfo) -> Iterator[Check]:
    """How long the server keeps what we have not read. A pipeline that is down longer loses its position."""
    seconds = _kept_seconds(server)
    try:
        files = facts.binlog_files(db)
    except TidemillError:
        return  # said by "binlog privilege"
    kept = f"{sum(file.size for file in files) / _MIB:.0f} MiB in {len(files)} files"
    if not seconds:
        yield Check("retention", Outcome.PASS, f"nothing expires by time ({kept}): watch the disk")
    elif seconds < _DAY:
        fix = "Set binlog_expire_logs_seconds above the longest outage you plan for."
        yield Check("retention", Outcome.WARN, f"{seconds} seconds ({kept}): an outage beyond it loses changes", fix)
    else:
        yield Check("retention", Outcome.PASS, f"{seconds / _DAY:g} days ({kept})")
    if limit := _size_limit(server):
        fix = "Make it larger than what is written during the longest outage you plan for."
        detail = f"the oldest binlog is removed beyond {limit / _MIB:.0f} MiB, whether it was read or not ({kept})"
        yield Check("retention by size", Outcome.WARN, detail, fix)


def _kept_seconds(server: MysqlServerInfo) -> int:
    """How long a file stays after its last write; 0 if time does not count."""
    if server.setting("binlog_expire_logs_auto_purge").upper() == "OFF":
        return 0
    seconds = int(server.setting("binlog_expire_logs_seconds") or 0)
    return seconds or int(float(server.setting("expire_logs_days") or 0) * _DAY)


def _size_limit(server: MysqlServerInfo) -> int:
    return next((int(server.setting(name)) for name in _SIZE_LIMITS if int(server.setting(name) or 0)), 0)


def _position(db: MysqlSession, server: MysqlServerInfo, config: MysqlConfig, resting: Resting | None) -> Check:
    """Whether the server has everything that this pipeline still lacks, and will have it for a while."""
    if resting is None:
        return Check("position", Outcome.PASS, f"none yet: capture begins at start_position: {config.start_position}")
    try:
        place = position.further(
            *(position.parse(p, server, config) if p else None for p in (resting.after, resting.confirmed))
        )
        assert place is not None
        position.resume(db, server, place, config)
        waiting = _waiting_text(db, server, place)
        size = position.lag_bytes(place, facts.binlog_files(db)) if place.gtids is None else None
    except TidemillError as error:
        return Check("position", Outcome.FAIL, error.what, error.fix)
    if not waiting:
        return Check("position", Outcome.PASS, "nothing waits after it")
    limit = _size_limit(server)
    if limit and size is not None and size > limit / 2:
        return Check(
            "position", Outcome.WARN, f"{waiting} waiting, and the server keeps {limit / _MIB:.0f} MiB",
            f"Start the pipeline before they are purged, or raise {' or '.join(_SIZE_LIMITS)} now.",
        )  # fmt: skip
    silent, kept = (time.time() - resting.since) / 3600, _kept_seconds(server) / 3600
    if kept and silent > kept / 2:
        return Check(
            "position", Outcome.WARN,
            f"{waiting} waiting; capture last ran {silent:.1f} hours ago, and the server keeps {kept:.1f}",
            "Start the pipeline before they are purged, or raise binlog_expire_logs_seconds now.",
        )  # fmt: skip
    return Check("position", Outcome.PASS, f"the server has all that follows it, {waiting}")


def _waiting_text(db: MysqlSession, server: MysqlServerInfo, place: BinlogPlace) -> str:
    """What the server has beyond a place; empty if nothing."""
    if place.gtids is None:
        size = position.lag_bytes(place, facts.binlog_files(db))
        return f"{size} bytes of binlog" if size else ""
    have = facts.read_executed(db, server)
    if isinstance(have, MysqlGtids) and isinstance(place.gtids, MysqlGtids):
        count = sum(past - first for *_, first, past in have.minus(place.gtids))
    else:
        assert isinstance(have, MariadbGtids)
        assert isinstance(place.gtids, MariadbGtids)
        count = sum(last - first + 1 for first, last in have.minus(place.gtids).values())
    return f"{count} transaction{'s' if count > 1 else ''}" if count else ""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
