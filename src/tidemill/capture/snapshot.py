"""Capture's part of a snapshot: chunks that Spark tasks staged become visible here, when the stream has come to them.

Called once per turn of the loop, when the log has everything that the source gave. It looks into the state store for
structures to number and for chunks to adopt; log and state are all it goes by, so a crash costs nothing (ADR 28).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemill.capture.copying_notes import CopyingNotes
from tidemill.capture.loop import WAIT_SECONDS
from tidemill.capture.portions import Portions
from tidemill.capture.shared_windows import SharedWindows
from tidemill.capture.trace import AppendTracer
from tidemill.capture.window import ChunkWindow, Verdict
from tidemill.contracts import ChunkCopy, SnapshotRecord, SnapshotSource, SnapshotStore, TableCopy
from tidemill.errors import LogFull, StagingLost, StateError, is_retryable
from tidemill.log.entry import Constants
from tidemill.log.reader import LogReader
from tidemill.log.requeued import requeued_for
from tidemill.log.staging import Manifest, Part, Staged, Staging
from tidemill.log.writer import LogWriter
from tidemill.model.barrier import Barrier
from tidemill.model.block import Block
from tidemill.model.position import Offset, Position
from tidemill.model.snapshot import ChunkState, SnapshotState, SnapshotTable, TableState
from tidemill.model.table import Table
from tidemill.schema.registry import SchemaRegistry
from tidemill.telemetry import events
from tidemill.telemetry.failpoints import failpoint

# Between two turns that somebody waits for, that find something to do, and that do not.
_HURRIED_SECONDS, _BUSY_SECONDS, _IDLE_SECONDS = 0.01, 0.05, 1.0
_ACTIVE_SECONDS = 1.0  # after work there is more to come: a stream without changes must not make it wait
_PORTION_SECONDS = 0.002  # while a portion is delivered
_LAST_CHUNKS = 16  # they come in from several readers at once
_CHUNKS, _TABLES, _TURN_SECONDS = 64, 100, 0.25  # at a time, so that the stream is not kept waiting
KEYLESS_TRIES = 5
# With more than this waiting for delivery, what is adopted is read from the disk when its turn comes. A table as large
# as memory would drive everything else out of it, the database's own pages too; and pages that are used over and over
# cost a tenth of new ones (ADR 69).
_IN_MEMORY_BYTES = 64 << 20


def live_ids(store: SnapshotStore, pipeline: str) -> frozenset[str]:
    """What is staged under these is still wanted (`LogWriter.open`)."""
    record = store.active(pipeline)
    if record is None:
        return frozenset()
    states = (ChunkState.PLANNED, ChunkState.STAGED)
    return frozenset(
        chunk.staging_id(record.identity)
        for state in states
        for chunk in store.chunks(pipeline, record.id, state, 1 << 30)
    )


class ChunkAdopter:
    """For the loop's thread."""

    def __init__(
        self,
        source: SnapshotSource,
        log: LogWriter,
        reader: LogReader,
        schemas: SchemaRegistry,
        store: SnapshotStore,
        pipeline: str,
        *,
        most_bytes: int = 1 << 62,
        filtered: Collection[str] = (),
        quarantined: Callable[[], Mapping[str, Offset]] = dict,
        trace: AppendTracer | None = None,
    ) -> None:
        """While more than `most_bytes` wait for delivery nothing is adopted: changes need room too. While some come
        it is far less, so that they are not delivered after all that was read. `filtered`: tables of which not all rows
        are copied. `quarantined`: those whose rows, also copied ones, wait in the log, and from which offset on. With a
        `trace`, appends are recorded as spans."""
        self._source, self._log, self._reader, self._schemas = source, log, reader, schemas
        self._store, self._pipeline, self._most_bytes = store, pipeline, most_bytes
        self._trace = trace
        self._next = self._looked = 0.0
        self._notes = CopyingNotes(source, log, store, pipeline, filtered, quarantined)
        self._structures: dict[str, str] = {}  # of each table the last one that a chunk brought
        self._windows = SharedWindows(self._events)
        self._portions = Portions()
        self._copies = False  # a snapshot is being made
        self._seen = log.tail.offset  # where the log ended after the last look
        self._worked_at = -_ACTIVE_SECONDS  # when tables were numbered, or chunks adopted
        self.hurried = False
        """Somebody waits for the next turn: tables to be numbered before they are read, the last chunks, or the next
        portion."""

    def turn(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """Events that became visible. Cheap while there is no snapshot."""
        now = time.monotonic()
        if self._copies or now >= self._next:
            self._note_stream(now)
        if now < self._next:
            return 0
        if self._portions.must_wait(now) and now < self._looked + _IDLE_SECONDS:
            self._next = now + _PORTION_SECONDS
            return 0
        self._looked, self._next = now, now + _IDLE_SECONDS
        try:
            record = self._store.active(self._pipeline)
            self._notes.note(record)
            self.hurried = False
            self._copies = record is not None and record.state is SnapshotState.RUNNING
            if record is None or record.state is not SnapshotState.RUNNING:
                self._windows.keep(())
                return 0
            visible = self._adopt_all(record, lambda: stopped() or time.monotonic() - now > _TURN_SECONDS)
            if visible:
                self._worked_at = now
                self.hurried |= self._portions.beside_changes(now)
            # Many tables take their time to look through: the stream goes first.
            least = _HURRIED_SECONDS if self.hurried else _BUSY_SECONDS
            self._next = time.monotonic() + max(least, time.monotonic() - now if not visible else 0.0)
            return visible
        except LogFull:
            return 0  # the stream delivers first
        except StateError as error:
            if not is_retryable(error):
                raise
            events.warn("snapshot.state_waits", error=error.what, where=error.where)
            return 0
        finally:
            self._seen = self._log.tail.offset

    @property
    def wait_seconds(self) -> float:
        """How long a change may be waited for before the next turn."""
        if self.hurried:
            return _HURRIED_SECONDS
        return _BUSY_SECONDS if time.monotonic() - self._worked_at < _ACTIVE_SECONDS else WAIT_SECONDS

    def _note_stream(self, now: float) -> None:
        delivered, tail = self._log.acknowledged(), self._log.tail.offset
        if delivered is not None:
            self._portions.note_delivered(delivered.offset, now)
        if tail != self._seen:
            self._seen = tail
            self._portions.note_change(tail, now, just_now=self._copies and (not delivered or delivered.offset < tail))

    def _adopt_all(self, record: SnapshotRecord, stopped: Callable[[], bool]) -> int:
        """Chunks that need no barrier share an append, and all that were adopted are noted together: there may be
        thousands of small tables, and each wait for the disk is one for all of them."""
        tables = self._store.tables(self._pipeline, record.id)
        self.hurried = _is_awaited([table for table in tables if table.state is not TableState.FAILED])
        self._register(record, [table for table in tables if not table.registered], stopped)
        by_number = {table.number: table for table in tables}
        chunks = self._store.chunks(self._pipeline, record.id, ChunkState.STAGED, _CHUNKS)
        known = self._log.find_adopted([chunk.staging_id(record.identity) for chunk in chunks]) if chunks else {}
        oldest = max(self._reader.head(), self._reader.gap().offset)
        starts: dict[int, Offset] = {}
        for chunk in chunks:
            if oldest <= chunk.since < starts.get(chunk.table, 1 << 62) and chunk.chunk.seen < 0:
                starts[chunk.table] = chunk.since
        done: list[tuple[ChunkCopy, int]] = []
        ready: list[_Ready] = []
        self._windows.keep({by_number[chunk.table].structure.table.full_name for chunk in chunks})
        for chunk in chunks:
            if stopped() or self._is_full(sum(one.staged.manifest.size for one in ready)):
                break
            if not self._has(chunk.high):
                continue
            start = min(starts.get(chunk.table, chunk.since), chunk.since)
            if (rows := self._prepare(record, by_number[chunk.table], chunk, known, ready, start)) is not None:
                done.append((chunk, rows))
        visible = self._append(record, ready)
        if done or visible:
            failpoint("snapshot.adopted")
            self._store.adopt(self._pipeline, record.id, done + visible)
            failpoint("snapshot.noted")
        for chunk, rows in done:
            if chunk.rows and not rows:  # all of it changed meanwhile
                Staging(self._log.store, chunk.staging_id(record.identity)).drop()
        return sum(rows for _, rows in visible)

    def _is_full(self, ready: int) -> bool:
        """Whether what waits for delivery, with so many bytes that are ready to be appended, is enough for now."""
        return self._log.kept_bytes() + ready > self._most_bytes or self._portions.is_full(ready, time.monotonic())

    def begin(self) -> None:
        """Before the stream begins: of a snapshot that has begun already sinks know then from the first event on. It
        is looked for at once: an idle stream would make its tables wait."""
        record = self._store.active(self._pipeline)
        self.hurried = record is not None and record.state is SnapshotState.RUNNING
        self._notes.note(record)
        self._notes.tell_copied()

    def _has(self, high: Position) -> bool:
        logged = self._log.tail.position
        if self._source.reached(high, logged):
            return True
        self._source.hasten(high)
        return False

    def _register(self, record: SnapshotRecord, tables: Sequence[TableCopy], stopped: Callable[[], bool]) -> None:
        """As many as there is time for. One write for all of them: there may be thousands."""
        numbered: dict[str, SnapshotTable] = {}
        due = [table.structure for table in tables if self._has(table.structure.high)]
        for first in range(0, len(due), _TABLES):
            if stopped():
                break
            some = due[first : first + _TABLES]
            made = self._source.register([each.table for each in some], self._schemas, self._log.tail.position)
            numbered |= {each.name: replace(each, table=table) for each, table in zip(some, made, strict=True)}
        if numbered:
            self._store.save_numbered(self._pipeline, record.id, numbered)
            self._worked_at = time.monotonic()
            failpoint("snapshot.registered")

    def _prepare(
        self, record: SnapshotRecord, table: TableCopy, chunk: ChunkCopy, known: dict[str, int], ready: list[_Ready],
        start: Offset,
    ) -> int | None:  # fmt: skip
        """Decides on a chunk: it is in the log, or has nothing for it (the answer is its rows), or it is `ready` to be
        appended, or planned once more. `start`: where the first window of the table's chunks begins."""
        staging = Staging(self._log.store, chunk.staging_id(record.identity))
        try:
            manifest = staging.manifest()
        except StagingLost as error:
            self._again(record, chunk, staging, error.what)
            return None
        if manifest is None and chunk.rows and staging.id not in known:
            self._again(record, chunk, staging, "what was staged is gone")
            return None
        if manifest is None or staging.id in known:
            # Nothing was read, or a crash came between the log and the state.
            return known.get(staging.id, 0)
        structure = table.structure.table
        if chunk.fingerprint != structure.fingerprint or chunk.since < max(
            self._reader.head(), self._reader.gap().offset
        ):
            self._again(record, chunk, staging, "the table's structure changed, or its window is gone")
            return None
        window = self._windows.window_of(chunk, structure, start, self._log.tail.offset)
        if window.verdict is Verdict.AGAIN and (structure.key or chunk.tries < KEYLESS_TRIES):
            self._again(record, chunk, staging, window.why)
            return None
        if window.verdict is Verdict.AGAIN:
            events.warn(
                "snapshot.table_without_key_changed", table=structure.full_name, tries=chunk.tries,
                fix="Rows that changed while it was read may be there twice or as they were. Copy it again when it is"
                " quiet, or give it a primary key.",
            )  # fmt: skip
        if window.verdict is Verdict.FILTERED:
            try:
                left = [self._filter(window, staging, number, part) for number, part in enumerate(manifest.parts)]
            except StagingLost as error:
                self._again(record, chunk, staging, error.what)
                return None
            manifest = Manifest(manifest.id, tuple(part for part in left if part is not None))
            failpoint("snapshot.filtered")
        if not manifest.events:
            return 0
        position = Position(f"snapshot:{record.identity}/{structure.full_name}/{chunk.chunk.number}")
        ready.append(_Ready(chunk, structure, staging, Staged(manifest, Constants(position, 0, chunk.commit_time))))
        return None

    def _append(self, record: SnapshotRecord, ready: Sequence[_Ready]) -> list[tuple[ChunkCopy, int]]:
        """Those that became visible, with their rows. Nothing came into the log since they were prepared."""
        plain, done = [], []
        for one in ready:
            barrier = self._barrier(one.structure.full_name, one.structure.fingerprint)
            if barrier is Barrier.NONE:
                plain.append(one)
            else:
                done += self._append_together(record, [one], barrier)
        return self._append_together(record, plain) + done if plain else done

    def _append_together(
        self, record: SnapshotRecord, ready: Sequence[_Ready], barrier: Barrier = Barrier.NONE
    ) -> list[tuple[ChunkCopy, int]]:
        through = self._log.tail.position
        try:
            if len(ready) > 1:
                entry = self._log.adopt_all([one.staged for one in ready], through)
            else:
                (one,) = ready
                entry = self._log.adopt(
                    one.staged.manifest, through, constants=one.staged.constants, barrier=barrier, divisible=True
                )  # fmt: skip
        except StagingLost as error:
            if len(ready) > 1:
                return [done for one in ready for done in self._append_together(record, [one])]
            self._again(record, ready[0].chunk, ready[0].staging, error.what)
            return []
        if self._trace is not None:
            self._trace.on_adopted(entry)
        size = sum(one.staged.manifest.size for one in ready)
        self._portions.note_adopted(self._log.tail.offset, size, time.monotonic())
        self._structures |= {one.structure.full_name: one.structure.fingerprint for one in ready}
        if self._log.undelivered_bytes() > _IN_MEMORY_BYTES:
            for segment in {ref.segment for ref in entry.blocks}:
                self._log.store.drop_pages(segment)
        return [(one.chunk, one.staged.manifest.events) for one in ready]

    def _filter(self, window: ChunkWindow, staging: Staging, number: int, part: Part) -> Part | None:
        """One part is in memory at a time. None: nothing of it is left."""
        found = window.filter([self._reader.read(ref) for ref in part.blocks])
        if found.verdict is Verdict.AS_IT_IS:
            return part
        return staging.write(f"filtered{number}", found.blocks) if found.blocks else None

    def _events(self, start: Offset, table: str) -> Iterator[Block]:
        for entry in self._reader.entries(start):
            for ref in entry.blocks:
                # What waited in quarantine is older than where it stands now; the window has it where it came first.
                if ref.table == table and not (ref.is_copied or requeued_for(ref)):
                    yield self._reader.read(ref)

    def _barrier(self, table: str, fingerprint: str) -> Barrier:
        """A batch must not mix structures. Which one the log's last row of the table has is known only of chunks of
        this process; a table that never had another needs no barrier."""
        if self._structures.get(table) == fingerprint or len(self._schemas.versions(table)) < 2:
            return Barrier.NONE
        return Barrier.SCHEMA_CHANGE

    def _again(self, record: SnapshotRecord, chunk: ChunkCopy, staging: Staging, why: str) -> None:
        events.emit("snapshot.chunk_again", table=chunk.chunk.table, chunk=chunk.chunk.number, why=why)
        self._store.read_again(self._pipeline, record.id, chunk)
        staging.drop()


def _is_awaited(tables: Sequence[TableCopy]) -> bool:
    left = sum(table.chunks - table.adopted for table in tables)
    return any(not table.registered for table in tables) or (
        left <= _LAST_CHUNKS and all(table.planned for table in tables)
    )


@dataclass(frozen=True, slots=True)
class _Ready:
    """A chunk without the rows that changed since it was read."""

    chunk: ChunkCopy
    structure: Table
    staging: Staging
    staged: Staged
