"""The driver's part of a snapshot: plans chunks, feeds the Spark tasks that read them, and says how far it is.

A thread beside the streams of a running pipeline. Everything it must know after a restart is in the state store; what
it stages is adopted by capture (`capture/snapshot.py`). The log is kept from `floor` on while chunks may need it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from tidemill.config.pipeline import Pipeline
from tidemill.contracts import ChunkCopy, SnapshotReader, SnapshotRecord, SnapshotSource, StateStore, TableCopy
from tidemill.errors import ConnectionLost, StructureChanged, TableLocked, TidemillError, from_data, is_retryable
from tidemill.log.reader import LogReader
from tidemill.log.staging import Staging, drop_staged
from tidemill.model.position import Offset
from tidemill.model.snapshot import Chunk, ChunkState, SnapshotState, TableState
from tidemill.retry import RetryPolicy
from tidemill.service.paced_event import PacedEvent, rest_seconds
from tidemill.service.snapshot.chunk_sizes import ChunkSizes
from tidemill.service.snapshot.left_over import Delivered, LeftOver
from tidemill.service.snapshot.moved_rows import MovedRows
from tidemill.service.snapshot.observations import Observations
from tidemill.service.snapshot.plan import (
    OVER,
    AddedTables,
    filter_of,
    find_again,
    is_small,
    newest_tables,
    now,
    pack,
    plan_chunks,
    settings_of,
    state_of,
    tables_of,
)
from tidemill.service.snapshot.readers import Assignment, ChunkReaders, Finding
from tidemill.service.snapshot.refusals import Refusals
from tidemill.stream.batch.failures import explain
from tidemill.stream.spark.session import cores
from tidemill.telemetry import events
from tidemill.telemetry.context import bind
from tidemill.telemetry.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IDLE_SECONDS, _BUSY_SECONDS, _SOON_SECONDS, _UNPROVEN_SECONDS = 0.5, 0.05, 0.01, 0.2
_STAGED_CHUNKS, _SMALL_TABLES = 16, 50  # of each reader that may wait for adoption; of an assignment
_RUNNING = SnapshotState.RUNNING
_AGAIN = RetryPolicy(first=0.2, most=5.0, jitter=0.0)  # of a chunk that was thrown away
_ALL, _LISTEN_SECONDS = 1 << 30, 0.2


class SnapshotDriver:
    """`start`, then `stop`. `floor` and `tables` may be asked from any thread."""

    def __init__(
        self, pipeline: Pipeline, spark: SparkSession, state: StateStore, delivered: Delivered = lambda sink: None
    ) -> None:
        self._pipeline, self._spark, self._store = pipeline, spark, state.snapshots
        self._name, self._config = pipeline.name, settings_of(pipeline)
        self._log = LogReader(pipeline.log_uri)
        self._stop = PacedEvent()
        self._thread: threading.Thread | None = None
        self._reader: SnapshotReader | None = None
        self._observations, self._moved = Observations(), MovedRows(self._log)
        self._of: SnapshotRecord | None = None  # the snapshot that they belong to
        self._delivered = delivered
        self._left_over: LeftOver | None = None  # while state sinks remove what the source no longer has
        self._added = AddedTables(pipeline, self._log)
        self._readers = ChunkReaders(spark, pipeline.log_uri)
        self._count = 0  # of readers, once it is known
        self._next_read = 0.0  # nothing is given to readers before
        self._thrown_away: dict[str, float] = {}  # when a chunk that is to be read again was first seen, by staging id
        self._refusals = Refusals()
        self._sizes = ChunkSizes(self._config.chunk_rows, self._log)
        self.floor: Offset | None = None
        """From here on the log must stay; None: no snapshot needs it."""
        self.tables: tuple[TableCopy, ...] = ()
        """Of the newest snapshot, as last seen."""
        self.idle = False
        """No snapshot is under way, or it is paused."""
        record = self._store.active(self._name)
        if record is not None:
            self._hold(record)

    def start(self) -> None:
        source = self._pipeline.build_source()
        if not isinstance(source, SnapshotSource):
            return
        self._reader = source.snapshot_reader()
        self._thread = threading.Thread(target=self._run, name=f"snapshot {self._name}", daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 30.0) -> None:
        """What was read by then and is not sealed is read again after the next start."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        retries = RetryPolicy().begin(self._stop)
        assert self._reader is not None
        with bind(pipeline=self._name, stage="snapshot"), closing(self._reader), closing(self._readers):
            while not self._stop.is_set():
                try:
                    wait = self._step()
                    retries.reset()
                except Exception as failure:  # noqa: BLE001  the stream goes on; what a retry does not mend is said
                    error = explain(failure)
                    if self._stop.is_set():
                        return
                    events.warn("snapshot.waits", code=error.code, error=error.what, where=error.where, fix=error.fix)
                    retries.pause()
                    continue
                self._stop.wait_turn(rest_seconds(wait) if wait >= _IDLE_SECONDS else wait)

    def _step(self) -> float:
        """One look, with what readers bring and get; answers how long to wait before the next."""
        assert self._reader is not None
        tail = self._log.tail()
        if not tail.position:
            return _BUSY_SECONDS  # the stream has not begun: what changes from now on would be missed
        self._get_ready(self._reader)
        self._added.look(self._store, self._reader)
        record = self._store.active(self._name)
        self._land(record, self._reader)
        if self._of is not None and not self._is_current(record):
            # It is over, or was replaced, and its readers have returned: nobody adopts what it left.
            drop_staged(self._pipeline.log_uri, self._of.owns)
            self._of, self.tables = None, newest_tables(self._store, self._name)
        if record is None:
            self.floor, self.idle = None, True
            if not self.tables:
                self.tables = newest_tables(self._store, self._name)
            return _IDLE_SECONDS
        if not self._is_current(record):
            self._follow(record)
        self._hold(record)
        self.idle = record.state is SnapshotState.PAUSED
        if self.idle:
            self.tables = tuple(self._store.tables(self._name, record.id))
            return _IDLE_SECONDS
        if record.recovers_from >= 0 and self._log.gap().snapshot != record.id:
            return _IDLE_SECONDS  # the source has not begun anew: what changes until then would be missed
        tables = self._store.tables(self._name, record.id) or self._begin(record, self._reader)
        # After that look: a table is ready only if its last chunk's rows were searched.
        if self._moved.search(self._store, self._name, record, tables):
            tables = self._store.tables(self._name, record.id)
        self.tables = tuple(tables)
        if self._settle(record, tables):
            return 0.0
        return self._read(record, tables, self._reader)

    def _get_ready(self, reader: SnapshotReader) -> None:
        """Readers stand, and log in, while tables are looked for, described and numbered."""
        record = self._store.active(self._name) if self._of is None else None
        if record is not None and record.state is _RUNNING and record.recovers_from < 0:
            self._follow(record)
            self._readers.begin(self._count_readers(), reader)

    def _follow(self, record: SnapshotRecord) -> None:
        self._of, self._thrown_away, self._left_over = record, {}, None
        self._observations, self._moved = Observations.of(record, self._log.gap().offset), MovedRows(self._log)

    def _begin(self, record: SnapshotRecord, reader: SnapshotReader) -> list[TableCopy]:
        self._readers.begin(self._count_readers(), reader)
        found = tables_of(record, self._config, reader)
        if not found:
            self._end(record, SnapshotState.FAILED if record.tables else SnapshotState.DONE)  # or there is none yet
            events.warn("snapshot.nothing_to_copy", snapshot=record.id, tables=",".join(record.tables))
            return []
        self._store.add_tables(self._name, record.id, found)
        events.emit("snapshot.began", snapshot=record.id, why=record.why, tables=len(found))
        return self._store.tables(self._name, record.id)

    def _settle(self, record: SnapshotRecord, tables: Sequence[TableCopy]) -> bool:
        """Tables go on to their next state; True when the snapshot is over."""
        changed = {table.name: state for table in tables if (state := state_of(table)) is not table.state}
        if changed:
            self._store.set_table_states(self._name, record.id, changed)
        for table in tables:
            if changed.get(table.name) is TableState.READY:
                failpoint("snapshot.table_ready")
                events.emit("snapshot.table_ready", table=table.name, rows=table.rows)
        if not tables or any(state_of(table) not in OVER for table in tables):
            return not tables
        if record.recovers_from >= 0 and not self._remove_left_over(record, tables):
            return False
        failed = [table for table in tables if table.state is TableState.FAILED]
        if self._end(record, SnapshotState.FAILED if failed else SnapshotState.DONE):  # else it was cancelled meanwhile
            events.emit("snapshot.ended", snapshot=record.id, rows=sum(t.rows for t in tables), failed=len(failed))
        return True

    def _remove_left_over(self, record: SnapshotRecord, tables: Sequence[TableCopy]) -> bool:
        if self._left_over is None:
            tables = self._store.tables(self._name, record.id)
            self._left_over = LeftOver(self._pipeline, record, self._delivered)
        return self._left_over.remove(tables)

    def _end(self, record: SnapshotRecord, state: SnapshotState) -> bool:
        ended = self._store.set_state(self._name, record.id, state, now())
        self.tables = tuple(self._store.tables(self._name, record.id))
        self.floor = None
        return ended

    def _read(self, record: SnapshotRecord, tables: Sequence[TableCopy], reader: SnapshotReader) -> float:
        """Takes what was read, gives what is next, and listens to the readers for a while."""
        readers = self._readers
        if self._take(readers.take(), tables, reader) or (
            readers.finished and self._take(readers.end(), tables, reader)
        ):
            return 0.0
        given = self._prepare(record, tables, reader)
        readers.give(given)
        if not readers.standing:
            return _BUSY_SECONDS
        busy = given or any(True for _ in readers.assignments())
        rest = _BUSY_SECONDS if all(table.registered for table in tables) else _SOON_SECONDS
        readers.wait(_LISTEN_SECONDS if busy else rest, hungry=bool(given))
        return 0.0

    def _count_readers(self) -> int:
        """One of Spark's slots is the stream's."""
        self._count = self._count or max(1, min(self._config.max_connections, cores(self._spark) - 1))
        return self._count

    def _land(self, record: SnapshotRecord | None, reader: SnapshotReader) -> None:
        """A snapshot that is paused takes what is being read, and begins nothing further. Of one that is over, or was
        replaced, it is of no use to anybody."""
        current = record if self._is_current(record) else None
        if not self._readers.standing or (current is not None and current.state is _RUNNING):
            return
        found = self._readers.end()
        if current is not None:
            self._take(found, self._store.tables(self._name, current.id), reader)

    def _is_current(self, record: SnapshotRecord | None) -> bool:
        """Whether observations and what is being read belong to it."""
        return record is not None and self._of is not None and record.identity == self._of.identity

    def _prepare(
        self, record: SnapshotRecord, tables: Sequence[TableCopy], reader: SnapshotReader
    ) -> Sequence[Assignment]:
        """What readers get next, of chunks that are not being read; nothing if there is none, or not yet."""
        config, readers = self._config, self._readers
        count = self._count_readers()
        by_number = {table.number: table for table in tables if table.registered and table.state not in OVER}
        if time.monotonic() < self._next_read:
            return ()
        rows, prefetch = self._sizes.look(self._log.tail().offset), self._sizes.prefetch
        reading = sum(1 for _ in readers.assignments())
        room = min(readers.room(count), count * (1 if config.max_rows_per_second else prefetch) - reading)
        staged = sum(c.rows for c in self._chunks(record, ChunkState.STAGED))
        if room <= 0 or staged > min(prefetch, _STAGED_CHUNKS) * count * rows:
            return ()
        small = sum(1 for table in by_number.values() if is_small(table, rows))
        wanted = room + min(small, _SMALL_TABLES * room)
        planned = self._due(record, by_number)
        if len(planned) < wanted:
            self._plan(record, list(by_number.values()), reader, wanted - len(planned))
            planned = self._due(record, by_number)
        if not (packed := pack(planned, by_number, room, rows)):
            return ()
        readers.begin(count, reader)
        tail = self._log.tail()
        self._observations.add(tail.offset, lambda: reader.observe(tail.position))
        whole = self._log.head() == 0 == self._log.gap().offset
        return [Assignment.of(record, by_number, chunks, self._observations.all, whole=whole) for chunks in packed]

    def _due(self, record: SnapshotRecord, tables: dict[int, TableCopy]) -> list[ChunkCopy]:
        """Chunks to read now. One that was thrown away waits before it is read again, longer each time."""
        found, now = [], time.monotonic()
        reading = {staging for assignment in self._readers.assignments() for staging in assignment.due}
        for chunk in self._chunks(record, ChunkState.PLANNED):
            staging = chunk.staging_id(record.identity)
            wait = _AGAIN.wait_after(chunk.tries - 1) if chunk.tries else 0.0
            since = self._thrown_away.setdefault(staging, now) if wait else now
            if chunk.table not in tables or self._refusals.is_locked(tables[chunk.table].name):
                continue
            if now - since >= wait and staging not in reading:
                found.append(chunk)
        return found

    def _plan(self, record: SnapshotRecord, tables: Sequence[TableCopy], reader: SnapshotReader, wanted: int) -> None:
        """About `wanted` chunks more, of the first tables that have some left; saved together."""
        logged, plans, refused = self._log.tail().offset, [], {}
        for table in tables:
            parts = filter_of(table.structure, self._config), record.where
            where = " AND ".join(f"({part})" for part in parts if part)
            chunks: list[Chunk] = []
            known = table
            while wanted > 0 and (table.points or not table.planned) and not self._stop.is_set():
                if self._refusals.is_locked(table.name):
                    break
                try:
                    table, more = plan_chunks(reader, table, self._sizes.rows, where, logged)
                except ConnectionLost:
                    raise
                except TableLocked as error:
                    self._refusals.note_lock(table.name, error)
                except TidemillError as error:
                    refused[table.name] = error
                    break
                wanted -= len(more)
                chunks += more
            plans += [(table, chunks)] if table is not known else []
        if plans:
            self._store.plan(self._name, record.id, plans)
            failpoint("snapshot.planned")
        for name, refusal in refused.items():
            self._refuse(record, name, refusal, reader)

    def _refuse(self, record: SnapshotRecord, name: str, error: TidemillError, reader: SnapshotReader) -> None:
        """The server does not let the table be walked: it may be another one by now, or gone."""
        if self._refusals.is_hopeless(name, error):
            self._fail(record, name, error)
        else:
            self._describe_again(record, name, reader)

    def _take(self, found: Sequence[Finding], tables: Sequence[TableCopy], reader: SnapshotReader) -> bool:
        """Seals and notes what was read. Whether one of the tables is another one since."""
        if not found:
            return False
        now = {table.number: table.structure for table in tables}
        record, changed, staged = found[0][0].record, dict[str, TidemillError](), []
        for assignment, result in found:
            chunk = assignment.chunks[result.staging]
            table = assignment.tables[chunk.table]
            if now.get(chunk.table) != table.structure:
                continue  # the chunk was forgotten when the table's structure changed
            if result.error:
                error = from_data(result.error)
                if isinstance(error, StructureChanged):
                    changed[table.name] = error
                elif isinstance(error, TableLocked):
                    self._refusals.note_lock(table.name, error)
                elif not is_retryable(error) or self._refusals.is_hopeless(table.name, error):
                    self._fail(record, table.name, error)
                    changed[table.name] = error
                else:
                    events.warn("snapshot.chunk_failed", table=table.name, error=error.what, where=error.where)
            elif result.proven:
                staged.append((assignment, result, table.name))
        staged = [each for each in staged if each[2] not in changed]
        for _, _, name in staged:
            self._refusals.note_read(name)
        for _, result, _ in staged:
            if result.rows:
                Staging(self._pipeline.log_uri, result.staging).seal(result.parts)
                failpoint("snapshot.sealed")
        self._store.stage(self._name, record.id, [assignment.stage(result) for assignment, result, _ in staged])
        if self._observations.prove(a.observations[r.observation] for a, r, _ in staged if r.observation is not None):
            self._store.save_observation(self._name, record.id, *self._observations.all[0])
        for name, failure in changed.items():
            if isinstance(failure, StructureChanged):
                self._describe_again(record, name, reader)
        self._pace(found)
        return bool(changed)

    def _pace(self, found: Sequence[Finding]) -> None:
        """When readers may be given more: `max_rows_per_second` holds on the average; what proves nothing is not read
        again at once."""
        if limit := self._config.max_rows_per_second:
            for assignment, result in found:
                self._next_read = max(self._next_read, assignment.sent_at) + result.rows / limit
        if not any(result.proven for _, result in found):
            self._next_read = max(self._next_read, time.monotonic() + _UNPROVEN_SECONDS)

    def _describe_again(self, record: SnapshotRecord, name: str, reader: SnapshotReader) -> None:
        known = self._store.tables(self._name, record.id)
        found = find_again(reader, name, known)
        if found is None:
            error = TidemillError(f"{name} is not there any more, or not captured", where=f"snapshot {record.id}")
            self._fail(record, name, error)
            return
        (before,) = (table.structure.table for table in known if table.name == name)
        self._moved.forget(self._store, self._name, record, before, found)
        events.emit("snapshot.structure_changed", table=name)
        self._store.forget_structure(self._name, record.id, name, found)

    def _fail(self, record: SnapshotRecord, name: str, error: TidemillError) -> None:
        self._store.set_table_state(self._name, record.id, name, TableState.FAILED, error=error.what, fix=error.fix)
        events.fail("snapshot.table_failed", table=name, error=error.what, where=error.where, fix=error.fix)

    def _hold(self, record: SnapshotRecord) -> None:
        """The log is kept from the oldest place on that a chunk's window may begin at. Not while sinks remove what is
        left over, which may wait for an operator: all tables are in the log then."""
        waiting = [chunk.since for chunk in self._chunks(record, ChunkState.STAGED)]
        looked_at = [record.since if record.observation else 0, max(record.cursor, 0)]
        self.floor = min([*waiting, *looked_at, *self._readers.windows()]) if self._left_over is None else None

    def _chunks(self, record: SnapshotRecord, state: ChunkState) -> list[ChunkCopy]:
        return self._store.chunks(self._name, record.id, state, _ALL)
