"""Which snapshots are due when a pipeline starts, and what readers are given next."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime

from tidemill.config.pipeline import Pipeline
from tidemill.contracts import (
    ChunkCopy,
    SnapshotConfig,
    SnapshotReader,
    SnapshotRecord,
    SnapshotStore,
    StateStore,
    TableCopy,
)
from tidemill.errors import TidemillError
from tidemill.log.reader import LogReader
from tidemill.model.position import Offset
from tidemill.model.snapshot import Bound, Chunk, SnapshotMode, SnapshotState, SnapshotTable, TableState
from tidemill.model.tablenames import TableNames
from tidemill.service.snapshot.uncopied import NOT_COPIED, find_uncopied, first_names, note_tables
from tidemill.telemetry import events

NEVER_RAN = "the pipeline's first start"
EVERY_START = "mode is always"
ADDED = "the tables were added"
ASKED = "asked for"
REPAIR = "rows differed"

OVER = (TableState.READY, TableState.FAILED)
_POINTS = 500  # keys that one chunk reads again
_LONGEST_PAUSE_SECONDS = 60.0


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def settings_of(pipeline: Pipeline) -> SnapshotConfig:
    """Also for a snapshot that is asked for: how tables are copied, whenever that is."""
    return pipeline.snapshot_config or SnapshotConfig()


def config_of(pipeline: Pipeline) -> SnapshotConfig | None:
    """Of a source that can copy its tables and is told to; None otherwise."""
    config = pipeline.snapshot_config
    return config if config is not None and config.mode is not SnapshotMode.NEVER else None


def begin_if_due(pipeline: Pipeline, state: StateStore) -> None:
    """Before capture starts: afterwards the pipeline has run. Durable, so that a crash does not skip the copy."""
    config, store = config_of(pipeline), state.snapshots
    if config is None or store.active(pipeline.name) is not None:
        return
    if config.mode is SnapshotMode.ALWAYS:
        store.begin(pipeline.name, EVERY_START, config.tables, "", now())
    elif not store.records(pipeline.name, 1) and not _has_run(pipeline, state):
        store.begin(pipeline.name, NEVER_RAN, config.tables, "", now())


def _has_run(pipeline: Pipeline, state: StateStore) -> bool:
    if state.confirmed(pipeline.name) is not None or LogReader(pipeline.log_uri).tail().position:
        return True
    with closing(pipeline.build_checkpoints()) as checkpoints:
        return checkpoints.load(pipeline.name) is not None


class AddedTables:
    """Of a pipeline that has started. Looked for until capture has all the tables that it is to have, less and less
    often."""

    def __init__(self, pipeline: Pipeline, log: LogReader) -> None:
        self._pipeline, self._log = pipeline, log
        self._next, self._pause = 0.0, 0.25

    def look(self, store: SnapshotStore, reader: SnapshotReader) -> None:
        if time.monotonic() >= self._next:
            whole = look_for_added(self._pipeline, store, reader, self._log)
            self._pause = math.inf if whole else min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            self._next = time.monotonic() + self._pause


def look_for_added(pipeline: Pipeline, store: SnapshotStore, reader: SnapshotReader, log: LogReader) -> bool:
    """When the pipeline has started: tables that it did not have when it last did are copied alone. One that has just
    begun and copies nothing is warned of rows that are there. False: capture has not taken in every table yet, as when
    PostgreSQL's publication has to have one more; it is to be looked again."""
    if config_of(pipeline) is not None:
        wanted = TableNames(settings_of(pipeline).tables)
        expected = {table.full_name for table in reader.structures() if wanted.match(table)}
        names = [table.name for table in reader.tables(settings_of(pipeline).tables)]
        known = store.known_tables(pipeline.name)
        known |= _copied_on_request(pipeline, store) if known else known
        added = [name for name in names if name not in known]
        if known and added:
            record = store.begin(pipeline.name, ADDED, added, "", now())
            events.emit("snapshot.began", snapshot=record.id, why=ADDED)
        store.add_known_tables(pipeline.name, names)
        return expected <= {*names}
    if pipeline.snapshot_config is None:
        with suppress(TidemillError):  # capture says what is wrong
            filled = find_uncopied(pipeline, store, reader) if not log.tail().offset else []
            if filled and not log.tail().offset:  # else they may be rows that the stream brought since
                events.warn("snapshot.not_configured", tables=first_names(filled), fix=NOT_COPIED)
            note_tables(pipeline, reader)
    return True


def _copied_on_request(pipeline: Pipeline, store: SnapshotStore) -> frozenset[str]:
    """Tables all of whose rows an operator had copied: a new one that a pattern matched while the pipeline ran."""
    whole = (each for each in store.records(pipeline.name) if each.why == ASKED and not each.where)
    tables = (table for each in whole for table in store.tables(pipeline.name, each.id))
    return frozenset(table.name for table in tables if table.state is TableState.READY)


def find_tables(reader: SnapshotReader, names: Collection[str]) -> list[SnapshotTable]:
    """Of exactly these full names. Sources quote names in different ways, so that one with a sign in it, which might be
    taken for a pattern, is looked for among all."""
    plain = all(re.fullmatch(r"\w+\.\w+", name) for name in names)
    return [table for table in reader.tables(sorted(names) if plain else ()) if table.name in names]


def tables_of(record: SnapshotRecord, config: SnapshotConfig, reader: SnapshotReader) -> list[SnapshotTable]:
    """What the snapshot copies, as it begins. A filter holds for the whole copy of a table, whatever the document says
    by its end: who removes what no event brought would take what was left out for gone."""
    found = find_tables(reader, record.tables) if record.why == ADDED else reader.tables(record.tables)
    return [replace(table, where=filter_of(table, config)) for table in found]


def find_again(reader: SnapshotReader, name: str, tables: Sequence[TableCopy]) -> SnapshotTable | None:
    """One of `tables`, with the structure that it has by now; None if it is not there, or not captured."""
    where = next((table.structure.where for table in tables if table.name == name), None)
    return next((replace(found, where=where) for found in find_tables(reader, [name])), None)


def filter_of(table: SnapshotTable, config: SnapshotConfig) -> str:
    """The condition on its rows; empty for none."""
    return config.filters.get(table.name, "") if table.where is None else table.where


def plan_chunks(
    reader: SnapshotReader, table: TableCopy, rows: int, where: str, logged: Offset
) -> tuple[TableCopy, list[Chunk]]:
    """The next chunk of the table, or chunks of its points, and the table as it is then: the same if nothing was left
    to plan. Nothing is saved. `logged`: the log's end. Rows that moved are read when a read is proven to see them where
    they are now: in a window that has the move they would be left out. With a key that cannot be printed, everything is
    read, as one chunk."""
    parts = table.structure.parts
    if table.part >= len(parts):
        if table.points:
            points, rest = table.points[:_POINTS], table.points[_POINTS:]
            if () in table.points:
                points, rest = (), ()
            chunks = [
                Chunk(table.name, table.next + n, part, where=where, points=points, seen=logged)
                for n, part in enumerate(parts)
            ]
            return replace(table, points=rest, next=table.next + len(chunks)), chunks
        return (table if table.planned else replace(table, planned=True)), []
    part = parts[table.part]
    upper: Bound | None = reader.plan(table.structure, part, table.lower, rows)
    chunk = Chunk(table.name, table.next, part, table.lower, upper, where)
    place = table.part + (upper is None)
    done = replace(
        table, part=place, lower=upper, next=table.next + 1, planned=place >= len(parts) and not table.points
    )
    return done, [chunk]


def first_observation(
    chunk: ChunkCopy, table: TableCopy, observations: Sequence[tuple[Offset, str]], whole: bool
) -> int:
    """Which observation a chunk's read must prove, or a later one. None of them (-1) where the log has the stream from
    its first event on (`whole`) and a window of all of it tells what the read missed: not without a key, and not if the
    window has another structure, as it has when the table has had one, or when a first try says so."""
    if chunk.chunk.seen >= 0:
        late = (index for index, (since, _) in enumerate(observations) if since >= chunk.chunk.seen)
        return next(late, len(observations))
    structure = table.structure.table
    return -1 if whole and structure.key and structure.version < 2 and not chunk.tries else 0


def is_small(table: TableCopy, rows: int) -> bool:
    """Of so many that an assignment has dozens of them; `rows` of a chunk."""
    return 0 <= table.structure.estimate < rows // 50


def pack(chunks: Sequence[ChunkCopy], tables: dict[int, TableCopy], most: int, rows: int) -> list[list[ChunkCopy]]:
    """At most `most` assignments of about `rows` rows: a chunk, or many of small tables."""
    found: list[list[ChunkCopy]] = [[]]
    weight = 0
    for chunk in chunks:
        size = _weigh(tables[chunk.table].structure.estimate, rows)
        if found[-1] and weight + size > rows:
            if len(found) == most:
                break
            found.append([])
            weight = 0
        found[-1].append(chunk)
        weight += size
    return [each for each in found if each]


def _weigh(estimate: int, rows: int) -> int:
    return rows if estimate < 0 else min(max(estimate, rows // 50), rows)


def newest_tables(store: SnapshotStore, pipeline: str) -> tuple[TableCopy, ...]:
    """Of the newest snapshot; of one that was cancelled only those that were over: nobody copies the others."""
    newest = store.records(pipeline, 1)
    tables = store.tables(pipeline, newest[0].id) if newest else []
    return tuple(t for t in tables if t.state in OVER or newest[0].state is not SnapshotState.CANCELLED)


def state_of(table: TableCopy) -> TableState:
    if table.state in OVER:
        return table.state
    if not table.chunks and not table.planned:
        return TableState.COPYING if table.registered else TableState.PENDING
    if not table.planned or table.points:
        return TableState.COPYING
    return TableState.READY if table.adopted == table.chunks else TableState.CATCHING_UP
