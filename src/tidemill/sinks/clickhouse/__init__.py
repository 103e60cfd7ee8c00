"""ClickHouse: typed columnar inserts into tables that follow the source's structure.

Mode `upsert` keeps current rows: `ReplacingMergeTree(_version, _is_deleted)` ordered by the key. An update is a row
with a higher version, a delete a row marked as deleted; a version is the event's offset, never a clock (invariant 4).
Mode `changelog` appends every event with both images. `docs/sinks/clickhouse.md` has the query for current rows.

A replay changes nothing: in `upsert` the same versions come again, in `changelog` offsets that are there are left out,
and in both a piece that comes again under its deduplication token is dropped by the server. What a worker that woke up
late brings after all, cut or dealt otherwise, has versions and offsets that are there: the engine keeps one of each.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from tidemill.contracts import BaseSink, Capabilities, Check, Place, SinkConfig
from tidemill.errors import Poisoned, Refused
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.position import Offset
from tidemill.model.schema_change import COLUMN_KINDS, SchemaChange, SchemaChangeKind, SchemaPlan
from tidemill.model.table import Table
from tidemill.model.template import Template
from tidemill.net.clickhouse import ConnectionConfig, address, connect, explain_errors
from tidemill.sinks._shared.history import WriterHistory
from tidemill.sinks._shared.lines import WINDOW, windows
from tidemill.sinks._shared.places import hosts
from tidemill.sinks._shared.routing import of_a_table
from tidemill.sinks.clickhouse.recovery import remove_older
from tidemill.sinks.clickhouse.resume import ClickHouseNotebook
from tidemill.sinks.clickhouse.server_table import VERSION, ClickHouseTableName, Mode, describe
from tidemill.sinks.clickhouse.tables import ClickHouseTables
from tidemill.sinks.clickhouse.types import JsonType, NullArrays

if TYPE_CHECKING:
    from tidemill.sinks.clickhouse.audit import ClickHouseAudit

_WINDOW = 4 * WINDOW  # typed columns are a fraction of the text that others make of a row
#: Settings of an INSERT that the sink depends on, and what for.
_OURS = {
    "async_insert": "an answer means that the rows are written",
    "wait_for_async_insert": "an answer means that the rows are written",
    "insert_deduplicate": "a piece that comes again is known by its token",
    "insert_deduplication_token": "a piece that comes again is known by its token",
    "max_insert_block_size": "a piece is written wholly or not at all",
    "input_format_null_as_default": "a deleted row has nothing but its key",
}


class ClickHouseConfig(ConnectionConfig, SinkConfig):
    database: str = Field(
        default="default",
        min_length=1,
        description="Database of the tables; ${source.schema} and the like are filled in.",
    )
    table: str = Field(
        default="${source.table}", min_length=1, description="Name of a table's destination, with the same references."
    )
    mode: Mode = Field(
        default="upsert", description="`upsert` keeps the current rows of tables with a key, `changelog` every event."
    )
    create_tables: bool = Field(
        default=True, description="Create tables (and their database) that do not exist, from the source's structure."
    )
    allow_destructive_ddl: bool = Field(
        default=False,
        description="Drop columns that the source dropped and narrow types that it narrowed. Otherwise they stay.",
    )
    json_type: JsonType = Field(default="string", description="What JSON documents become: text, or ClickHouse's JSON.")
    null_arrays: NullArrays = Field(
        default="text",
        description="ClickHouse has no NULL array: `text` stores nullable arrays as JSON text, `empty` as Array, "
        "with [] for NULL.",
    )
    offset_base: int = Field(
        default=0,
        ge=0,
        le=1 << 62,
        description="Added to every version: after state was lost, a number above them all.",
    )
    shared_tables: bool = Field(
        default=False, description="Several source tables or pipelines may fill one table; their keys must differ."
    )
    max_insert_rows: int = Field(default=131_072, ge=1, description="Rows of one INSERT.")
    max_insert_bytes: int = Field(default=33_554_432, ge=1, description="Bytes of rows kept for one INSERT.")
    compression: Literal["none", "lz4", "zstd"] = Field(default="lz4", description="Of the columns on their way.")
    settings: dict[str, str] = Field(
        default={}, description="Settings for every INSERT, such as insert_quorum; as ClickHouse names them."
    )

    @field_validator("settings")
    @classmethod
    def _leaves_ours_alone(cls, settings: dict[str, str]) -> dict[str, str]:
        if taken := [f"{name} ({_OURS[name]})" for name in settings if name in _OURS]:
            raise ValueError(f"the sink sets these itself, leave them out: {', '.join(taken)}")
        return settings

    def occupies(self) -> tuple[Place, ...]:
        if self.shared_tables:
            return ()
        port = self.port or (8443 if self.secure or self.url.startswith("https:") else 8123)
        server = hosts([self.url.rpartition("@")[2] or self.host], port)
        return (Place(f"clickhouse://{server}/{self.database}.{self.table}"),)

    @field_validator("database", "table")
    @classmethod
    def _names_a_table(cls, text: str) -> str:
        return of_a_table(text)


@dataclass(slots=True)
class ClickHouseSession:
    """What a sink keeps between deliveries."""

    client: Any
    tables: ClickHouseTables
    history: WriterHistory[ClickHouseTableName]
    high_water_marks: dict[str, int]  # of changelog tables: offsets below may be there already


class ClickHouseSink(BaseSink[ClickHouseConfig]):
    Config: ClassVar[type[SinkConfig]] = ClickHouseConfig
    mechanism: ClassVar[str] = (
        "Versions of rows, and a changelog's order, are offsets, so that what comes again replaces itself; inserts "
        "carry deduplication tokens."
    )
    capabilities = Capabilities(schema_changes=COLUMN_KINDS, upsert=True)
    config: ClickHouseConfig
    tier: ClassVar[Tier] = Tier.EFFECTIVELY_ONCE

    def __init__(self, config: ClickHouseConfig) -> None:
        super().__init__(config)
        self._session: ClickHouseSession | None = None

    @classmethod
    def capabilities_of(cls, config: ClickHouseConfig) -> Capabilities:
        """A changelog keeps what every structure had, and a shared table what its other sources have."""
        one_structure = config.mode == "upsert" and not config.shared_tables
        cannot = set()
        if not config.create_tables:
            cannot.add(SchemaChangeKind.CREATE_TABLE)
        if not one_structure:
            cannot.add(SchemaChangeKind.RENAME_COLUMN)
        if not (one_structure and config.allow_destructive_ddl):
            cannot.add(SchemaChangeKind.DROP_COLUMN)
        return replace(cls.capabilities.without(*cannot), upsert=config.mode == "upsert")

    def plan(self, change: SchemaChange) -> SchemaPlan:
        """A table that the source dropped stays. Whether the rows that are there are of this log is asked by the first
        delivery, not here."""
        if change.after is None:
            return SchemaPlan()
        name = self._name(change.after, change.source)
        return SchemaPlan(self._open().tables.plan(name, change.after, change.offset))

    def apply(self, change: SchemaChange) -> None:
        if change.after is None:
            return
        tables, name = self._open().tables, self._name(change.after, change.source)
        tables.make(name, change.after, change.offset)
        tables.follow(name, change.after, change.offset)

    def write(self, delivery: Delivery) -> Receipt:
        from tidemill.sinks.clickhouse.write import ClickHouseWriter

        began = time.perf_counter()
        session = self._open()
        writing = ClickHouseWriter(self.config, session, delivery, self._where())
        try:
            for block in delivery:
                for window in windows(block, _WINDOW):
                    writing.take(window)
            writing.finish()
            if writing.reasons:
                fix = "docs/sinks/clickhouse.md says what each type can hold."
                raise Poisoned(writing.reasons, lacking=writing.lacking, where=self._where(), fix=fix)
        except BaseException:
            session.high_water_marks.clear()  # some of it may be there now
            raise
        finally:
            writing.close()
        encoding = time.perf_counter() - began - writing.waited
        return Receipt(
            self.config.id, delivery.lane, writing.events - writing.skipped, writing.bytes, writing.skipped,
            encode_seconds=encoding, write_seconds=writing.waited, notices=session.tables.looks.pack(),
        )  # fmt: skip

    def begin_recovery(self, tables: Sequence[Table], source: str, since: Offset) -> None:
        """Rows carry the offset that wrote them as their version: nothing is to be noted."""

    def end_recovery(self, table: Table, source: str, since: Offset, *, remove: bool) -> int:
        if not remove or not table.key:
            return 0
        if self.config.shared_tables:
            raise Refused(
                "rows that the source no longer has stay in a table that several sources share", where=self._where(),
                fix="Whose they are is not known: remove them yourself.",
            )  # fmt: skip
        return remove_older(
            self._open().client, self._name(table, source), self.config.offset_base + since, self._where()
        )

    def audit(self, table: Table, source: str, *, values: bool = False) -> ClickHouseAudit:
        from tidemill.sinks.clickhouse.audit import ClickHouseAudit

        if self.config.mode != "upsert" or self.config.shared_tables:
            raise Refused(
                "which rows are extra is not known in a table that several sources share"
                if self.config.shared_tables else "a changelog has events, not rows", where=self._where(),
                fix="verify works with mode: upsert, and with tables that no other source fills.",
            )  # fmt: skip
        name = self._name(table, source)
        client = connect(self.config, self._where(), session=uuid.uuid4().hex)
        try:
            with explain_errors(self._where()):
                found = describe(client, name, self.config.offset_base)
            if found is None:
                raise Refused(
                    f"the sink has no table {name.plain} yet",
                    where=self._where(),
                    fix="Nothing of it was delivered. Rows from before come by a snapshot.",
                )
            return ClickHouseAudit(client, name, found, table, self._where(), values=values)
        except BaseException:
            client.close()
            raise

    def doctor(self) -> Iterable[Check]:
        from tidemill.sinks.clickhouse.checks import run_checks

        return run_checks(self.config, self._where())

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.client.close()

    def _open(self) -> ClickHouseSession:
        if self._session is None:
            config, where = self.config, self._where()
            client = connect(config, where)
            version = VERSION if config.mode == "upsert" else "_offset"
            self._session = ClickHouseSession(
                client,
                ClickHouseTables(
                    client, where, config.mode, config.create_tables, config.allow_destructive_ddl, config.json_type,
                    config.null_arrays, config.offset_base, config.shared_tables, config.id,
                ),
                WriterHistory(
                    ClickHouseNotebook(client, version, where), config.id, config.offset_base, config.shared_tables,
                    version, where,
                ),
                {},
            )  # fmt: skip
        return self._session

    def _name(self, table: Table, source: str) -> ClickHouseTableName:
        database, name = Template(self.config.database), Template(self.config.table)
        return ClickHouseTableName(database.constant(table, source), name.constant(table, source))

    def _where(self) -> str:
        return f'sink "{self.config.id}", {address(self.config)}'


component = ClickHouseSink
