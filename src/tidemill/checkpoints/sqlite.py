"""The checkpoints a pipeline saved, numbered, the last `keep` of them in one SQLite file: the past can be read."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from tidemill.checkpoints._shared import succeed
from tidemill.contracts import Component, Config
from tidemill.disk.sqlite import SqliteFile
from tidemill.errors import CheckpointError
from tidemill.model.delivery import Checkpoint

_TABLE = """
CREATE TABLE IF NOT EXISTS checkpoints (
    pipeline TEXT NOT NULL,
    version  INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    position TEXT NOT NULL,
    saved_at TEXT NOT NULL,
    note     TEXT NOT NULL,
    base     INTEGER,
    writer   TEXT NOT NULL DEFAULT '',
    joined   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (pipeline, version)
) WITHOUT ROWID
"""
_FIELDS = '"offset", position, version, saved_at, note, base, writer, joined'
_ADDED = {
    "checkpoints": {
        "base": "INTEGER", "writer": "TEXT NOT NULL DEFAULT ''", "joined": "INTEGER NOT NULL DEFAULT 0",
    }
}  # fmt: skip
"""Columns that files of older versions lack."""


class SqliteConfig(Config):
    path: Path | None = Field(
        default=None, description="The database file; by default checkpoints.sqlite in the pipeline's state directory."
    )
    keep: int = Field(default=1000, ge=1, description="How many past checkpoints of a pipeline to keep.")


class SqliteCheckpoints(Component[SqliteConfig]):
    Config = SqliteConfig

    def __init__(self, config: SqliteConfig, state_dir: Path | None = None) -> None:
        super().__init__(config)
        self.path = config.path or (state_dir or Path(".tidemill")) / "checkpoints.sqlite"
        self._file = SqliteFile(self.path, _TABLE, self._unusable, added=_ADDED)

    def load(self, pipeline: str) -> Checkpoint | None:
        newest = self.history(pipeline, 1)
        return newest[0] if newest else None

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint:
        with self._file.writing() as db:
            newest = _read(db, pipeline, 1)
            stored = succeed(newest[0] if newest else None, checkpoint, expect=expect, force=force, pipeline=pipeline)
            if newest and stored is newest[0]:
                return stored
            db.execute(
                f"INSERT INTO checkpoints (pipeline, {_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (pipeline, stored.offset, stored.position, stored.version, stored.saved_at, stored.note, stored.base,
                 stored.writer, stored.joined),
            )  # fmt: skip
            db.execute(
                "DELETE FROM checkpoints WHERE pipeline = ? AND version <= ?",
                (pipeline, stored.version - self.config.keep),
            )
        return stored

    def history(self, pipeline: str, limit: int = 20) -> list[Checkpoint]:
        """Newest first."""
        with self._file.connected() as db:
            return _read(db, pipeline, limit)

    def close(self) -> None:
        self._file.close()

    def _unusable(self, error: str) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint database cannot be used: {error}",
            where=str(self.path),
            fix="Check that it is a Tidemill checkpoint file, its permissions and the free space.",
        )


def _read(db: sqlite3.Connection, pipeline: str, limit: int) -> list[Checkpoint]:
    rows = db.execute(
        f"SELECT {_FIELDS} FROM checkpoints WHERE pipeline = ? ORDER BY version DESC LIMIT ?", (pipeline, limit)
    )
    return [replace(found, joined=bool(found.joined)) for found in (Checkpoint(*row) for row in rows)]


component = SqliteCheckpoints
