"""Reads chunks of tables of MySQL and MariaDB while they change. No table is locked, except where only a lock gives a
consistent read.

Why a read proves an observation, which is the end of the log at a time before it (`contracts/snapshot.py`): everything
that the log had by then must be visible to the read. A transaction is in the binlog, and sent, a moment before the
engine makes it visible, so that the end of the binlog proves nothing. What does:

    MySQL, GTIDs    gtid_executed, asked before the read opens. A transaction is added to it after its engine commit
                    (process_commit_stage_queue, finish_commit), so all that is in the set is visible.
    MariaDB         the place that START TRANSACTION WITH CONSISTENT SNAPSHOT itself has in the binlog
                    (binlog_snapshot_file, binlog_snapshot_position): it is taken under the lock that orders engine
                    commits. gtid_binlog_pos is ahead of them, as file and byte are.
    MySQL, files    a transaction is prepared in the engine before it is written to the binlog. Those that were
                    prepared when the log's end was noted (SHOW ENGINE INNODB STATUS) are not any more when the read
                    opens, so all that stood in the binlog by then was committed.
    other engines   LOCK TABLES … READ for the time of the chunk: who writes to such a table holds its lock until the
                    binlog has it.

`high` is asked after the read opened: a transaction is in the binlog before it is visible. If the read sees one that is
not in `high` yet by some other order, that is harmless: it comes later in the stream, as the same row or a newer one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from tidemill.contracts.catalog_scan import CatalogScan
from tidemill.decoders.binlog import BinlogPlace, Flavor, expression, file_number
from tidemill.errors import SourceError, StructureChanged
from tidemill.model.block import Block
from tidemill.model.position import Ordering, Position
from tidemill.model.snapshot import Bound, Chunk, SnapshotTable
from tidemill.model.table import Table
from tidemill.sources.mysql import chunks, copyable
from tidemill.sources.mysql import resume as position
from tidemill.sources.mysql.client import MysqlSession, connect
from tidemill.sources.mysql.copyable import CopyToken, full_name, key_columns, point_columns
from tidemill.sources.mysql.errors import GrantMissing, TableRedefined
from tidemill.sources.mysql.result import prepare_session, read_blocks
from tidemill.sources.mysql.scan import scan_catalog
from tidemill.sources.mysql.server import MysqlServerInfo
from tidemill.sources.mysql.stream import account
from tidemill.sources.mysql.tables import quote

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig

_PREPARED = re.compile(r"^---TRANSACTION (\d+), .*(?:PREPARED|COMMITTED)", re.MULTILINE)
_SLOWEST_SCAN_SECONDS = 600.0  # a filter may keep the server busy for long before it finds a first row
_COMMIT_SECONDS = 30.0
_TRUNCATED = "... truncated..."


class MysqlSnapshotReader:
    """One connection, made when first needed."""

    def __init__(self, config: MysqlConfig) -> None:
        self._config = config
        self._session: tuple[MysqlSession, MysqlServerInfo] | None = None

    def __getstate__(self) -> MysqlConfig:
        return self._config

    def __setstate__(self, config: MysqlConfig) -> None:
        self._config, self._session = config, None

    def tables(self, names: Sequence[str] = ()) -> list[SnapshotTable]:
        return copyable.find(*self._connected(), self._config, names)

    def names_with_rows(self) -> list[str]:
        return [table.name for table in self.tables() if table.estimate]

    def structures(self) -> list[Table]:
        return [found.table for found in self.tables()]

    def scan_catalog(self, seconds: float) -> CatalogScan:
        return scan_catalog(self._config, seconds)

    def plan(self, table: SnapshotTable, part: str, after: Bound | None, rows: int) -> Bound | None:
        if not table.key:
            return None
        db, _ = self._connected()
        key = key_columns(table)
        shown = ", ".join(f"{one.shown} AS k{n}" for n, one in enumerate(key))
        order = ", ".join(one.name for one in key)
        where = chunks.after(key, after)
        row = db.row(
            f"SELECT {shown} FROM {_from(table)}{f' WHERE {where}' if where else ''} ORDER BY {order}"
            f" LIMIT 1 OFFSET {rows - 1}"
        )
        return tuple(one.bound_text(row[f"k{n}"]) for n, one in enumerate(key)) if row else None

    def observe(self, logged: Position) -> str:
        db, server = self._connected()
        by_file = server.flavor is Flavor.MYSQL and BinlogPlace.parse(logged, server.flavor).gtids is None
        return orjson.dumps({"logged": logged, "prepared": sorted(_read_prepared(db)) if by_file else []}).decode()

    @contextmanager
    def read(self, chunk: Chunk, table: SnapshotTable, observations: Sequence[str]) -> Iterator[MysqlReading]:
        db, server = self._connected()
        try:
            yield (reading := self._open(db, server, chunk, table, observations))
            if reading.half_read:
                self.close()
            else:
                db.execute("COMMIT" if CopyToken.from_json(table.token).transactional else "UNLOCK TABLES")
        except TableRedefined as error:
            self.close()
            raise StructureChanged(
                f"{table.name} is not what it was when its copy was planned: {error.what}", where=self._config.where
            ) from error
        except BaseException:
            self.close()  # whatever it was doing
            raise

    def close(self) -> None:
        if self._session is not None:
            self._session[0].connection._force_close()
            self._session = None

    def _open(
        self, db: MysqlSession, server: MysqlServerInfo, chunk: Chunk, table: SnapshotTable, observations: Sequence[str]
    ) -> MysqlReading:
        name, token = full_name(table.table), CopyToken.from_json(table.token)
        known = [_Observation.parse(text, server) for text in observations]
        proven = self._begin(db, server, known) if token.transactional else self._lock(db, name, known)
        if token.transactional:
            db.rows(f"SELECT 1 AS one FROM {name} LIMIT 0")  # from here on no statement can change the table
        if copyable.definition(db, name) != token.definition:
            raise StructureChanged(f"{table.name} was changed since its copy was planned", where=self._config.where)
        high = copyable.end(db, server, self._config).text()
        clock = db.value("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)")
        return MysqlReading(db, self._config, self._statement(chunk, table), table, high, proven, int(clock))

    def _lock(self, db: MysqlSession, name: str, known: Sequence[_Observation]) -> int:
        db.execute(f"LOCK TABLES {name} READ")
        return len(known) - 1

    def _begin(self, db: MysqlSession, server: MysqlServerInfo, known: Sequence[_Observation]) -> int:
        """Opens the read; answers which observation it proves. The oldest may be where the stream began: what the read
        does not see of that is in no event, so it is waited for."""
        deadline = time.monotonic() + _COMMIT_SECONDS
        while (proven := self._try(db, server, known)) < 0 and known:
            if time.monotonic() > deadline:
                raise SourceError(
                    f"transactions that stand in the binlog are not visible after {_COMMIT_SECONDS:.0f} seconds",
                    where=self._config.where,
                    fix="Something keeps commits waiting between the binlog and the engine: semi-synchronous"
                    " replication without a replica that confirms, for instance. The copy goes on when it is over.",
                )
            db.execute("ROLLBACK")
            time.sleep(0.02)
        return proven

    def _try(self, db: MysqlSession, server: MysqlServerInfo, known: Sequence[_Observation]) -> int:
        if server.flavor is Flavor.MARIADB:
            db.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            at = copyable.snapshot_place(db, server)
            return _newest(known, lambda one: one.is_before(at, db))
        have = position.now(db, server, self._config)
        prepared = _read_prepared(db) if any(one.logged.gtids is None for one in known) else set()
        db.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        return _newest(known, lambda one: one.is_committed(have, prepared))

    def _statement(self, chunk: Chunk, table: SnapshotTable) -> str:
        columns = ", ".join(expression(column, quote(column.name)) for column in table.table.columns)
        where = chunks.condition(point_columns(table) if chunk.points else key_columns(table), chunk)
        return f"SELECT {columns} FROM {_from(table)}{f' WHERE {where}' if where else ''}"

    def _connected(self) -> tuple[MysqlSession, MysqlServerInfo]:
        if self._session is None or not self._session[0].connection.open:
            db = connect(self._config)
            server = MysqlServerInfo.read(db)
            prepare_session(db, server.flavor)
            self._session = db, server
        return self._session


@dataclass(slots=True)
class MysqlReading:
    """One chunk's read, open. Its blocks can be asked for once. While they are `half_read` the session is of no use for
    anything else."""

    db: MysqlSession
    config: MysqlConfig
    statement: str
    table: SnapshotTable
    high: Position
    proven: int
    commit_time: int
    half_read: bool = False

    @property
    def observation(self) -> int | None:
        return self.proven if self.proven >= 0 else None

    def blocks(self) -> Iterator[Block]:
        self.half_read = True
        yield from read_blocks(
            self.db, self.statement, self.table.table, null_zero_dates=self.config.zero_dates == "null",
            silence=max(_SLOWEST_SCAN_SECONDS, self.config.network_timeout_seconds),
        )  # fmt: skip
        self.half_read = False


@dataclass(frozen=True, slots=True)
class _Observation:
    """The end of the log, and what was prepared then (MySQL without GTIDs)."""

    logged: BinlogPlace
    prepared: frozenset[str]

    @classmethod
    def parse(cls, text: str, server: MysqlServerInfo) -> _Observation:
        doc = orjson.loads(text)
        return cls(BinlogPlace.parse(doc["logged"], server.flavor), frozenset(doc["prepared"]))

    def is_committed(self, executed: BinlogPlace, prepared: set[str]) -> bool:
        """MySQL: whether all of it was visible when `executed`, or `prepared`, was asked."""
        if self.logged.gtids is None:
            return not self.prepared & prepared
        return self.logged.compare(executed) in (Ordering.SAME, Ordering.BEFORE)

    def is_before(self, at: BinlogPlace, db: MysqlSession) -> bool:
        """MariaDB: whether all of it stands at or before this place in the binlog. Where a file's end was noted, events
        that are no transaction may stand before that: its GTIDs tell then, for which the server reads the file."""
        last = self.logged.witness
        here = last is not None and last.server == at.server
        if last and here and (file_number(last.file), last.offset) <= (file_number(at.file), at.offset):
            return True
        if self.logged.gtids is None:
            return False
        have = db.value("SELECT BINLOG_GTID_POS(%s, %s)", [at.file, at.offset])
        reached = BinlogPlace.parse(str(have or "empty"), Flavor.MARIADB)
        return self.logged.compare(reached) in (Ordering.SAME, Ordering.BEFORE)


def _newest(known: Sequence[_Observation], holds: Callable[[_Observation], bool]) -> int:
    """The index of the last one that holds, else -1."""
    return next((n for n in reversed(range(len(known))) if holds(known[n])), -1)


def _read_prepared(db: MysqlSession) -> set[str]:
    """Transactions of InnoDB that are prepared and not yet visible. The text is the only place that tells them from
    others, and it is not cached as INNODB_TRX is."""
    try:
        text = str(db.row("SHOW ENGINE INNODB STATUS").get("Status", ""))
    except GrantMissing as error:
        raise GrantMissing(
            f"without GTIDs a copy must know which transactions are being committed: {error.what}", where=db.where,
            fix=f"Run: GRANT PROCESS ON *.* TO {account(db)}; or set gtid_mode=ON at the server.",
        ) from error  # fmt: skip
    if _TRUNCATED in text:
        raise SourceError(
            "the server has too many transactions to list those that are being committed", where=db.where,
            fix="Set gtid_mode=ON at the server, or copy when it is less busy.",
        )  # fmt: skip
    return set(_PREPARED.findall(text))


def _from(table: SnapshotTable) -> str:
    token = CopyToken.from_json(table.token)
    versions = " FOR SYSTEM_TIME ALL" if token.versioned else ""
    index = f" FORCE INDEX ({quote(token.index)})" if token.index else ""
    return f"{full_name(table.table)}{versions}{index}"
