"""The driver's part of a snapshot: plans chunks, lets Spark tasks read them in waves, and says how far it is.

A thread beside the streams of a running pipeline. Everything it must know after a restart is in the state store; what
it stages is adopted by capture (`capture/snapshot.py`). The log is kept from `floor` on while chunks may need it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.config.pipeline import Pipeline
from tidemill.contracts import ChunkCopy, SnapshotReader, SnapshotRecord, SnapshotSource, StateStore, TableCopy
from tidemill.errors import ConnectionLost, StructureChanged, TidemillError, from_data, is_retryable
from tidemill.log.reader import LogReader
from tidemill.log.staging import Staging
from tidemill.model.position import Offset
from tidemill.model.snapshot import Chunk, ChunkState, SnapshotState, TableState
from tidemill.retry import RetryPolicy
from tidemill.service.snapshot.left_over import Delivered, LeftOver
from tidemill.service.snapshot.moved_rows import find_moved
from tidemill.service.snapshot.plan import (
    ADDED,
    NOT_COPIED,
    OVER,
    config_of,
    find_tables,
    is_small,
    now,
    pack,
    plan_chunks,
    settings_of,
    state_of,
    tables_with_rows,
)
from tidemill.service.snapshot.waves import Wave, WaveRunner
from tidemill.stream.batch.failures import explain
from tidemill.stream.snapshot import ChunkResult
from tidemill.stream.spark.session import cores
from tidemill.telemetry import events
from tidemill.telemetry.context import bind
from tidemill.telemetry.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IDLE_SECONDS, _BUSY_SECONDS, _UNPROVEN_SECONDS = 0.5, 0.05, 0.2
_STAGED_WAVES = 2  # that may wait for adoption
_REFUSALS = 5
_OBSERVATIONS = 64
_RUNNING = SnapshotState.RUNNING
_SMALL_TABLES, _GATHER_SECONDS = 50, 3.0
_AGAIN = RetryPolicy(first=0.2, most=5.0, jitter=0.0)  # of a chunk that was thrown away


class SnapshotDriver:
    """`start`, then `stop`. `floor` and `tables` may be asked from any thread."""

    def __init__(
        self, pipeline: Pipeline, spark: SparkSession, state: StateStore, delivered: Delivered = lambda sink: None
    ) -> None:
        self._pipeline, self._spark, self._store = pipeline, spark, state.snapshots
        self._name = pipeline.name
        self._config = settings_of(pipeline)
        self._log = LogReader(pipeline.log_uri)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._reader: SnapshotReader | None = None
        self._observations: list[tuple[Offset, str]] = []  # where the log ended before each, oldest first
        self._of = 0  # the snapshot that they belong to
        self._delivered = delivered
        self._left_over: LeftOver | None = None  # while state sinks remove what the source no longer has
        self._looked = False
        self._waves = WaveRunner(spark, pipeline.log_uri)
        self._gathers_until = 0.0  # small tables that capture has registered wait so long for others to share a job
        self._thrown_away: dict[str, float] = {}  # when a chunk that is to be read again was first seen, by staging id
        self._refused: dict[str, int] = {}  # reads of each table that the server answered with an error
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
        with bind(pipeline=self._name, stage="snapshot"), closing(self._reader), closing(self._waves):
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
                self._stop.wait(wait)

    def _step(self) -> float:
        """One wave, or one look; answers how long to wait before the next."""
        assert self._reader is not None
        tail = self._log.tail()
        if not tail.position:
            return _IDLE_SECONDS  # the stream has not begun: what changes from now on would be missed
        if not self._looked:
            self._look_for_added(self._reader)
        record = self._store.active(self._name)
        self._land(record, self._reader)
        if record is None:
            self.floor, self.idle = None, True
            newest = self._store.records(self._name, 1) if not self.tables else []
            self.tables = tuple(self._store.tables(self._name, newest[0].id)) if newest else self.tables
            return _IDLE_SECONDS
        if record.id != self._of:
            self._of, self._observations, self._thrown_away, self._left_over = record.id, [], {}, None
            if record.observation and record.since >= self._log.gap().offset:
                self._observations = [(record.since, record.observation)]
        self._hold(record)
        self.idle = record.state is SnapshotState.PAUSED
        if self.idle:
            self.tables = tuple(self._store.tables(self._name, record.id))
            return _IDLE_SECONDS
        if record.recovers_from >= 0 and self._log.gap().snapshot != record.id:
            return _IDLE_SECONDS  # the source has not begun anew: what changes until then would be missed
        tables = self._store.tables(self._name, record.id) or self._begin(record, self._reader)
        # After that look: a table is ready only if the log was searched beyond its last chunk.
        if self._find_moved(record):
            tables = self._store.tables(self._name, record.id)
        self.tables = tuple(tables)
        if self._settle(record, tables):
            return 0.0
        return self._read_wave(record, tables, self._reader)

    def _look_for_added(self, reader: SnapshotReader) -> None:
        """Tables that the pipeline did not have when it last started are copied alone."""
        if config_of(self._pipeline) is not None:
            names = [table.name for table in reader.tables(self._config.tables)]
            known = self._store.known_tables(self._name)
            added = [name for name in names if name not in known]
            if known and added:
                record = self._store.begin(self._name, ADDED, added, "", now())
                events.emit("snapshot.began", snapshot=record.id, why=ADDED)
            self._store.add_known_tables(self._name, names)
        elif self._pipeline.snapshot_config is None and not self._log.tail().offset:
            with suppress(TidemillError):  # of a pipeline that has just begun; capture says what is wrong
                filled = tables_with_rows(reader)
                if filled and not self._log.tail().offset:  # else they may be rows that the stream brought since
                    events.warn("snapshot.not_configured", tables=filled, fix=NOT_COPIED)
        self._looked = True

    def _begin(self, record: SnapshotRecord, reader: SnapshotReader) -> list[TableCopy]:
        exact = record.why == ADDED
        found = find_tables(reader, record.tables) if exact else reader.tables(record.tables)
        if not found:
            self._end(record, SnapshotState.DONE)
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
        self._end(record, SnapshotState.FAILED if failed else SnapshotState.DONE)
        events.emit("snapshot.ended", snapshot=record.id, rows=sum(t.rows for t in tables), failed=len(failed))
        return True

    def _remove_left_over(self, record: SnapshotRecord, tables: Sequence[TableCopy]) -> bool:
        if self._left_over is None:
            tables = self._store.tables(self._name, record.id)
            self._left_over = LeftOver(self._pipeline, record, tuple(self._config.filters), self._delivered)
        return self._left_over.remove(tables)

    def _end(self, record: SnapshotRecord, state: SnapshotState) -> None:
        self._store.set_state(self._name, record.id, state, now())
        self.tables = tuple(self._store.tables(self._name, record.id))
        self.floor = None

    def _read_wave(self, record: SnapshotRecord, tables: Sequence[TableCopy], reader: SnapshotReader) -> float:
        """Prepares a wave while the one before it is read, begins it, and then takes what that one read."""
        waves, limit = self._waves, self._config.max_rows_per_second
        following = self._prepare(record, tables, reader, waves.depth)
        if waves.wave is None:
            if following is None:
                return _BUSY_SECONDS
            waves.begin(following, reader)
            if not limit:
                return 0.0
            following = None
        began = time.monotonic()
        wave, results = waves.end()
        self._gathers_until = time.monotonic() + _GATHER_SECONDS
        if following is not None:
            waves.begin(following, reader)
        rows = self._take(wave, results, reader)
        if not any(result.proven for result in results):
            return _UNPROVEN_SECONDS
        return max(0.0, rows / limit - (time.monotonic() - began)) if limit else 0.0

    def _land(self, record: SnapshotRecord | None, reader: SnapshotReader) -> None:
        """A snapshot that is paused takes what is being read, and begins no further wave. Of one that is over, or was
        replaced, it is of no use to anybody."""
        wave = self._waves.wave
        if wave is None or (record is not None and record.id == wave.record.id and record.state is _RUNNING):
            return
        wave, results = self._waves.end()
        if record is not None and record.id == wave.record.id:
            self._take(wave, results, reader)

    def _prepare(
        self, record: SnapshotRecord, tables: Sequence[TableCopy], reader: SnapshotReader, depth: int
    ) -> Wave | None:
        """The next wave, of chunks that are not being read; None if there is nothing to read, or not yet."""
        config = self._config
        count = max(1, min(config.max_connections, cores(self._spark) - 1))  # one is the stream's
        by_number = {table.number: table for table in tables if table.registered and table.state not in OVER}
        staged = sum(c.rows for c in self._chunks(record, ChunkState.STAGED))
        if staged > _STAGED_WAVES * count * depth * config.chunk_rows:
            return None
        small = {number for number, table in by_number.items() if is_small(table, config.chunk_rows)}
        wanted = count * depth + min(len(small), _SMALL_TABLES * count * depth)
        planned = self._due(record, by_number)
        if len(planned) < wanted:
            self._plan(record, list(by_number.values()), reader, wanted - len(planned))
            planned = self._due(record, by_number)
        tasks = pack(planned, by_number, count, config.chunk_rows, depth)
        few = len(planned) < _SMALL_TABLES * count and all(c.table in small for c in planned)
        if not tasks or (few and time.monotonic() < self._gathers_until and any(not t.registered for t in tables)):
            return None
        tail = self._log.tail()  # before the observation
        if len(self._observations) >= _OBSERVATIONS:  # of a transaction that stays open none is proven
            self._observations = self._observations[::2]  # a window may begin too early; the oldest serves all
        self._observations.append((tail.offset, reader.observe(tail.position)))
        whole = self._log.head() == 0 == self._log.gap().offset
        return Wave.of(record, by_number, tasks, self._observations, whole=whole, size=count * depth)

    def _due(self, record: SnapshotRecord, tables: dict[int, TableCopy]) -> list[ChunkCopy]:
        """Chunks to read now. One that was thrown away waits before it is read again, longer each time."""
        found, now = [], time.monotonic()
        reading = self._waves.wave
        for chunk in self._chunks(record, ChunkState.PLANNED):
            wait = _AGAIN.wait_after(chunk.tries - 1) if chunk.tries else 0.0
            since = self._thrown_away.setdefault(chunk.staging_id(record.identity), now) if wait else now
            being_read = reading is not None and chunk.staging_id(record.identity) in reading.chunks
            if chunk.table in tables and now - since >= wait and not being_read:
                found.append(chunk)
        return found

    def _plan(self, record: SnapshotRecord, tables: Sequence[TableCopy], reader: SnapshotReader, wanted: int) -> None:
        """About `wanted` chunks more, of the first tables that have some left; saved together."""
        logged, plans, refused = self._log.tail().offset, [], {}
        for table in tables:
            parts = [self._config.filters.get(table.name, ""), record.where]
            where = " AND ".join(f"({part})" for part in parts if part)
            chunks: list[Chunk] = []
            known = table
            while wanted > 0 and (table.points or not table.planned) and not self._stop.is_set():
                try:
                    table, more = plan_chunks(reader, table, self._config.chunk_rows, where, logged)
                except ConnectionLost:
                    raise
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
        if self._is_hopeless(name, error):
            self._fail(record, name, error)
        else:
            self._describe_again(record, name, reader)

    def _take(self, wave: Wave, results: Sequence[ChunkResult], reader: SnapshotReader) -> int:
        """Seals and notes what was read; answers its rows."""
        record, tables, chunks = wave.record, wave.tables, wave.chunks
        changed: dict[str, TidemillError] = {}
        for result in results:
            if result.error:
                table, error = tables[chunks[result.staging].table], from_data(result.error)
                if isinstance(error, StructureChanged):
                    changed[table.name] = error
                elif not is_retryable(error) or self._is_hopeless(table.name, error):
                    self._fail(record, table.name, error)
                    changed[table.name] = error
                else:
                    events.warn("snapshot.chunk_failed", table=table.name, error=error.what, where=error.where)
        staged, newest = [], -1
        for result in results:
            chunk = chunks[result.staging]
            if result.error or not result.proven or tables[chunk.table].name in changed:
                continue
            since = 0 if result.observation is None else wave.observations[result.observation][0]
            newest = max(newest, -1 if result.observation is None else result.observation)
            if result.rows:
                Staging(self._pipeline.log_uri, result.staging).seal(result.parts)
                failpoint("snapshot.sealed")
            mark = tables[chunk.table].structure.table.fingerprint
            staged.append(
                replace(chunk, since=since, high=result.high, commit_time=result.commit_time, fingerprint=mark,
                        rows=result.rows)
            )  # fmt: skip
        self._store.stage(self._name, record.id, staged)
        if newest >= 0:
            # What this read has seen to its end, every later one has: older observations serve nobody.
            seen = wave.observations[newest]
            self._observations = [seen, *(each for each in self._observations if each[0] >= seen[0] and each != seen)]
            self._store.save_observation(self._name, record.id, *seen)
        for name, error in changed.items():
            if isinstance(error, StructureChanged):
                self._describe_again(record, name, reader)
        return sum(result.rows for result in results)

    def _is_hopeless(self, table: str, error: TidemillError) -> bool:
        """A server that is away comes back; one that says no again and again does not change its mind."""
        if isinstance(error, ConnectionLost):
            return False
        self._refused[table] = self._refused.get(table, 0) + 1
        return self._refused[table] >= _REFUSALS

    def _describe_again(self, record: SnapshotRecord, name: str, reader: SnapshotReader) -> None:
        found = find_tables(reader, [name])
        if not found:
            error = TidemillError(f"{name} is not there any more, or not captured", where=f"snapshot {record.id}")
            self._fail(record, name, error)
            return
        events.emit("snapshot.structure_changed", table=name)
        self._store.forget_structure(self._name, record.id, name, found[0])

    def _fail(self, record: SnapshotRecord, name: str, error: TidemillError) -> None:
        self._store.set_table_state(self._name, record.id, name, TableState.FAILED, error=error.what, fix=error.fix)
        events.fail("snapshot.table_failed", table=name, error=error.what, where=error.where, fix=error.fix)

    def _find_moved(self, record: SnapshotRecord) -> bool:
        """Rows that moved to another key with a hole may be in no chunk: they are read again at the end. Whether there
        are new ones."""
        tail = self._log.tail().offset
        start = record.cursor
        if start < 0:
            start = record.recovers_from if record.recovers_from >= 0 else 0 if self._log.head() == 0 else tail
        points, tail = find_moved(self._log, start, tail)
        if points or tail != record.cursor:
            self._store.save_points(self._name, record.id, tail, points)
        return bool(points)

    def _hold(self, record: SnapshotRecord) -> None:
        """The log is kept from the oldest place on that a chunk's window may begin at."""
        waiting = [chunk.since for chunk in self._chunks(record, ChunkState.STAGED)]
        proven = [record.since] if record.observation else [0]
        cursor = [record.cursor] if record.cursor >= 0 else [0]
        reading = [self._waves.wave.observations[0][0]] if self._waves.wave is not None else []
        self.floor = min([*waiting, *proven, *cursor, *reading])

    def _chunks(self, record: SnapshotRecord, state: ChunkState) -> list[ChunkCopy]:
        return self._store.chunks(self._name, record.id, state)
