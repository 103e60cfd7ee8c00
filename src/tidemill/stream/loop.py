"""LOOP TWO: log → Spark → sinks (or dead letters) → checkpoint → acknowledge → trim, for one group of sinks.

`StreamLoop._deliver` is the loop's body: Spark calls it with each batch, one at a time, in order.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidemill import registry
from tidemill.config.spec import Batch, Sharding
from tidemill.dlq import DeadLetters, Kept
from tidemill.errors import LogError, SparkLost, TidemillError, is_retryable
from tidemill.log import LogReader
from tidemill.model.delivery import Checkpoint
from tidemill.retry import RetryPolicy
from tidemill.stream import failures, pins, source
from tidemill.stream.attempt import Attempt
from tidemill.stream.dead_letters import DeadLetterWriter
from tidemill.stream.ledger import Ledger
from tidemill.stream.plan import Plan
from tidemill.stream.policy import SinkGroup
from tidemill.stream.report import BatchReport
from tidemill.stream.session import cores, reaching_spark
from tidemill.stream.superseded import Follower
from tidemill.telemetry.context import bind
from tidemill.telemetry.events import emit, warn
from tidemill.telemetry.failpoints import failpoint
from tidemill.telemetry.relay import replay

_WAITED_FOR = RetryPolicy(seconds=600.0)
_WAITED_FOR_IN_LANE_SECONDS = 10.0

# For sinks that the pipeline does not wait for: a task ends at the first error and leaves its core to others; the
# driver tries again for as long as it takes.
_NOT_WAITED_FOR = RetryPolicy(most=30.0)


class StreamLoop:
    """Delivers a pipeline's log to one group of sinks. `start`, then `await_end`; `stop` from any thread.

    `sinks` are the group's, as (type, settings) pairs with plain values: each worker builds its own. The group's
    position in the ledger says where to begin; `spark_dir` may be lost at any time. `dead_letters` are None where an
    event
    that a sink will never take is to stop the group; the `follower` knows which letters of its sinks there are already,
    also then. `on_batch` is called after each checkpoint, `on_retry` before each new attempt with an error per sink,
    `on_error` where a job was lost and no sink is to blame: all in Spark's thread. `retry` is for the lanes that
    failed; each has tried by itself for `lane_retry_seconds` before.
    """

    def __init__(
        self,
        group: SinkGroup,
        ledger: Ledger,
        source_id: str,
        log_uri: str,
        sinks: Sequence[tuple[str, dict[str, Any]]],
        *,
        spark: Any,
        spark_dir: Path,
        batch: Batch | None = None,
        sharding: Sharding | None = None,
        lanes: int | None = None,
        dead_letters: DeadLetters | None = None,
        follower: Follower | None = None,
        retry: RetryPolicy | None = None,
        lane_retry_seconds: float | None = None,
        on_batch: Callable[[BatchReport], None] = lambda report: None,
        on_retry: Callable[[Mapping[str, str]], None] = lambda errors: None,
        on_error: Callable[[TidemillError], None] = lambda problem: None,
    ) -> None:
        self._group, self._ledger = group, ledger
        self._pipeline, self._source_id, self._log_uri = ledger.policy.pipeline, source_id, log_uri
        self._specs = tuple((kind, dict(config)) for kind, config in sinks)
        self._batch, self._sharding = batch or Batch(), sharding or Sharding()
        self._spark, self._spark_dir = spark, spark_dir
        self._asked = 1 if single_lane(kind for kind, _ in sinks) else self._sharding.count or lanes
        self._lanes = self._asked or cores(spark)
        self._retry = retry or (_WAITED_FOR if group.leads else _NOT_WAITED_FOR)
        in_lane = _WAITED_FOR_IN_LANE_SECONDS if group.leads else 0.0
        self._lane_retry_seconds = in_lane if lane_retry_seconds is None else lane_retry_seconds
        self._on_batch, self._on_retry, self._on_error = on_batch, on_retry, on_error
        self._log = LogReader(log_uri)
        self._query: Any = None
        self._error: TidemillError | None = None
        self._stopping = threading.Event()
        self._busy = threading.Lock()
        self._follower = follower
        self._dead_letters = DeadLetterWriter(dead_letters, self._stopping, on_retry) if dead_letters else None

    def start(self) -> None:
        """Begins at the group's position and returns while the query starts."""
        with self._context():
            self._start()

    def _start(self) -> None:
        self._checkpoint = self._ledger.begin(self._group)
        if self._follower is not None:
            self._follower.begin(self._checkpoint.offset)
        try:
            with reaching_spark():
                self._query = self._start_query()
        except TidemillError:
            raise
        except Exception as error:  # the disk is full, or anything that Spark says
            raise failures.not_started(error, self._spark_dir) from error
        emit("stream.started", offset=self._checkpoint.offset, lanes=self._lanes)

    def _start_query(self) -> Any:
        own = "" if self._group.leads else self._group.sinks[0]
        query_dir, begin = pins.settle(
            self._spark_dir, self._checkpoint.offset, self._ledger.state, self._pipeline, own
        )
        self._plan = Plan(
            self._pipeline, self._source_id, self._log_uri, self._group.key, uuid.uuid4().hex,
            self._specs,
            delivered=self._checkpoint.offset, retry_seconds=self._lane_retry_seconds,
            dead_letters=self._dead_letters is not None, version=self._checkpoint.version,
            since=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )  # fmt: skip
        given = source.options(
            self._plan, begin, self._batch, self._sharding, self._lanes, asked=self._asked is not None
        )
        stream = self._spark.readStream.format(source.NAME).options(**given).load().writeStream
        stream = stream.queryName(f"{self._group.key} {self._plan.run[:8]}").foreachBatch(self._guarded)
        # No `as_uri`: Hadoop takes a path's percent signs literally, and pins.py would look elsewhere.
        return stream.option("checkpointLocation", f"file://{query_dir.absolute()}").start()

    # ---------------------------------------------------------------- the loop

    def _deliver(self, frame: Any, number: int) -> None:
        began = time.monotonic()
        attempt, kept, retries = self._until_every_sink_has_it(frame)
        if self._is_old(attempt):
            return  # Spark died between our checkpoint and its own note of this batch
        failpoint("stream.delivered")
        self._note_superseded(attempt)
        mark = self._log.mark_at(attempt.end)
        # Invariants 1 and 2
        self._checkpoint = self._ledger.advance(self._group, attempt.end, mark.position, base=mark.offset)
        self._on_batch(
            BatchReport(
                number, attempt.start, attempt.end, mark.position, attempt.lanes, time.monotonic() - began,
                self._log.tail().offset - attempt.end, attempt.receipts, retries, self._group.key,
                kept.new, kept.dropped,
            )
        )  # fmt: skip

    def _note_superseded(self, attempt: Attempt) -> None:
        """Durable before the checkpoint moves: a batch that is not covered comes again, and is compared again."""
        if self._follower is not None:
            self._follower.refresh(attempt.start)
            self._follower.compare(self._log, attempt.start, attempt.end, attempt.left_out_by_sink())
            failpoint("stream.letters_compared")

    def _until_every_sink_has_it(self, frame: Any) -> tuple[Attempt, Kept, int]:
        """One job; then jobs for the (lane, sink) pairs that failed, until none is left."""
        attempt: Attempt | None = None
        kept, tries = Kept(), self._retry.begin(self._stopping)
        while True:
            try:
                attempt = self._next(frame, attempt)
            except Exception as error:  # whatever Spark says of a job that it lost
                problem: TidemillError = failures.job_failed(error, self._pipeline, self._checkpoint.offset)
                errors = {}
                if not is_retryable(problem):
                    raise problem from error
            else:
                if attempt.dead_letters and self._dead_letters is not None:
                    kept += self._dead_letters.keep(attempt.dead_letters)  # before the rest is written, see batch.py
                    failpoint("stream.letters_kept")
                missing = [] if self._is_old(attempt) else attempt.missing(self._group.sinks)
                if not missing:
                    return attempt, kept, tries.taken
                problem = attempt.problem(self._pipeline, self._group.sinks)
                if attempt.refused():
                    raise problem
                if attempt.dead_letters:
                    continue
                errors = {sink: attempt.error(sink) for sink in missing}
            if tries.over():
                raise problem
            warn("stream.retrying", sinks=",".join(errors), pause=round(tries.wait, 1),
                 error=failures.first_line(problem))  # fmt: skip
            if errors:
                self._on_retry(errors)
            else:
                self._on_error(problem)
            if not tries.pause():
                raise problem
            self._check_that_the_log_still_has(attempt.start if attempt else self._checkpoint.offset)

    def _next(self, frame: Any, before: Attempt | None) -> Attempt:
        answers = frame.toArrow() if before is None else source.again(self._spark, self._plan, before.failed())
        for packed in filter(None, answers.column("telemetry").to_pylist()):
            replay(packed)
        attempt = Attempt.of(answers)
        return attempt if before is None else before.after(attempt)

    def _is_old(self, attempt: Attempt) -> bool:
        return attempt.end <= self._checkpoint.offset

    # ---------------------------------------------------------------- around it

    def ask_to_stop(self) -> None:
        """`stop` without waiting, for who has several to stop."""
        self._stopping.set()

    def stop(self, timeout: float = 60) -> None:
        """Lets the batch under way finish and be noted, then ends the query. Waits at most `timeout` seconds: what
        is not noted by then is delivered again at the next start. A query that does not end is left (session.py)."""
        from py4j.protocol import Py4JJavaError

        self._stopping.set()
        if self._query is None:
            return
        if self._busy.acquire(timeout=timeout):
            self._busy.release()
        try:
            with suppress(SparkLost), reaching_spark():
                self._query.stop()
        except Py4JJavaError as error:
            with self._context():
                warn("stream.not_stopped", offset=self._checkpoint.offset, error=str(error.java_exception))
        else:
            with self._context():
                emit("stream.stopped", offset=self._checkpoint.offset)

    def await_end(self, timeout: float | None = None) -> bool:
        """True when the loop has ended, by `stop`; raises what ended it otherwise. False when the time is over."""
        from pyspark.errors import StreamingQueryException

        try:
            with reaching_spark():
                ended = self._query.awaitTermination(timeout) if timeout is not None else self._query.awaitTermination()
        except StreamingQueryException as error:
            if self._stopping.is_set() and self._error is None:
                return True
            raise (self._error or failures.outside_a_batch(error, self._pipeline)) from error
        return timeout is None or bool(ended)

    @property
    def running(self) -> bool:
        """`SparkLost` when there is nobody left to ask."""
        with reaching_spark():
            return self._query is not None and bool(self._query.isActive)

    @property
    def checkpoint(self) -> Checkpoint:
        """The group's."""
        return self._checkpoint

    def _guarded(self, frame: Any, number: int) -> None:
        """Spark keeps only the text of what a batch raises; the error itself is kept here."""
        with self._busy, self._context():
            if self._stopping.is_set():
                raise _Stopping  # ends the query without the batch: it is planned, and waits for the next start
            try:
                self._deliver(frame, number)
            except TidemillError as error:
                self._error = error
                raise

    def _context(self) -> AbstractContextManager[None]:
        """Of events. A group that does not lead is one sink."""
        who = {"pipeline": self._pipeline, "stage": "stream"}
        return bind(**who | ({} if self._group.leads else {"sink": self._group.sinks[0]}))

    def _check_that_the_log_still_has(self, offset: int) -> None:
        """While a sink was away the log may have been trimmed below its batch; started again, it says what it lost."""
        head = self._log.head()
        if offset < head:
            raise LogError(f"the log begins at {head} by now, the batch under way at {offset}", where=self._log.label)


def single_lane(types: Iterable[str]) -> bool:
    """Whether a group with sinks of these types gets all of a batch in one lane."""
    return any(registry.load("sinks", kind).capabilities.single_lane for kind in types)


class _Stopping(Exception):
    pass
