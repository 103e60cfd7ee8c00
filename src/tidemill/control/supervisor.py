"""Keeps one pipeline running: its capture process and its stream, and one honest state for both.

A process that was killed is started again; an error that a retry may mend is retried with backoff; anything else makes
the pipeline `failed`, with the error kept, and its other half stopped: no dead pipeline says running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemill.capture.backoff import Backoff
from tidemill.capture.status import CaptureStatus
from tidemill.config.pipeline import Pipeline
from tidemill.config.secrets import revealed
from tidemill.control.capturing import CaptureProcess
from tidemill.control.status import PipelineStatus, Rate, SinkStatus, State
from tidemill.errors import DeliveryError, TidemillError, is_retryable
from tidemill.log.reader import LogReader
from tidemill.stream.loop import StreamLoop
from tidemill.stream.report import BatchReport
from tidemill.stream.session import reaching_spark
from tidemill.telemetry import events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PipelineRun:
    """`start`, then `watch` again and again, then `stop`. For one thread; batches report from Spark's."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self.pipeline = pipeline
        self._capture = CaptureProcess(pipeline)
        self._spark = spark
        self._stream: StreamLoop | None = None
        self._stream_at = 0.0
        self._stream_trouble: dict[str, str] = {}
        self._backoff = Backoff()
        self._log = LogReader(pipeline.log_uri)
        self._rate = Rate()
        self._delivered = 0
        self._offset = 0  # everything before it is delivered
        self._last_waiting = 0
        self._newest_commit = 0.0
        self._sinks = {sink.config.id: SinkStatus(sink.config.id) for sink in pipeline.build_sinks()}
        self._changing = threading.Lock()  # batches report from Spark's thread
        self.status = PipelineStatus(pipeline.name, State.CREATED, sinks=tuple(self._sinks.values()))
        self.error: TidemillError | None = None

    def start(self) -> None:
        self._begin()
        self._capture.start()

    def start_stream(self) -> None:
        """Only the second half, for who wants it warm before capture begins."""
        self._begin()
        self._watch_stream()

    def watch(self) -> PipelineStatus:
        """Looks after both halves. Raises nothing: a failure is a state."""
        if self.status.state is State.RUNNING:
            try:
                capture = self._capture.watch()
                self._watch_stream()
            except TidemillError as error:
                self._fail(error)
            else:
                self._measure(capture)
        return self.status

    def stop_capture(self) -> None:
        """Nothing new comes in; what the log holds goes on being delivered."""
        if self.status.state is State.RUNNING:
            self._change(state=State.STOPPING)
        self._capture.stop()

    def drained(self) -> bool:
        """Nothing is left to deliver, or nobody to deliver it."""
        try:
            return self._stream is None or not self._stream.running or not self._waiting()
        except TidemillError:
            return True

    def stop(self) -> None:
        """Ends after the batch under way, with its checkpoint. May be called again."""
        self.stop_capture()
        if self._stream is not None:
            self._stream.stop()
            self._offset = self._stream.checkpoint.offset
            self._stream = None
        if self.status.state is State.STOPPING:
            waiting = self._waiting()
            self._change(state=State.STOPPED, lag_events=waiting)
            events.emit("pipeline.stopped", pipeline=self.pipeline.name, undelivered=waiting)

    def _begin(self) -> None:
        if self.status.state is State.CREATED:
            self.pipeline.state_path.mkdir(parents=True, exist_ok=True)
            self._change(state=State.RUNNING)
            events.emit("pipeline.started", pipeline=self.pipeline.name)

    def _change(self, **changes: Any) -> None:
        with self._changing:
            self.status = replace(self.status, **changes)

    def _watch_stream(self) -> None:
        try:
            if self._stream is not None:
                if not self._stream.running:
                    self._stream.await_end(0.1)  # raises what ended it
                    raise DeliveryError(
                        "the stream ended by itself",
                        where=f"pipeline {self.pipeline.name}",
                        fix="It is started again; if that repeats, look at Spark's log.",
                    )
            elif time.monotonic() >= self._stream_at:
                stream = self._new_stream()
                with reaching_spark():
                    stream.start()
                self._stream = stream
        except TidemillError as failure:
            self._stream = None
            if not is_retryable(failure):
                raise
            self._restart_stream(failure)

    def _restart_stream(self, failure: TidemillError) -> None:
        wait = self._backoff.next()
        self._stream_at = time.monotonic() + wait
        self._stream_trouble = _described(failure)
        events.warn("stream.restarted", pipeline=self.pipeline.name, error=failure.what, after_seconds=round(wait, 1))

    def _new_stream(self) -> StreamLoop:
        pipeline, spec = self.pipeline, self.pipeline.spec
        return StreamLoop(
            pipeline.name,
            pipeline.source_id,
            pipeline.log_uri,
            [(sink.type, revealed(sink.config)) for sink in spec.sinks],
            store=self.pipeline.build_checkpoints(),
            spark=self._spark,
            spark_dir=pipeline.spark_path,
            batch=spec.batch,
            sharding=spec.sharding,
            policy=spec.commit_policy,
            log=spec.log,
            lanes=spec.lanes,
            on_batch=self._on_batch,
            on_retry=self._on_retry,
        )

    def _on_retry(self, errors: Mapping[str, str]) -> None:
        for sink, error in errors.items():
            self._sinks[sink] = replace(self._sinks[sink], error=error)
        self._change(sinks=tuple(self._sinks.values()))

    def _on_batch(self, report: BatchReport) -> None:
        self._backoff.reset()
        self._rate.add(report.events)
        self._delivered += report.events
        self._newest_commit = report.newest_commit or self._newest_commit
        for sink in self._sinks.values():
            receipts = [r for r in report.receipts if r.sink == sink.id]
            error = next((r.error for r in receipts if not r.ok), "")
            lost = sum(u.events for u in report.undelivered if u.sink == sink.id)
            done = sum(r.events for r in receipts if r.ok)
            self._sinks[sink.id] = SinkStatus(sink.id, sink.events + done, sink.undelivered + lost, error)
        self._stream_trouble = {}
        self._change(
            events=self._delivered,
            sinks=tuple(self._sinks.values()),
            batches=self.status.batches + 1,
            batch_seconds=report.seconds,
            position=report.position,
        )

    def _measure(self, capture: CaptureStatus | None) -> None:
        waiting = self._waiting()
        lag = max(0.0, time.time() - self._newest_commit) if waiting and self._newest_commit else 0.0
        self._change(
            stage=capture.stage if capture else "init",
            events_per_second=self._rate.per_second(),
            lag_bytes=capture.lag_bytes if capture else None,
            lag_events=waiting,
            lag_seconds=lag,
            capture_restarts=self._capture.restarts,
            error=(capture.error if capture else {}) or self._stream_trouble,
        )

    def _waiting(self) -> int:
        """Events in the log that are not delivered yet."""
        if self._stream is not None:
            self._offset = self._stream.checkpoint.offset
        try:
            self._last_waiting = max(0, self._log.tail().offset - max(self._offset, self._log.head()))
        except TidemillError as error:  # only a number for people; who reads the log to deliver it has its own retries
            events.warn("pipeline.lag_unknown", pipeline=self.pipeline.name, error=error.what)
        return self._last_waiting

    def _fail(self, error: TidemillError) -> None:
        self.error = error
        self._change(state=State.FAILED, error=_described(error))
        events.fail("pipeline.failed", pipeline=self.pipeline.name, error=error.what, where=error.where, fix=error.fix)
        self.stop()


def _described(error: TidemillError) -> dict[str, str]:
    return {"what": error.what, "where": error.where, "fix": error.fix}
