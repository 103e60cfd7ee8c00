"""Checkpoints in ClickHouse, where the rows are: one row each, older ones removed by a TTL, never the last.

ClickHouse has no compare-and-set, but it drops an insert whose deduplication token it has seen. The token is pipeline
and version, so of several writers of one version one row is kept, and each reads back whose it was.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from tidemill.checkpoints._shared import succeed
from tidemill.contracts import Component
from tidemill.errors import CheckpointConflict, CheckpointError, DeliveryError
from tidemill.model.delivery import Checkpoint
from tidemill.net.clickhouse import ConnectionConfig, address, connect, explain_errors, literal, quote

_COLUMNS = "offset, position, version, saved_at, note, base, writer, joined"
_ADDED = {"base": "Int64 DEFAULT -1", "joined": "UInt8 DEFAULT 0"}
"""Columns that tables of older versions lack. -1 is none: argMax would leave a NULL out."""
_VALUES = ("offset", "position", "saved_at", "note", "base", "writer", "joined")


class ClickHouseCheckpointsConfig(ConnectionConfig):
    database: str = Field(
        default="default", min_length=1, description="Database of the table; made if it is not there."
    )
    table: str = Field(default="tidemill_checkpoints", min_length=1, description="The table; made if it is not there.")
    keep_days: int = Field(
        default=30, ge=1, description="How long past checkpoints are kept; the last one of a pipeline is kept for ever."
    )


class ClickHouseCheckpoints(Component[ClickHouseCheckpointsConfig]):
    Config = ClickHouseCheckpointsConfig

    def __init__(self, config: ClickHouseCheckpointsConfig, state_dir: Path | None = None) -> None:
        super().__init__(config)
        self._name = f"{quote(config.database)}.{quote(config.table)}"
        self._lock = threading.Lock()
        self._client: Any = None

    def load(self, pipeline: str) -> Checkpoint | None:
        newest = self.history(pipeline, 1)
        return newest[0] if newest else None

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint:
        with self._lock:
            newest = self._newest(pipeline)
            own = replace(checkpoint, writer=checkpoint.writer or uuid.uuid4().hex)  # tells two of one version apart
            stored = succeed(newest, own, expect=expect, force=force, pipeline=pipeline)
            if stored is newest:
                return stored
            strings = ", ".join(literal(t) for t in (stored.position, stored.saved_at, stored.note, stored.writer))
            self._command(
                f"INSERT INTO {self._name} (pipeline, version, offset, base, joined, position, saved_at, note, writer) "
                f"SELECT {literal(pipeline)}, {stored.version}, {stored.offset}, "
                f"{-1 if stored.base is None else stored.base}, {int(stored.joined)}, {strings}",
                insert_deduplication_token=f"{pipeline}/{stored.version}", async_insert=0, insert_deduplicate=1,
            )  # fmt: skip
            kept = self._query(
                f"SELECT writer, offset, position FROM {self._name} WHERE pipeline = {literal(pipeline)} "
                f"AND version = {stored.version}"
            )
        if kept == [(stored.writer, stored.offset, stored.position)]:
            return stored
        if [row[0] for row in kept] == [stored.writer]:
            raise CheckpointError(
                f"an earlier save of version {stored.version} arrived only now", where=f'pipeline "{pipeline}"',
                fix="It is saved again with the next version.",
            )  # fmt: skip
        raise CheckpointConflict(
            f"another process saved version {stored.version} of the checkpoint", where=f'pipeline "{pipeline}"',
            fix="Make sure that one process runs this pipeline. If rows were removed by hand, drop the table.",
        )  # fmt: skip

    def history(self, pipeline: str, limit: int = 20) -> list[Checkpoint]:
        """Newest first."""
        with self._lock:
            return self._read(pipeline, limit)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _newest(self, pipeline: str) -> Checkpoint | None:
        newest = self._read(pipeline, 1)
        return newest[0] if newest else None

    def _read(self, pipeline: str, limit: int) -> list[Checkpoint]:
        rows = self._query(
            f"SELECT {_COLUMNS} FROM {self._name} WHERE pipeline = {literal(pipeline)} "
            f"ORDER BY version DESC LIMIT {int(limit)}"
        )
        found = (Checkpoint(*row) for row in rows)
        return [replace(c, base=None if c.base == -1 else c.base, joined=bool(c.joined)) for c in found]

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        return list(self._ask(lambda client: client.query(statement).result_rows))

    def _command(self, statement: str, **settings: Any) -> None:
        self._ask(lambda client: client.command(statement, settings=settings))

    def _ask(self, what: Any) -> Any:
        where = f"{address(self.config)}, {self.config.database}.{self.config.table}"
        try:
            if self._client is None:
                self._client = connect(self.config, where)
                with explain_errors(where):
                    self._create(self._client)
            with explain_errors(where):
                return what(self._client)
        except DeliveryError as error:
            self.close()
            raise CheckpointError(
                f"the checkpoints in ClickHouse cannot be used: {error.what}", where=where, fix=error.fix
            ) from error

    def _create(self, client: Any) -> None:
        client.command(f"CREATE DATABASE IF NOT EXISTS {quote(self.config.database)}")
        added = ", ".join(f"{name} {kind}" for name, kind in _ADDED.items())
        newest = ", ".join(f"{c} = argMax({c}, version)" for c in _VALUES)
        # Rolled up to the newest of those that are due: the last checkpoint outlives any pause.
        ttl = (
            f"TTL created + INTERVAL {self.config.keep_days} DAY GROUP BY pipeline SET {newest}, "
            "version = max(version), created = max(created)"
        )
        client.command(
            f"CREATE TABLE IF NOT EXISTS {self._name} (pipeline String, version UInt64, offset UInt64, "
            "position String, saved_at String, note String, writer String, created DateTime DEFAULT now(), "
            f"{added}) ENGINE = MergeTree ORDER BY pipeline {ttl} "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )
        columns = {str(row[0]) for row in client.query(f"DESCRIBE TABLE {self._name}").result_rows}
        missing = [name for name in _ADDED if name not in columns]
        for name in missing:
            client.command(f"ALTER TABLE {self._name} ADD COLUMN IF NOT EXISTS {name} {_ADDED[name]}")
        if missing:
            client.command(f"ALTER TABLE {self._name} MODIFY {ttl}", settings={"materialize_ttl_after_modify": 0})


component = ClickHouseCheckpoints
