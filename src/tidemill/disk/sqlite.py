"""A small SQLite file shared by threads and processes: checkpoints, the schema registry, state. Opened on first use."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tidemill.disk.private import make_directory, open_file, tighten
from tidemill.errors import TidemillError
from tidemill.retry import RetryPolicy

_WAIT_SECONDS = 30.0  # for whoever writes at the same time
_OPENED_BY_OTHERS = RetryPolicy(first=0.01, most=0.01, seconds=_WAIT_SECONDS)


class SqliteFile:
    """`schema` makes its tables if they are missing; `failure` turns what SQLite says into the owner's error.

    A file of an older version has its tables `renamed` (old name to new) and columns `added` (table, name,
    declaration). `prepare` is called with every new connection instead, by who numbers the versions of its tables."""

    def __init__(
        self,
        path: Path,
        schema: str,
        failure: Callable[[str], TidemillError],
        *,
        renamed: Mapping[str, str] | None = None,
        added: Mapping[str, Mapping[str, str]] | None = None,
        prepare: Callable[[sqlite3.Connection], None] | None = None,
    ) -> None:
        self.path = path
        self._schema, self._failure = schema, failure
        self._renamed, self._added = renamed or {}, added or {}
        self._prepare = prepare
        self._lock = threading.RLock()  # of a thread inside `together` once more
        self._together = False
        self._db: sqlite3.Connection | None = None

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """One thread at a time; outside a transaction every statement commits by itself."""
        with self._lock:
            try:
                if self._db is None:
                    self._db = self._open()
                yield self._db
            except (sqlite3.Error, OSError) as error:
                raise self._failure(str(error)) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, or a part of the one that this thread has (`together`). IMMEDIATE locks before it reads:
        nobody writes between a comparison and a row."""
        with self.connected() as db:
            if self._together:
                yield db
                return
            self._begin(db)
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def _begin(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")

    @contextmanager
    def together(self) -> Iterator[None]:
        """What this thread writes in it is one transaction, and one wait for the disk. Others wait for its end."""
        with self._lock, self.writing():
            self._together = True
            try:
                yield
            finally:
                self._together = False

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _open(self) -> sqlite3.Connection:
        make_directory(self.path.parent, ours=False)
        # Before SQLite, which gives -wal and -shm its mode. A file that is there must not be opened beside SQLite: to
        # close it would drop all locks that this process has on it, and whoever closes the file next, in any process,
        # would take the write-ahead log away from under us (sqlite.org/howtocorrupt.html, 2.2).
        with suppress(FileExistsError):
            os.close(open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        for beside in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                tighten(self.path.with_name(self.path.name + beside))
        db = sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _use_wal(db)
            db.execute("PRAGMA synchronous=FULL")  # in WAL mode, less may lose the last commits in a power cut
            self._rename_tables(db)
            db.executescript(self._schema)
            self._add_columns(db)
            if self._prepare is not None:
                self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _rename_tables(self, db: sqlite3.Connection) -> None:
        """Where an older version has used the file since, both names are there: what it wrote is added."""
        if not any(_columns(db, old) for old in self._renamed):
            return
        db.execute("BEGIN IMMEDIATE")  # another process may be at the same
        for old, new in self._renamed.items():
            if not _columns(db, old):
                continue
            if not _columns(db, new):
                db.execute(f"ALTER TABLE {old} RENAME TO {new}")
                continue
            db.execute(f"INSERT INTO {new} SELECT * FROM {old}")
            db.execute(f"DROP TABLE {old}")
        db.execute("COMMIT")

    def _add_columns(self, db: sqlite3.Connection) -> None:
        if all(set(columns) <= _columns(db, table) for table, columns in self._added.items()):
            return
        db.execute("BEGIN IMMEDIATE")  # another process may be at the same
        for table, columns in self._added.items():
            for name in columns.keys() - _columns(db, table):
                db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {columns[name]}")
        db.execute("COMMIT")


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in db.execute(f"PRAGMA table_info({table})")}


def _use_wal(db: sqlite3.Connection) -> None:
    """WAL mode: the command line reads while a pipeline writes. A file that others are just opening cannot be switched,
    and for this one thing SQLite does not wait by itself."""
    _OPENED_BY_OTHERS.run(lambda: db.execute("PRAGMA journal_mode=WAL"), worth=_is_busy)


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
