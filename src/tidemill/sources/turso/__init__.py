"""A Turso database file, by Turso's own change data capture: `PRAGMA capture_data_changes_conn` on the connections that
write, which fills the table `turso_cdc`. Experimental, as Turso is.

The capture loop calls it as it calls every source (`contracts.Source`). Nothing is set up in the file.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import Field

from tidemill.contracts import Check, Notice, Passage, Resting, Schemas, history_of
from tidemill.decoders.sqlite import SqliteTable
from tidemill.errors import ConfigError
from tidemill.model.change import Change
from tidemill.model.position import Ordering, Position
from tidemill.sources._shared import sqlite_marks as marks
from tidemill.sources._shared.sqlite_catalog import file_number, quote
from tidemill.sources._shared.sqlite_names import is_selected, unmatched_notices
from tidemill.sources._shared.sqlite_source import DatabaseFileConfig, DatabaseFileSource
from tidemill.sources.turso import resume
from tidemill.sources.turso.checks import run_checks
from tidemill.sources.turso.client import CdcForm, TursoFile, is_user_table
from tidemill.sources.turso.decode import CdcDecoder
from tidemill.sources.turso.resume import CdcPlace
from tidemill.sources.turso.silence import FileSilence
from tidemill.sources.turso.snapshot import TursoSnapshotReader
from tidemill.sources.turso.stream import CdcStream
from tidemill.sources.turso.tables import CdcTables

__all__ = ["TursoConfig", "TursoSource", "component"]

_TRIM_ROWS, _TRIM_FIRST_ROWS = 5_000, 8
_TRIM_SECONDS, _HELD_SECONDS = 0.1, 0.005  # of one call, and about of one removal: others who write wait for it


class TursoConfig(DatabaseFileConfig):
    cdc_table: str = Field(default="turso_cdc", min_length=1, description="The table that the pragma names.")
    start_position: Literal["latest", "earliest"] = Field(
        default="latest",
        description="Where a source without a position begins: now, or with the first change that is recorded.",
    )
    experimental_features: str = Field(
        default="multiprocess_wal",
        description="Turso's features for our connection. Without multiprocess_wal, here and in the application, one"
        " process at a time can open the file.",
    )
    poll_seconds: float = Field(default=0.01, gt=0, description="Seconds between two looks at the change table.")
    trim: bool = Field(
        default=True,
        description="Remove recorded changes that were delivered. Not if something else reads the change table, such as"
        " another pipeline or Turso's sync.",
    )

    def is_selected(self, name: str) -> bool:
        if not is_user_table(name) or name == self.cdc_table:
            return False
        return is_selected(self.patterns, name)


class TursoSource(DatabaseFileSource[TursoConfig]):
    Config = TursoConfig

    def __init__(self, config: TursoConfig) -> None:
        super().__init__(config)
        self._file: TursoFile | None = None
        self._form = CdcForm(config.cdc_table, transactions=True)
        self._stream: CdcStream | None = None
        self._silence: FileSilence | None = None
        self._schemas: Schemas | None = None

    def setup(self, after: Position | None = None, schemas: Schemas | None = None) -> CdcForm:
        """Looks whether changes are recorded; changes nothing. Whether it can go on from a position is judged by
        `open`."""
        with self._connect() as file:
            return file.form(self.config.cdc_table)

    def other_server(self, after: Position, schemas: Schemas) -> str:
        """A Turso file has no identity: a reset table and another file look the same."""
        return ""

    def open(
        self, after: Position | None, schemas: Schemas, *, confirmed: Position | None = None, mark_events: int = 1000
    ) -> None:
        self.close()
        config = self.config
        self._opened_file, self._schemas = file_number(config.path), schemas
        self._file = file = TursoFile(config.path, config.experimental_features, config.where)
        self._form = form = file.form(config.cdc_table)
        if after:
            place = resume.further(after, confirmed, config.where)
            resume.check(file, form, place, config.where)
        else:
            place = self._first(file, form)
        tables = CdcTables(history_of(schemas), config.database_name)
        selected = {name: sql for name, sql in file.statements().items() if config.is_selected(name)}
        tables.begin(place, selected)
        decoder = CdcDecoder(tables, functools.cache(config.is_selected), self._lookup, config.where)
        note = functools.partial(marks.note, schemas)
        self._stream = CdcStream(file, form, decoder, tables, place, config, mark_events, note)
        self._silence = FileSilence(config.path)
        self._trimmed = 0
        self.began = place.text()

    def _first(self, file: TursoFile, form: CdcForm) -> CdcPlace:
        if self.config.start_position == "latest":
            return CdcPlace(*file.last(form))
        rows = file.rows(f"SELECT min(change_id) FROM {quote(form.table)}")
        first = int(rows[0][0] or 1)
        return CdcPlace(0, 0) if first == 1 else CdcPlace(*file.last(form))

    def _lookup(self, table: SqliteTable, rowid: int) -> dict[str, Any] | None:
        """A row as it is now, for changes that were recorded without it. The table, or some of its columns, may be gone
        by now. Turso takes a quoted name that is none for a string, so the others are not asked for."""
        assert self._file is not None
        there = self._file.column_names(table.name)
        names = [c.name for c in table.columns if c.name in there]
        if not names:
            return None
        columns = ", ".join(map(quote, names))
        rows = self._file.rows(f"SELECT {columns} FROM {quote(table.name)} WHERE rowid = ?", [rowid])
        return dict(zip(names, rows[0], strict=True)) if rows else None

    def changes(self, wait: float) -> Iterator[Change]:
        _, stream, silence = self._open()
        deadline = time.monotonic() + wait
        while True:
            found = False
            self._must_be_opened_file()
            for change in stream.changes():
                found = True
                yield change
            silence.look(found=found)
            left = deadline - time.monotonic()
            if found or left <= 0:
                return
            time.sleep(min(self.config.poll_seconds, left))

    def compare(self, a: Position, b: Position) -> Ordering | None:
        return resume.compare(a, b)

    def renew(self, schemas: Schemas | None = None) -> Position:
        """The end of the change table now. How tables were before the gap says nothing about them after it."""
        with self._connect() as file:
            place = CdcPlace(*file.last(file.form(self.config.cdc_table)))
        if schemas is not None:
            history_of(schemas).forget_structures(0)
            marks.forget(schemas)
        return place.text()

    def pass_over(
        self, after: Position, through: Position | None, schemas: Schemas, *, confirmed: Position | None
    ) -> Passage:
        config = self.config
        place = resume.further(after, confirmed, config.where)
        with self._connect() as file:
            form = file.form(config.cdc_table)
            resume.check(file, form, place, config.where)
            table = quote(form.table)
            if through is None:
                rows = file.rows(
                    f"SELECT {form.columns} FROM {table} WHERE change_id > ? ORDER BY change_id LIMIT 1", [place.number]
                )
                if rows and form.transactions:
                    rows = file.rows(
                        f"SELECT change_id, change_time FROM {table} WHERE change_txn_id = ? AND change_id > ?"
                        " ORDER BY change_id DESC LIMIT 1", [rows[0][2], place.number],
                    )  # fmt: skip
            else:
                wanted = CdcPlace.parse(through, config.where)
                rows = file.rows(
                    f"SELECT change_id, change_time FROM {table} WHERE change_id = ? AND change_id > ?",
                    [wanted.number, place.number],
                )
        if not rows:
            raise ConfigError(
                "no such change stands after our position in the change table", where=config.where,
                fix="Nothing was changed. There is nothing to leave out, or it has another number.",
            )  # fmt: skip
        to = CdcPlace(int(rows[0][0]), int(rows[0][1]))
        return Passage(to.text(), f"changes {place.number + 1} to {to.number} of {form.table}")

    def accept(self, subject: str, schemas: Schemas) -> tuple[Notice, ...]:
        return marks.accept(schemas, subject)

    def _stream_position(self) -> Position | None:
        return self._stream.place.text() if self._stream is not None else None

    def _number(self, position: Position) -> int:
        return CdcPlace.parse(position).number

    def acknowledge(self, position: Position) -> None:
        """Removes what was delivered, as many rows at a time as milliseconds allow. The last one stays: the numbers of
        the next ones are counted from it."""
        file, _, silence = self._open()
        self._trimmed_at = time.monotonic()
        number = self._number(position)
        if not self.config.trim:
            self._trimmed = number
            return
        table = quote(self._form.table)
        first = file.rows(f"SELECT min(change_id) FROM {table}")[0][0]
        if first is not None and first < number:
            began, until, step = time.monotonic(), first, _TRIM_FIRST_ROWS
            while until < min(number, first + _TRIM_ROWS) and time.monotonic() - began < _TRIM_SECONDS:
                until, held = min(number, until + step), time.monotonic()
                file.rows(f"DELETE FROM {table} WHERE change_id < ?", [until])
                quick = time.monotonic() - held < _HELD_SECONDS
                step = 2 * step if quick else max(1, step // 2)
            silence.look(found=True)  # it was we who wrote
            if until < number:
                return
        self._trimmed = number

    def notices(self) -> tuple[Notice, ...]:
        if self._stream is None or self._silence is None or self._schemas is None:
            return ()
        unmatched = unmatched_notices(self.config.patterns, list(self._stream.tables.known))
        return unmatched + self._silence.notices(self.config.cdc_table) + marks.notices(self._schemas)

    def snapshot_reader(self) -> TursoSnapshotReader:
        return TursoSnapshotReader(self.config)

    def reached(self, high: Position, logged: Position) -> bool:
        """By the number of the change. A table may have been renamed, or a column, which no change tells: the stream
        must also have looked at the schema as it is now."""
        file, stream, _ = self._open()
        return stream.place.number >= CdcPlace.parse(high).number and stream.version == file.schema_version()

    def doctor(self, resting: Resting | None = None) -> Iterable[Check]:
        return run_checks(self.config, resting)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._stream = self._silence = None

    def _connect(self) -> contextlib.closing[TursoFile]:
        return contextlib.closing(TursoFile(self.config.path, self.config.experimental_features, self.config.where))

    def _open(self) -> tuple[TursoFile, CdcStream, FileSilence]:
        if self._file is None or self._stream is None or self._silence is None:
            raise RuntimeError("open() was not called")
        return self._file, self._stream, self._silence


component = TursoSource
