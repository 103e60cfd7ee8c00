"""LOOP TWO: log → Spark → sinks → dead letters → checkpoint → acknowledge → trim, for one group of sinks.

`StreamLoop._deliver` is the loop's body: Spark calls it with each batch, one at a time, in order.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidemill import registry
from tidemill.config.spec import Batch, Sharding
from tidemill.dlq import DeadLetters, Kept
from tidemill.errors import DeadLettersFull, DeliveryError, LogError, Refused, SparkLost, TidemillError, is_retryable
from tidemill.log import LogReader
from tidemill.model.delivery import Checkpoint
from tidemill.stream import pins, source
from tidemill.stream.attempt import Attempt
from tidemill.stream.ledger import Ledger
from tidemill.stream.patience import ENDLESS, Patience, Pauses
from tidemill.stream.plan import Plan
from tidemill.stream.policy import Group
from tidemill.stream.report import BatchReport
from tidemill.stream.session import cores, reaching_spark
from tidemill.telemetry.events import emit, warn
from tidemill.telemetry.points import point


class StreamLoop:
    """Delivers a pipeline's log to one group of sinks. `start`, then `await_end`; `stop` from any thread.

    `sinks` are the group's, as (type, settings) pairs with plain values: each worker builds its own. The group's
    position in the ledger says where to begin; `spark_dir` may be lost at any time. `letters` are None where an event
    that a sink will never take is to stop the group. `on_batch` is called after each checkpoint, `on_retry` with an
    error per sink before each new attempt; both in Spark's thread.
    """

    def __init__(
        self,
        group: Group,
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
        letters: DeadLetters | None = None,
        patience: Patience | None = None,
        on_batch: Callable[[BatchReport], None] = lambda report: None,
        on_retry: Callable[[Mapping[str, str]], None] = lambda errors: None,
    ) -> None:
        self._group, self._ledger, self._letters = group, ledger, letters
        self._pipeline, self._source_id, self._log_uri = ledger.policy.pipeline, source_id, log_uri
        self._specs = tuple((kind, dict(config)) for kind, config in sinks)
        self._batch, self._sharding = batch or Batch(), sharding or Sharding()
        self._spark, self._spark_dir = spark, spark_dir
        self._asked = 1 if single_lane(kind for kind, _ in sinks) else self._sharding.count or lanes
        self._lanes = self._asked or cores(spark)
        self._patience = patience or (Patience() if group.leads else ENDLESS)
        self._on_batch, self._on_retry = on_batch, on_retry
        self._log = LogReader(log_uri)
        self._query: Any = None
        self._error: TidemillError | None = None
        self._stopping = threading.Event()
        self._busy = threading.Lock()

    def start(self) -> None:
        """Begins at the group's position and returns while the query starts."""
        self._checkpoint = self._ledger.begin(self._group)
        query_dir, begin = pins.settle(self._spark_dir, self._checkpoint.offset)
        self._plan = Plan(
            self._pipeline, self._source_id, self._log_uri, self._group.key, uuid.uuid4().hex, self._specs,
            delivered=self._checkpoint.offset, patience=self._patience.in_task, letters=self._letters is not None,
        )  # fmt: skip
        given = source.options(
            self._plan, begin, self._batch, self._sharding, self._lanes, asked=self._asked is not None
        )
        stream = self._spark.readStream.format(source.NAME).options(**given).load().writeStream
        stream = stream.queryName(f"{self._group.key} {self._plan.run[:8]}").foreachBatch(self._guarded)
        # No `as_uri`: Hadoop takes a path's percent signs literally, and pins.py would look elsewhere.
        self._query = stream.option("checkpointLocation", f"file://{query_dir.absolute()}").start()
        emit("stream.started", **self._who(), offset=self._checkpoint.offset, lanes=self._lanes)

    # ---------------------------------------------------------------- the loop

    def _deliver(self, frame: Any, number: int) -> None:
        began = time.monotonic()
        attempt, retries = self._until_every_sink_has_it(frame)
        if attempt.end <= self._checkpoint.offset:
            return  # Spark died between our checkpoint and its own note of this batch
        point("stream.delivered")
        kept = self._keep_letters(attempt)  # before the checkpoint: a crash in between brings the same ones again
        point("stream.letters_kept")
        position = self._log.position_at(attempt.end)
        self._checkpoint = self._ledger.advance(self._group, attempt.end, position)  # Invariants 1 and 2
        self._on_batch(
            BatchReport(
                number, attempt.start, attempt.end, position, attempt.lanes, time.monotonic() - began,
                self._log.tail().offset - attempt.end, attempt.newest, attempt.receipts, retries, self._group.key,
                kept.new, kept.dropped,
            )
        )  # fmt: skip

    def _until_every_sink_has_it(self, frame: Any) -> tuple[Attempt, int]:
        """One job; then jobs for the (lane, sink) pairs that failed, until none is left."""
        attempt: Attempt | None = None
        pauses = Pauses(self._patience, self._stopping)
        while True:
            try:
                if attempt is None:
                    attempt = Attempt.of(frame.toArrow())
                else:
                    again = source.again(self._spark, self._plan, attempt.failed())
                    attempt = attempt.after(Attempt.of(again))
            except Exception as error:
                # Sinks' errors come as receipts; this is a worker that was killed, or an executor lost.
                if pauses.over:
                    raise self._job_failed(error) from error
                warn("stream.job_failed", **self._who(), error=_first_line(error), pause=round(pauses.next, 1))
                self._on_retry(dict.fromkeys(self._group.sinks, f"a Spark job failed: {_first_line(error)}"))
            else:
                missing = [] if attempt.end <= self._checkpoint.offset else attempt.missing(self._group.sinks)
                if not missing:
                    return attempt, pauses.taken
                if attempt.refused() or pauses.over:
                    raise attempt.problem(self._pipeline, self._group.sinks)
                warn("stream.retrying", **self._who(), sinks=",".join(missing), pause=round(pauses.next, 1))
                self._on_retry({sink: attempt.error(sink) for sink in missing})
            pauses.take()
            self._check_that_the_log_still_has(attempt.start if attempt else self._checkpoint.offset)

    def _keep_letters(self, attempt: Attempt) -> Kept:
        """Waits while there is no room for them, unless that is to stop the group."""
        if not attempt.letters or self._letters is None:
            return Kept()
        pauses = Pauses(ENDLESS, self._stopping)
        while True:
            try:
                kept = self._letters.put(attempt.letters)
                break
            except TidemillError as error:
                if self._letters.config.overflow == "halt" and isinstance(error, DeadLettersFull):
                    raise Refused(error.what, where=error.where, fix=error.fix) from error
                if pauses.over or not is_retryable(error):
                    raise
                warn("stream.letters_wait", **self._who(), error=error.what, pause=round(pauses.next, 1))
                self._on_retry({letter.sink: f"{error.what}\n{error.fix}" for letter in attempt.letters})
            pauses.take()
        for letter in kept.new:  # Invariant 7
            warn("stream.letter_kept", **self._who(letter.sink), offset=letter.offset, table=letter.table,
                 reason=letter.reason)  # fmt: skip
        for letter in kept.dropped:
            warn("stream.letter_dropped", **self._who(letter.sink), offset=letter.offset, table=letter.table,
                 event_id=letter.event_id, reason="dlq.overflow is drop_oldest")  # fmt: skip
        return kept

    # ---------------------------------------------------------------- around it

    def ask_to_stop(self) -> None:
        """`stop` without waiting, for who has several to stop."""
        self._stopping.set()

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
        emit("stream.stopped", **self._who(), offset=self._checkpoint.offset)

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
        """The group's."""
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

    def _who(self, sink: str = "") -> dict[str, str]:
        sinks = sink or ("" if self._group.leads else self._group.sinks[0])
        return {"pipeline": self._pipeline} | ({"sink": sinks} if sinks else {})

    def _check_that_the_log_still_has(self, offset: int) -> None:
        """While a sink was away the log may have been trimmed below its batch; started again, it says what it lost."""
        head = self._log.head()
        if offset < head:
            raise LogError(f"the log begins at {head} by now, the batch under way at {offset}", where=self._log_uri)

    def _job_failed(self, error: Exception) -> DeliveryError:
        return DeliveryError(
            f"a Spark job failed: {_first_line(error)}",
            where=f'pipeline "{self._pipeline}", checkpoint {self._checkpoint.offset}',
            fix="Nothing is lost: start the pipeline again. If it repeats, look at memory and Spark's log.",
        )


def single_lane(types: Iterable[str]) -> bool:
    """Whether a group with sinks of these types gets all of a batch in one lane."""
    return any(getattr(registry.load("sinks", kind), "single_lane", False) for kind in types)


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
