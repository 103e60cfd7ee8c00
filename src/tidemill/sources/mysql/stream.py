"""The binlog stream: registers as a replica, asks for the binlog, and hands on the bytes in large reads.

"Replication Protocol" of the MySQL internals manual, and MariaDB's "3-Binlog Network Stream". What is asked for:

    MySQL, GTID set     COM_BINLOG_DUMP_GTID with the set
    MariaDB, GTID set   @slave_connect_state, then COM_BINLOG_DUMP without a file
    file and byte       COM_BINLOG_DUMP
"""

from __future__ import annotations

import contextlib
import secrets
import struct
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from pymysql.constants import COMMAND

from tidemill.decoders.binlog import BinlogPlace, EventType, Flavor, MariadbGtids, MysqlGtids
from tidemill.errors import ConnectionLost, SourceError
from tidemill.net.buffered import BufferedReader, Pace
from tidemill.sources.mysql import errors
from tidemill.sources.mysql.client import MysqlSession, connect
from tidemill.sources.mysql.server import MysqlServerInfo

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig

_THROUGH_GTID = 4  # a flag of COM_BINLOG_DUMP_GTID
_NON_BLOCKING = 1  # a flag of COM_BINLOG_DUMP: end where the binlog ends
_EVENT_TYPE = 4  # where it stands in an event's header
_LARGEST_PACKET = 0xFFFFFF
_UUID_NOTE = "mysql-replica-uuid"
_WRITE_TIMEOUT_SECONDS = 3600


class BinlogConnection:
    """One connection that sends the binlog. `session` is a fresh login, which belongs to the stream from here on. `own`
    is the pipeline's name among replicas: what it left at the server, and nothing else, is ended by it. Without one it
    is a stranger with a number of its own, for a look."""

    def __init__(
        self, session: MysqlSession, server: MysqlServerInfo, place: BinlogPlace, config: MysqlConfig, own: str = ""
    ) -> None:
        self._session = session
        self._silence = max(config.network_timeout_seconds, 2.5 * config.heartbeat_seconds)
        self._heartbeats = config.heartbeat_seconds > 0
        self._where = config.where
        try:
            server_id = config.replica_id if own else probe_id()
            self._declare(server, place, config, own or str(uuid.uuid4()))
            register(session, config, server_id, own)
            self._ask(place, server_id)
        except BaseException:
            session.close()
            raise
        self._buffered = BufferedReader(
            session.connection._sock, config.where, event_size, pace=Pace(gather=config.gather_ms / 1000)
        )

    def read(self, wait: float) -> memoryview:
        """All bytes not yet consumed. A server that sends neither events nor heartbeats is given up."""
        view = self._buffered.read(wait)
        if self._heartbeats and self._buffered.quiet > self._silence:
            raise ConnectionLost(
                f"the server has sent nothing for {self._silence:.0f} seconds, not even a heartbeat", where=self._where
            )
        return view

    def consumed(self, count: int) -> None:
        self._buffered.consumed(count)

    def close(self) -> None:
        """The server notices at its next write; a new connection of ours ends the old one at once."""
        with contextlib.suppress(OSError):
            self._buffered.close()
        self._session.connection._force_close()

    def _declare(self, server: MysqlServerInfo, place: BinlogPlace, config: MysqlConfig, own: str) -> None:
        """Tells the server what we can take. Old and new words for the same: each server reads the ones it knows."""
        period = int(config.heartbeat_seconds * 1_000_000_000)
        _agree_on_checksums(self._session)
        self._session.execute(f"SET @master_heartbeat_period = {period}, @source_heartbeat_period = {period}")
        self._session.execute(f"SET @slave_uuid = '{own}', @replica_uuid = '{own}'")
        # While a sink is down we do not read, and the server must not take that for a dead replica.
        self._session.execute(f"SET SESSION net_write_timeout = {_WRITE_TIMEOUT_SECONDS}")
        if server.flavor is Flavor.MARIADB:
            # 4: knows GTID events. With less, the server would rewrite or leave out what is newer.
            self._session.execute("SET @mariadb_slave_capability = 4")
            if place.gtids is not None:
                strict = "1" if server.setting("gtid_strict_mode").upper() == "ON" else "0"
                self._session.execute(
                    f"SET @slave_connect_state = '{place.gtids}', @slave_gtid_strict_mode = {strict},"
                    " @slave_gtid_ignore_duplicates = 0"
                )

    def _ask(self, place: BinlogPlace, server_id: int) -> None:
        if isinstance(place.gtids, MysqlGtids):
            gtids = place.gtids.encode()
            body = struct.pack("<HIIQI", _THROUGH_GTID, server_id, 0, 4, len(gtids)) + gtids
            command = COMMAND.COM_BINLOG_DUMP_GTID
        else:
            file, offset = ("", 4) if isinstance(place.gtids, MariadbGtids) else (place.file, place.offset)
            body = struct.pack("<IHI", offset, 0, server_id) + file.encode()
            command = COMMAND.COM_BINLOG_DUMP
        with errors.translate(self._where):
            self._session.connection._execute_command(command, body)


def register(session: MysqlSession, config: MysqlConfig, server_id: int, own: str = "") -> None:
    """COM_REGISTER_SLAVE: lists us among the replicas, and is refused without the privilege to read the binlog."""
    name = replica_name(config, own).encode()
    body = struct.pack("<IB", server_id, len(name)) + name + struct.pack("<BBHII", 0, 0, 0, 0, 0)
    try:
        with errors.translate(session.where):
            session.connection._execute_command(COMMAND.COM_REGISTER_SLAVE, body)
            session.connection._read_packet()
    except errors.GrantMissing as error:
        raise errors.GrantMissing(
            f"the account may not read the binlog: {error.what}", where=config.where,
            fix=f"Run: GRANT REPLICATION SLAVE ON *.* TO {account(session)};",
        ) from error  # fmt: skip


def creation_time(config: MysqlConfig, file: str) -> int:
    """When a binlog file was made, seconds since 1970: its first event says so. Read as a replica of another number
    reads it, on a connection of its own, and no further."""
    with connect(config) as session:
        _agree_on_checksums(session)
        body = struct.pack("<IHI", 4, _NON_BLOCKING, probe_id()) + file.encode()
        try:
            with errors.translate(session.where):
                session.connection._execute_command(COMMAND.COM_BINLOG_DUMP, body)
                for _ in range(5):  # a ROTATE that names the file, then the event
                    event = session.connection._read_packet().get_all_data()[1:]
                    if len(event) > _EVENT_TYPE and event[_EVENT_TYPE] == EventType.FORMAT_DESCRIPTION:
                        return int.from_bytes(event[:4], "little")
        finally:
            session.connection._force_close()
    raise SourceError(f"the server does not send the head of its binlog file {file}", where=config.where)


def probe_id() -> int:
    """A number of no replica, above all that are made from an id; another one each time, since the server ends the
    connection of a replica whose number comes again."""
    return 4_050_000_000 + secrets.randbelow(200_000_000)


def _agree_on_checksums(session: MysqlSession) -> None:
    """A server with checksums refuses a reader that does not say that it knows them."""
    session.execute("SET @master_binlog_checksum = @@GLOBAL.binlog_checksum, @source_binlog_checksum ="
                    " @@GLOBAL.binlog_checksum")  # fmt: skip


def account(session: MysqlSession) -> str:
    """The account as a GRANT wants it."""
    user, _, host = str(session.value("SELECT CURRENT_USER()")).rpartition("@")
    return f"'{user}'@'{host}'"


def own_uuid(recall: Callable[[str], bytes | None], remember: Callable[[str, bytes], None] | None = None) -> str:
    """The pipeline's uuid among replicas, made once and kept in its state; empty if it has none yet.

    A server that meets a replica's uuid again (MySQL), or its server_id (MariaDB), ends the connection that has it: our
    own of before a crash, as it should be. Two pipelines with one `id` have one server_id, but never one uuid.
    """
    if (known := recall(_UUID_NOTE)) is not None:
        return known.decode()
    if remember is None:
        return ""
    made = str(uuid.uuid4())
    remember(_UUID_NOTE, made.encode())
    return made


def replica_name(config: MysqlConfig, own: str = "") -> str:
    """As what we register: tells our own connection from others with the same server_id, also on MariaDB, which lists
    no uuids. At most 60 bytes are kept."""
    name = f"tidemill:{config.id}".encode()[:43].decode(errors="ignore")
    return f"{name}:{own[:16]}" if own else name


def is_of_source(name: str, config: MysqlConfig) -> bool:
    """Whether a replica's name is one that `replica_name` makes for this source, of whatever pipeline."""
    ours = replica_name(config)
    return name == ours or name.startswith(f"{ours}:")


def event_size(have: memoryview) -> int:
    """Bytes of the first event with its packet headers; an event of 16 MB and more comes in several packets."""
    if len(have) < 4 + 1 + 19:
        return 0
    length = int.from_bytes(have[:3], "little")
    if length < _LARGEST_PACKET:
        return 4 + length
    payload = 1 + int(struct.unpack_from("<I", have, 4 + 1 + 9)[0])
    return payload + 4 * (payload // _LARGEST_PACKET + 1)
