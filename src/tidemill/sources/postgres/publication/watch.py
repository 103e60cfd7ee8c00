"""Watches what the publication delivers, because the stream does not say what it leaves out.

The source opens it before it streams, and asks it now and then whether it may go on:

    watch.open(schemas)     compares with what was last seen, also by an earlier process; raises what must stop us
    watch.begin()           from now on a thread looks every few seconds, over a connection of its own
    watch.check()           raises what the thread met, in the thread of the source
    watch.notices()
    watch.close()

What was seen is kept together with the marks that follow from it, in one document: a crash between a change at the
server and the document is a difference that the next look finds again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, LiteralString

import orjson
import psycopg
from psycopg import sql

from tidemill.contracts import Notice, Schemas
from tidemill.errors import ConnectionLost, PositionLost, RegistryError, SourceError, TidemillError
from tidemill.model.position import Position
from tidemill.sources.postgres import ddl_trigger, errors, resume, setup
from tidemill.sources.postgres.client import connect
from tidemill.sources.postgres.lsn import format_lsn, parse_lsn
from tidemill.sources.postgres.publication import keys
from tidemill.sources.postgres.publication.compare import Comparison
from tidemill.sources.postgres.publication.marks import TableMark, merge
from tidemill.sources.postgres.publication.notices import list_notices, without_identity
from tidemill.sources.postgres.publication.published import Published
from tidemill.sources.postgres.tables import parse
from tidemill.telemetry import events

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig

SEEN, LOOKED = "postgres.publication", "postgres.looked"  # documents: what was seen; until when it was seen so
_VERSION = 1
_STOPS = (PositionLost, errors.PublicationProblem)  # a login that is refused, or a lock, does not end a healthy stream
_SHARE = 20  # reading the catalog may take one part in so many of the time
_LONGEST_REST_SECONDS = 30.0
_NOTE_SECONDS = 10.0
_BLIND_SECONDS = 60.0
_LOCK_SECONDS = 0.05  # a table that is locked for longer is altered at a later look: others queue after who waits


@dataclass(frozen=True, slots=True)
class PublicationState:
    """What was published at `lsn`, and what is marked."""

    published: Published
    lsn: int
    marks: tuple[TableMark, ...]


class PublicationWatch:
    def __init__(self, config: PostgresConfig) -> None:
        self._config = config
        self._schemas: Schemas | None = None
        self._seen: PublicationState | None = None
        self._last: Published | None = None
        self._noted, self._noted_at = 0, 0.0
        self._reading_seconds = 0.0  # of the last look
        self._refused: dict[str, TidemillError] = {}
        self._notices: tuple[Notice, ...] = ()
        self._failure: TidemillError | None = None
        self._db: psycopg.Connection | None = None
        self._guard = threading.Lock()  # of the connection: who shuts it down must not meet a closed one
        self._wake = threading.Event()
        self._stop = threading.Event()  # one for each time it is opened: a thread that was left behind stays stopped
        self._thread: threading.Thread | None = None
        self.untriggered: ddl_trigger.Untriggered | None = None  # set by the setup, which knows why
        self.looks = self.failed_looks = 0
        self._slot_bytes: int | None = None  # as of the last look
        self._copied: Mapping[str, Position] = {}

    def open(self, schemas: Schemas) -> None:
        self.close()
        self._schemas, self._stop = schemas, threading.Event()
        self._seen = recall(schemas.recall)
        try:
            with connect(self._config) as db:
                self._look(db, self._stop)
        except errors.ServerBusy as error:  # a lock on the catalog passes; it is no reason to give up a stream
            raise SourceError(error.what, where=error.where, fix=error.fix) from error

    def baseline(self, db: psycopg.Connection, schemas: Schemas) -> None:
        """Before there is a slot: what happens to the publication from here on counts, also before the first look."""
        with errors.translate(self._config.where):
            lsn = resume.wal_end(db)
            keep(schemas, PublicationState(Published.read(db, self._config), lsn, ()))

    def begin(self) -> None:
        self._failure = None
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="catalog", daemon=True)
        self._thread.start()

    def check(self) -> None:
        thread = self._thread
        ended = thread is not None and not thread.is_alive()  # before the failure, which it sets before it ends
        if self._failure is not None:
            raise self._failure
        if ended:
            raise ConnectionLost("the thread that watches the publication has ended", where=self._config.where,
                                 fix="It begins again with the next connection. Please report this.")  # fmt: skip

    def hint(self) -> None:
        """The stream met a table anew: the catalog may have changed. The next look comes sooner, not more often than
        looks may be."""
        self._wake.set()

    def note_copied(self, tables: Mapping[str, Position]) -> None:
        """Marks that a copy makes good go at the next look."""
        self._copied = dict(tables)
        self._wake.set()

    def notices(self) -> tuple[Notice, ...]:
        return (*self._notices, *([self.untriggered.notice] if self.untriggered else []))

    def slot_bytes(self) -> int | None:
        """WAL that the server keeps for the slot."""
        return self._slot_bytes

    def close(self) -> None:
        """A query under way is cut off, so that a server that does not answer holds up nothing."""
        if self._thread is None:
            return
        self._stop.set()
        self._wake.set()
        with self._guard, contextlib.suppress(OSError):
            if self._db is not None and not self._db.closed:
                with socket.socket(fileno=os.dup(self._db.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)
        self._thread.join(self._config.connect_timeout_seconds + 5)
        self._thread = None

    def _run(self, stop: threading.Event) -> None:
        last = time.monotonic()
        while not stop.is_set():
            self._rest(stop)
            if stop.is_set():
                break
            try:
                if self._db is None:
                    self._db = connect(self._config)
                self._look(self._db, stop)
                last = time.monotonic()
            except Exception as error:  # noqa: BLE001  (a defect of ours must not end the watch unseen)
                self._hang_up()
                if stop.is_set():
                    break
                if isinstance(error, _STOPS):
                    self._failure = error
                    break
                self._look_failed(error, last)
        self._hang_up()

    def _rest(self, stop: threading.Event) -> None:
        least = min(_SHARE * self._reading_seconds, _LONGEST_REST_SECONDS)
        if not stop.wait(least):
            self._wake.wait(max(0.0, self._config.catalog_seconds - least))
        self._wake.clear()

    def _hang_up(self) -> None:
        with self._guard:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _look_failed(self, error: Exception, last: float) -> None:
        self.failed_looks += 1
        if not isinstance(error, TidemillError):
            what = f"the look itself broke: {type(error).__name__}: {error}"
            error = SourceError(what, where=self._config.where, fix="Please report this.")
        events.warn("catalog.look_failed", error=error.what, where=error.where)
        if time.monotonic() - last > _BLIND_SECONDS:
            what = f"the catalog cannot be read since {int(time.monotonic() - last)} seconds: {error.what}"
            blind = Notice("catalog-unwatched", self._config.publication_name, what, error.fix)
            self._notices = (blind, *(n for n in self._notices if n.code != blind.code))

    def _look(self, db: psycopg.Connection, stop: threading.Event) -> None:
        config = self._config
        self._reading_seconds = 0.0
        with errors.translate(config.where):
            lsn = resume.wal_end(db)
            now = self._read(db)
            if self._seen is None:
                if now.publication is None:
                    raise errors.publication_lost_error(config, "is gone", "before it was first looked at")
                self._keep(PublicationState(now, lsn, ()), stop)
            seen = self._seen
            assert seen is not None
            self._must_be_the_same(seen, now)
            setup.check_via_root(now, config)
            if self._include(db, now):
                lsn = resume.wal_end(db)
                now = self._read(db)
                self._must_be_the_same(seen, now)
            if self._schemas is not None and not stop.is_set():
                keys.note(db, config.slot_name, now.units, self._schemas)
            marks = seen.marks
            copied = [mark for mark in marks if mark.is_made_good(self._copied)]
            if copied:
                marks = tuple(mark for mark in marks if mark not in copied)
                seen = replace(seen, marks=marks)
                self._keep(seen, stop)
            for mark in copied:
                events.emit("catalog.table_complete", table=mark.table)
            if _differ(seen.published, now):
                until = resume.wal_end(db)
                marks = self._compare(db, seen, now, until)
                self._keep(PublicationState(now, lsn, marks), stop)
            else:
                self._note(lsn, stop)
            identities = self._identify(db, now)
            self.untriggered = ddl_trigger.watch(db, config, self.untriggered)
            slot = resume.read(db, config.slot_name)
            self._slot_bytes = slot.retained_bytes if slot is not None else None
        self._notices = (*(mark.notice() for mark in marks), *list_notices(config, now, self._refused), *identities)
        self.looks += 1

    def _read(self, db: psycopg.Connection) -> Published:
        """As a rule nothing has changed, and then what was made of the last look need not be made again."""
        with self._reading():
            now = Published.read(db, self._config)
        if now != self._last:
            self._last = now
        assert self._last is not None
        return self._last

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._reading_seconds += time.monotonic() - began

    def _must_be_the_same(self, seen: PublicationState, now: Published) -> None:
        known = seen.published.publication
        if now.publication is None:
            raise errors.publication_lost_error(self._config, "is gone", f"last seen at {format_lsn(seen.lsn)}")
        if known is not None and known.oid != now.publication.oid:
            when = f"last seen at {format_lsn(seen.lsn)}"
            raise errors.publication_lost_error(self._config, "was dropped and made anew", when)

    def _include(self, db: psycopg.Connection, now: Published) -> bool:
        """Adds tables that are wanted, as the setup does at first. What cannot be added is said, and tried again."""
        added = False
        refused: dict[str, TidemillError] = {}
        for unit in now.lacking:
            if not (now.publication and now.publication.ours and unit.table.ours):
                continue
            if (error := self._alter(db, partial(setup.include, db, self._config, unit.found))) is not None:
                refused[unit.name] = error
                continue
            added = True
            events.emit("catalog.table_added", table=unit.name, publication=self._config.publication_name)
        self._refused = refused
        return added

    def _identify(self, db: psycopg.Connection, now: Published) -> list[Notice]:
        """Sets what is configured, as the setup does at first: a partition does not inherit the replica identity of its
        table, a key may be dropped. What cannot be set is said, and tried again."""
        config, publication = self._config, now.publication
        if publication is None or not {"update", "delete"} & set(publication.kinds):
            return []
        captured = [unit for unit in now.units.values() if unit.wanted and unit.published]
        with self._reading():
            holders = [oid for unit in captured for oid in unit.leaves or [unit.table.oid]]
            lacking = setup.without_identity(db, config, holders)
        notices = []
        for table, usable in ((now.relations[oid], usable) for oid, usable in lacking.items()):
            error = None
            if config.replica_identity != "keep" and table.ours:
                error = self._alter(db, partial(setup.set_full, db, config, table.schema, table.name))
                if error is None:
                    events.emit("catalog.identity_set", table=table.full_name)
                    continue
            notices.append(without_identity(config, table, error, usable=usable))
        return notices

    def _alter(self, db: psycopg.Connection, change: Callable[[], None]) -> TidemillError | None:
        """Makes a change wholly, or answers what kept us from it. Gives way to who has a lock."""
        wait = min(self._config.lock_timeout_seconds or _LOCK_SECONDS, _LOCK_SECONDS)
        try:
            with errors.translate(self._config.where), db.transaction():
                db.execute("SELECT set_config('lock_timeout', %s, true)", [str(max(1, int(1000 * wait)))])
                change()
        except (ConnectionLost, PositionLost):
            raise
        except TidemillError as error:
            return error
        return None

    def _compare(
        self, db: psycopg.Connection, seen: PublicationState, now: Published, until: int
    ) -> tuple[TableMark, ...]:
        published = {unit.name for unit in now.units.values() if unit.published}
        ended = frozenset(mark.table for mark in seen.marks if not mark.until and mark.table in published)
        end = format_lsn(until)
        new = list(Comparison(seen.published, now, format_lsn(seen.lsn), end, _ServerEvidence(db), ended).marks())
        known = (mark if mark.until or mark.table not in ended else replace(mark, until=end) for mark in seen.marks)
        marks = merge([*known, *new])
        for mark in new:
            events.warn(f"catalog.{mark.code.replace('-', '_')}", table=mark.table, since=mark.since, until=mark.until,
                        reason="; ".join(mark.reasons))  # fmt: skip
        return marks

    def _keep(self, seen: PublicationState, stop: threading.Event) -> None:
        assert self._schemas is not None
        if not stop.is_set():
            keep(self._schemas, seen)
            self._seen, self._noted, self._noted_at = seen, seen.lsn, time.monotonic()

    def _note(self, lsn: int, stop: threading.Event) -> None:
        """All is as it was: a gap that a later look finds begins here."""
        assert self._seen is not None
        assert self._schemas is not None
        self._seen = PublicationState(self._seen.published, lsn, self._seen.marks)
        if lsn > self._noted and time.monotonic() - self._noted_at > _NOTE_SECONDS and not stop.is_set():
            self._schemas.remember(LOOKED, format_lsn(lsn).encode())
            self._noted, self._noted_at = lsn, time.monotonic()


class _ServerEvidence:
    def __init__(self, db: psycopg.Connection) -> None:
        self._db = db

    def untouched(self, tables: list[int]) -> bool:
        # Where VACUUM found rows to remove it leaves a map of free space, also of a file that it made empty.
        return self._all("pg_relation_size(t) = 0 AND pg_relation_size(t, 'fsm') = 0", tables) and not self.rewritten(
            tables
        )

    def rewritten(self, tables: list[int]) -> bool:
        # A table is made with a file of its own number; TRUNCATE, VACUUM FULL and SET LOGGED give it another one.
        return not self._all("pg_relation_filenode(t) = t", tables)

    def _all(self, condition: LiteralString, tables: list[int]) -> bool:
        statement = sql.SQL("SELECT bool_and(coalesce({}, false)) FROM unnest(%s::oid[]) t")
        row = self._db.execute(statement.format(sql.SQL(condition)), [tables]).fetchone()
        return not tables or bool(row and row[0])


def _differ(a: Published, b: Published) -> bool:
    return (a.publication, a.relations, a.patterns) != (b.publication, b.relations, b.patterns)


def recall(remembered: Callable[[str], bytes | None]) -> PublicationState | None:
    """`remembered` is `Schemas.recall`, or as much of it as the doctor has. None before the first look."""
    document, looked = remembered(SEEN), remembered(LOOKED)
    if document is None:
        return None
    data = orjson.loads(document)
    if data["version"] != _VERSION:
        raise RegistryError(
            "what was seen of the publication was noted by another version of Tidemill",
            fix="Go on with that version, or begin anew: tidemill recover FILE --snapshot.",
        )
    marks = tuple(TableMark(**mark | {"reasons": tuple(mark["reasons"])}) for mark in data["marks"])
    lsn = max(parse_lsn(data["lsn"]), parse_lsn(looked.decode()) if looked else 0)
    return PublicationState(Published.of_data(data["published"]), lsn, marks)


def keep(schemas: Schemas, seen: PublicationState | None) -> None:
    """Durable when it returns. None forgets everything."""
    schemas.remember(LOOKED, None)
    if seen is None:
        schemas.remember(SEEN, None)
        return
    data = {"version": _VERSION, "lsn": format_lsn(seen.lsn), "published": seen.published.as_data(),
            "marks": [asdict(mark) for mark in seen.marks]}  # fmt: skip
    schemas.remember(SEEN, orjson.dumps(data))


def accept(schemas: Schemas, table: str) -> tuple[Notice, ...]:
    """`table` is a name as notices have it, or a pattern as in `tables`."""
    seen = recall(schemas.recall)
    if seen is None:
        return ()
    pattern = parse(table)
    accepted = [m for m in seen.marks if m.table == table or pattern.matches(*m.table.split(".", 1))]
    if accepted:
        keep(schemas, PublicationState(seen.published, seen.lsn, tuple(m for m in seen.marks if m not in accepted)))
    return tuple(mark.notice() for mark in accepted)
