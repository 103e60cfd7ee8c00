"""What a server says of itself: flavour, settings, its binlog files, and which transactions it has."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import Any

from tidemill.decoders.binlog import Flavor, GtidSet, MariadbGtids, MysqlGtids
from tidemill.errors import SourceError, TidemillError
from tidemill.sources.mysql.client import MysqlSession


@dataclass(frozen=True, slots=True)
class BinlogFile:
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class MysqlServerInfo:
    """`identity` tells this server's files from another's: its server_uuid; MariaDB has none, there it is server_id.

    `settings` are global variables by lower-case name; one the server does not have is "".
    """

    flavor: Flavor
    version: tuple[int, ...]
    version_text: str
    server_id: int
    identity: str
    settings: dict[str, str]

    @classmethod
    def read(cls, db: MysqlSession) -> MysqlServerInfo:
        settings = {
            str(row["Variable_name"]).lower(): str(row["Value"])
            for row in db.rows("SHOW GLOBAL VARIABLES")
        }  # fmt: skip
        text = settings.get("version", "")
        # A proxy or an old protocol version may put "5.5.5-" before MariaDB's own.
        flavor = Flavor.MARIADB if "mariadb" in text.lower() else Flavor.MYSQL
        numbers = re.search(r"(\d+)\.(\d+)\.(\d+)", text.removeprefix("5.5.5-") if flavor is Flavor.MARIADB else text)
        version = tuple(map(int, numbers.groups())) if numbers else (0, 0, 0)
        identity = settings.get("server_uuid") or settings.get("server_id", "")
        return cls(flavor, version, text, int(settings.get("server_id", "0")), identity, settings)

    def setting(self, name: str) -> str:
        return self.settings.get(name, "")

    @property
    def name(self) -> str:
        return "MariaDB" if self.flavor is Flavor.MARIADB else "MySQL"

    @property
    def has_gtids(self) -> bool:
        """MariaDB numbers every transaction; MySQL only with gtid_mode=ON (ON_PERMISSIVE leaves some out)."""
        return self.flavor is Flavor.MARIADB or self.setting("gtid_mode") == "ON"

    @property
    def checksum(self) -> bool:
        return self.setting("binlog_checksum").upper() == "CRC32"

    @property
    def full_metadata(self) -> bool:
        return self.setting("binlog_row_metadata").upper() == "FULL"

    @property
    def logs_cascades(self) -> bool:
        """Whether rows that a foreign key changes are in the binlog. Engines do it unseen; MySQL 9.6 took it over from
        them, with a setting to give it back."""
        return self.setting("innodb_native_foreign_keys").upper() == "OFF"

    @property
    def ignores_case(self) -> bool:
        return self.setting("lower_case_table_names") in ("1", "2")


def end_of_binlog(db: MysqlSession, server: MysqlServerInfo) -> BinlogFile:
    """The file being written and how far it reaches. 8.4 has only the new word for it, older servers only the old."""
    new_word = server.flavor is Flavor.MYSQL and server.version >= (8, 2)
    row = db.row("SHOW BINARY LOG STATUS" if new_word else "SHOW MASTER STATUS")
    if not row:
        raise SourceError("the server has no binlog", where=db.where, fix="Start it with log_bin.")
    return BinlogFile(row["File"], int(row["Position"]))


def binlog_files(db: MysqlSession) -> list[BinlogFile]:
    """All files that are still there, oldest first."""
    return [BinlogFile(row["Log_name"], int(row["File_size"])) for row in db.rows("SHOW BINARY LOGS")]


def read_executed(db: MysqlSession, server: MysqlServerInfo) -> GtidSet:
    """Every transaction that is, or once was, in the server's binlog."""
    if server.flavor is Flavor.MYSQL:
        return MysqlGtids.parse(str(db.value("SELECT @@GLOBAL.gtid_executed") or ""))
    return MariadbGtids.parse(str(db.value("SELECT @@GLOBAL.gtid_binlog_pos") or ""))


def read_purged(db: MysqlSession, server: MysqlServerInfo) -> GtidSet:
    """The transactions that were in binlog files which are gone: a reader must have them already."""
    if server.flavor is Flavor.MYSQL:
        return MysqlGtids.parse(str(db.value("SELECT @@GLOBAL.gtid_purged") or ""))
    files = binlog_files(db)
    if not files:
        return MariadbGtids()
    # The first event of a file lists what all files before it had.
    return MariadbGtids.parse(str(db.value("SELECT BINLOG_GTID_POS(%s, 4)", [files[0].name]) or ""))


def replicas(db: MysqlSession, server: MysqlServerInfo) -> list[dict[str, Any]]:
    """Registered replicas as (server_id, host, uuid); empty if the account may not ask."""
    new_word = server.flavor is Flavor.MYSQL and server.version >= (8, 0, 22)
    with contextlib.suppress(TidemillError):
        rows = db.rows("SHOW REPLICAS" if new_word else "SHOW SLAVE HOSTS")
        return [{key.lower(): value for key, value in row.items()} for row in rows]
    return []
