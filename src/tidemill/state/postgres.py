"""State in a schema of a PostgreSQL database that several machines share: `tidemill_state`, or `?schema=` of the URI.

One connection per store, made on first use and made again after it broke. Each transaction says what it needs of the
session itself, so that a pooler between us does no harm. Writers of one pipeline take turns by an advisory lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tidemill.errors import StateError, TidemillError
from tidemill.net.pgsession import PgSession
from tidemill.state import migrations
from tidemill.state.migrations import Rows
from tidemill.state.postgres_uri import split_schema

_STATEMENT_SECONDS, _LOCK_SECONDS, _GRACE_SECONDS = 60, 30, 10.0
# A machine that vanished without a word is noticed by these, in 90 seconds.
_WATCHED = {
    "keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 6,
    "tcp_user_timeout": 90_000,
}  # fmt: skip

_BEGIN = """
SELECT set_config('search_path', %s, true), set_config('statement_timeout', %s, true),
       set_config('lock_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true),
       -- Durable means on disk, whatever the database says of other sessions. Stricter settings stay.
       CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
"""
_RIGHTS = """
SELECT current_setting('transaction_read_only'), current_user,
       has_database_privilege(current_database(), 'CREATE'), to_regnamespace(quote_ident(%(schema)s))::text,
       has_schema_privilege(to_regnamespace(quote_ident(%(schema)s)), 'USAGE')
"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))"


class PostgresState:
    columns_query = (
        "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = ?"
        " ORDER BY ordinal_position"
    )

    def __init__(self, uri: str, *, create: bool = True, seconds: float | None = None) -> None:
        """`seconds`: for who must know soon that the server does not answer. By default a slow one is waited for."""
        self._dsn, self.schema = split_schema(uri)
        known = conninfo_to_dict(self._dsn)
        self.where = f"{known.get('host', 'localhost')}/{known.get('dbname', '')}, schema {self.schema}"
        self._create = create
        self._seconds = seconds
        self._lock = threading.Lock()
        self._db: psycopg.Connection[Any] | None = None
        self._ready = False

    @contextmanager
    def writing(self, *pipelines: str) -> Iterator[Rows]:
        with self._transaction() as db:
            for pipeline in pipelines:
                db.execute(_LOCK, [self.schema, f"pipeline {pipeline}"])
            yield _rows(db)

    @contextmanager
    def reading(self) -> Iterator[Rows]:
        """One snapshot is not promised: each statement sees what was committed before it."""
        with self._transaction() as db:
            yield _rows(db)

    @contextmanager
    def snapshot(self) -> Iterator[Rows]:
        with self._transaction(isolation="ISOLATION LEVEL REPEATABLE READ READ ONLY") as db:
            yield _rows(db)

    @contextmanager
    def preparing(self) -> Iterator[Rows]:
        with self._transaction(ready=True) as db:
            self._lock_migrations(db)
            yield _rows(db)

    def version_in(self, run: Rows) -> int:
        if not run("SELECT 1 FROM pg_tables WHERE schemaname = ? AND tablename = 'migrations'", self.schema):
            return 0
        current = migrations.version_of(run)
        migrations.check(current, self.where)
        return current

    def version(self) -> int:
        with self._transaction(ready=True) as db:
            return self.version_in(_rows(db))

    def write_problem(self) -> str:
        with self._transaction(ready=True) as db:
            ((read_only, user, may_create, there, may_use),) = db.execute(_RIGHTS, {"schema": self.schema}).fetchall()
        if read_only == "on":
            return "the server takes no writes: it is a standby, or read-only"
        if there is None:
            return "" if may_create else f"user {user} may not create the schema {self.schema}"
        return "" if may_use else f"user {user} may not use the schema {self.schema}"

    def close(self) -> None:
        with self._lock:
            self._drop()

    @contextmanager
    def _transaction(self, *, ready: bool = False, isolation: str = "") -> Iterator[psycopg.Connection[Any]]:
        """One thread at a time. `ready`: whatever the tables are like."""
        with self._lock, self._explain():
            db = self._begin(isolation)
            try:
                if not (ready or self._ready or not self._create):
                    self._migrate(db)
                yield db
                db.execute("COMMIT")
                self._ready = self._ready or not ready
            except BaseException:
                # Also after an answer to COMMIT that did not come: nobody knows then, and the caller repeats it.
                with suppress(psycopg.Error):
                    db.execute("ROLLBACK")
                raise

    def _begin(self, isolation: str) -> psycopg.Connection[Any]:
        """A connection that broke while nobody used it is only noticed now, and nothing was asked of it yet."""
        if self._db is not None:
            try:
                return self._begin_session(self._db, isolation)
            except psycopg.OperationalError:
                self._drop()
        given: dict[str, Any] = {"application_name": "tidemill", "connect_timeout": 10} | conninfo_to_dict(self._dsn)
        if self._seconds is not None:
            given |= {"connect_timeout": max(2, int(self._seconds))}  # libpq takes whole seconds, and no fewer than 2
        db = PgSession.connect(**_WATCHED | given, autocommit=True, prepare_threshold=None)
        db.silence_seconds = _STATEMENT_SECONDS + _GRACE_SECONDS if self._seconds is None else self._seconds
        self._db = db
        return self._begin_session(db, isolation)

    def _begin_session(self, db: psycopg.Connection[Any], isolation: str) -> psycopg.Connection[Any]:
        db.execute(f"BEGIN {isolation}")
        statement, lock = (_STATEMENT_SECONDS, _LOCK_SECONDS) if self._seconds is None else (self._seconds,) * 2
        settings = (f"{int(statement * 1000)}ms", f"{int(lock * 1000)}ms", f"{int(statement * 1000)}ms")
        db.execute(_BEGIN, [sql.Identifier(self.schema).as_string(db), *settings])
        return db

    def _migrate(self, db: psycopg.Connection[Any]) -> None:
        if self.version_in(_rows(db)) == migrations.latest():
            return
        self._lock_migrations(db)
        migrations.migrate(_rows(db), self.where)

    def _lock_migrations(self, db: psycopg.Connection[Any]) -> None:
        """And makes the schema, if it is missing."""
        db.execute(_LOCK, [self.schema, "migrations"])
        found = db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self.schema]).fetchone()
        if found is None:  # IF NOT EXISTS would ask for the right to make it even where it is there
            db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.schema)))

    def _drop(self) -> None:
        if self._db is not None:
            with suppress(psycopg.Error):
                self._db.close()
            self._db = None

    @contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except TidemillError:
            raise
        except psycopg.Error as error:
            if self._db is not None and self._db.broken:
                self._drop()
            reason = (error.diag.message_primary or str(error)).strip().splitlines()[0]
            raise StateError(
                f"the state store cannot be used: {reason}",
                where=self.where,
                fix="Check that the server is up, and that the user may use the schema, and create it the first time; "
                "what needed it is tried again.",
            ) from error


def _rows(db: psycopg.Connection[Any]) -> Rows:
    def run(statement: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        cursor = db.execute(statement.replace("?", "%s"), values or None)
        return cursor.fetchall() if cursor.description else []

    return run
