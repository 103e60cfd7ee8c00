"""Keeps one pipeline running: its capture process and its streams, and one honest state for all of them.

A process that was killed is started again; an error that a retry may mend is retried with backoff; a sink that the
commit policy can do without fails alone; anything else makes the pipeline `failed`, with the error kept, and the rest
of it stopped: no dead pipeline says running. When capture fails for good the pipeline is `failing` until the sinks have
what was captured before, and `failed` then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.capture.status import CaptureStatus
from tidemill.config.pipeline import Pipeline
from tidemill.config.secrets import revealed
from tidemill.disk.private import make_directory
from tidemill.dlq import DeadLetters
from tidemill.errors import CheckpointConflict, ErrorData, SparkLost, TidemillError, to_data
from tidemill.log.reader import LogReader
from tidemill.service.capture_process import CaptureProcess
from tidemill.service.lag import Lag
from tidemill.service.metering import PipelineMeter
from tidemill.service.notices import SinkNotices
from tidemill.service.run_record import RunRecord
from tidemill.service.status import PipelineStatus, Rate, SinkStatus, State
from tidemill.service.stream_group import GroupRun, explained
from tidemill.stream.ledger import Ledger
from tidemill.stream.loop import StreamLoop
from tidemill.stream.policy import policy_of
from tidemill.stream.report import BatchReport
from tidemill.stream.superseded import Follower
from tidemill.telemetry import events
from tidemill.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# How long a pipeline whose capture failed waits for sinks of which none takes anything.
_STANDSTILL_SECONDS = 30.0


class PipelineRun:
    """`start`, then `watch` again and again, then `stop`. For one thread; batches report from Spark's."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        *,
        said: Path | None = None,
        on_status: Callable[[PipelineStatus], None] = lambda status: None,
        on_batch: Callable[[BatchReport], None] = lambda report: None,
        on_error: Callable[[TidemillError], None] = lambda error: None,
        metrics: Metrics | None = None,
    ) -> None:
        """`said`: the file for what the capture process says; by default our own standard error.

        `on_status` is called with each new status, in order; `on_error` with what makes the pipeline fail, and with
        what makes it go on without a sink. They must return at once: batches wait for them. `metrics` may be shared by
        pipelines and by the runs of one.
        """
        self.pipeline = pipeline
        self._on_status, self._on_batch_done, self._on_error = on_status, on_batch, on_error
        self._capture = CaptureProcess(pipeline, said)
        self._captured = CaptureStatus(0)  # what capture said last
        self._spark = spark
        self._policy = policy_of(pipeline)
        self._state = pipeline.build_state()
        self._record = RunRecord(self._state, pipeline.name)
        self._ledger = Ledger(
            self._policy, pipeline.build_checkpoints(), pipeline.log_uri, pipeline.spec.log, state=self._state
        )
        self._dead_letters = DeadLetters(pipeline.dlq_path, pipeline.spec.dlq) if pipeline.spec.dlq.enabled else None
        self._old_dead_letters: DeadLetters | None = None
        self._groups = {g.key: GroupRun(g, self._ledger, self._new_stream) for g in self._policy.groups}
        self._log = LogReader(pipeline.log_uri)
        self._rate = Rate()
        self._notices = SinkNotices(pipeline.state_path / "notices.json")
        self._offset: int | None = None  # the pipeline's checkpoint as the last report left it
        self._last_tail = 0
        self._lag = Lag(self._log)
        self.metrics = metrics or Metrics()
        self._meter = PipelineMeter(self.metrics, pipeline.name)
        self._moved: tuple[int, float] = (-1, 0.0)  # the groups' offsets together, and since when they are that
        self._changing = threading.Lock()  # batches report from Spark's threads
        self.status = PipelineStatus(pipeline.name, State.CREATED, sinks=self._sinks(0))
        self.error: TidemillError | None = None

    def start(self) -> None:
        self._begin()
        self._capture.start()

    def start_stream(self) -> None:
        """Only the second half, for who wants it warm before capture begins."""
        self._begin()
        self._watch_streams()

    def watch(self) -> PipelineStatus:
        """Looks after all parts. Raises nothing: a failure is a state."""
        if self.status.state is State.RUNNING:
            try:
                self._hear(self._capture.watch())
            except Exception as error:  # noqa: BLE001  one pipeline's failure is not that of the others
                self._fail_after_delivery(explained(error))
            else:
                try:
                    self._watch_streams()
                    self._measure()
                except Exception as error:  # noqa: BLE001  as above
                    self._fail(explained(error))
        if self.status.state is State.FAILING and self.error is not None:
            self._deliver_the_rest(self.error)
        return self.status

    def stop_capture(self) -> None:
        """Nothing new comes in; what the log holds goes on being delivered."""
        if self.status.state is State.RUNNING:
            self._change(state=State.STOPPING)
        self._capture.stop()

    def start_delivery(self) -> None:
        """For a drain that comes before the first `watch`: starts the streams, if the log holds anything for them."""
        if self._tail() > self._log.head():
            self._watch_streams()

    def drained(self) -> bool:
        """Nothing is left to deliver, or nobody to deliver it. Sinks that fail are not waited for, unless the pipeline
        needs them."""
        try:
            tail = self._tail()
            waiting = [g for g in self._groups.values() if g.offset < tail and g.running]
            return all(g.failing and not g.group.leads for g in waiting)
        except TidemillError:
            return True

    def ask_to_stop(self) -> None:
        """`stop` without waiting, for who has several to stop."""
        for group in self._groups.values():
            group.ask_to_stop()

    def stop(self, seconds: float = 60, *, into: State = State.STOPPED) -> None:
        """Ends after the batches under way, with their checkpoints; those that take longer than `seconds` are delivered
        again at the next start. The state is `into` then, unless the pipeline failed. May be called again."""
        self.stop_capture()
        self.ask_to_stop()
        deadline = time.monotonic() + seconds
        for group in self._groups.values():
            group.stop(max(0.0, deadline - time.monotonic()))
        if self.status.state is State.FAILING and self.error is not None:  # stopped before all was delivered
            self._change_to_failed(self.error)
        if self.status.state is State.STOPPING:
            tail = self._tail()
            waiting = self._waiting(tail)
            self._change(state=into, lag_events=waiting, sinks=self._sinks(tail))
            events.emit(f"pipeline.{into}", undelivered=waiting)
        if self.status.state is not State.RUNNING:
            self._ledger.close()
            self._state.close()
            for dead_letters in (self._dead_letters, self._old_dead_letters):
                if dead_letters is not None:
                    dead_letters.close()

    def fail(self, error: TidemillError) -> None:
        """For who meets an error around the run: the state is `failed`, whatever still runs of it is left."""
        self.error = error
        self._change_to_failed(error)

    def _fail_after_delivery(self, error: TidemillError) -> None:
        """Capture gave up. The log may hold what no sink has yet: the streams go on until it is delivered."""
        self.error = error
        self._capture.stop()
        self._moved = (-1, time.monotonic())
        # What it said of tables is still true; how much it has not read is not known any more.
        self._captured = replace(self._captured, stage="failed", error=to_data(error), lag_bytes=None)
        self._change(state=State.FAILING, stage="failed", error=to_data(error))
        self._on_error(error)
        events.fail("pipeline.failing", code=error.code, error=error.what,
                    where=error.where, fix=error.fix, undelivered=self._waiting(self._tail()))  # fmt: skip

    def _deliver_the_rest(self, error: TidemillError) -> None:
        """A step of it; the pipeline is `failed` when nothing is left, or nothing that a sink takes."""
        try:
            self._watch_streams()
            self._measure()
            if not self._stands_still():
                return
        except Exception as failure:  # noqa: BLE001  a second failure: what is not delivered stays in the log
            second = explained(failure)
            events.fail("pipeline.rest_not_delivered", error=second.what,
                        where=second.where, fix=second.fix)  # fmt: skip
        self._fail(error)

    def _stands_still(self) -> bool:
        """Every sink has everything, or those that have not fail and took nothing for a while."""
        tail = self._tail()
        waiting = [group for group in self._groups.values() if group.offset < tail and not group.given_up]
        reached = sum(group.offset for group in self._groups.values())
        if reached != self._moved[0]:
            self._moved = (reached, time.monotonic())
        standing = time.monotonic() - self._moved[1] >= _STANDSTILL_SECONDS
        return all(group.failing and standing for group in waiting)

    def _begin(self) -> None:
        if self.status.state is State.CREATED:
            make_directory(self.pipeline.state_path)
            self._change(state=State.RUNNING)
            events.emit("pipeline.started")

    def _change(self, **changes: Any) -> None:
        with self._changing:
            self._set(**changes)
        self._record.note(self.status)

    def _set(self, **changes: Any) -> None:
        """`_changing` is held, so that nobody hears of an older status after a newer one."""
        before, self.status = self.status, replace(self.status, **changes)
        if self.status != before:
            self._meter.show(self.status)
            self._on_status(self.status)

    def _watch_streams(self) -> None:
        """The group that leads comes first: what ends it ends the pipeline, whatever the others say."""
        for group in self._groups.values():
            try:
                group.watch()
            except Exception as failure:
                error = explained(failure)
                given_up = {g.group.key for g in self._groups.values() if g.given_up} | {group.group.key}
                if isinstance(error, SparkLost | CheckpointConflict) or not self._policy.can_go_on(given_up):
                    raise error from failure
                group.give_up(error)
                self._on_error(error)

    def _new_stream(self, run: GroupRun) -> StreamLoop:
        pipeline, spec, group = self.pipeline, self.pipeline.spec, run.group
        self._ledger.open()
        if self._offset is None:
            self._offset = self._ledger.checkpoint.offset
        return StreamLoop(
            group,
            self._ledger,
            pipeline.source_id,
            pipeline.log_uri,
            [(s.type, revealed(s.config)) for s in spec.sinks if s.config.id in group.sinks],
            spark=self._spark,
            spark_dir=pipeline.spark_path if group.leads else pipeline.spark_path_of(group.sinks[0]),
            batch=spec.batch,
            sharding=spec.sharding,
            lanes=spec.lanes,
            dead_letters=self._dead_letters,
            follower=self._follower(group.sinks),
            on_batch=self._on_batch,
            on_retry=self._meter.counts_retries(run.on_retry),
            on_error=run.on_error,
        )

    def _follower(self, sinks: Sequence[str]) -> Follower | None:
        """Letters are followed also while none are kept: dead letters may have been switched off since."""
        kept = self._dead_letters
        if kept is None and self.pipeline.dlq_path.exists():
            kept = self._old_dead_letters = self._old_dead_letters or DeadLetters(
                self.pipeline.dlq_path, self.pipeline.spec.dlq
            )
        return Follower(kept, sinks, self.pipeline.name) if kept is not None else None

    def _on_batch(self, report: BatchReport) -> None:
        """From the thread of any group; the pipeline's own numbers follow its checkpoint."""
        group = self._groups[report.group]
        group.on_batch(report)
        self._meter.count_batch(report)
        for receipt in report.receipts:
            self._notices.take(receipt.sink, receipt.notices, self.pipeline.name)
        with self._changing:
            if report.dropped:
                self._set(dead_letters_dropped=self.status.dead_letters_dropped + len(report.dropped))
            checkpoint = self._ledger.checkpoint
            moved = checkpoint.offset - (self._offset or 0)
            self._offset = checkpoint.offset
            if moved > 0:
                self._rate.add(moved)
                self._set(
                    events=self.status.events + moved,
                    batches=self.status.batches + 1,
                    batch_seconds=report.seconds,
                    position=checkpoint.position,
                )
        self._on_batch_done(report)

    def _hear(self, said: CaptureStatus | None) -> None:
        """None: there is no process, or it has said nothing yet. Before it has a stream it knows nothing of tables:
        what the process before it said of them stands."""
        now = said or CaptureStatus(0)
        if said is not None:
            self._meter.count_captured(said)
        self._captured = now if now.streaming_since else replace(now, notices=self._captured.notices)

    def _measure(self) -> None:
        capture = self._captured
        tail = self._tail()
        waiting = self._waiting(tail)
        failing = (g.last_error for g in self._groups.values() if g.last_error and g.group.votes)
        if capture.began and not self.status.began:
            events.emit(
                "pipeline.resumed" if capture.resumed else "pipeline.began", position=capture.began,
            )  # fmt: skip
            self._change(began=capture.began, resumed=capture.resumed)
        self._change(
            stage=capture.stage,
            events_per_second=self._rate.per_second(),
            lag_bytes=capture.lag_bytes,
            lag_events=waiting,
            lag_seconds=self._lag.seconds(tail - waiting, tail),
            capture_restarts=self._capture.restarts,
            sinks=self._sinks(tail),
            error=capture.error or next(failing, ErrorData()),
            notices=(*capture.notices, *self._notices.standing()),
        )

    def _sinks(self, tail: int) -> tuple[SinkStatus, ...]:
        """In the order of the document."""
        found = {sink.id: sink for group in self._groups.values() for sink in group.sinks(tail)}
        return tuple(found[sink.config.id] for sink in self.pipeline.spec.sinks)

    def _tail(self) -> int:
        try:
            self._last_tail = self._log.tail().offset
        except TidemillError as error:  # only a number for people; who reads the log to deliver it has its own retries
            events.warn("pipeline.lag_unknown", error=error.what)
        return self._last_tail

    def _waiting(self, tail: int) -> int:
        """Events in the log that are not delivered yet."""
        try:
            return max(0, tail - max(self._ledger.checkpoint.offset, self._log.head()))
        except TidemillError:
            return max(0, tail - self._ledger.checkpoint.offset)

    def _fail(self, error: TidemillError) -> None:
        self.fail(error)
        self.stop()

    def _change_to_failed(self, error: TidemillError) -> None:
        tail = self._tail()
        waiting = self._waiting(tail)
        heard = self.status.state is State.FAILING
        self._change(state=State.FAILED, error=to_data(error), lag_events=waiting, sinks=self._sinks(tail))
        if not heard:
            self._on_error(error)
        events.fail("pipeline.failed", code=error.code, error=error.what,
                    where=error.where, fix=error.fix, undelivered=waiting)  # fmt: skip
