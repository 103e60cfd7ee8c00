"""Keeps one pipeline running: its capture process and its streams, and one honest state for all of them.

A process that was killed is started again; an error that a retry may mend is retried with backoff; a sink that the
commit policy can do without fails alone; anything else makes the pipeline `failed`, with the error kept, and the rest
of it stopped: no dead pipeline says running. When capture fails for good the pipeline is `failing` until the sinks have
what was captured before, and `failed` then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tidemill.capture.status import CaptureStatus
from tidemill.config.advice import fill_in_data, fill_in_error
from tidemill.config.pipeline import Pipeline
from tidemill.config.secrets import reveal
from tidemill.disk.private import make_directory
from tidemill.errors import CheckpointConflict, LeaseLost, SparkLost, TidemillError, to_data
from tidemill.log.reader import LogReader
from tidemill.service.cause import Cause
from tidemill.service.lease.leases import HeldLease
from tidemill.service.run.capture_process import CaptureProcess
from tidemill.service.run.dead_letters import RunDeadLetters
from tidemill.service.run.lag import WaitingEvents
from tidemill.service.run.metering import PipelineMeter
from tidemill.service.run.notices import SinkNotices
from tidemill.service.run.quarantines import RunQuarantines
from tidemill.service.run.record import RunRecord
from tidemill.service.run.run_sensing import RunSensing
from tidemill.service.run.status import WAITING, PipelineStatus, Rate, SinkStatus, State
from tidemill.service.run.stream_group import GroupRun
from tidemill.service.run.stream_groups import StreamGroups
from tidemill.service.schema.barriers import barrier_of, sink_settings, waiting_notice
from tidemill.service.schema.structures import KeptStructures
from tidemill.service.snapshot.driver import SnapshotDriver
from tidemill.service.snapshot.plan import begin_if_due
from tidemill.service.snapshot.status import table_statuses
from tidemill.stream.batch.failures import explain
from tidemill.stream.loop import StreamLoop
from tidemill.stream.position.commit_policy import policy_of
from tidemill.stream.position.ledger import Ledger
from tidemill.stream.report import BatchReport
from tidemill.telemetry import events
from tidemill.telemetry.metrics import Metrics
from tidemill.telemetry.tracer import Tracer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENDS_ALL = (SparkLost, CheckpointConflict, LeaseLost)  # whatever the commit policy could do without


class PipelineRun:
    """`start`, then `watch` again and again, then `stop`. For one thread; batches report from Spark's."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession | None,
        *,
        said: Path | None = None,
        on_status: Callable[[PipelineStatus], None] = lambda status: None,
        on_batch: Callable[[BatchReport], None] = lambda report: None,
        on_error: Callable[[TidemillError], None] = lambda error: None,
        metrics: Metrics | None = None,
        cause: Cause | None = None,
        trial: bool = False,
        lease: HeldLease | None = None,
        once: bool = False,
        tracer: Tracer | None = None,
        held: bool = False,
    ) -> None:
        """`said`: the file for what the capture process says; by default our own standard error.

        `on_status` is called with each new status, in order; `on_error` with what makes the pipeline fail, and with
        what makes it go on without a sink. They must return at once: batches wait for them. `metrics` may be shared by
        pipelines and by the runs of one. `cause` is who asked for the start; by default this process's user.
        While `trial` is set no stream runs and nothing is delivered: who tries a document out clears it, or stops.
        With a `lease` nothing is saved or appended once it is lost. `once`: the status says when it has `caught_up`.
        `held`: it begins paused, and captures; `spark` may be None until `release` brings one.
        """
        self.pipeline, self.trigger, self.trial, self.held = pipeline, pipeline.spec.trigger, trial, held
        meter = self._meter = PipelineMeter.of(pipeline, metrics or Metrics())
        self._on_status, self._on_batch_done, self._on_error = on_status, on_batch, meter.counts_errors(on_error)
        self._capture = CaptureProcess(pipeline, said, lease, once, trial, held)
        self._captured, self._tracer = CaptureStatus(0), tracer  # what capture said last
        self._spark, self._policy = cast("SparkSession", spark), policy_of(pipeline)
        self._state = pipeline.build_state()
        self._record, self._quarantines = RunRecord(self._state, pipeline.name), RunQuarantines(pipeline, self._state)
        self._snapshots: SnapshotDriver | None = None
        self.attribute(cause)
        self._ledger = Ledger(
            self._policy, pipeline.build_checkpoints(), pipeline.log_uri, pipeline.spec.log, state=self._state,
            floor=lambda: self._quarantines.lower(self._snapshots.floor if self._snapshots is not None else None),
            guard=lease.check if lease is not None else lambda: None,
            fence=lease is not None and lease.predecessor is not None,
        )  # fmt: skip
        self._dead_letters, self._structures = RunDeadLetters(pipeline), KeptStructures(pipeline)
        self._groups = StreamGroups((g.key, GroupRun(g, self._ledger, self._new_stream)) for g in self._policy.groups)
        self._sensing = RunSensing(pipeline, self._state)
        self._notices = SinkNotices(pipeline.state_path / "notices.json")
        self._offset: int | None = None  # the pipeline's checkpoint as the last report left it
        self._rate, self._waiting = Rate(), WaitingEvents(LogReader(pipeline.log_uri), self._ledger)
        self._changing = threading.Lock()  # batches report from Spark's threads
        self.status = PipelineStatus(pipeline.name, State.CREATED, sinks=self._sinks(0))
        self.error: TidemillError | None = None

    def attribute(self, cause: Cause | None) -> None:
        """Who asked for the changes of state from now on."""
        if cause is not None:
            self._record.cause = cause

    def start(self) -> None:
        self._begin()
        begin_if_due(self.pipeline, self._state)
        if self.held:
            self._ledger.open()
            self._capture.start()
            return
        self._snapshots = self._new_snapshots()
        self._capture.start()
        self._snapshots.start()

    def _new_snapshots(self) -> SnapshotDriver:
        return SnapshotDriver(self.pipeline, self._spark, self._state, self._delivered)

    def _delivered(self, sink: str) -> int | None:
        """Up to where a sink has everything; None if it was given up. From any thread."""
        group = self._groups.of_sink(sink)
        return None if group.given_up else self._quarantines.delivered(group.offset)

    def start_stream(self) -> None:
        """Only the second half, for who wants it warm before capture begins."""
        self._begin()
        self._watch_streams()

    def watch(self) -> PipelineStatus:
        """Looks after all parts. Raises nothing: a failure is a state."""
        if self._captures:
            self._capture.trial, self._capture.held = self.trial, self.held
            try:
                self._hear(self._capture.watch())
            except Exception as error:  # noqa: BLE001  one pipeline's failure is not that of the others
                self._fail_after_delivery(fill_in_error(explain(error), self.pipeline))
            else:
                try:
                    self._watch_streams()
                    self._measure()
                except Exception as error:  # noqa: BLE001  as above
                    self._fail(fill_in_error(explain(error), self.pipeline))
        if self.status.state is State.FAILING and self.error is not None:
            self._deliver_the_rest(self.error)
        return self.status

    @property
    def _captures(self) -> bool:
        return self.status.state is State.RUNNING or (self.held and self.status.state is State.PAUSED)

    def hold(self, seconds: float) -> None:
        """Ends delivery after the batches under way, and copies of tables; capture goes on. The state is paused."""
        if self.held:
            return
        self.held = True
        self._change(state=State.STOPPING)
        if self._snapshots is not None:
            self._snapshots.stop()
        self._groups.stop(seconds)
        self._measure(into=State.PAUSED)
        events.emit("pipeline.paused", undelivered=self.status.lag_events, captures=True)

    def release(self, spark: SparkSession) -> None:
        """Delivery goes on where `hold` ended it, in this Spark session."""
        self._spark, self.held = spark, False
        self._groups.begin_again()
        self._snapshots = self._new_snapshots()
        self._snapshots.start()
        self._change(state=State.RUNNING)
        events.emit("pipeline.started")

    def stop_capture(self, *, drains: bool = False) -> None:
        """Nothing new comes in; what the log holds goes on being delivered."""
        if self._captures:
            self._change(state=State.STOPPING, drains=drains)
        if self._snapshots is not None:
            self._snapshots.stop()
        self._capture.stop()

    def start_delivery(self) -> None:
        """For a drain that comes before the first `watch`: starts the streams, if the log holds anything for them."""
        if self._waiting.tail() > self._waiting.head:
            self._watch_streams()

    def drained(self) -> bool:
        """Nothing is left to deliver, or nobody to deliver it."""
        try:
            tail = self._waiting.tail()
            self._change(lag_events=self._waiting.count(tail), sinks=self._sinks(tail))
            return self._groups.have_delivered(tail)
        except TidemillError:
            return True

    def ask_to_stop(self) -> None:
        """`stop` without waiting, for who has several to stop."""
        self._groups.ask_to_stop()

    def stop(self, seconds: float = 60, *, into: State = State.STOPPED) -> None:
        """Ends after the batches under way, with their checkpoints; those that take longer than `seconds` are delivered
        again at the next start. The state is `into` then, unless the pipeline failed. May be called again."""
        self.stop_capture()
        self._groups.stop(seconds)
        if self.status.state is State.FAILING and self.error is not None:  # stopped before all was delivered
            self._change_to_failed(self.error)
        if self.status.state is State.STOPPING:
            waiting = self._waiting.count(tail := self._waiting.tail())
            seconds, notices = self._waiting.seconds(tail, waiting), self._standing_notices()
            self._change(state=into, lag_events=waiting, lag_seconds=seconds, sinks=self._sinks(tail), notices=notices)
            events.emit(f"pipeline.{into}", undelivered=waiting)
        if self.status.state is not State.RUNNING:
            self._ledger.close()
            self._sensing.close()
            self._state.close()
            self._dead_letters.close()

    def fail(self, error: TidemillError) -> None:
        """For who meets an error around the run: the state is `failed`, whatever still runs of it is left."""
        self.error = error
        self._change_to_failed(error)

    def _fail_after_delivery(self, error: TidemillError) -> None:
        """Capture gave up. The log may hold what no sink has yet: the streams go on until it is delivered."""
        if self.trial or self.held:
            self._fail(error)  # what the log holds is for who comes back: the document from before, or the operator
            return
        self.error = error
        self._capture.stop()
        self._groups.await_standstill()
        # What it said of tables is still true; how much it has not read is not known any more.
        self._captured = replace(self._captured, stage="failed", error=to_data(error), lag_bytes=None)
        self._change(state=State.FAILING, stage="failed", error=to_data(error))
        self._on_error(error)
        waiting = self._waiting.count(self._waiting.tail())
        events.fail("pipeline.failing", code=error.code, error=error.what,
                    where=error.where, fix=error.fix, undelivered=waiting)  # fmt: skip

    def _deliver_the_rest(self, error: TidemillError) -> None:
        """A step of it; the pipeline is `failed` when nothing is left, or nothing that a sink takes."""
        try:
            self._watch_streams()
            self._measure()
            if not self._groups.stand_still(self._waiting.tail()):
                return
        except Exception as failure:  # noqa: BLE001  a second failure: what is not delivered stays in the log
            second = fill_in_error(explain(failure), self.pipeline)
            events.fail("pipeline.rest_not_delivered", error=second.what,
                        where=second.where, fix=second.fix)  # fmt: skip
        self._fail(error)

    def _begin(self) -> None:
        if self.status.state is State.CREATED:
            make_directory(self.pipeline.state_path)
            self._change(state=State.PAUSED if self.held else State.RUNNING)
            self._sensing.start()
            events.emit("pipeline.captures_paused" if self.held else "pipeline.started")

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
        if self.trial or self.held:
            return
        for group in self._groups.values():
            try:
                group.watch()
            except Exception as failure:
                error = fill_in_error(explain(failure), self.pipeline)
                given_up = self._groups.given_up | {group.group.key}
                if isinstance(error, _ENDS_ALL) or not self._policy.can_go_on(given_up):
                    raise error from failure
                group.give_up(error)
                self._on_error(error)

    def _new_stream(self, run: GroupRun) -> StreamLoop:
        pipeline, spec, group = self.pipeline, self.pipeline.spec, run.group
        self._ledger.open()
        if self._offset is None:
            self._offset = self._ledger.checkpoint.offset
            self._change(position=self._ledger.checkpoint.position)
        return StreamLoop(
            group, self._ledger, pipeline.source_id, pipeline.log_uri, sink_settings(pipeline, group.sinks),
            spark=self._spark,
            spark_dir=pipeline.spark_path if group.leads else pipeline.spark_path_of(group.sinks[0]),
            batch=spec.batch,
            sharding=spec.sharding,
            lanes=spec.lanes,
            trigger=self.trigger,
            dead_letters=self._dead_letters.store,
            follower=self._dead_letters.follower(group.sinks),
            processors=[(p.type, reveal(p.config)) for p in spec.processors],
            structures=self._structures,
            sensing=self._sensing.keeper if group is self._policy.groups[0] else None,
            barrier=barrier_of(pipeline, group, self._state.schema_changes, run.on_wait),
            on_batch=self._on_batch,
            on_retry=self._meter.counts_retries(run.on_retry),
            on_error=run.on_error,
            tracer=self._tracer,
        )  # fmt: skip

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

    def _measure(self, into: State | None = None) -> None:
        capture, waiting = self._captured, self._waiting.count(tail := self._waiting.tail())
        if capture.began and not self.status.began:
            events.emit("pipeline.resumed" if capture.resumed else "pipeline.began", position=capture.began)
            self._change(began=capture.began, resumed=capture.resumed)
        self._change(
            state=into or self.status.state,
            stage=WAITING if self._groups.waiting else capture.stage,
            events_per_second=self._rate.per_second(),
            lag_bytes=capture.lag_bytes,
            lag_events=waiting,
            lag_seconds=self._waiting.seconds(tail, waiting),
            log_bytes=(capture.undelivered_bytes or self.status.log_bytes) if waiting else 0,
            captured=capture.position or self.status.captured,
            capture_restarts=self._capture.restarts,
            sinks=self._sinks(tail),
            quarantined=self._quarantines.look(),
            error=fill_in_data(capture.error or self._groups.last_error, self.pipeline),
            notices=self._standing_notices(),
            lanes_stand=self._groups.lanes_stand,
            tables=table_statuses(copies.tables, paused=copies.idle) if (copies := self._snapshots) is not None else (),
            caught_up=capture.caught_up and self._snapshots is not None and self._snapshots.idle,
        )

    def _standing_notices(self) -> tuple[dict[str, str], ...]:
        waiting = map(waiting_notice, self._groups.waiting)
        said = (*waiting, *self._quarantines.notices(), *self._captured.notices, *self._notices.standing())
        return tuple(fill_in_data(notice, self.pipeline) for notice in (*said, *self._sensing.notices()))

    def _sinks(self, tail: int) -> tuple[SinkStatus, ...]:
        """In the order of the document."""
        return self._groups.sinks(tail, [sink.config.id for sink in self.pipeline.spec.sinks])

    def _fail(self, error: TidemillError) -> None:
        self.fail(error)
        self.stop()

    def _change_to_failed(self, error: TidemillError) -> None:
        tail = self._waiting.tail()
        waiting, heard = self._waiting.count(tail), self.status.state is State.FAILING
        self._change(state=State.FAILED, error=to_data(error), lag_events=waiting, sinks=self._sinks(tail))
        if not heard:
            self._on_error(error)
        events.fail("pipeline.failed", code=error.code, error=error.what,
                    where=error.where, fix=error.fix, undelivered=waiting)  # fmt: skip
