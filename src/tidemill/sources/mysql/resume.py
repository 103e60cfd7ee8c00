"""From where a server can be read without a gap: judged before the stream is asked for, and never a jump (invariant 7).

A GTID set can go on at any server that has it, a file and a byte only at the server whose file it is.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidemill.decoders.binlog import (
    BinlogPlace,
    BinlogWitness,
    Flavor,
    GtidSet,
    MariadbGtids,
    MysqlGtids,
    file_number,
)
from tidemill.errors import ConfigError, PositionLost, SetupError
from tidemill.model.position import Ordering, Position
from tidemill.sources.mysql import errors
from tidemill.sources.mysql import server as facts
from tidemill.sources.mysql.client import MysqlSession
from tidemill.sources.mysql.server import MysqlServerInfo
from tidemill.sources.mysql.stream import creation_time

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig


def by_gtid(server: MysqlServerInfo, config: MysqlConfig) -> bool:
    """Which kind of position a source begins with. Later its position's own kind decides."""
    if config.positions == "gtid" and not server.has_gtids:
        raise errors.GtidOff(
            f"positions: gtid, but gtid_mode is {server.setting('gtid_mode') or 'OFF'}", where=config.where,
            fix="Set gtid_mode=ON and enforce_gtid_consistency=ON at the server, or positions: file.",
        )  # fmt: skip
    return config.positions != "file" and server.has_gtids


def now(db: MysqlSession, server: MysqlServerInfo, config: MysqlConfig) -> BinlogPlace:
    """The end of the binlog."""
    have = facts.read_executed(db, server) if by_gtid(server, config) else None  # first: it all stands before the end
    end = facts.end_of_binlog(db, server)
    if have is not None:
        return BinlogPlace(server.flavor, have, end.name, end.size)
    return BinlogPlace(server.flavor, None, end.name, end.size, server.identity)


def witness(place: BinlogPlace, server: MysqlServerInfo, config: MysqlConfig) -> BinlogPlace:
    """A place at the end of the binlog, with what tells later that the server is still the one it was."""
    made = creation_time(config, place.file)
    seen = BinlogWitness(place.file, place.offset, made, server.identity)
    return replace(place, created=made, seen=seen if place.gtids is not None else None)


def end_witness(db: MysqlSession, server: MysqlServerInfo, config: MysqlConfig) -> BinlogWitness:
    """For a GTID set that grew by what was not read: all of it stands before the end of the binlog."""
    end = facts.end_of_binlog(db, server)
    return BinlogWitness(end.name, end.size, creation_time(config, end.name), server.identity)


def first(db: MysqlSession, server: MysqlServerInfo, config: MysqlConfig) -> BinlogPlace:
    """Where a source without a position begins: everything that is still there, from now on, or a place named."""
    match config.start_position:
        case "latest":
            return witness(now(db, server, config), server, config)
        case "earliest":
            if by_gtid(server, config):
                return BinlogPlace(server.flavor, facts.read_purged(db, server))
            files = facts.binlog_files(db)
            return BinlogPlace(server.flavor, None, files[0].name, 4, server.identity)
    try:
        place = BinlogPlace.parse(config.start_position, server.flavor)
    except ConfigError as error:
        raise SetupError(error.what, where=f"start_position of {config.where}", fix=error.fix) from error
    try:
        return resume(db, server, place, config)
    except PositionLost as error:
        fix = "Choose a start_position that the server still has, `earliest` or `latest`."
        raise SetupError(f"start_position: {error.what}", where=config.where, fix=fix) from error


def parse(text: Position, server: MysqlServerInfo, config: MysqlConfig) -> BinlogPlace:
    try:
        return BinlogPlace.parse(text, server.flavor)
    except ConfigError as error:
        raise errors.OtherServer(
            f"our position {text[:80]} is none of {server.name}: the server was replaced by one of another kind",
            where=config.where,
            fix=f"Check the dsn. If the change was meant: {errors.RECOVER}",
        ) from error


def further(after: BinlogPlace | None, confirmed: BinlogPlace | None) -> BinlogPlace | None:
    """`confirmed` is where an idle stream had got to beyond the last change; it counts only if it goes on from
    `after`."""
    if after is None or confirmed is None:
        return after or confirmed
    if after.gtids is None and after.server != confirmed.server:
        return after
    return confirmed if confirmed.compare(after) in (Ordering.SAME, Ordering.AFTER) else after


def compare(a: Position, b: Position, flavor: Flavor | None) -> Ordering | None:
    """Without a flavor, as the one of which both are positions. `ConfigError` if there is none."""
    problem: ConfigError | None = None
    for known in [flavor] if flavor else Flavor:
        try:
            return BinlogPlace.parse(a, known).compare(BinlogPlace.parse(b, known))
        except ConfigError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def number_of(file: str) -> int:
    return file_number(file)[1]


def resume(db: MysqlSession, server: MysqlServerInfo, place: BinlogPlace, config: MysqlConfig) -> BinlogPlace:
    """The place itself if the server can go on from it, else `PositionLost`."""
    if place.gtids is None:
        return _resume_file(db, server, place, config)
    if not server.has_gtids:
        raise errors.GtidOff(
            f"our position is a GTID set, but gtid_mode is {server.setting('gtid_mode') or 'OFF'} now",
            where=config.where,
            fix="Set gtid_mode=ON again. If it is to stay off, `tidemill recover FILE --snapshot` or"
            " `tidemill recover FILE --accept-gap` begins with a file and byte.",
        )
    have = _wait_for(db, server, place.gtids, config)
    if lacking := minus(place.gtids, have):
        raise errors.OtherServer(
            f"the server lacks transactions that we have already captured: {_short(lacking)}", where=config.where,
            fix="It is another server, a replica that lags, or was restored from a backup. Check the dsn, or wait"
            f" until the replica has caught up. Otherwise: {errors.RECOVER}",
        )  # fmt: skip
    gone = facts.read_purged(db, server)
    if missing := minus(gone, place.gtids):
        raise errors.BinlogPurged(
            f"the server has purged transactions that we have not captured: {_short(missing)}",
            where=f"{config.where}, last position {_short(str(place.gtids))}",
            fix=f"{errors.RECOVER} Raise binlog_expire_logs_seconds to keep more.",
        )
    check_history(db, server, place, config)
    return replace(place, server=server.identity)


def other_server(db: MysqlSession, after: Position, config: MysqlConfig) -> str:
    """Why `after` is no position of this server, else empty. Nobody waits for a replica here."""
    server, at_once = MysqlServerInfo.read(db), config.model_copy(update={"failover_wait_seconds": 0})
    try:
        resume(db, server, parse(after, server, config), at_once)
    except errors.OtherServer as error:
        return error.what
    except (PositionLost, SetupError):
        return ""
    return ""


def check_history(db: MysqlSession, server: MysqlServerInfo, place: BinlogPlace, config: MysqlConfig) -> None:
    """Whether the server still has the binlog that was read. One that was reset, or put back to an earlier state, gives
    out the same names and numbers again, and what it wrote under them since would be passed over in silence. Its files
    tell: they were made at another second, or are shorter. Of a file that was purged its GTIDs tell: the ids that this
    server gave out up to the place where we read last count as purged with it, and ids given out anew stand later. A
    server of another identity has files of its own; there only the GTIDs count, which nobody else gives out."""
    witness = place.witness
    if witness is None or witness.server != server.identity:
        return
    at, files = f"{witness.file}:{witness.offset}", facts.binlog_files(db)
    size = next((file.size for file in files if file.name == witness.file), None)
    base = witness.file.rpartition(".")[0]
    if size is None:
        numbers = [number_of(file.name) for file in files if file.name.rpartition(".")[0] == base]
        if not numbers:
            return  # called otherwise by now: whether something is missing was judged by GTIDs
        if min(numbers) < number_of(witness.file):
            what = f"{at}, where we read last, is in no file that the server has"
        elif place.gtids is not None and (again := minus(_own(place.gtids, server), facts.read_purged(db, server))):
            what = f"{witness.file}, where we read last, was purged, but not with it the last we read: {_short(again)}"
        else:
            return
    elif size < witness.offset:
        what = f"{at}, where we read last, is beyond the end of that file, {size}"
    elif witness.created and (made := creation_time(config, witness.file)) != witness.created:
        what = f"{witness.file}, where we read last, was made at {_utc(witness.created)}, and this one at {_utc(made)}"
    else:
        return
    raise errors.OtherServer(
        f"the server has another history than the one that was captured: {what}", where=config.where,
        fix="Its binlog was reset (RESET BINARY LOGS AND GTIDS, RESET MASTER), it was restored from a backup, or it is"
        f" another server with the same {'server_uuid' if server.flavor is Flavor.MYSQL else 'server_id'}. Check the"
        f" dsn. {errors.RECOVER}",
    )  # fmt: skip


def _own(gtids: GtidSet, server: MysqlServerInfo) -> GtidSet:
    """The ids that this server gave out itself, or its group did. Others it cannot give out again, and may have written
    them later than what we read last, if we had them from the server that it took over from."""
    if isinstance(gtids, MariadbGtids):
        return MariadbGtids({domain: (by, number) for domain, by, number in gtids if by == server.server_id})
    own = MysqlGtids()
    givers = {server.identity.lower(), server.setting("group_replication_group_name").lower()}
    for uuid, tag, first_number, past in gtids:
        if uuid in givers:
            own.add_interval(uuid, tag, first_number, past)
    return own


def _utc(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _wait_for(db: MysqlSession, server: MysqlServerInfo, wanted: GtidSet, config: MysqlConfig) -> GtidSet:
    """What the server has. A transaction is sent as soon as it is in the binlog, which is a moment before the server
    counts it as executed; and a replica that has just taken over may still be applying."""
    deadline = time.monotonic() + config.failover_wait_seconds
    while minus(wanted, have := facts.read_executed(db, server)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return have


def _resume_file(db: MysqlSession, server: MysqlServerInfo, place: BinlogPlace, config: MysqlConfig) -> BinlogPlace:
    at = f"{place.file}:{place.offset}"
    if place.server and place.server != server.identity:
        raise errors.OtherServer(
            f"{at} is a place in the binlog of server {place.server}, but this is {server.identity}",
            where=config.where,
            fix="A file and a byte mean nothing at another server; with GTIDs it could go on. Check the dsn. If the"
            f" server was replaced: {errors.RECOVER}",
        )  # fmt: skip
    files = facts.binlog_files(db)
    sizes = {file.name: file.size for file in files}
    if place.file not in sizes:
        kept = f"; it has {files[0].name} to {files[-1].name}" if files else ""
        newer = bool(files) and number_of(place.file) > number_of(files[-1].name)
        kind, why = (errors.OtherServer, "does not have") if newer else (errors.BinlogPurged, "has purged")
        raise kind(
            f"the server {why} the binlog file of our position {at}{kept}", where=config.where,
            fix=f"{errors.RECOVER} Raise binlog_expire_logs_seconds to keep more.",
        )  # fmt: skip
    if place.offset > sizes[place.file]:
        raise errors.OtherServer(
            f"our position {at} is beyond the end of that file, {sizes[place.file]}: the server lost its last"
            " transactions or was restored",
            where=config.where,
            fix=errors.RECOVER,
        )
    check_history(db, server, place, config)
    return replace(place, server=server.identity)


def minus(left: GtidSet, right: GtidSet) -> str:
    """What `left` has and `right` lacks, as text; empty if nothing."""
    if isinstance(left, MysqlGtids) and isinstance(right, MysqlGtids):
        return str(left.minus(right))
    if isinstance(left, MariadbGtids) and isinstance(right, MariadbGtids):
        spans = left.minus(right).items()
        return ", ".join(f"{_span(first, last)} of domain {domain}" for domain, (first, last) in spans)
    raise AssertionError("two flavours in one comparison")


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "…"


def lag_bytes(place: BinlogPlace, files: list[facts.BinlogFile]) -> int | None:
    """Bytes of binlog from a place to the end; None if its file is unknown."""
    names = [file.name for file in files]
    if place.file not in names:
        return None
    at = names.index(place.file)
    return max(0, sum(file.size for file in files[at:]) - place.offset)
