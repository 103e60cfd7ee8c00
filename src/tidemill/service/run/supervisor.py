"""One pipeline of a runtime, through all its runs: each has a thread that watches it from start to end.

Only that thread touches the `PipelineRun`. Other threads ask it to end, to pause or to go on, and wait for it; the
most urgent wish counts. A pause that goes on capturing (`pause.capture`) does not end the run: it is held.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.config import Pipeline
from tidemill.errors import LeaseLost, LifecycleError, SparkLost, TidemillError, to_data
from tidemill.service.cause import Cause, current_actor
from tidemill.service.lease.leases import HeldLease, LeaseKeeper
from tidemill.service.paced_event import PacedEvent, rest_seconds
from tidemill.service.run.metering import show_lease
from tidemill.service.run.ownership import lock_pipeline, lock_pipeline_of
from tidemill.service.run.pipeline_run import PipelineRun
from tidemill.service.run.record import RunRecord
from tidemill.service.run.status import PipelineStatus, SinkStatus, State
from tidemill.service.run.subscribers import Subscribers
from tidemill.stream.batch.failures import explain
from tidemill.stream.position.commit_policy import policy_of
from tidemill.telemetry.context import bind
from tidemill.telemetry.metrics import Metrics
from tidemill.telemetry.tracer import Tracer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WATCH_SECONDS = 0.1
_ALL_DELIVERED = "what was there is delivered"
_REST_WATCH_SECONDS = 0.5  # once nothing changes: a look costs the same whether or not anything happened
_DRAIN_WATCH_SECONDS = 0.05
SILENT_SECONDS = 30.0
"""After which a look that has not come back is told: its calls wait for Spark's Java process."""
STOP_SECONDS = 60.0
"""For the batches under way. What is not checkpointed by then is delivered again at the next start."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run is to end: until `drain_until` (monotonic; None: no drain) what the log holds is delivered, then the
    batches under way have `seconds`, and the state is `into`: paused or stopped. `cause` is who asked for it."""

    into: State
    drain_until: float | None
    seconds: float
    cause: Cause | None = None

    def and_also(self, other: Ending) -> Ending:
        """The sooner end of both; who wants it stopped wins over who wants it paused."""
        into = self.into if self.into is other.into else State.STOPPED
        drains = [each.drain_until for each in (self, other) if each.drain_until is not None]
        drain_until = min(drains) if len(drains) == 2 else None
        return Ending(into, drain_until, min(self.seconds, other.seconds), other.cause or self.cause)


class Supervisor:
    """Every method from any thread. `starting` is held by who starts the pipeline or takes it away."""

    def __init__(
        self,
        pipeline: Pipeline,
        subscribers: Subscribers,
        metrics: Metrics,
        said: Path | None,
        leases: LeaseKeeper | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.trigger = pipeline.spec.trigger
        """Of the next run, or of what is resumed; who starts it has looked at the session's slots."""
        self._leases, self._tracer = leases, tracer
        self._lease: HeldLease | None = None
        self.starting = threading.RLock()
        self.removed = False
        self.completed = False
        """The last run delivered what was there and ended by itself (`trigger.mode: once`)."""
        self._subscribers, self._metrics, self._said = subscribers, metrics, said
        self._changing = threading.Lock()  # guards what is below
        self._status = _first_status(pipeline)
        self._owned = ExitStack()  # the lease and the state directory, from a start to a stop
        self._run: PipelineRun | None = None
        self._thread: threading.Thread | None = None
        self._ending: Ending | None = None
        self._resumption: tuple[SparkSession, Cause | None] | None = None
        self._asked, self._settled = PacedEvent(), threading.Event()
        self._looking_since: float | None = None

    @property
    def status(self) -> PipelineStatus:
        """As the last look saw it. One that hangs says so: its numbers would look as if all were well."""
        since, status = self._looking_since, self._status
        if since is None or (silent := time.monotonic() - since) < SILENT_SECONDS:
            return status
        error = SparkLost(
            f"Spark's Java process has not answered for {silent:.0f} seconds: what is shown is from before",
            where=f"pipeline {self.pipeline.name}",
            fix="Its machine may be overloaded, or the process stopped. If it stays so, end the server: another start, "
            "or another server, goes on from the checkpoint.",
        )
        return replace(status, error=to_data(error), lag_bytes=None, events_per_second=0.0)

    @property
    def state(self) -> State:
        return self._status.state

    @property
    def error(self) -> TidemillError | None:
        """What made the last run fail."""
        return self._run.error if self._run is not None else None

    @property
    def lease_epoch(self) -> int:
        """Of the lease under which the last run was; 0 before."""
        return self._lease.epoch if self._lease is not None else 0

    def settle(self) -> None:
        """Waits for a run that is ending or has failed; one that goes on is left alone."""
        with self._changing:
            thread, ending = self._thread, self._ending
            if thread is None or (ending is None and self.state is not State.FAILED):
                return
        if ending is not None and self._holds(ending):
            self._settled.wait()
        else:
            thread.join()

    def own(self, *, paused: bool = False) -> bool:
        """Takes the state directory and says whether there is something to start; False: it runs, or is `paused` as it
        is wanted. A run that is just ending is waited for. `starting` is held."""
        self.settle()
        if self.state is State.FAILING:
            raise self.refuse("it is delivering what it captured before capture failed", "Wait, or use restart.")
        if self.state is State.RUNNING or (paused and self.state is State.PAUSED):
            return False
        if self.state is not State.PAUSED:  # a paused pipeline has it still
            self._take_ownership()
        return True

    def _take_ownership(self) -> None:
        if self._leases is None:
            self._owned.enter_context(lock_pipeline(self.pipeline))
            return
        with ExitStack() as taken:
            lease = self._leases.acquire(self.pipeline.name)
            taken.callback(self._give_back, self._leases, lease)
            taken.enter_context(lock_pipeline_of(self.pipeline, lease.predecessor, self._leases.seconds / 2))
            lease.check()
            lease.on_lost = self._notice_lost_lease
            self._lease = lease
            show_lease(self._metrics, lease, held=True)
            self._owned.enter_context(taken.pop_all())

    def _notice_lost_lease(self) -> None:
        """Of a pipeline that runs its thread sees to it, at once. Of a paused one nothing runs that would notice: it is
        let go, and what is desired of it stays."""
        self._asked.wake()
        with self.starting:
            runs = self._thread is not None and self._thread.is_alive()
            if self.state is State.PAUSED and not runs and self._lease is not None and self._lease.lost:
                self._owned.close()
                self._tell_status(_first_status(self.pipeline))

    def _give_back(self, leases: LeaseKeeper, lease: HeldLease) -> None:
        leases.release(lease)
        show_lease(self._metrics, lease, held=False)

    def disown(self) -> None:
        """After `own`, if nothing was begun. A paused pipeline keeps what it had."""
        if self.state is not State.PAUSED:
            self._owned.close()

    def begin(
        self,
        spark: SparkSession | None,
        cause: Cause | None = None,
        *,
        trial: bool = False,
        once: bool = False,
        paused: bool = False,
    ) -> None:
        """Returns when the capture process was started. `starting` is held, and the directory owned. A `trial`
        delivers nothing until `accept`. One that begins `paused` captures only; it needs no Spark."""
        if spark is not None and self._resume(spark, cause):
            return
        name = self.pipeline.name
        run = PipelineRun(
            self.pipeline,
            spark,
            said=self._said,
            on_status=self._tell_status,
            on_batch=lambda report: self._subscribers.tell("on_batch", name, report),
            on_error=lambda error: self._subscribers.tell("on_error", name, error),
            metrics=self._metrics,
            cause=cause,
            trial=trial,
            lease=self._lease,
            once=once or self._ends_by_itself,
            tracer=self._tracer,
            held=paused,
        )
        run.trigger = self.trigger
        with bind(pipeline=name):
            try:
                run.start()
            except Exception as error:
                run.stop(0)
                raise explain(error) from error
        thread = threading.Thread(target=self._supervise, args=(run,), name=f"pipeline {name}", daemon=True)
        with self._changing:
            self._run, self._thread, self._ending, self.completed = run, thread, None, False
            self._asked.clear()
            self._settled.clear()
            thread.start()

    def _resume(self, spark: SparkSession, cause: Cause | None) -> bool:
        """Of a run that is held; False if there is none."""
        with self._changing:
            if self._thread is None or not self._thread.is_alive() or self.state is not State.PAUSED:
                return False
            self._resumption = spark, cause
            if self._run is not None:
                self._run.trigger = self.trigger
            self._settled.clear()
            self._asked.set()
        self._settled.wait()
        return True

    def accept(self) -> None:
        """The trial is over: the streams start with the next look."""
        if self._run is not None:
            self._run.trial = False

    def check(self, ending: Ending) -> None:
        """`LifecycleError` where the state does not allow to end that way."""
        stopping = self.state is State.STOPPING and self._ending is not None and self._ending.into is State.STOPPED
        if ending.into is State.PAUSED:
            if stopping or self.state not in (State.RUNNING, State.STOPPING, State.PAUSED):
                raise self.refuse("only a running pipeline can be paused", "Start it first.")
        elif ending.drain_until is not None and self.state is State.PAUSED:
            raise self.refuse("a paused pipeline delivers nothing", "Resume it first, or stop it.")

    def ask(self, ending: Ending) -> Callable[[], object] | None:
        """What waits until it is done, if there is a run to end or to hold."""
        with self._changing:
            self.check(ending)
            thread, holds = self._thread, self._holds(ending)
            if thread is None or not thread.is_alive():
                return None
            if holds and self.state is State.PAUSED and self._ending is None:
                return None
            self._ending = self._ending.and_also(ending) if self._ending else ending
            self._asked.set()
            if not holds:
                return thread.join
            self._settled.clear()
            return self._settled.wait

    def _holds(self, ending: Ending) -> bool:
        """Whether capture goes on."""
        return ending.into is State.PAUSED and self.pipeline.spec.pause.capture

    def refuse(self, why: str, fix: str) -> LifecycleError:
        return LifecycleError(
            f'pipeline "{self.pipeline.name}" is {self.state}: {why}',
            where=self.pipeline.file,
            fix=f"Nothing was changed. {fix}",
        )

    def release(self, cause: Cause | None = None) -> None:
        """A paused pipeline is stopped. `starting` is held."""
        if self.state is State.PAUSED:
            self._tell_status(replace(self._status, state=State.STOPPED))
            with closing(self.pipeline.build_state()) as state:
                record = RunRecord(state, self.pipeline.name)
                record.cause = cause or record.cause
                record.note(self._status)
            self._owned.close()

    def _supervise(self, run: PipelineRun) -> None:
        with bind(pipeline=self.pipeline.name):
            self._run_to_its_end(run)

    def _run_to_its_end(self, run: PipelineRun) -> None:
        try:
            self._watch(run)
            while run.status.state is not State.FAILED:
                if not self._attend(run):
                    self._wind_down(run)
                    break
                self._watch(run)
        except LeaseLost as error:
            run.fail(error)
            run.stop(0)  # another server may begin any time now
        except Exception as error:  # noqa: BLE001  whatever it is, the pipeline does not run any more and says so
            run.fail(explain(error))
            with suppress(Exception):  # what made the first attempt fail may make this one fail
                run.stop()
        finally:
            if run.status.state is not State.PAUSED:
                self._owned.close()
            self._settled.set()

    def _watch(self, run: PipelineRun) -> None:
        """Until somebody asks for something, or it has failed."""
        wait = _WATCH_SECONDS
        while not self._asked.wait_turn(wait) and run.status.state is not State.FAILED:
            if self._lease is not None:
                self._lease.check()
            before, self._looking_since = run.status, time.monotonic()
            try:
                changed = run.watch() != before
            finally:
                self._looking_since = None
            if run.status.caught_up and self._ends_by_itself and not run.trial:
                self._end_by_itself()
            wait = _WATCH_SECONDS if changed else min(rest_seconds(_REST_WATCH_SECONDS), wait * 1.2)

    def _attend(self, run: PipelineRun) -> bool:
        """Holds the run or lets it go on, as it was asked for; False if it is to end."""
        with self._changing:
            ending, resumption = self._ending, self._resumption
        if ending is not None:
            if not self._holds(ending):
                return False
            run.attribute(ending.cause)
            run.hold(ending.seconds)
        elif resumption is not None:
            spark, cause = resumption
            run.attribute(cause)
            run.release(spark)
        with self._changing:  # what was asked for meanwhile is looked at next
            self._ending = None if self._ending is ending else self._ending
            self._resumption = None if self._resumption is resumption and ending is None else self._resumption
            if self._ending is None and self._resumption is None:
                self._asked.clear()
                self._settled.set()
        return True

    @property
    def _ends_by_itself(self) -> bool:
        """A run of a schedule is ended by who began it."""
        return self.pipeline.spec.trigger.once and self.pipeline.spec.schedule is None

    def _end_by_itself(self) -> None:
        """What was there is captured, and is delivered however long that takes; who cannot wait asks for more."""
        with self._changing:
            if self._ending is None:
                self._ending = Ending(State.STOPPED, math.inf, STOP_SECONDS, Cause(current_actor(), _ALL_DELIVERED))
                self._asked.set()

    def _wind_down(self, run: PipelineRun) -> None:
        run.attribute(self._wish().cause)
        run.stop_capture(drains=self._wish().drain_until is not None)
        if self._wish().drain_until is not None:
            run.start_delivery()
        while (until := self._wish().drain_until) is not None and time.monotonic() < until and not run.drained():
            time.sleep(_DRAIN_WATCH_SECONDS)
        run.ask_to_stop()
        wish = self._wish()
        self.completed = wish.drain_until == math.inf and self._ends_by_itself and not run.status.lag_events
        run.attribute(wish.cause)
        run.stop(wish.seconds, into=wish.into)

    def _wish(self) -> Ending:
        with self._changing:
            assert self._ending is not None
            return self._ending

    def _tell_status(self, status: PipelineStatus) -> None:
        self._status = status
        self._subscribers.tell("on_status", status)


def _first_status(pipeline: Pipeline) -> PipelineStatus:
    waited_for = {sink: group.votes for group in policy_of(pipeline).groups for sink in group.sinks}
    sinks = tuple(SinkStatus(sink, waited_for=votes) for sink, votes in waited_for.items())
    return PipelineStatus(pipeline.name, State.CREATED, sinks=sinks)
