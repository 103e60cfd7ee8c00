"""Real time (ADR 43): a Spark batch is an epoch of minutes whose tasks stand, and the driver feeds them.

    admit a batch -> pin it on disk -> send it to the standing lanes -> the loop's body, with their receipts -> the next

Spark places, starts and replaces the tasks; the ledger is the truth, as with micro-batches. Whatever is lost (a task,
an executor, a connection) ends the epoch, and the next one begins at the checkpoint with the batch that was pinned.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemill.errors import SparkLost, StreamError, TidemillError, is_retryable
from tidemill.log import LogReader
from tidemill.log.notice import AppendNotice
from tidemill.log.store import Store
from tidemill.model.position import Offset
from tidemill.retry import Retries, RetryPolicy
from tidemill.stream.batch import failures
from tidemill.stream.batch.admission import LOOK_SECONDS, look
from tidemill.stream.batch.plan import Plan
from tidemill.stream.position.pin_file import PinFile, PinnedBatch
from tidemill.stream.spark import epochs
from tidemill.stream.spark.session import lane_addresses, reach_spark
from tidemill.stream.trigger.callback import BatchFunction, Stopping
from tidemill.stream.trigger.dispatch import Dispatch
from tidemill.stream.trigger.epoch_turns import Turn, epoch_turns
from tidemill.stream.trigger.growth import Lanes
from tidemill.stream.trigger.interpreter import FEEDER, share_interpreter
from tidemill.stream.trigger.standing import EpochLost, LaneServer, StandingDispatch, StandingLanes
from tidemill.telemetry.events import emit, warn
from tidemill.telemetry.failpoints import failpoint

# Tasks that find a free slot stand within seconds, or within a minute where workers must start first.
_STAND_SECONDS = 90.0
# A lane that was told to return may have a write to finish, with its own retries.
_RETURN_SECONDS = 30.0
_CANCEL_SECONDS = 10.0
# Spark has killed a worker by then that does not return; of a host that is cut off nobody hears.
_LATE_SECONDS = 8.0


@dataclass(slots=True)
class StandingEpoch:
    """`over` once Spark's job has ended, well or not."""

    number: int
    over: threading.Event = field(default_factory=threading.Event)
    lost: str = ""
    failure: BaseException | None = None


class RealTime:
    """Feeds one group's standing lanes. `deliver` is the loop's body and `offset` where it stands; both are used in a
    thread of this class, within `context`. `on_error` hears of what is tried again, `on_failure` of what ends it."""

    def __init__(
        self,
        spark: Any,
        stopping: threading.Event,
        deliver: Callable[[Dispatch, int], None],
        *,
        lanes: Lanes,
        log: Store,
        epoch_seconds: float,
        offset: Callable[[], Offset],
        retry: RetryPolicy,
        context: Callable[[], AbstractContextManager[None]],
        on_error: Callable[[TidemillError], None],
        on_failure: Callable[[TidemillError], None],
    ) -> None:
        self._spark, self._stopping, self._deliver = spark, stopping, deliver
        self._lanes, self._log, self._epoch_seconds, self._offset = lanes, log, epoch_seconds, offset
        self._retry = retry
        self._retries: Retries | None = None  # begun by the first epoch that is lost
        self._context, self._on_error, self._on_failure = context, on_error, on_failure
        self._idle = threading.Event()
        self._idle.set()
        self._server: LaneServer | None = None
        self._waking, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._query: Any = None
        self._function: BatchFunction | None = None
        self._batches = 0
        self._stood = False

    def start(self, name: str, plan: Plan, rule: Mapping[str, Any], directory: Path, pins: PinFile) -> Any:
        """The query. Its directory holds nothing that a restart needs."""
        self._plan, self._rule, self._pins = plan, rule, pins
        self._pinned, self._planned_at = pins.read(), 0
        self._server = LaneServer(*lane_addresses(self._spark))
        self._function = BatchFunction(self._spark, self._stand)
        stream = epochs.read_epochs(self._spark).writeStream.queryName(name).foreachBatch(self._function)
        self._query = stream.option("checkpointLocation", f"file://{directory.absolute()}").start()
        return self._query

    def finish(self, timeout: float) -> None:
        """Waits for the batch under way and for the lanes to return. Spark may not stop a query whose tasks stand: what
        does not return in time is cancelled first."""
        self._wake()
        if not self._idle.wait(timeout):
            self._cancel()
            self._idle.wait(_CANCEL_SECONDS)

    def _wake(self) -> None:
        """The feeder looks at once whether it is to end."""
        with suppress(OSError):
            self._waking.send(b"!")

    def lanes_stand(self) -> bool:
        """Whether an epoch's lanes have stood; between two epochs they do not, for seconds."""
        return self._stood

    def close(self) -> None:
        """Once the query has ended."""
        self._close_own()
        if self._function is not None:
            self._function.hang_up()

    def _close_own(self) -> None:
        if self._server is not None:
            self._server.close()
            self._pins.close()
            self._waking.close()
            self._woken.close()

    # ---------------------------------------------------------------- Spark's thread

    def _stand(self, frame: Any, number: int) -> None:
        """One epoch: returns when its tasks have returned. What it raises ends the query."""
        self._idle.clear()
        try:
            with self._context(), epoch_turns.turn(self._stopping.is_set) as turn:
                self._stand_through(StandingEpoch(number + 1), turn)
        except BaseException:
            self._close_own()
            raise
        finally:
            self._idle.set()

    def _stand_through(self, epoch: StandingEpoch, turn: Turn) -> None:
        assert self._server is not None
        if self._stopping.is_set():
            raise Stopping
        self._server.expect(epoch.number)
        self._lanes.begin(self._backlog())
        feeder = threading.Thread(target=self._feed, args=(epoch, turn), name=FEEDER)
        feeder.start()
        share_interpreter()
        problem: TidemillError | None = None
        try:
            epochs.stand_through(self._spark, self._plan, self._server.place(self._lanes.count), epoch.number)
        except Exception as error:  # noqa: BLE001  whatever Spark says of a job that it lost
            problem = failures.job_error(error, self._plan.pipeline, self._offset())
        finally:
            epoch.over.set()
            self._wake()
            feeder.join()
            share_interpreter()
        if problem is not None:
            self._await_tasks()
        if epoch.failure is not None:
            if isinstance(epoch.failure, TidemillError):
                self._on_failure(epoch.failure)
            raise epoch.failure
        if self._stopping.is_set():
            raise Stopping
        if problem is None and epoch.lost:
            problem = StreamError(
                epoch.lost,
                where=f'pipeline "{self._plan.pipeline}", checkpoint {self._offset()}',
                fix="Nothing is lost: the next epoch begins at the checkpoint. If it repeats, look at Spark's log.",
            )
        if problem is not None:
            self._recover(problem, epoch.lost)

    def _backlog(self) -> int:
        try:
            return LogReader(self._log.reopen()).tail().offset - self._offset()
        except TidemillError as error:
            problem = failures.outside_a_batch(failures.Carried(error), self._plan.pipeline)
            self._on_failure(problem)
            raise problem from error

    def _await_tasks(self) -> None:
        """A job ends with the first of its tasks that fails, or when it is cancelled, and leaves the others to their
        end. What one of them writes late must not come after what the next epoch, or the next run, writes."""
        if self._query is None:
            return
        with suppress(SparkLost), reach_spark():
            if not epochs.await_tasks(self._spark, str(self._query.runId), _LATE_SECONDS):
                warn("stream.lanes_left", seconds=_LATE_SECONDS)

    def _recover(self, problem: TidemillError, lost: str) -> None:
        """The next epoch follows when this returns."""
        self._retries = retries = self._retries or self._retry.begin(self._stopping)
        if retries.over() or not is_retryable(problem):
            self._on_failure(problem)
            raise problem
        warn("stream.epoch_lost", pause=round(retries.wait, 1), lost=lost, error=failures.first_line(problem))
        self._on_error(problem)
        if not retries.pause():
            raise Stopping

    # ---------------------------------------------------------------- the feeder's thread, one per epoch

    def _feed(self, epoch: StandingEpoch, turn: Turn) -> None:
        assert self._server is not None
        lanes: StandingLanes | None = None
        try:
            with self._context():
                here = self._server.gather(self._lanes.count, _STAND_SECONDS, epoch.over, self._stopping)
                turn.end()
                lanes = StandingLanes(here, epoch.over)
                if not self._stopping.is_set():
                    self._check_that_all_stand(len(here), epoch)
                    with lanes.beating():
                        self._feed_lanes(lanes)
        except EpochLost as error:
            epoch.lost = str(error)
        except BaseException as error:  # noqa: BLE001  it is raised in Spark's thread
            epoch.failure = error
        finally:
            self._server.expect(-1)
            if lanes is not None:
                lanes.dismiss()
            if not epoch.over.wait(_RETURN_SECONDS):
                self._cancel()

    def _check_that_all_stand(self, here: int, epoch: StandingEpoch) -> None:
        if here == self._lanes.count:
            self._stood = True
            emit("stream.lanes_standing", epoch=epoch.number, lanes=here)
        elif epoch.over.is_set():
            raise EpochLost("Spark ended the job of the standing lanes before all of them stood")
        else:
            raise EpochLost(
                f"of {self._lanes.count} standing lanes {here} found a free slot within {_STAND_SECONDS:.0f} seconds: "
                "Spark needs a slot for each, and one more for other jobs"
            )

    def _feed_lanes(self, lanes: StandingLanes) -> None:
        log, notice = LogReader(self._log.reopen()), AppendNotice(self._plan.log)
        until = time.monotonic() + self._epoch_seconds
        lanes.watch(self._woken.fileno())
        with suppress(BlockingIOError):  # meant for the feeder before
            self._woken.recv(64)
        watched: int | None = None
        gathering = False
        try:
            while not self._stopping.is_set() and time.monotonic() < until:
                if watched is None and (watched := notice.fileno()) is not None:
                    lanes.watch(watched)
                batch = self._next(log)
                if batch is None:
                    for _ in lanes.hear():
                        pass  # heartbeats
                    gathering = log.tail().offset > self._offset()  # `max_ms` is not over
                    lanes.wait(LOOK_SECONDS if gathering else notice.look_seconds)
                    notice.clear()
                    continue
                if not gathering:
                    notice.note_append()
                gathering, began = False, time.monotonic()
                self._deliver(StandingDispatch(lanes, batch, self._planned_at), self._batches)
                self._batches += 1
                self._retries = None
                backlog, seconds = log.tail().offset - batch.end, time.monotonic() - began
                if self._lanes.are_too_few(backlog, batch.end - batch.start, seconds):
                    return
        finally:
            notice.close()

    def _next(self, log: LogReader) -> PinnedBatch | None:
        """The batch at the checkpoint, pinned: no lane sees it before it is on disk (invariant 5)."""
        at = self._offset()
        if self._pinned is not None and self._pinned.start == at:
            return self._pinned if log.tail().offset >= self._pinned.end else None  # of a log that was begun anew
        try:
            found = look(log, {**self._rule, **self._lanes.rule()}, at)
        except TidemillError as error:
            raise failures.outside_a_batch(failures.Carried(error), self._plan.pipeline) from error
        if found is None:
            return None
        self._planned_at = time.time_ns()
        batch = PinnedBatch(at, found["offset"], found["lanes"], found["by"])
        self._pins.write(batch)
        self._pinned = batch
        failpoint("stream.pinned")
        return batch

    def _cancel(self) -> None:
        """Ends the tasks that do not return. A worker that is stopped or hangs in a write is killed by Spark."""
        if self._query is not None:
            with suppress(SparkLost), reach_spark():
                self._spark.sparkContext.cancelJobGroup(str(self._query.runId))
