"""The options of a PostgreSQL source, and the names that follow from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import Field, field_validator

from tidemill.contracts import Config, SnapshotConfig, SourceConfig
from tidemill.sources._shared.errors import as_value_error
from tidemill.sources.postgres.lsn import parse_lsn
from tidemill.sources.postgres.tables import parse as parse_pattern


class PostgresSnapshotConfig(SnapshotConfig):
    dsn: str | None = Field(
        default=None,
        repr=False,
        description="Where chunks are read instead: a standby of the same server. Publication and stream stay.",
        json_schema_extra={"secret": True},
    )

    @field_validator("dsn")
    @classmethod
    def _dsn_is_readable(cls, value: str | None) -> str | None:
        return None if value is None else _checked_dsn(value)


class PostgresDdlConfig(Config):
    capture: Literal["trigger", "relation", "off"] = Field(
        default="relation",
        description="How changes of tables are known: trigger makes event triggers, which a superuser must allow; "
        "relation goes by what the stream announces before the next row; off leaves the tables of sinks as they are.",
    )


class PostgresConfig(SourceConfig):
    dsn: str = Field(
        repr=False,
        description="How to connect: a URI or keywords, as libpq takes them.",
        json_schema_extra={"secret": True},
    )
    tables: tuple[str, ...] = Field(
        default=(),
        description='Tables to capture: schema.table, schema.*, schema.prefix%, "Quoted"."name"; none means all.',
    )
    slot: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9_]{1,63}$",
        description="Replication slot; by default made from the id. Created if missing, never dropped.",
    )
    publication: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="Publication; by default made from the id. Created if missing; tables are added, never dropped.",
    )
    start_position: str = Field(
        default="earliest",
        description="Where a source without a position begins: earliest (all that the slot has), latest, or an LSN.",
    )
    streaming: bool = Field(
        default=True, description="Let the server send large transactions while they are still open."
    )
    messages: bool = Field(default=True, description="Capture logical messages (pg_logical_emit_message).")
    origin: Literal["any", "none"] = Field(
        default="any", description="none leaves out changes that were themselves replicated (PostgreSQL 16+)."
    )
    replica_identity: Literal["auto", "full", "keep"] = Field(
        default="auto",
        description="auto sets FULL on tables that have no usable key; full sets it on all; keep changes nothing.",
    )
    publish_via_partition_root: bool = Field(
        default=True, description="Changes of partitions appear as changes of the partitioned table."
    )
    failover: bool = Field(default=False, description="Make a slot that follows a failover (PostgreSQL 17+).")
    sslmode: Literal["disable", "prefer", "require", "verify-ca", "verify-full"] | None = Field(
        default=None, description="Overrides sslmode of the dsn."
    )
    sslrootcert: Path | None = Field(default=None, description="Certificate authorities that may sign the server's.")
    sslcert: Path | None = Field(default=None, description="Our certificate, for servers that ask for one.")
    sslkey: Path | None = Field(default=None, description="Private key of sslcert.")
    heartbeat_seconds: float = Field(
        default=10, ge=0, description="Seconds of silence after which the server is asked how far it is; 0 never asks."
    )
    feedback_seconds: float = Field(default=1, gt=0, description="Seconds between reports to the server.")
    connect_timeout_seconds: float = Field(default=10, gt=0, description="Seconds to wait for a connection.")
    network_timeout_seconds: float = Field(
        default=30, gt=0, description="Seconds without an answer that mean a dead peer."
    )
    lock_timeout_seconds: float = Field(
        default=10, ge=0, description="Seconds the setup waits for a lock on a table; 0 waits for ever."
    )
    setup_timeout_seconds: float = Field(
        default=300, ge=0, description="Seconds the setup waits for open transactions when it makes the slot."
    )
    slot_wait_seconds: float | None = Field(
        default=None,
        ge=0,
        description="Seconds to wait for a slot that our last connection still holds; by default wal_sender_timeout.",
    )
    catalog_seconds: float = Field(
        default=2,
        gt=0,
        description="Seconds between looks at the catalog for what the publication leaves out; more if they are slow.",
    )
    gather_ms: float = Field(default=50, ge=0, description="How long a busy stream is gathered before it is decoded.")
    ddl: PostgresDdlConfig = Field(
        default_factory=PostgresDdlConfig, description="Changes of tables in the stream: docs/schema-changes.md."
    )
    snapshot: PostgresSnapshotConfig | None = Field(
        default=None, description="Copies the rows that are in the tables already. Left out: changes only."
    )

    @field_validator("dsn")
    @classmethod
    def _dsn_is_readable(cls, value: str) -> str:
        return _checked_dsn(value)

    @field_validator("tables")
    @classmethod
    def _tables_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            as_value_error(lambda text=text: parse_pattern(text))  # type: ignore[misc]
        return value

    @field_validator("start_position")
    @classmethod
    def _start_is_a_position(cls, value: str) -> str:
        if value not in ("earliest", "latest"):
            as_value_error(lambda: parse_lsn(value))
        return value

    @property
    def announces_changes(self) -> bool:
        return self.ddl.capture != "off"

    @property
    def slot_name(self) -> str:
        return self.slot or default_name(self.id)

    @property
    def publication_name(self) -> str:
        return self.publication or default_name(self.id)

    @property
    def application_name(self) -> str:
        """Tells our own sessions from others in pg_stat_activity. ASCII, as the server would make it anyway."""
        return default_name(self.id)

    @property
    def where(self) -> str:
        return f'source "{self.id}"'


def _checked_dsn(value: str) -> str:
    try:
        conninfo_to_dict(value)
    except psycopg.ProgrammingError:
        # The parser's message may quote the dsn, and with it the password.
        raise ValueError("not a PostgreSQL connection URI or keyword string") from None
    return value


def default_name(source: str) -> str:
    """A slot may be called by lower-case letters, digits and underscores, up to 63 of them.

    >>> default_name("orders-pg")
    'tidemill_orders_pg'
    """
    return f"tidemill_{re.sub(r'[^a-z0-9]', '_', source.lower())}"[:63]
