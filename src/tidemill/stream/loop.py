"""LOOP TWO: log → Spark → sinks (or dead letters) → checkpoint → acknowledge → trim, for one group of sinks.

`StreamLoop._deliver` is the loop's body. It gets each batch, one at a time, in order: from Spark, as micro-batches
(micro_batch.py), or in real time from a thread that feeds standing lanes (realtime.py).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidemill.config.spec import Batch, Sharding, Trigger
from tidemill.dlq import DeadLetters, Kept
from tidemill.errors import LogError, SparkLost, TidemillError, is_retryable
from tidemill.log import LogReader
from tidemill.model.delivery import Checkpoint
from tidemill.retry import RetryPolicy
from tidemill.stream.batch import failures
from tidemill.stream.batch.attempt import Attempt
from tidemill.stream.batch.ordering import ordering, single_lane
from tidemill.stream.batch.plan import Plan
from tidemill.stream.dead_letters import DeadLetterWriter
from tidemill.stream.position import pins
from tidemill.stream.position.commit_policy import SinkGroup
from tidemill.stream.position.ledger import Ledger
from tidemill.stream.position.pin_file import PinFile
from tidemill.stream.report import BatchReport
from tidemill.stream.schema import known_file
from tidemill.stream.schema.barrier import SchemaBarrier
from tidemill.stream.schema.sensing import SensingKeeper
from tidemill.stream.schema.structures import DerivedStructures, Known, merge
from tidemill.stream.spark import source
from tidemill.stream.spark.session import cores, has_ample_slots, reach_spark
from tidemill.stream.superseded import Follower
from tidemill.stream.trace import BatchTracer
from tidemill.stream.trigger.callback import Stopping
from tidemill.stream.trigger.dispatch import Dispatch
from tidemill.stream.trigger.growth import Lanes
from tidemill.stream.trigger.micro_batch import MicroBatches
from tidemill.stream.trigger.realtime import RealTime
from tidemill.stream.trigger.standing import EpochLost
from tidemill.telemetry.context import bind
from tidemill.telemetry.events import emit, warn
from tidemill.telemetry.failpoints import failpoint
from tidemill.telemetry.relay import replay
from tidemill.telemetry.tracer import Tracer

_WAITED_FOR = RetryPolicy(seconds=600.0)
_WAITED_FOR_IN_LANE_SECONDS = 10.0
_ASK_SECONDS = 0.5

# For sinks that the pipeline does not wait for: a task ends at the first error and leaves its core to others; the
# driver tries again for as long as it takes.
_NOT_WAITED_FOR = RetryPolicy(most=30.0)


class StreamLoop:
    """Delivers a pipeline's log to one group of sinks. `start`, then `await_end`; `stop` from any thread.

    `sinks` are the group's, as (type, settings) pairs with plain values: each worker builds its own, and `processors`
    are the same. The group's position in the ledger says where to begin; `spark_dir` may be lost at any time.
    `structures` keeps what processors teach of their tables, `sensing` what workers see of schemas; None where nobody
    asks. `barrier` makes the barrier of schema changes; without one, lanes follow them as they meet them.
    `dead_letters` are None where an event that a sink will never take is to stop the group; the `follower` knows
    which dead letters of its sinks there are already, also then. `on_batch` is called after each checkpoint, `on_retry`
    before each new attempt with an error per sink, `on_error` where a job was lost and no sink is to blame: all in the
    batch's thread. `retry` is for the lanes that failed; each has tried by itself for `lane_retry_seconds` before.
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
        trigger: Trigger | None = None,
        dead_letters: DeadLetters | None = None,
        follower: Follower | None = None,
        processors: Sequence[tuple[str, dict[str, Any]]] = (),
        structures: DerivedStructures | None = None,
        sensing: SensingKeeper | None = None,
        barrier: Callable[[threading.Event], SchemaBarrier] | None = None,
        retry: RetryPolicy | None = None,
        lane_retry_seconds: float | None = None,
        on_batch: Callable[[BatchReport], None] = lambda report: None,
        on_retry: Callable[[Mapping[str, str]], None] = lambda errors: None,
        on_error: Callable[[TidemillError], None] = lambda problem: None,
        tracer: Tracer | None = None,
    ) -> None:
        self._group, self._ledger = group, ledger
        self._pipeline, self._source_id, self._log_uri = ledger.policy.pipeline, source_id, log_uri
        self._specs = tuple((kind, dict(config)) for kind, config in sinks)
        self._processors = tuple((kind, dict(config)) for kind, config in processors)
        self._structures = structures
        self._batch, self._sharding = batch or Batch(), ordering(sharding or Sharding(), self._processors)
        self._spark, self._spark_dir = spark, spark_dir
        self._asked = 1 if single_lane(kind for kind, _ in sinks) else self._sharding.count or lanes
        self._trigger = trigger or Trigger()
        self._lanes = Lanes.of(
            self._asked, cores(spark), standing=self._trigger.real_time, ample=has_ample_slots(spark)
        )
        self._retry = retry or (_WAITED_FOR if group.leads else _NOT_WAITED_FOR)
        in_lane = _WAITED_FOR_IN_LANE_SECONDS if group.leads else 0.0
        self._lane_retry_seconds = in_lane if lane_retry_seconds is None else lane_retry_seconds
        self._on_batch, self._on_retry, self._on_error = on_batch, on_retry, on_error
        self._log = LogReader(ledger.log_store.reopen())
        self._trace = BatchTracer(tracer, self._pipeline, group, self._log, real_time=self._trigger.real_time)
        self._query: Any = None
        self._ask_at = 0.0  # when Spark is asked again whether the query runs
        self._batches: MicroBatches | RealTime | None = None
        self._error: TidemillError | None = None
        self._stopping = threading.Event()
        self._follower = follower
        self._sensing, self._sensed = sensing, list[bytes | None]()
        self._barrier = barrier(self._stopping) if barrier else None
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
            with reach_spark():
                self._query = self._start_query()
        except TidemillError:
            raise
        except Exception as error:  # the disk is full, or anything that Spark says
            raise failures.start_error(error, self._spark_dir) from error
        emit("stream.started", offset=self._checkpoint.offset, lanes=self._lanes.count)

    def _start_query(self) -> Any:
        self._plan = Plan(
            self._pipeline, self._source_id, self._log_uri, self._group.key, uuid.uuid4().hex,
            self._specs,
            delivered=self._checkpoint.offset, retry_seconds=self._lane_retry_seconds,
            dead_letters=self._dead_letters is not None, version=self._checkpoint.version,
            since=datetime.now(UTC).isoformat(timespec="milliseconds"), processors=self._processors,
            known=self._structures.load() if self._structures and self._processors else {},
            known_file=str((self._spark_dir / "structures.json").absolute()) if self._processors or self._barrier
            else "",
            sensing=self._sensing.plan() if self._sensing else None,
            **(self._barrier.seen if self._barrier else {}), traced=self._trace.on,
        )  # fmt: skip
        self._publish_known()
        name = f"{self._group.key} {self._plan.run[:8]}"
        own = "" if self._group.leads else self._group.sinks[0]
        at = (self._spark_dir, self._checkpoint.offset, self._ledger.state, self._pipeline, own)
        asked = self._asked is not None
        if self._trigger.real_time:
            epochs, pin_file = pins.settle_real_time(*at)
            rule = source.admission(
                self._checkpoint.offset, self._batch, self._sharding, self._lanes.count, asked=asked
            )
            self._batches = RealTime(
                self._spark, self._stopping, self._guard, lanes=self._lanes, log=self._ledger.log_store,
                epoch_seconds=self._trigger.epoch_seconds, offset=lambda: self._checkpoint.offset, retry=self._retry,
                context=self._context, on_error=self._on_error, on_failure=self._keep_error,
            )  # fmt: skip
            return self._batches.start(name, self._plan, rule, epochs, pin_file)
        query_dir, begin = pins.settle(*at)
        pinned = PinFile(self._spark_dir).read()
        rule = source.admission(begin, self._batch, self._sharding, self._lanes.count, asked=asked, pinned=pinned)
        self._batches = MicroBatches(self._spark, self._stopping, self._guard)
        return self._batches.start(name, self._plan, rule, query_dir)

    # ---------------------------------------------------------------- the loop

    def _deliver(self, dispatch: Dispatch, number: int) -> None:
        began = time.monotonic()
        changed = self._cross_barrier(dispatch)
        self._trace.lap("stream.barrier")
        attempt, kept, retries = self._until_every_sink_has_it(dispatch, changed=changed)
        if self._is_old(attempt):
            return  # Spark died between our checkpoint and its own note of this batch
        delivery_seconds = time.monotonic() - began
        failpoint("stream.delivered")
        self._note_superseded(attempt)
        if self._sensing is not None:
            self._sensing.take(attempt.end, self._sensed)
            failpoint("stream.sensed")
        mark, barrier = self._log.mark_at(attempt.end), self._log.barrier_at(attempt.start)
        self._trace.lap("stream.receipts")
        # Invariants 1 and 2
        self._checkpoint = self._ledger.advance(self._group, attempt.end, mark.position, base=mark.offset)
        self._trace.lap("stream.checkpoint")
        report = BatchReport(
            number, attempt.start, attempt.end, mark.position, attempt.lanes, time.monotonic() - began,
            self._log.tail().offset - attempt.end, attempt.receipts, retries, self._group.key,
            kept.new, kept.dropped, barrier, attempt.processor_counts(), delivery_seconds,
        )  # fmt: skip
        self._trace.finish(report)
        self._on_batch(report)
        if barrier:
            emit("stream.barrier_passed", offset=attempt.start, kinds=",".join(barrier.kinds), position=mark.position)

    def _note_superseded(self, attempt: Attempt) -> None:
        """Durable before the checkpoint moves: a batch that is not covered comes again, and is compared again."""
        if self._follower is not None:
            self._follower.refresh(attempt.start)
            left_out, quarantines = attempt.left_out_by_sink(), self._plan.quarantines
            self._follower.compare(self._log, attempt.start, attempt.end, left_out, quarantines)
            failpoint("stream.dead_letters_compared")

    def _cross_barrier(self, dispatch: Dispatch) -> bool:
        """What is before the batch was delivered by every sink of the group: now they make the schema changes that it
        begins. Whether sinks see tables otherwise since."""
        if self._barrier is None:
            return False
        batch = dispatch.bounds(self._checkpoint.offset)
        if batch.end <= batch.start:
            return False
        if not self._barrier.cross(batch.start, batch.end):
            raise Stopping
        plan = replace(self._plan, **self._barrier.seen)
        if plan == self._plan:
            return False
        self._plan = plan
        self._publish_known()
        return True

    def _until_every_sink_has_it(self, dispatch: Dispatch, *, changed: bool) -> tuple[Attempt, Kept, int]:
        """All lanes; then the (lane, sink) pairs that failed again, until none is left."""
        began = time.monotonic()
        attempt: Attempt | None = None
        kept, tries = Kept(), self._retry.begin(self._stopping)
        while True:
            try:
                attempt = self._next(dispatch, attempt, changed=changed)
            except EpochLost:
                raise  # the lanes are gone: the next epoch gets the same batch
            except Exception as error:  # whatever Spark says of a job that it lost
                problem: TidemillError = failures.job_error(error, self._pipeline, self._checkpoint.offset)
                errors = {}
                if not is_retryable(problem):
                    raise problem from error
            else:
                if attempt.learned:
                    self._learn(attempt.learned)
                    failpoint("stream.structures_kept")
                if attempt.dead_letters and self._dead_letters is not None:
                    kept += self._dead_letters.keep(attempt.dead_letters)  # before the rest is written: lane/deliver
                    failpoint("stream.dead_letters_kept")
                missing = [] if self._is_old(attempt) else attempt.missing(self._group.sinks)
                if not missing:
                    return attempt, kept, tries.taken
                problem = attempt.problem(self._pipeline, self._group.sinks)
                if attempt.refused():
                    raise problem
                if attempt.dead_letters or attempt.learned:
                    continue
                errors = {sink: attempt.error(sink) for sink in missing}
            if tries.over():
                raise problem
            if attempt and self._barrier and self._barrier.overdue(attempt.end, time.monotonic() - began):
                raise self._barrier.not_reached(problem, attempt.end)
            warn("stream.retrying", sinks=",".join(errors), pause=round(tries.wait, 1),
                 error=failures.first_line(problem))  # fmt: skip
            if errors:
                self._on_retry(errors)
            else:
                self._on_error(problem)
            if not tries.pause():
                raise problem
            self._check_that_the_log_still_has(attempt.start if attempt else self._checkpoint.offset)

    def _next(self, dispatch: Dispatch, before: Attempt | None, *, changed: bool) -> Attempt:
        began = self._trace.clock()
        if before is not None:
            results = dispatch.again(self._plan, before.failed())
        else:
            results = dispatch.first(self._plan, self._group.sinks if changed else ())
        self._trace.note_attempt(began, results)
        for packed in filter(None, results.column("telemetry").to_pylist()):
            replay(packed)
        if before is None:
            self._sensed = results.column("sensed").to_pylist()
        attempt = Attempt.of(results)
        return attempt if before is None else before.after(attempt)

    def _learn(self, learned: Known) -> None:
        """Durable before a row of the new structure is written: what is replayed has it again (structures.py)."""
        known = merge(self._plan.known, learned)
        if self._structures is not None:
            self._structures.save(known)
            known = self._structures.load()  # another group may have learned the same column with another type
        self._plan = replace(self._plan, known=known)
        self._publish_known()

    def _publish_known(self) -> None:
        if self._plan.known_file:
            known_file.write(Path(self._plan.known_file), self._plan.changing)

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
        if self._query is None or self._batches is None:
            return
        self._batches.finish(timeout)
        try:
            with suppress(SparkLost), reach_spark():
                self._query.stop()
        except Py4JJavaError as error:
            with self._context():
                warn("stream.not_stopped", offset=self._checkpoint.offset, error=str(error.java_exception))
        else:
            with self._context():
                emit("stream.stopped", offset=self._checkpoint.offset)
        self._batches.close()

    def await_end(self, timeout: float | None = None) -> bool:
        """True when the loop has ended, by `stop`; raises what ended it otherwise. False when the time is over."""
        from pyspark.errors import StreamingQueryException

        try:
            with reach_spark():
                ended = self._query.awaitTermination(timeout) if timeout is not None else self._query.awaitTermination()
        except StreamingQueryException as error:
            if self._batches is not None:
                self._batches.close()
            if self._stopping.is_set() and self._error is None:
                return True
            raise (self._error or failures.outside_a_batch(error, self._pipeline)) from error
        return timeout is None or bool(ended)

    @property
    def running(self) -> bool:
        """`SparkLost` when there is nobody left to ask. Asked twice a second at most: it is a call into the JVM."""
        if self._query is None:
            return False
        if self._error is None and not self._stopping.is_set() and time.monotonic() < self._ask_at:
            return True
        with reach_spark():
            active = bool(self._query.isActive)
        self._ask_at = time.monotonic() + _ASK_SECONDS if active else 0.0
        return active

    @property
    def lanes_stand(self) -> bool:
        """Whether events that come now are delivered: Spark has started the query, and in real time its tasks."""
        with reach_spark():
            return self._batches is not None and self._batches.lanes_stand()

    @property
    def checkpoint(self) -> Checkpoint:
        """The group's."""
        return self._checkpoint

    def _guard(self, dispatch: Dispatch, number: int) -> None:
        """Spark keeps only the text of what a batch raises; the error itself is kept here."""
        with self._context(), self._trace.batch(dispatch, self._checkpoint.offset):
            try:
                self._deliver(dispatch, number)
            except TidemillError as error:
                self._keep_error(error)
                raise

    def _keep_error(self, error: TidemillError) -> None:
        self._error = error

    def _context(self) -> AbstractContextManager[None]:
        """Of events. A group that does not lead is one sink."""
        who = {"pipeline": self._pipeline, "stage": "stream"}
        return bind(**who | ({} if self._group.leads else {"sink": self._group.sinks[0]}))

    def _check_that_the_log_still_has(self, offset: int) -> None:
        """While a sink was away the log may have been trimmed below its batch; started again, it says what it lost."""
        head = self._log.head()
        if offset < head:
            raise LogError(f"the log begins at {head} by now, the batch under way at {offset}", where=self._log.label)
