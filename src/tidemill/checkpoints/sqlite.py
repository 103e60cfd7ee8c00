"""The checkpoints a pipeline saved, numbered, the last `keep` of them in one SQLite file: the past can be read."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from tidemill.checkpoints._rules import succeed
from tidemill.component import Component, Config
from tidemill.errors import CheckpointError
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Position

_TABLE = """
CREATE TABLE IF NOT EXISTS checkpoints (
    pipeline TEXT NOT NULL,
    version  INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    position TEXT NOT NULL,
    saved_at TEXT NOT NULL,
    note     TEXT NOT NULL,
    PRIMARY KEY (pipeline, version)
) WITHOUT ROWID
"""


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
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    def load(self, pipeline: str) -> Checkpoint | None:
        newest = self.history(pipeline, 1)
        return newest[0] if newest else None

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint:
        with self._connected() as db:
            # IMMEDIATE takes the write lock before reading, so nobody saves between the comparison and our row.
            db.execute("BEGIN IMMEDIATE")
            try:
                newest = _read(db, pipeline, 1)
                stored = succeed(
                    newest[0] if newest else None, checkpoint, expect=expect, force=force, pipeline=pipeline
                )
                db.execute(
                    "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)",
                    (pipeline, stored.version, stored.offset, stored.position, stored.saved_at, stored.note),
                )
                db.execute(
                    "DELETE FROM checkpoints WHERE pipeline = ? AND version <= ?",
                    (pipeline, stored.version - self.config.keep),
                )
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
            return stored

    def history(self, pipeline: str, limit: int = 20) -> list[Checkpoint]:
        """Newest first."""
        with self._connected() as db:
            return _read(db, pipeline, limit)

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._db is None:
                    self._db = _open(self.path)
                yield self._db
            except (sqlite3.Error, OSError) as error:
                raise CheckpointError(
                    f"the checkpoint database cannot be used: {error}",
                    where=str(self.path),
                    fix="Check that it is a Tidemill checkpoint file, its permissions and the free space.",
                ) from error


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")  # the command line reads while the stream writes
        db.execute("PRAGMA synchronous=FULL")  # in WAL mode, less than FULL may lose the last commits in a power cut
        db.execute(_TABLE)
    except BaseException:
        db.close()
        raise
    return db


def _read(db: sqlite3.Connection, pipeline: str, limit: int) -> list[Checkpoint]:
    rows = db.execute(
        'SELECT "offset", position, version, saved_at, note FROM checkpoints'
        " WHERE pipeline = ? ORDER BY version DESC LIMIT ?",
        (pipeline, limit),
    )
    return [Checkpoint(offset, Position(position), version, at, note) for offset, position, version, at, note in rows]


component = SqliteCheckpoints
