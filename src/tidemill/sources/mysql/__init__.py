"""MySQL 8.0 to 9.x and MariaDB 10.6 and newer through the binlog, read as a replica reads it.

The capture loop calls it as it calls every source (`contracts.Source`). The server is told nothing: it keeps its binlog
by its own rules, so `due` only has the loop write down how far an idle stream has come.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from tidemill.contracts import (
    ByteStreamSource,
    Check,
    Notice,
    Passage,
    Resting,
    Schemas,
    SnapshotConfig,
    SourceConfig,
    history_of,
)
from tidemill.decoders.binlog import BinlogPlace, Flavor
from tidemill.errors import ConfigError, TidemillError
from tidemill.model.position import Ordering, Position
from tidemill.model.table import Table
from tidemill.sources._shared.errors import as_value_error
from tidemill.sources._shared.patterns import Pattern, Unmatched
from tidemill.sources.mysql import marks, setup, skip, tables
from tidemill.sources.mysql import resume as position
from tidemill.sources.mysql import server as facts
from tidemill.sources.mysql.checks import run_checks
from tidemill.sources.mysql.client import Dsn, MysqlSession, connect
from tidemill.sources.mysql.decode import StreamDecoder, decoder_of
from tidemill.sources.mysql.server import MysqlServerInfo
from tidemill.sources.mysql.snapshot import MysqlSnapshotReader
from tidemill.sources.mysql.stream import BinlogConnection, own_uuid
from tidemill.sources.mysql.tables import Selection

_LAG_SECONDS = 5.0  # between questions about the end of the binlog


class MysqlConfig(SourceConfig):
    flavor: ClassVar[Flavor | None] = None  # asked of the server

    dsn: str = Field(
        repr=False,
        description="How to connect: mysql://user:password@host:3306/database; options ssl_mode, ssl_ca, ssl_cert,"
        " ssl_key, unix_socket.",
        json_schema_extra={"secret": True},
    )
    tables: tuple[str, ...] = Field(
        default=(),
        description="Tables to capture: database.table, database.*, database.prefix%, `quoted`.`name`; none means all.",
    )
    start_position: str = Field(
        default="latest",
        min_length=1,
        description="Where a source without a position begins: latest, earliest (all binlog that is there), a GTID"
        " set, or file:byte.",
    )
    positions: Literal["auto", "gtid", "file"] = Field(
        default="auto",
        description="How a place is named: by GTID set, by file and byte, or GTID where the server has it.",
    )
    server_id: int | None = Field(
        default=None,
        ge=1,
        lt=1 << 32,
        description="Our number among the server's replicas; by default made from the id. No two may have the same.",
    )
    ssl_mode: Literal["disabled", "preferred", "required", "verify_ca", "verify_identity"] | None = Field(
        default=None, description="Overrides ssl_mode of the dsn; preferred without either."
    )
    ssl_ca: Path | None = Field(default=None, description="Certificate authorities that may sign the server's.")
    ssl_cert: Path | None = Field(default=None, description="Our certificate, for servers that ask for one.")
    ssl_key: Path | None = Field(default=None, description="Private key of ssl_cert.")
    zero_dates: Literal["keep", "null"] = Field(
        default="keep", description="0000-00-00 and dates with a zero part: kept as their text, or null."
    )
    heartbeat_seconds: float = Field(
        default=10,
        ge=0,
        le=4_294_967,
        description="Seconds of silence after which the server sends a sign of life; 0 never.",
    )
    feedback_seconds: float = Field(
        default=10, gt=0, description="Seconds between notes of how far a stream without changes has come."
    )
    connect_timeout_seconds: float = Field(default=10, gt=0, description="Seconds to wait for a connection.")
    network_timeout_seconds: float = Field(
        default=30, gt=0, description="Seconds without an answer or a heartbeat that mean a dead peer."
    )
    failover_wait_seconds: float = Field(
        default=10, ge=0, description="Seconds to wait for a server that does not have all of our transactions yet."
    )
    snapshot: SnapshotConfig | None = Field(
        default=None, description="Whether and how rows that were there before are copied; left out, they are not."
    )
    gather_ms: float = Field(default=50, ge=0, description="How long a busy stream is gathered before it is decoded.")

    @field_validator("dsn")
    @classmethod
    def _dsn_is_readable(cls, value: str) -> str:
        Dsn.parse(value)
        return value

    @field_validator("tables")
    @classmethod
    def _tables_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        as_value_error(lambda: Selection.of(value, "any"))
        return value

    @field_validator("start_position")
    @classmethod
    def _start_is_a_position(cls, value: str) -> str:
        if value not in ("earliest", "latest"):
            known = [cls.flavor] if cls.flavor else list(Flavor)
            for flavor in known:
                try:
                    BinlogPlace.parse(value, flavor)
                    return value
                except ConfigError as error:
                    problem = error
            raise ValueError(f"{problem.what}. {problem.fix}")
        return value

    @property
    def parsed_dsn(self) -> Dsn:
        return Dsn.parse(self.dsn)

    @property
    def tls_mode(self) -> str:
        return self.ssl_mode or self.parsed_dsn.options.get("ssl_mode", "preferred").lower()

    def tls_path(self, what: Literal["ca", "cert", "key"]) -> str:
        own: Path | None = getattr(self, f"ssl_{what}")
        return str(own) if own else self.parsed_dsn.options.get(f"ssl_{what}", "")

    @property
    def replica_id(self) -> int:
        """Stable, and far from the small numbers that people give their servers."""
        return self.server_id or 1_000_000_000 + zlib.crc32(self.id.encode()) % 3_000_000_000

    def selection(self, server: MysqlServerInfo) -> Selection:
        return Selection.of(self.tables, self.parsed_dsn.database, ignore_case=server.ignores_case)

    @property
    def where(self) -> str:
        return f'source "{self.id}"'


class MysqlSource(ByteStreamSource[MysqlConfig, StreamDecoder]):
    """One stream of one server. For one thread."""

    Config = MysqlConfig

    def __init__(self, config: MysqlConfig) -> None:
        super().__init__(config)
        self.began = Position("")
        self._stream: BinlogConnection | None = None
        self._side: MysqlSession | None = None  # for questions about the lag, beside the stream
        self._patterns: tuple[Pattern, ...] = ()
        self._absent: list[Unmatched] = []
        self._said: tuple[Notice, ...] = ()
        self._said_at: tuple[StreamDecoder | None, int] = (None, 0)
        self._schemas: Schemas | None = None
        self._noted = ""
        self._noted_at = 0.0
        self._lag: tuple[float, int | None] = (-_LAG_SECONDS, None)

    def setup(self, after: Position | None = None, schemas: Schemas | None = None) -> setup.PreparedMysql:
        """Looks whether the server is ready; changes nothing there. Whether it can go on from a position is judged by
        `open`, which knows how far an idle stream came beyond `after`."""
        with connect(self.config) as db:
            return setup.prepare(db, self.config)

    def pass_over(
        self, after: Position, through: Position | None, schemas: Schemas, *, confirmed: Position | None
    ) -> Passage:
        if through is not None:
            return skip.up_to(self.config, after, through, confirmed)
        return skip.next_transaction(self.config, after, confirmed)

    def other_server(self, after: Position, schemas: Schemas) -> str:
        with connect(self.config) as db:
            return position.other_server(db, after, self.config)

    def accept(self, subject: str, schemas: Schemas) -> tuple[Notice, ...]:
        return marks.accept(schemas, subject)

    def renew(self, schemas: Schemas | None = None) -> Position:
        """The end of the binlog now. The server holds nothing for us, so there is nothing to forget there. How tables
        were before the gap says nothing about them after it: `open` looks at them anew."""
        with connect(self.config) as db:
            setup.prepare(db, self.config)
            server = MysqlServerInfo.read(db)
            begin = position.witness(position.now(db, server, self.config), server, self.config).text()
        if schemas is not None:
            history_of(schemas).forget_structures(0)
            marks.forget(schemas)
        return begin

    def compare(self, a: Position, b: Position) -> Ordering | None:
        """GTID sets by what they contain, files and bytes of one server by their numbers."""
        return position.compare(a, b, self.config.flavor)

    def open(
        self, after: Position | None, schemas: Schemas, *, confirmed: Position | None = None, mark_events: int = 1000
    ) -> None:
        """Connects and streams what was committed after `after`, or after `confirmed` where that is further: an idle
        stream has nothing to append to the log, and what lies between may be purged by now."""
        self.close()
        config = self.config
        self._schemas = schemas
        with connect(config) as db:
            server = MysqlServerInfo.read(db)
            setup.check_flavor(server, config)
            setup.check_log_bin(server, config)
            setup.check_format(server, config)
            own = own_uuid(schemas.recall, schemas.remember)
            setup.wait_for_server_id(db, server, config, own)
            known = position.further(*(position.parse(p, server, config) if p else None for p in (after, confirmed)))
            place = position.resume(db, server, known, config) if known else position.first(db, server, config)
            selection = config.selection(server)
            self._patterns, (_, self._absent) = selection.patterns, tables.find(db, selection)
            # Before the stream begins, so that a table of the stream is at most younger than its catalog.
            self._decoder = decoder_of(db, server, place, schemas, config, fresh=known is None, mark_events=mark_events)
        self._stream = BinlogConnection(connect(config), server, place, config, own)
        self.began = place.text()
        self._noted = self.began
        self._noted_at = time.monotonic()

    def read(self, wait: float = 0.2) -> memoryview:
        """Packets of the stream not yet consumed, the last one maybe cut. Holds until the next call."""
        return self._open_stream().read(wait)

    def consumed(self, count: int) -> None:
        self._open_stream().consumed(count)

    def due(self, delivered: Position | None, *, caught_up: bool) -> Position | None:
        """How far a stream has come that brings changes of other tables only: written down, it need not read them
        again, and may be purged up to there. Everything before it is delivered (invariant 2)."""
        decoder = self.decoder
        if not (caught_up and decoder.idle) or time.monotonic() - self._noted_at < self.config.feedback_seconds:
            return None
        self._noted_at = time.monotonic()
        reached = decoder.place.text()
        if reached == self._noted:
            return None
        self._noted = reached
        return reached

    def acknowledge(self, position: Position) -> None:
        """Nothing to say: the server purges its binlog by its own rules, not by what replicas have read."""

    def snapshot_reader(self) -> MysqlSnapshotReader:
        return MysqlSnapshotReader(self.config)

    def reached(self, high: Position, logged: Position) -> bool:
        """By the place of the decoder, which an idle stream has come to without anything to log."""
        place = self.decoder.place
        return BinlogPlace.parse(high, place.flavor).compare(place) in (Ordering.SAME, Ordering.BEFORE)

    def reached_position(self, logged: Position) -> Position:
        return self.decoder.place.text()

    def hasten(self, high: Position) -> None:
        """Nothing to do: `high` is the end of a transaction, which the stream brings by itself."""

    def register(self, tables: Sequence[Table], schemas: Schemas, position: Position) -> list[Table]:
        with schemas.together():
            return [schemas.register(table, position) for table in tables]

    def notices(self) -> tuple[Notice, ...]:
        decoder = self._decoder
        if decoder is not None and self._said_at != (decoder, decoder.statements):
            assert self._schemas is not None
            self._said = (*self._find_unmatched(list(decoder.known())), *marks.notices(self._schemas))
            self._said_at = (decoder, decoder.statements)
        return self._said

    def _find_unmatched(self, known: list[tuple[str, str]]) -> Iterator[Notice]:
        """As the stream has come: a table that is created or dropped there changes what is said."""
        for pattern in self._patterns:
            if not any(pattern.matches(*name) for name in known):
                said = next((u for u in self._absent if u.pattern == pattern), None) or Unmatched.yet(pattern)
                yield Notice("pattern-unmatched", pattern.text, said.what, said.fix)

    def lag_bytes(self) -> int | None:
        """Binlog from where the decoder is to the end, as of a few seconds ago."""
        if self._decoder is None:
            return None
        if time.monotonic() - self._lag[0] >= _LAG_SECONDS:
            self._lag = (time.monotonic(), self._ask_lag(self._decoder.place))
        return self._lag[1]

    def _ask_lag(self, place: BinlogPlace) -> int | None:
        try:
            self._side = self._side or connect(self.config, answer_seconds=2)
            return position.lag_bytes(place, facts.binlog_files(self._side))
        except TidemillError:  # the stream will say what is wrong
            if self._side is not None:
                self._side.close()
            self._side = None
            return None

    def doctor(self, resting: Resting | None = None) -> Iterable[Check]:
        return run_checks(self.config, resting)

    def close(self) -> None:
        """Hangs up. Nothing stays at the server."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._side is not None:
            self._side.close()
            self._side = None
        self._lag = (-_LAG_SECONDS, None)

    def _open_stream(self) -> BinlogConnection:
        if self._stream is None:
            raise RuntimeError("open() was not called")
        return self._stream


component = MysqlSource
