"""Checkpoints in a PostgreSQL table, for pipelines that several machines may run: compare-and-set in one transaction.

The newest row of a pipeline is compared and the next one inserted under an advisory lock of the pipeline, and the
primary key (pipeline, version) refuses a second writer of one version whatever happens to the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pydantic import Field

from tidemill.checkpoints._shared import succeed
from tidemill.contracts import Component, Config
from tidemill.errors import CheckpointConflict, CheckpointError
from tidemill.model.delivery import Checkpoint
from tidemill.net.pgsession import PgSession

_FIELDS = sql.SQL('"offset", position, version, saved_at, note, base, writer, joined')
_COMPLETE = "SELECT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'joined')"
_SILENCE_SECONDS = 30.0
_SETTINGS = """
SELECT set_config('statement_timeout', '20s', true), set_config('lock_timeout', '20s', true),
       CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
"""


class PostgresCheckpointsConfig(Config):
    dsn: str = Field(
        min_length=1,
        description="Where the table is: postgresql://user@host/database.",
        json_schema_extra={"secret": True},
    )
    table: str = Field(
        default="tidemill_checkpoints",
        pattern=r"^[^.]+(\.[^.]+)?$",
        description="The table, or schema.table; made if it is not there, in a schema that is.",
    )
    keep: int = Field(default=1000, ge=1, description="How many past checkpoints of a pipeline to keep.")


class PostgresCheckpoints(Component[PostgresCheckpointsConfig]):
    Config = PostgresCheckpointsConfig

    def __init__(self, config: PostgresCheckpointsConfig, state_dir: Path | None = None) -> None:
        super().__init__(config)
        self._table = sql.Identifier(*config.table.split("."))
        self._lock = threading.Lock()
        self._db: PgSession | None = None

    def load(self, pipeline: str) -> Checkpoint | None:
        newest = self.history(pipeline, 1)
        return newest[0] if newest else None

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint:
        """Returns when the server has committed it to its disk."""
        with self._transaction() as db:
            key = f"{self.config.table} {pipeline}"
            db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [key])
            newest = next(iter(self._read(db, pipeline, 1)), None)
            stored = succeed(newest, checkpoint, expect=expect, force=force, pipeline=pipeline)
            if stored is newest:
                return stored
            insert = sql.SQL("INSERT INTO {} (pipeline, {}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)")
            try:
                db.execute(
                    insert.format(self._table, _FIELDS),
                    [pipeline, stored.offset, stored.position, stored.version, stored.saved_at, stored.note,
                     stored.base, stored.writer, stored.joined],
                )  # fmt: skip
            except pg.UniqueViolation as error:
                raise CheckpointConflict(
                    f"another process saved version {stored.version} of the checkpoint",
                    where=f'pipeline "{pipeline}"',
                    fix="Make sure that one process runs this pipeline, then start again.",
                ) from error
            db.execute(
                sql.SQL("DELETE FROM {} WHERE pipeline = %s AND version <= %s").format(self._table),
                [pipeline, stored.version - self.config.keep],
            )
        return stored

    def history(self, pipeline: str, limit: int = 20) -> list[Checkpoint]:
        """Newest first."""
        with self._transaction() as db:
            return self._read(db, pipeline, limit)

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _read(self, db: PgSession, pipeline: str, limit: int) -> list[Checkpoint]:
        query = sql.SQL("SELECT {} FROM {} WHERE pipeline = %s ORDER BY version DESC LIMIT %s")
        return [Checkpoint(*row) for row in db.execute(query.format(_FIELDS, self._table), [pipeline, limit])]

    @contextmanager
    def _transaction(self) -> Iterator[PgSession]:
        with self._lock, self._explain_errors():
            db = self._begin()
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                # Also after an answer to COMMIT that did not come: nobody knows then, and the ledger looks.
                with suppress(psycopg.Error):
                    db.execute("ROLLBACK")
                raise

    def _begin(self) -> PgSession:
        """A connection that broke while nobody used it is only noticed now, and nothing was asked of it yet."""
        if self._db is not None:
            try:
                return _begin_on(self._db)
            except psycopg.OperationalError:
                self._drop()
        given: dict[str, Any] = {"application_name": "tidemill", "connect_timeout": 10}
        db = PgSession.connect(
            **given | conninfo_to_dict(self.config.dsn), autocommit=True, prepare_threshold=None
        )  # fmt: skip
        db.silence_seconds = _SILENCE_SECONDS
        self._db = db
        self._create(db)
        return _begin_on(db)

    def _create(self, db: PgSession) -> None:
        """Looked for first: IF NOT EXISTS would ask for the right to create it even where it is there. A table of an
        earlier version lacks a column."""
        if db.execute(_COMPLETE, [self._table.as_string(db)]).fetchone() == (True,):
            return
        with db.transaction():
            # Without it, one of two that create it at once fails with whatever the catalog met first.
            db.execute("SELECT pg_advisory_xact_lock(hashtextextended('tidemill', 0))")
            db.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (pipeline text NOT NULL, version bigint NOT NULL,"
                    ' "offset" bigint NOT NULL, position text NOT NULL, saved_at text NOT NULL, note text NOT NULL,'
                    " base bigint, writer text NOT NULL, PRIMARY KEY (pipeline, version))"
                ).format(self._table)
            )
            db.execute(
                sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS joined boolean NOT NULL DEFAULT false").format(
                    self._table
                )
            )

    def _drop(self) -> None:
        if self._db is not None:
            with suppress(psycopg.Error):
                self._db.close()
            self._db = None

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if self._db is not None and self._db.broken:
                self._drop()
            known = conninfo_to_dict(self.config.dsn)
            reason = (error.diag.message_primary or str(error)).strip().splitlines()[0]
            raise CheckpointError(
                f"the checkpoints in PostgreSQL cannot be used: {reason}",
                where=f"{known.get('host', 'localhost')}/{known.get('dbname', '')}, {self.config.table}",
                fix="Check that the server is up, and that the user may read and write the table, and create it the "
                "first time (after an upgrade: change it).",
            ) from error


def _begin_on(db: PgSession) -> PgSession:
    db.execute("BEGIN")
    db.execute(_SETTINGS)
    return db


component = PostgresCheckpoints
