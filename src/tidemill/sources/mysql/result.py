"""A SELECT of a whole table's columns, read unbuffered and columnar. The snapshot reader calls it, for each chunk.

The statement is prepared, because only then rows come in the binary protocol, where a FLOAT has all of its bits. Its
socket is read in large reads, as the binlog's is; PyMySQL gets it back when the result has ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from pymysql.constants import COMMAND

from tidemill.decoders.binlog import Flavor, ResultRows, result_types
from tidemill.errors import ConnectionLost
from tidemill.model.block import Block
from tidemill.model.table import Table
from tidemill.net.buffered import BufferedReader, Pace
from tidemill.sources.mysql.client import MysqlSession
from tidemill.sources.mysql.errors import from_server, translate

# Smaller than the stream's: several are open at a time, and nothing is lost by waiting less.
_PACE = Pace(gather=0.02, read_bytes=4 << 20, buffer=12 << 20)


#: Text as its own bytes, timestamps in UTC, dates as they are, and no limit on how long we may take to read.
_SESSION = (
    "SET NAMES utf8mb4",
    "SET SESSION character_set_results = NULL",
    "SET SESSION time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES', net_write_timeout = 3600",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)
_LIMITS = {Flavor.MYSQL: "SET SESSION max_execution_time = 0", Flavor.MARIADB: "SET SESSION max_statement_time = 0"}


def prepare_session(db: MysqlSession, flavor: Flavor) -> None:
    """Once per session, before the first `read_blocks`."""
    for statement in (*_SESSION, _LIMITS[flavor]):
        db.execute(statement)


def read_blocks(
    db: MysqlSession, statement: str, table: Table, *, null_zero_dates: bool, silence: float
) -> Iterator[Block]:
    """Blocks of op `read`, in the order of the rows. `statement` selects all of `table` by `expression`.

    If it is not exhausted, the session is closed: the rest of the result would be taken for the next answer.
    `silence`: seconds without a byte that mean a dead server.
    """
    number = _prepare(db, statement)
    body = number.to_bytes(4, "little") + b"\0" + (1).to_bytes(4, "little")
    with translate(db.where):
        db.connection._execute_command(COMMAND.COM_STMT_EXECUTE, body)
    wire = _Wire(db, silence)
    try:
        columns = wire.number()
        kinds = result_types([wire.packet() for _ in range(columns)])
        wire.packet()  # the end of the definitions
        rows = ResultRows(table, kinds, null_zero_dates=null_zero_dates)
        yield from wire.blocks(rows)
        wire.packet()  # the end of the rows
    except BaseException:
        db.connection._force_close()
        raise
    with translate(db.where):
        db.connection._execute_command(COMMAND.COM_STMT_CLOSE, number.to_bytes(4, "little"))


def _prepare(db: MysqlSession, statement: str) -> int:
    """The number of the prepared statement. Its column definitions come again with the rows."""
    with translate(db.where):
        db.connection._execute_command(COMMAND.COM_STMT_PREPARE, statement)
        answer = db.connection._read_packet().get_all_data()
        if int.from_bytes(answer[5:7], "little"):
            while not db.connection._read_packet().is_eof_packet():
                pass
    return int.from_bytes(answer[1:5], "little")


class _Wire:
    """The socket of a session while a result comes."""

    def __init__(self, db: MysqlSession, silence: float) -> None:
        self._where, self._silence = db.where, silence
        self._buffered = BufferedReader(db.connection._sock, db.where, _packet_size, pace=_PACE)

    def packet(self) -> bytes:
        """The next packet's payload; the server's error, if it is one."""
        view = self._buffered.pending
        while len(view) < 4 or len(view) < 4 + int.from_bytes(view[:3], "little"):
            view = self._more()
        size = int.from_bytes(view[:3], "little")
        payload = bytes(view[4 : 4 + size])
        self._buffered.consumed(4 + size)
        if payload[:1] == b"\xff":
            message = payload[3:].decode(errors="replace")
            message = message[6:] if message.startswith("#") else message  # the SQL state stands before it
            raise from_server(int.from_bytes(payload[1:3], "little"), message, self._where)
        return payload

    def number(self) -> int:
        """Of columns, length-encoded: at most 4096."""
        head = self.packet()
        return head[0] if head[0] < 251 else int.from_bytes(head[1:3], "little")

    def blocks(self, rows: ResultRows) -> Iterator[Block]:
        """All rows; then the next packet is the one after the last."""
        view = self._buffered.pending
        while True:
            part = rows.feed(view)
            if part.block is not None:
                yield part.block
            if part.consumed:
                self._buffered.consumed(part.consumed)
                view = self._buffered.pending
            elif part.ended:
                return
            else:
                view = self._more()

    def _more(self) -> memoryview:
        """Waits for bytes: a read may end without any."""
        have = len(self._buffered.pending)
        while len(view := self._buffered.read(1.0)) == have:
            if self._buffered.quiet > self._silence:
                raise ConnectionLost(f"the server has sent nothing for {self._silence:.0f} seconds", where=self._where)
        return view


def _packet_size(have: memoryview) -> int:
    return 4 + int.from_bytes(have[:3], "little") if len(have) >= 4 else 0
