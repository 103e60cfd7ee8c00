"""LOOP TWO: log → Spark → sinks → commit policy → checkpoint → acknowledge → trim.

`StreamLoop._deliver` is the loop's body: Spark calls it with each batch, one at a time, in order.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.component import CheckpointStore
from tidemill.config.spec import Batch, CommitPolicy, Sharding
from tidemill.errors import DeliveryError, LogError, SparkLost, TidemillError
from tidemill.log import LogConfig, LogReader, Tail, acknowledge, trim
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Position
from tidemill.stream import pins, source
from tidemill.stream.attempt import Attempt
from tidemill.stream.plan import Plan
from tidemill.stream.policy import Policy
from tidemill.stream.report import BatchReport
from tidemill.stream.session import cores, reaching_spark
from tidemill.telemetry.events import emit, fail, warn
from tidemill.telemetry.points import point

_TRIM_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. `in_task` a lane tries by itself; `overall` the driver sends failed lanes again before it gives up."""

    in_task: float = 10.0
    overall: float = 600.0
    longest_pause: float = 15.0


class StreamLoop:
    """Delivers one pipeline's log. `start`, then `await_end`; `stop` from any thread.

    `sinks` are (type, settings) pairs with plain values: each worker builds its own. The checkpoint in `store` says
    where to begin; `spark_dir` may be lost at any time. `on_batch` is called after each checkpoint, `on_retry` with an
    error per sink before each new attempt; both in Spark's thread.
    """

    def __init__(
        self,
        pipeline: str,
        source_id: str,
        log_uri: str,
        sinks: Sequence[tuple[str, dict[str, Any]]],
        *,
        store: CheckpointStore,
        spark: Any,
        spark_dir: Path,
        batch: Batch | None = None,
        sharding: Sharding | None = None,
        policy: CommitPolicy | None = None,
        log: LogConfig | None = None,
        lanes: int | None = None,
        patience: Patience | None = None,
        on_batch: Callable[[BatchReport], None] = lambda report: None,
        on_retry: Callable[[Mapping[str, str]], None] = lambda errors: None,
    ) -> None:
        self._pipeline, self._source_id, self._log_uri = pipeline, source_id, log_uri
        self._specs = tuple((kind, dict(config)) for kind, config in sinks)
        self._sinks = [str(config["id"]) for _, config in self._specs]
        required = {str(config["id"]): bool(config.get("required", True)) for _, config in self._specs}
        self._policy = Policy(policy or CommitPolicy(), required)
        self._batch, self._sharding = batch or Batch(), sharding or Sharding()
        self._store, self._spark, self._spark_dir = store, spark, spark_dir
        self._log_config = log or LogConfig.model_validate({})
        self._asked = self._sharding.count or lanes
        self._lanes = self._asked or cores(spark)
        self._patience = patience or Patience()
        self._on_batch, self._on_retry = on_batch, on_retry
        self._log = LogReader(log_uri)
        self._query: Any = None
        self._error: TidemillError | None = None
        self._stopping = threading.Event()
        self._busy = threading.Lock()
        self._trimmed_at = 0.0

    def start(self) -> None:
        """Begins at the checkpoint (at the log's head if there is none) and returns while the query starts."""
        kept = self._store.load(self._pipeline)
        self._checkpoint = kept or Checkpoint(self._log.head(), Position(""))
        query_dir, begin = pins.settle(self._spark_dir, self._checkpoint.offset)
        self._plan = Plan(
            self._pipeline, self._source_id, self._log_uri, uuid.uuid4().hex, self._specs,
            delivered=self._checkpoint.offset, patience=self._patience.in_task,
        )  # fmt: skip
        given = source.options(
            self._plan, begin, self._batch, self._sharding, self._lanes, asked=self._asked is not None
        )
        stream = self._spark.readStream.format(source.NAME).options(**given).load().writeStream
        stream = stream.queryName(f"{self._pipeline} {self._plan.run[:8]}").foreachBatch(self._guarded)
        self._query = stream.option("checkpointLocation", query_dir.absolute().as_uri()).start()
        emit("stream.started", pipeline=self._pipeline, offset=self._checkpoint.offset, lanes=self._lanes)

    # ---------------------------------------------------------------- the loop

    def _deliver(self, frame: Any, number: int) -> None:
        began = time.monotonic()
        attempt, retries = self._until_policy_is_met(frame)
        if attempt.end <= self._checkpoint.offset:
            return  # Spark died between our checkpoint and its own note of this batch
        point("stream.delivered")
        position = self._log.position_at(attempt.end)
        self._checkpoint = self._store.save(  # Invariant 1
            self._pipeline, Checkpoint(attempt.end, position), expect=self._checkpoint.version
        )
        point("stream.checkpointed")
        acknowledge(self._log_uri, Tail(attempt.end, position))  # Invariant 2
        self._trim(attempt.end)
        undelivered = attempt.undelivered(self._sinks)
        for lost in undelivered:  # Invariant 7
            fail("stream.undelivered", pipeline=self._pipeline, sink=lost.sink, first=lost.start, last=lost.end - 1,
                 events=lost.events, error=lost.error)  # fmt: skip
        self._on_batch(
            BatchReport(
                number, attempt.start, attempt.end, position, attempt.lanes, time.monotonic() - began,
                self._log.tail().offset - attempt.end, attempt.newest, attempt.receipts, retries, undelivered,
            )
        )  # fmt: skip

    def _until_policy_is_met(self, frame: Any) -> tuple[Attempt, int]:
        """One job; then, while the policy asks for more, jobs for the (lane, sink) pairs that failed."""
        attempt: Attempt | None = None
        give_up = time.monotonic() + self._patience.overall
        tries, pause = 0, 0.2
        while True:
            try:
                if attempt is None:
                    attempt = Attempt.of(frame.toArrow())
                else:
                    again = source.again(self._spark, self._plan, attempt.failed())
                    attempt = attempt.after(Attempt.of(again))
            except Exception as error:
                # Sinks' errors come as receipts; this is a worker that was killed, or an executor lost.
                if self._stopping.is_set() or time.monotonic() + pause > give_up:
                    raise DeliveryError(
                        f"a Spark job failed: {_first_line(error)}",
                        where=f'pipeline "{self._pipeline}", checkpoint {self._checkpoint.offset}',
                        fix="Nothing is lost: start the pipeline again. If it repeats, look at memory and Spark's log.",
                    ) from error
                warn("stream.job_failed", pipeline=self._pipeline, error=_first_line(error), pause=round(pause, 1))
            else:
                if attempt.end <= self._checkpoint.offset or self._policy.met(attempt.delivered(self._sinks)):
                    return attempt, tries
                hopeless = not self._policy.met(set(self._sinks) - attempt.refused())
                if hopeless or self._stopping.is_set() or time.monotonic() + pause > give_up:
                    raise attempt.problem(self._pipeline, self._needed())
                missing = sorted({sink for sinks in attempt.failed().values() for sink in sinks})
                warn("stream.retrying", pipeline=self._pipeline, sinks=",".join(missing), pause=round(pause, 1))
                self._on_retry({sink: attempt.error(sink) for sink in missing})
            tries += 1
            self._stopping.wait(pause * random.uniform(0.7, 1.0))
            pause = min(pause * 2, self._patience.longest_pause)

    # ---------------------------------------------------------------- around it

    def stop(self, timeout: float = 60) -> None:
        """Lets the batch under way finish and be noted, then ends the query. Waits at most `timeout` seconds: what
        is not noted by then is delivered again at the next start."""
        self._stopping.set()
        if self._query is None:
            return
        if self._busy.acquire(timeout=timeout):
            self._busy.release()
        with suppress(SparkLost), reaching_spark():
            self._query.stop()
        emit("stream.stopped", pipeline=self._pipeline, offset=self._checkpoint.offset)

    def await_end(self, timeout: float | None = None) -> bool:
        """True when the loop has ended, by `stop`; raises what ended it otherwise. False when the time is over."""
        from pyspark.errors import StreamingQueryException

        try:
            ended = self._query.awaitTermination(timeout) if timeout is not None else self._query.awaitTermination()
            ended = timeout is None or bool(ended)
        except StreamingQueryException as error:
            if self._stopping.is_set() and self._error is None:
                return True
            raise (self._error or _foreign(error, self._pipeline)) from error
        return ended

    @property
    def running(self) -> bool:
        """`SparkLost` when there is nobody left to ask."""
        with reaching_spark():
            return self._query is not None and bool(self._query.isActive)

    @property
    def checkpoint(self) -> Checkpoint:
        return self._checkpoint

    def _guarded(self, frame: Any, number: int) -> None:
        """Spark keeps only the text of what a batch raises; the error itself is kept here."""
        with self._busy:
            if self._stopping.is_set():
                raise _Stopping  # ends the query without the batch: it is planned, and waits for the next start
            try:
                self._deliver(frame, number)
            except TidemillError as error:
                self._error = error
                raise

    def _needed(self) -> list[str]:
        """Sinks in the order in which to blame them: those the policy insists on first."""
        return sorted(self._sinks, key=lambda sink: not self._policy.required[sink])

    def _trim(self, before: int) -> None:
        now = time.monotonic()
        if now - self._trimmed_at >= _TRIM_EVERY:
            self._trimmed_at = now
            trim(self._log_uri, before, self._log_config)


class _Stopping(Exception):
    pass


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def _foreign(error: BaseException, pipeline: str) -> TidemillError:
    """What ended the query outside a batch: mostly the log could not be read while planning."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = next((line for line in reversed(lines) if line.startswith("tidemill.errors.")), "")
    what = ours.partition(": ")[2] or _first_line(error)
    return LogError(
        f"planning a batch failed: {what}", where=f'pipeline "{pipeline}"', fix="Look at it: tidemill log stats FILE"
    )
