"""Any SQLite 3 file, by triggers that record its changes in a table beside the data.

The capture loop calls it as it calls every source (`contracts.Source`):

    source.setup(after, schemas)       change table and triggers; idempotent, and again whenever the schema changes
    source.changes(wait)               what was recorded since, as soon as the file says that it was written
    source.acknowledge(position)       removes recorded changes, only what a checkpoint covers (invariant 2)
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator

from pydantic import Field

from tidemill.contracts import Check, Notice, Passage, Resting, Schemas
from tidemill.errors import ConfigError
from tidemill.model.change import Change
from tidemill.model.position import Ordering, Position
from tidemill.sources._shared import sqlite_marks as marks
from tidemill.sources._shared.sqlite_catalog import file_number, table_names
from tidemill.sources._shared.sqlite_names import full_name, unmatched_notices
from tidemill.sources._shared.sqlite_source import DatabaseFileConfig, DatabaseFileSource
from tidemill.sources.sqlite import gaps, resume
from tidemill.sources.sqlite.checks import run_checks
from tidemill.sources.sqlite.client import connect, reading, writing
from tidemill.sources.sqlite.errors import translate
from tidemill.sources.sqlite.file_watch import FileWatch
from tidemill.sources.sqlite.limits import find_limits
from tidemill.sources.sqlite.native import CellReader
from tidemill.sources.sqlite.removal import remove
from tidemill.sources.sqlite.resume import SqlitePlace
from tidemill.sources.sqlite.setup import InstallReport, SetupRequest, install, is_installed
from tidemill.sources.sqlite.snapshot import SqliteSnapshotReader
from tidemill.sources.sqlite.triggers import CHANGES, READERS, SHAPES
from tidemill.sources.sqlite.trim import trim
from tidemill.sources.sqlite.windows import ChangeWindows
from tidemill.telemetry import events

__all__ = ["SqliteFileConfig", "SqliteSource", "component"]


class SqliteFileConfig(DatabaseFileConfig):
    busy_timeout_seconds: float = Field(
        default=5, gt=0, description="Seconds to wait for a lock that another program holds."
    )
    poll_seconds: float = Field(
        default=0.2,
        gt=0,
        description="Seconds after which the file is looked at although nothing said that it was written.",
    )
    window_rows: int = Field(
        default=20_000, ge=1, description="Changes read at once; more that came together are spilled to the log."
    )
    recopy_rows: int = Field(
        default=100_000,
        ge=0,
        description="A table of which changes may be missing is emptied at the destinations and copied again, in the"
        " stream; one with more rows than these is marked instead.",
    )


class SqliteSource(DatabaseFileSource[SqliteFileConfig]):
    Config = SqliteFileConfig

    def __init__(self, config: SqliteFileConfig) -> None:
        super().__init__(config)
        self._db: sqlite3.Connection | None = None
        self._reader: CellReader | None = None
        self._watch: FileWatch | None = None
        self._windows: ChangeWindows | None = None
        self._schemas: Schemas | None = None
        self._schema_version = -1
        self._said: tuple[Notice, ...] = ()

    def setup(self, after: Position | None = None, schemas: Schemas | None = None) -> InstallReport:
        """Makes the change table and the triggers; a second call changes nothing. With `after` they must be there
        already. Whether all that follows is there is judged by `open`, which knows how far an idle stream came."""
        place = SqlitePlace.parse(after, self.config.where) if after else None
        with contextlib.closing(self._connect()) as db:
            if place is not None:
                with translate(self.config.where):
                    resume.check_file(db, place, self.config.id, self.config.where)
            return self._install(db, place)

    def other_server(self, after: Position, schemas: Schemas) -> str:
        with contextlib.closing(self._connect()) as db, translate(self.config.where):
            found, ours = resume.identity(db), SqlitePlace.parse(after, self.config.where).file
            if found is None or found == ours:
                return ""
            return f"{self.config.path} is another file than the one that was captured ({found}, not {ours})"

    def open(
        self, after: Position | None, schemas: Schemas, *, confirmed: Position | None = None, mark_events: int = 1000
    ) -> None:
        self.close()
        config = self.config
        self._opened_file = file_number(config.path)
        self._db = db = self._connect()
        place = resume.further(after, confirmed, config.where) if after else None
        if place is not None:
            with translate(config.where):
                resume.check(db, place, config.id, config.where)
        version = self._install(db, place).schema_version
        with translate(config.where):
            if place is None:
                file = resume.identity(db)
                assert file is not None
                (number,) = db.execute(f"SELECT confirmed FROM {READERS} WHERE name = ?", [config.id]).fetchone()
                place = resume.place_of(db, int(number), file)
        self._hear(db, place, schemas)
        self._schemas, self._schema_version = schemas, version
        # The reader's connection comes first: what is written from here on is seen by it.
        busy = int(config.busy_timeout_seconds * 1000)
        self._reader = CellReader(str(config.path.absolute()), busy, config.where, rows=config.window_rows)
        self._watch = FileWatch(config.path, config.poll_seconds)
        self._windows = ChangeWindows(db, self._reader, schemas, place, config)
        self._windows.warm_up()
        self._trimmed = 0
        self.began = place.text()
        self._say(db)

    def changes(self, wait: float) -> Iterator[Change]:
        """Ends with what one look at the file has found, or when `wait` is over. A look that another program's lock
        does not allow is over: there will be another."""
        db, windows, watch = self._open()
        deadline = time.monotonic() + wait
        while True:
            end, version = self._look(db, windows.place)
            if version != self._schema_version:
                # First of all: what was recorded since the last look may lack what the schema has by now.
                self._follow(db, windows)
                continue
            if end > windows.place.number:
                watch.note_found()
                yield from windows.changes(end)
                return
            if (left := deadline - time.monotonic()) <= 0:
                return
            if not watch.wait(left) and time.monotonic() >= deadline:
                return  # the next call begins with a look

    def _look(self, db: sqlite3.Connection, place: SqlitePlace) -> tuple[int, int]:
        """The last change and the version of the schema, of one moment. It must be the file that was opened, and have
        all that follows `place`: a file may be put in its place, or be overwritten, at any time."""
        config = self.config
        self._must_be_opened_file()
        with translate(config.where), reading(db):
            resume.check(db, place, config.id, config.where)
            (version,) = db.execute("PRAGMA schema_version").fetchone()
            return resume.last_number(db), int(version)

    def _follow(self, db: sqlite3.Connection, windows: ChangeWindows) -> None:
        """The schema has changed: triggers and descriptions follow."""
        assert self._schemas is not None
        report = self._install(db, windows.place)
        self._hear(db, windows.place, self._schemas)
        self._schema_version = report.schema_version
        windows.forget_width()
        self._say(db)

    def _install(self, db: sqlite3.Connection, place: SqlitePlace | None) -> InstallReport:
        """Where all is as it should be nothing is locked: a program may hold the file for long."""
        config = self.config
        with translate(config.where), reading(db):
            if (version := is_installed(db, config.id, config.tables)) is not None:
                return InstallReport(schema_version=version)
        with writing(db, config.where):
            report = install(db, self._request(place))
        for table, why in report.copied.items():
            events.warn("catalog.table_copied_again", table=full_name(table), reason=why)
        return report

    def _request(self, place: SqlitePlace | None = None) -> SetupRequest:
        config = self.config
        seen = place.number if place else None
        return SetupRequest(config.id, config.tables, seen, config.where, config.recopy_rows)

    def _hear(self, db: sqlite3.Connection, place: SqlitePlace, schemas: Schemas) -> None:
        """Notes the gaps that we or another reader have found; they leave the file once they are noted."""
        with translate(self.config.where):
            found = gaps.read_pending(db, self.config.id)
        if found:
            marks.note(schemas, found, place.text())
            with writing(db, self.config.where):
                gaps.forget(db, self.config.id)

    def compare(self, a: Position, b: Position) -> Ordering | None:
        """By the numbers of changes, in one file."""
        return resume.compare(a, b)

    def renew(self, schemas: Schemas | None = None) -> Position:
        """The end of the change table now; made anew where it was lost."""
        with contextlib.closing(self._connect()) as db:
            with writing(db, self.config.where):
                if resume.identity(db) is not None:
                    db.execute(f"DELETE FROM {READERS} WHERE name = ?", [self.config.id])
                    gaps.forget(db, self.config.id)
                install(db, self._request())
            if schemas is not None:
                marks.forget(schemas)
            with translate(self.config.where):
                file = resume.identity(db)
                assert file is not None
                return resume.place_of(db, resume.last_number(db), file).text()

    def pass_over(
        self, after: Position, through: Position | None, schemas: Schemas, *, confirmed: Position | None
    ) -> Passage:
        """Without `through` it is one change, not a transaction: these cannot be told apart."""
        where = self.config.where
        place = resume.further(after, confirmed, where)
        wanted = SqlitePlace.parse(through, where) if through else SqlitePlace(place.number + 1, 0, place.file)
        with contextlib.closing(self._connect()) as db, translate(where):
            resume.check(db, place, self.config.id, where)
            last = resume.last_number(db)
            if wanted.file != place.file or not place.number < wanted.number <= last:
                raise ConfigError(
                    f"the file has changes {place.number + 1} to {last} after our position, and not"
                    f" {wanted.text()}" if last > place.number else "no change stands after our position",
                    where=where, fix="Nothing was changed. Name one of these, if there are any.",
                )  # fmt: skip
            rows = db.execute(
                f"SELECT DISTINCT s.name FROM {CHANGES} AS c JOIN {SHAPES} AS s USING (shape)"
                " WHERE change_id > ? AND change_id <= ?", [place.number, wanted.number],
            ).fetchall()  # fmt: skip
            to = resume.place_of(db, wanted.number, place.file)
        names = ", ".join(sorted(full_name(name) for (name,) in rows))
        return Passage(to.text(), f"changes {place.number + 1} to {wanted.number}, of {names}")

    def accept(self, subject: str, schemas: Schemas) -> tuple[Notice, ...]:
        return marks.accept(schemas, subject)

    def _stream_position(self) -> Position | None:
        return self._windows.place.text() if self._windows is not None else None

    def _number(self, position: Position) -> int:
        return SqlitePlace.parse(position).number

    def acknowledge(self, position: Position) -> None:
        """Removes recorded changes that no reader needs, a few thousand at a time. A file that is locked, or not
        the one that was opened, is left alone."""
        db, _, _ = self._open()
        self._trimmed_at = time.monotonic()
        number = self._number(position)
        if self._is_opened_file() and trim(db, self.config.id, number):
            self._trimmed = number

    def notices(self) -> tuple[Notice, ...]:
        return self._said

    def _say(self, db: sqlite3.Connection) -> None:
        assert self._schemas is not None
        with translate(self.config.where):
            names = list(table_names(db))
            limits = tuple(find_limits(db, self.config.patterns))
        self._said = unmatched_notices(self.config.patterns, names) + limits + marks.notices(self._schemas)

    def snapshot_reader(self) -> SqliteSnapshotReader:
        return SqliteSnapshotReader(self.config)

    def reached(self, high: Position, logged: Position) -> bool:
        """By the number of the change: what was handed out is in the log."""
        _, windows, _ = self._open()
        return windows.place.number >= SqlitePlace.parse(high).number

    def doctor(self, resting: Resting | None = None) -> Iterable[Check]:
        return run_checks(self.config, resting)

    def uninstall(self) -> list[str]:
        """Takes our reader, and with the last one everything else of ours, out of the file; says what was dropped."""
        with contextlib.closing(self._connect()) as db, writing(db, self.config.where):
            return remove(db, self.config.id)

    def close(self) -> None:
        for part in (self._reader, self._watch, self._db):
            if part is not None:
                part.close()
        self._reader = self._watch = self._db = self._windows = None

    def _connect(self) -> sqlite3.Connection:
        return connect(self.config.path, self.config.where, self.config.busy_timeout_seconds)

    def _open(self) -> tuple[sqlite3.Connection, ChangeWindows, FileWatch]:
        if self._db is None or self._windows is None or self._watch is None:
            raise RuntimeError("open() was not called")
        return self._db, self._windows, self._watch


component = SqliteSource
