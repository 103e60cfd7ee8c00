"""StarRocks: current rows in primary key tables, by Stream Load.

Only the last state of a key within a piece is loaded; columns that the source did not send are left as they are by
partial updates, one load per set of such columns. A load's label is made of pipeline, sink, batch, lane, table and
what it brings, so that the server takes it once; an existing label is success only when its load is visible. Every load
is conditional on the version, so that one which comes late replaces nothing newer.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from tidemill.contracts import BaseSink, Capabilities, Check, Place, SinkConfig
from tidemill.errors import Poisoned
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.position import Offset
from tidemill.model.schema_change import SchemaChange, SchemaChangeKind, SchemaPlan
from tidemill.model.table import Table
from tidemill.model.template import Template
from tidemill.sinks._shared.history import WriterHistory
from tidemill.sinks._shared.lines import windows
from tidemill.sinks._shared.places import hosts
from tidemill.sinks._shared.routing import of_a_table
from tidemill.sinks.starrocks.client import StreamLoads as StreamLoads
from tidemill.sinks.starrocks.recovery import remove_older
from tidemill.sinks.starrocks.resume import StarRocksNotebook
from tidemill.sinks.starrocks.rows import VERSION
from tidemill.sinks.starrocks.tables import StarRocksTableName, StarRocksTables, explain_errors

if TYPE_CHECKING:
    from tidemill.sinks.starrocks.audit import StarRocksAudit


class StarRocksConfig(SinkConfig):
    url: str = Field(description="HTTP address of a frontend, http://host:8030; or of a load balancer before several.")
    mysql_port: int = Field(default=9030, ge=1, le=65535, description="The frontend's port for the MySQL protocol.")
    user: str = Field(default="root", description="The user to log in as.")
    password: SecretStr = Field(default=SecretStr(""), description="The user's password.")
    database: str = Field(
        min_length=1, description="Database of the tables; ${source.schema} and the like are filled in."
    )
    table: str = Field(
        default="${source.table}", min_length=1, description="Name of a table's destination, with the same references."
    )
    create_tables: bool = Field(default=True, description="Create tables (and their database) that do not exist.")
    table_properties: dict[str, str] = Field(
        default={}, description="PROPERTIES of tables that are created, such as replication_num."
    )
    deletes: Literal["remove", "mark"] = Field(
        default="remove", description="Remove deleted rows, or keep them with tidemill_is_deleted set."
    )
    offset_base: int = Field(
        default=0,
        ge=0,
        le=1 << 62,
        description="Added to every version: after state was lost, a number above them all.",
    )
    max_load_rows: int = Field(
        default=262_144, ge=1, description="Events of a table that are settled into loads at once."
    )
    max_load_bytes: int = Field(default=67_108_864, ge=1, description="Bytes of events kept for that.")
    connect_timeout_seconds: float = Field(default=10, gt=0, description="How long to wait for a connection.")
    request_timeout_seconds: float = Field(
        default=600, ge=1, description="How long a load may take until it is visible."
    )
    ca_file: str = Field(default="", description="File of certificate authorities to trust; empty for the system's.")
    verify: bool = Field(default=True, description="Check the server's certificate and name, with https.")
    mysql_tls: bool = Field(default=False, description="Use TLS for the MySQL protocol too.")
    backend: str = Field(
        default="",
        description="host:port of a backend to load into directly, where redirects name unreachable addresses.",
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError("it must look like http://host:8030")
        if urlsplit(url).username:
            raise ValueError("give user and password as fields of their own")
        return url

    @field_validator("database", "table")
    @classmethod
    def _names_a_table(cls, text: str) -> str:
        return of_a_table(text)

    def occupies(self) -> tuple[Place, ...]:
        return (Place(f"starrocks://{hosts([self.url], 8030)}/{self.database}.{self.table}"),)

    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(slots=True)
class StarRocksSession:
    """What a sink keeps between deliveries."""

    connection: Any
    tables: StarRocksTables
    loads: StreamLoads
    history: WriterHistory[StarRocksTableName]


class StarRocksSink(BaseSink[StarRocksConfig]):
    Config: ClassVar[type[SinkConfig]] = StarRocksConfig
    mechanism: ClassVar[str] = (
        "A load's label is made of the batch and its rows: the server takes it once. Rows are upserted by primary key, "
        "on the condition that their version is not lower than the one that is there."
    )
    capabilities = Capabilities(
        schema_changes=frozenset(
            {SchemaChangeKind.CREATE_TABLE, SchemaChangeKind.ADD_COLUMN, SchemaChangeKind.RENAME_COLUMN}
        ),
        upsert=True,
    )
    config: StarRocksConfig
    tier: ClassVar[Tier] = Tier.EFFECTIVELY_ONCE

    def __init__(self, config: StarRocksConfig) -> None:
        super().__init__(config)
        self._session: StarRocksSession | None = None

    @classmethod
    def capabilities_of(cls, config: StarRocksConfig) -> Capabilities:
        return cls.capabilities if config.create_tables else cls.capabilities.without(SchemaChangeKind.CREATE_TABLE)

    def plan(self, change: SchemaChange) -> SchemaPlan:
        """A table or column that the source dropped stays. Whether the rows that are there are of this log is asked by
        the first delivery, not here."""
        if change.after is None:
            return SchemaPlan()
        name = self._name(change.after, change.source)
        return SchemaPlan(self._open().tables.plan(name, change.after, change.offset))

    def apply(self, change: SchemaChange) -> None:
        if change.after is not None:
            self._open().tables.destination(self._name(change.after, change.source), change.after, change.offset)

    def write(self, delivery: Delivery) -> Receipt:
        from tidemill.sinks.starrocks.write import StarRocksWriter

        began = time.perf_counter()
        session = self._open()
        session.loads.seconds = 0.0
        writing = StarRocksWriter(self.config, session, delivery, self._where())
        for block in delivery:
            for window in windows(block):
                writing.take(window)
        writing.finish()
        if writing.reasons:
            raise Poisoned(
                writing.reasons, lacking=writing.lacking, where=self._where(),
                fix="docs/sinks/starrocks.md says what types can hold.",
            )  # fmt: skip
        waited = session.loads.seconds
        encoding = time.perf_counter() - began - waited
        return Receipt(
            self.config.id, delivery.lane, writing.events, writing.bytes, encode_seconds=encoding, write_seconds=waited,
            notices=session.tables.looks.pack(),
        )  # fmt: skip

    def begin_recovery(self, tables: Sequence[Table], source: str, since: Offset) -> None:
        """Rows carry the offset that wrote them as their version: nothing is to be noted."""

    def end_recovery(self, table: Table, source: str, since: Offset, *, remove: bool) -> int:
        """Rows go as they go with a TRUNCATE, also where `deletes` is `mark`."""
        if not remove or not table.key:
            return 0
        session, name = self._open(), self._name(table, source)
        session.history.require_one_writer(name, "rows that the source no longer has stay")
        return remove_older(session.tables, name, self.config.offset_base + since)

    def audit(self, table: Table, source: str, *, values: bool = False) -> StarRocksAudit:
        from tidemill.sinks.starrocks.audit import StarRocksAudit

        session = self.connect()
        try:
            name = self._name(table, source)
            session.history.require_one_writer(name, "which rows are extra is not known")
            return StarRocksAudit(session.tables, name, table, values=values)
        except BaseException:
            session.connection.close()
            raise

    def doctor(self) -> Iterable[Check]:
        from tidemill.sinks.starrocks.checks import run_checks

        return run_checks(self)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.connection.close()

    def connect(self) -> StarRocksSession:
        """A new session; `DeliveryError` when the frontend is not there, `Refused` when it does not let us in."""
        import pymysql

        config, where = self.config, self._where()
        with explain_errors(where):
            connection = pymysql.connect(
                host=urlsplit(config.url).hostname, port=config.mysql_port, user=config.user,
                password=config.password.get_secret_value(),
                connect_timeout=max(1, int(config.connect_timeout_seconds)),
                read_timeout=config.request_timeout_seconds, write_timeout=config.request_timeout_seconds,
                autocommit=True, ssl=config.tls() if config.mysql_tls else None,
            )  # fmt: skip
        tables = StarRocksTables(
            connection, where, config.create_tables, dict(config.table_properties), config.request_timeout_seconds,
            config.id,
        )  # fmt: skip
        loads = StreamLoads(
            config.url, config.user, config.password.get_secret_value(), where, config.connect_timeout_seconds,
            config.request_timeout_seconds, config.tls() if config.url.startswith("https") else None, config.backend,
        )  # fmt: skip
        history = WriterHistory(
            StarRocksNotebook(tables), config.id, config.offset_base, False, VERSION, where, joined=True
        )
        return StarRocksSession(connection, tables, loads, history)

    def _open(self) -> StarRocksSession:
        if self._session is None:
            self._session = self.connect()
        return self._session

    def _name(self, table: Table, source: str) -> StarRocksTableName:
        database, name = Template(self.config.database), Template(self.config.table)
        return StarRocksTableName(database.constant(table, source), name.constant(table, source))

    def _where(self) -> str:
        return f'sink "{self.config.id}", {urlsplit(self.config.url).netloc}'


component = StarRocksSink
