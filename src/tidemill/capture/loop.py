"""LOOP ONE. changes -> change log, and the acknowledgement back.

    source.changes() -> log.append() -> source.acknowledge(what the stream has delivered)

A change is written in a thread of its own while the next is read and decoded (ADR 16); whoever touches the log
otherwise waits for it. The loop shares nothing with the stream but the log: what was delivered, it reads there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import assert_never

from tidemill.capture import failed_transaction
from tidemill.capture.effort import Effort
from tidemill.capture.trace import AppendTracer
from tidemill.contracts import Notice, Source
from tidemill.errors import LogError, LogFull, RegistryError, SpillLost, TidemillError, is_retryable
from tidemill.log.entry import Entry
from tidemill.log.writer import LogWriter
from tidemill.model.change import Change, Committed, SpillAborted, SpillCommitted, Spilled
from tidemill.model.position import Offset, Position
from tidemill.retry import RetryPolicy
from tidemill.schema.registry import SchemaRegistry
from tidemill.telemetry import events
from tidemill.telemetry.failpoints import failpoint

WAIT_SECONDS = 0.2
"""For a change, before the source is acknowledged to and `stop` is looked at."""

_TRIAL_SECONDS = 0.05

# Of a small append to an object store, how long after the one before it comes, for each that waits for delivery.
_SMALL_BYTES = 1 << 20
_SPACING_SECONDS, _MOST_SPACING_SECONDS = 0.005, 0.25


@dataclass(frozen=True, slots=True)
class Limits:
    """`ahead_bytes`: how far capture may run ahead of delivery. `mark_events`: how finely batches can be cut.
    `kept_bytes`: how much the log may hold that is not delivered, also in a pause, or may not go because rows wait in
    quarantine."""

    ahead_bytes: int
    mark_events: int = 1000
    ack_when_logged: bool = False
    kept_bytes: int = 1 << 62


class Capture:
    """Runs until `stop` is set. `confirmed` survives restarts: it proves that nobody else moved the source's
    position. `adopt` is called when the log has all that the source gave: a snapshot's chunks come in there
    (`capture/snapshot.py`), and it says how many events became visible; `wait` says how long a change is waited for
    before it is called again. `requeue` is the same for rows that waited in
    quarantine (`capture/requeue.py`); it is also called while the log has no room. With a `trace`, changes and appends
    are recorded as spans. Until `accepted` is set nothing is captured: the document is on trial. While `held` is set
    the pipeline is paused: nothing is delivered, and capture goes on until the log is full."""

    def __init__(
        self,
        source: Source,
        log: LogWriter,
        schemas: SchemaRegistry,
        limits: Limits,
        stop: threading.Event,
        *,
        confirmed: Position | None = None,
        on_confirmed: Callable[[Position, Offset], None] = lambda position, offset: None,
        on_stream: Callable[[], None] = lambda: None,
        on_progress: Callable[[int], None] = lambda events: None,
        on_error: Callable[[TidemillError], None] = lambda error: None,
        adopt: Callable[[], int] = lambda: 0,
        wait: Callable[[], float] = lambda: WAIT_SECONDS,
        requeue: Callable[[], int] = lambda: 0,
        trace: AppendTracer | None = None,
        accepted: threading.Event | None = None,
        effort: Effort | None = None,
        held: threading.Event | None = None,
    ) -> None:
        self._source, self._log, self._schemas, self._limits, self._stop = source, log, schemas, limits, stop
        self._confirmed, self._on_confirmed = confirmed, on_confirmed
        self._on_stream, self._on_progress, self._on_error = on_stream, on_progress, on_error
        self._adopt, self._wait, self._requeue, self._trace, self._accepted = adopt, wait, requeue, trace, accepted
        self._effort, self._held = effort or Effort(), held or threading.Event()
        self._retries = RetryPolicy().begin(stop)
        self._pen = ThreadPoolExecutor(1, "log")
        self._writing: tuple[Change, Future[int]] | None = None
        self._passed: Committed | None = None  # the last change, if it had no events: only the position has moved, on
        self._noticed: tuple[tuple[Notice, ...], int] = ((), 0)
        self._appended_at = 0.0

    def run(self) -> None:
        """Connects, streams, and connects again after what `is_retryable` calls passing. Raises the rest."""
        with self._pen:
            while not self._stop.is_set():
                try:
                    self._stream()
                    self._settle()
                except TidemillError as error:
                    if not is_retryable(error):
                        self._note_progress()
                        with suppress(RegistryError):  # then it cannot be left out before it was met once more
                            failed_transaction.note(self._schemas, error, self._log.tail.position)
                        raise
                    events.warn(
                        "capture.interrupted",
                        code=error.code,
                        error=error.what,
                        where=error.where,
                        retry_seconds=round(self._retries.wait, 1),
                    )
                    self._on_error(error)
                    self._retries.pause()
                finally:
                    self._forsake()
                    self._source.close()

    def _stream(self) -> None:
        self._settle_log()
        after = self._log.tail.position or None
        self._source.open(after, self._schemas, confirmed=self._confirmed, mark_events=self._limits.mark_events)
        self._await_acceptance()
        if self._stop.is_set():
            return
        if after is None:
            # From here on a restart resumes, whatever `start_position` would say by then (invariant 7).
            self._log.append(Committed((), 0, ((0, self._source.began),)))
        failed_transaction.forget(self._schemas)
        events.emit("capture.connected", position=self._source.began)
        self._on_stream()
        while not self._stop.is_set():
            with self._effort.turn():
                self._store_all(self._source.changes(self._wait()))
            if (noticed := (self._source.notices(), self._log.undelivered_bytes())) != self._noticed:
                self._noticed = noticed
                self._on_progress(0)  # an idle stream reports nothing else
            if self._writing is None or self._writing[1].done():
                self._settle()
                self._acknowledge(settled=not self._stop.is_set())
                if not self._stop.is_set() and (visible := self._requeue() + self._adopt()):
                    self._on_progress(visible)

    def _await_acceptance(self) -> None:
        """The log stays as it is meanwhile: the document from before, if it comes back, may capture more tables."""
        if self._accepted is None or self._accepted.is_set():
            return
        self._on_stream()
        while not self._stop.is_set() and not self._accepted.wait(_TRIAL_SECONDS):
            self._acknowledge(settled=False)  # the server ends a connection that stays silent

    def _store_all(self, changes: Iterator[Change]) -> None:
        began, any_came = time.monotonic(), False
        for change in changes if self._trace is None else self._trace.follow(changes):
            any_came = True
            self._store(change)
        if not any_came:
            self._effort.idle(time.monotonic() - began)

    def _store(self, change: Change) -> None:
        """Begins to write the change, once the log has the one before it and room. The thread may keep it: no block
        points into the source's buffer."""
        self._settle()
        held_back = False
        while not self._stop.is_set():
            self._acknowledge(settled=False)  # the server ends a connection that stays silent
            waiting, held = self._log.undelivered_bytes(), self._held.is_set()
            room = (self._limits.kept_bytes if held else self._limits.ahead_bytes) - waiting
            full = self._log.kept_bytes() > self._limits.kept_bytes
            if not full and room >= 0:
                self._space_appends(change)
                self._writing = change, self._pen.submit(self._apply, change)
                return
            if not held_back and (held or room >= 0):  # else delivery is only slower than capture for a while
                held_back = True
                self._on_error(_full_in_a_pause(self._log) if room < 0 else _full_of_waiting_rows(self._log))
            if visible := self._requeue():
                self._on_progress(visible)
            began = time.monotonic()
            self._stop.wait(0.02)
            self._effort.idle(time.monotonic() - began)

    def _space_appends(self, change: Change) -> None:
        """In an object store an append is an object, and requests for whoever reads it, one after the other: many small
        ones take longer to deliver than one with all that they hold. So the more of them wait, the later the next one
        comes, with what the source has sent by then."""
        small = isinstance(change, Committed) and sum(block.batch.nbytes for block in change.blocks) < _SMALL_BYTES
        if small and (waiting := self._log.waiting_appends()):
            due = self._appended_at + min(_MOST_SPACING_SECONDS, waiting * _SPACING_SECONDS)
            if (left := due - time.monotonic()) > 0:
                self._stop.wait(left)
                self._effort.idle(left)
        self._appended_at = time.monotonic()

    def _settle(self) -> None:
        """Waits until the log has what is being written. Nothing is given up: a full disk only makes it wait."""
        while self._writing is not None:
            change, attempt = self._writing
            try:
                self._on_progress(attempt.result())
                self._writing = None
            except LogError as error:
                if not is_retryable(error) or isinstance(error, SpillLost):
                    raise
                events.warn("capture.log_refused", error=error.what, where=error.where)
                self._on_error(error)
                self._acknowledge(settled=False)
                if not self._retries.pause():
                    return
                self._writing = change, self._pen.submit(self._apply, change)
        self._retries.reset()

    def _forsake(self) -> None:
        """What is not in the log by now comes again: the source sends open transactions from their beginning, and all
        that was committed after the log's end."""
        with suppress(LogError):
            if self._writing is not None:
                self._on_progress(self._writing[1].result())
        self._writing = None
        with suppress(LogError):  # tried again before the source is asked for more
            self._settle_log()
        with suppress(LogError):  # what cannot be removed now goes at the next open
            self._log.drop_spills()

    def _settle_log(self) -> None:
        """What was given up while the log's answer was missing may be visible: the source must not send it again."""
        if visible := self._log.settle():
            self._on_progress(visible)

    def _note_progress(self) -> None:
        """Capture stops at one transaction. The log then ends right before it, also where others that touched none of
        our tables stand between: `tidemill recover --skip-transaction` leaves out what comes next."""
        self._forsake()
        if self._passed is not None:
            with suppress(LogError):
                self._log.append(self._passed)

    def _apply(self, change: Change) -> int:
        """Events that became visible."""
        visible, began = 0, time.time_ns()
        match change:
            case Committed():
                self._passed = None if change.events else change
                if change.events:
                    failpoint("capture.before_append")
                    visible = self._note_append(change, self._log.append(change), began)
                    failpoint("capture.appended")
            case Spilled():
                self._log.spill(change)
                failpoint("capture.spilled")
            case SpillCommitted():
                self._passed = None
                visible = self._note_append(change, self._log.commit_spill(change), began)
                failpoint("capture.spill_committed")
            case SpillAborted():
                self._log.drop_spill(change)
            case _:
                assert_never(change)
        return visible

    def _note_append(self, change: Change, entry: Entry, began: int) -> int:
        self._effort.note(entry)
        if self._trace is not None and entry.rows:
            self._trace.on_append(change, entry, began)
        return entry.rows

    def _acknowledge(self, *, settled: bool) -> None:
        """`settled`: every change that the source gave is in the log. Otherwise the source may have sent more than we
        hold, and being caught up with the log means nothing."""
        # Invariant 2: only what a checkpoint covers, or with `ack: logged` what the log has on disk.
        logged = self._limits.ack_when_logged
        delivered = self._log.tail if logged else self._log.acknowledged()
        caught_up = settled and (logged or self._log.undelivered_bytes() == 0)
        position = (delivered.position or None) if delivered else None
        confirmed = self._source.due(position, caught_up=caught_up)
        if confirmed is None:
            return
        if confirmed != self._confirmed:
            # Noted before it is said: a crash in between must not look like somebody else's doing.
            self._on_confirmed(confirmed, delivered.offset if delivered else self._log.tail.offset)
            failpoint("capture.confirmed")
            self._confirmed = confirmed
        self._source.acknowledge(confirmed)


def _full_in_a_pause(log: LogWriter) -> LogFull:
    return LogFull(
        f"the log holds {log.undelivered_bytes()} bytes that wait for the end of the pause, and takes no more: nothing"
        " is captured, and the source keeps its changes",
        where=log.store.label,
        fix="Resume the pipeline, or raise log.max_bytes.",
    )


def _full_of_waiting_rows(log: LogWriter) -> LogFull:
    return LogFull(
        f"the log keeps {log.kept_bytes()} bytes because rows of a table wait in quarantine, and is full: nothing is"
        " captured, of no table",
        where=log.store.label,
        fix="`tidemill ddl ls FILE` shows the schema change; decide with `tidemill ddl approve`, `apply` or `reject`."
        " Or raise log.max_bytes.",
    )
