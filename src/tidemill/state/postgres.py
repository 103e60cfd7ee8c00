"""State in a schema of a PostgreSQL database that several machines share: `tidemill_state`, or `?schema=` of the URI.

One connection per store, made on first use and made again after it broke. Each transaction says what it needs of the
session itself, so that a pooler between us does no harm. Writers of one pipeline take turns by an advisory lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tidemill.errors import StateError, TidemillError
from tidemill.net.pgsession import PgSession
from tidemill.state import migrations
from tidemill.state.migrations import Rows

DEFAULT_SCHEMA = "tidemill_state"

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
_LOCK = "SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))"


class PostgresState:
    def __init__(self, uri: str, *, create: bool = True) -> None:
        self._dsn, self.schema = _split(uri)
        known = conninfo_to_dict(self._dsn)
        self._where = f"{known.get('host', 'localhost')}/{known.get('dbname', '')}, schema {self.schema}"
        self._create = create
        self._lock = threading.Lock()
        self._db: psycopg.Connection[Any] | None = None
        self._ready = False

    @contextmanager
    def writing(self, pipeline: str) -> Iterator[Rows]:
        with self._transaction() as db:
            db.execute(_LOCK, [self.schema, f"pipeline {pipeline}"])
            yield _rows(db)

    @contextmanager
    def reading(self) -> Iterator[Rows]:
        """One snapshot is not promised: each statement sees what was committed before it."""
        with self._transaction() as db:
            yield _rows(db)

    def version(self) -> int:
        with self._transaction(ready=True) as db:
            return self._version(db)

    def close(self) -> None:
        with self._lock:
            self._drop()

    @contextmanager
    def _transaction(self, *, ready: bool = False) -> Iterator[psycopg.Connection[Any]]:
        """One thread at a time. `ready`: whatever the tables are like."""
        with self._lock, self._explained():
            db = self._begin()
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

    def _begin(self) -> psycopg.Connection[Any]:
        """A connection that broke while nobody used it is only noticed now, and nothing was asked of it yet."""
        if self._db is not None:
            try:
                return self._begun(self._db)
            except psycopg.OperationalError:
                self._drop()
        given: dict[str, Any] = {"application_name": "tidemill", "connect_timeout": 10} | conninfo_to_dict(self._dsn)
        db = PgSession.connect(**_WATCHED | given, autocommit=True, prepare_threshold=None)
        db.patience = _STATEMENT_SECONDS + _GRACE_SECONDS
        self._db = db
        return self._begun(db)

    def _begun(self, db: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
        db.execute("BEGIN")
        settings = (f"{_STATEMENT_SECONDS}s", f"{_LOCK_SECONDS}s", f"{_STATEMENT_SECONDS}s")
        db.execute(_BEGIN, [sql.Identifier(self.schema).as_string(db), *settings])
        return db

    def _version(self, db: psycopg.Connection[Any]) -> int:
        name = sql.Identifier(self.schema, "migrations").as_string(db)
        found = db.execute("SELECT to_regclass(%s)::text", [name]).fetchone()
        if found is None or found[0] is None:
            return 0
        current = migrations.version_of(_rows(db))
        migrations.check(current, self._where)
        return current

    def _migrate(self, db: psycopg.Connection[Any]) -> None:
        if self._version(db) == migrations.latest():
            return
        db.execute(_LOCK, [self.schema, "migrations"])
        found = db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self.schema]).fetchone()
        if found is None:  # IF NOT EXISTS would ask for the right to make it even where it is there
            db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.schema)))
        migrations.migrate(_rows(db), self._where)

    def _drop(self) -> None:
        if self._db is not None:
            with suppress(psycopg.Error):
                self._db.close()
            self._db = None

    @contextmanager
    def _explained(self) -> Iterator[None]:
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
                where=self._where,
                fix="Check that the server is up, and that the user may use the schema, and create it the first time; "
                "what needed it is tried again.",
            ) from error


def _rows(db: psycopg.Connection[Any]) -> Rows:
    def run(statement: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        cursor = db.execute(statement.replace("?", "%s"), values or None)
        return cursor.fetchall() if cursor.description else []

    return run


def _split(uri: str) -> tuple[str, str]:
    """The URI as libpq takes it, and our schema."""
    address, _, query = uri.partition("?")
    schema, rest = DEFAULT_SCHEMA, []
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name == "schema":
            schema = unquote(value)
        else:
            rest.append(pair)
    return "?".join([address, "&".join(rest)] if rest else [address]), schema
