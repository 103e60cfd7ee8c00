"""Pipelines of one process over one Spark session: added, started, paused, resumed, drained, stopped, restarted and
removed at any time, from any thread. Commands and services call it; it knows no terminal.

    created ──start──▶ running ──pause──▶ paused ──resume──▶ running
                       │  │ └───drain, stop──▶ stopped ──start──▶ running
                       │  └─▶ failing ─┐
                       └───────────────┴──▶ failed ──start──▶ running

`failing`: capture failed for good, and what it captured before is still delivered. Nothing of a pipeline that is
created, paused, stopped or failed runs, except capture of one that is paused and captures all the same
(`pause.capture`). A running or paused pipeline owns its state directory (ownership.py); a stop, a
failure, a removal or the end of the process frees it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tidemill.config import Pipeline
from tidemill.disk.private import open_file
from tidemill.errors import LifecycleError, TidemillError, UnknownPipeline
from tidemill.service.cause import Cause
from tidemill.service.lease.leases import LeaseKeeper
from tidemill.service.run.session_slots import SessionSlots
from tidemill.service.run.spark_session import check_agreement, log_of, open_session
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.run.subscribers import Subscribers
from tidemill.service.run.supervisor import STOP_SECONDS, Ending, Supervisor
from tidemill.stream.report import BatchReport
from tidemill.telemetry import events
from tidemill.telemetry.metrics import Metrics
from tidemill.telemetry.stalls import StallWatch
from tidemill.telemetry.tracer import open_tracer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.stream.spark.gateway import StartedJava

DRAIN_SECONDS = 30.0


class Runtime:
    """Every method may be called from any thread, also from a subscriber.

    Methods that take several names work on all of them side by side and return when the last is done. A name that was
    never added, or removed since, is an `UnknownPipeline`; any call after `close` is a `LifecycleError`. `cause` is who
    asks, for the record of the pipeline's changes of state; by default the user of this process.
    """

    def __init__(
        self,
        *,
        spark: SparkSession | None = None,
        said: Path | None = None,
        metrics: Metrics | None = None,
        leases: LeaseKeeper | None = None,
        runs: Collection[str] | None = None,
        java: StartedJava | None = None,
    ) -> None:
        """`spark` is a session that belongs to somebody else; by default the first start makes one, from what the
        documents added so far ask for, and `close` ends it. `said` is the file for our events and for what capture
        processes say, opened by the first start; by default they go where they go now, and to standard error. `metrics`
        are those that all pipelines feed. With `leases`, which stay their maker's, a pipeline runs only while this
        process has its lease: `start` raises `LeaseHeld` if another server has it, and one whose lease is lost fails
        with `LeaseLost`. `runs`: the pipelines that may ever start here, which alone must agree on Spark; None for all.
        `java` was begun for the pipelines that will be added, and becomes this runtime's. Traces go where OTEL_*
        variables say, if they do."""
        self.metrics = metrics or Metrics()
        self._tracer = open_tracer()
        self._given = self._spark = spark
        self._said, self._logs, self.leases, self._runs = said, False, leases, runs
        self._java = java
        self._changing = threading.Lock()  # guards what is below
        self._supervisors: dict[str, Supervisor] = {}
        self._closed = False
        self._subscribers = Subscribers()
        self._session_changing = threading.Lock()  # held while Spark starts, which takes seconds
        self._slots = SessionSlots()
        self._stalls: StallWatch | None = None

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---------------------------------------------------------------- what is there

    @property
    def names(self) -> list[str]:
        """In the order in which they were added."""
        return list(self._supervisors)

    def status(self, name: str) -> PipelineStatus:
        """As it was last seen, at most a moment ago. Waits for nothing."""
        return self._find(name).status

    def statuses(self) -> list[PipelineStatus]:
        """Of all pipelines, in the order in which they were added. Waits for nothing."""
        return [supervisor.status for supervisor in list(self._supervisors.values())]

    def error(self, name: str) -> TidemillError | None:
        """What made the pipeline's last run fail, or is making it fail now; a new start forgets it."""
        return self._find(name).error

    def lease_epoch(self, name: str) -> int:
        """Of the lease under which its last run here was; 0 if it had none."""
        supervisor = self._supervisors.get(name)
        return supervisor.lease_epoch if supervisor is not None else 0

    def announce(self, status: PipelineStatus) -> None:
        """Lets subscribers hear of a pipeline that another process runs."""
        self._subscribers.tell("on_announced", status)

    def completed(self, name: str) -> bool:
        """Whether the pipeline's last run delivered what was there and ended by itself (`trigger.mode: once`)."""
        return self._find(name).completed

    def subscribe(
        self,
        *,
        on_status: Callable[[PipelineStatus], None] | None = None,
        on_batch: Callable[[str, BatchReport], None] | None = None,
        on_error: Callable[[str, TidemillError], None] | None = None,
        own: bool = False,
    ) -> Callable[[], None]:
        """Hears of every pipeline: each new status; each batch after its checkpoint; each error that makes a pipeline
        fail, or go on without a sink (errors that are retried stand in the status). Every subscriber has a thread of
        its own and is called in the order in which things happened; what it raises is only logged. With `own` it does
        not hear of what was announced.

        Returns the function that unsubscribes. After it no call begins; it waits a few seconds for one under way, but
        not from within.
        """
        self._refuse_if_closed()
        announced = None if own else on_status
        return self._subscribers.add(
            on_status=on_status, on_announced=announced, on_batch=on_batch, on_error=on_error
        )  # fmt: skip

    # ---------------------------------------------------------------- lifecycle

    def add(self, pipeline: Pipeline) -> str:
        """Makes a pipeline known, `created`, and returns its name. Nothing of it is touched, nothing is waited for.

        `LifecycleError` if the name is taken. `ConfigError` if its document asks for another Spark than the others'.
        """
        with self._changing:
            self._refuse_if_closed()
            if pipeline.name in self._supervisors:
                raise LifecycleError(
                    f'there is a pipeline "{pipeline.name}" already',
                    where=pipeline.file,
                    fix="Give it another name, or remove that one first.",
                )
            if self._given is None:
                check_agreement(self._runnable([*(each.pipeline for each in self._supervisors.values()), pipeline]))
            supervisor = Supervisor(
                pipeline, self._subscribers, self.metrics, self._said, self.leases, self._tracer
            )  # fmt: skip
            self._supervisors = {**self._supervisors, pipeline.name: supervisor}
        self._subscribers.tell("on_status", supervisor.status)
        return pipeline.name

    def check_together(self, pipelines: Sequence[Pipeline]) -> None:
        """`ConfigError` if they could not all be added: their documents ask for different Sparks."""
        if self._given is None:
            check_agreement(self._runnable(pipelines))

    def start(
        self,
        *names: str,
        cause: Cause | None = None,
        trial: bool = False,
        once: bool = False,
        paused: bool = False,
    ) -> None:
        """Starts what is created, stopped or failed, and resumes what is paused. Those that run already are left alone;
        one that is just ending is waited for. Returns when the capture processes have been started, which takes seconds
        the first time, because Spark starts then.

        All or none: `AlreadyRunning` if another process has one of the state directories, `EnvironmentProblem` if one
        is a copy or Spark does not start; nothing was begun then. `LifecycleError` if one is failing. An error of one
        pipeline's own files leaves those that were begun before it running.

        On `trial` only capture starts: nothing is delivered until `accept`, also not by a drain. With `once` the status
        of each says when it has `caught_up` with what its source had at the start; who asked for it drains then. Those
        that start `paused` capture and deliver nothing, until `resume`; they need no Spark. Those whose documents
        say `trigger.mode: once` end by themselves when they have delivered that.
        """
        with ExitStack() as held:
            supervisors = self._list_held(names, held)
            with ExitStack() as undoing:
                chosen = []
                for supervisor in supervisors:
                    if supervisor.own(paused=paused):
                        undoing.callback(supervisor.disown)
                        chosen.append(supervisor)
                spark = self._session(chosen[0].pipeline) if chosen and not paused else None
                if spark is not None:
                    held.enter_context(self._slots.choose(chosen, self._supervisors.values(), spark))
                undoing.pop_all()
            for number, supervisor in enumerate(chosen):
                try:
                    supervisor.begin(spark, cause, trial=trial, once=once, paused=paused)
                except BaseException:
                    for unbegun in chosen[number:]:
                        unbegun.disown()
                    raise

    def warm_up(self, name: str) -> None:
        """Starts Spark for a pipeline that may have to start at any time; nothing of the pipeline is touched."""
        self._refuse_if_closed()
        self._session(self._find(name).pipeline)

    def settle(self, name: str) -> None:
        """Waits for a run that is ending or has failed: its state is shown a little before its directory is free."""
        supervisor = self._find(name)
        with supervisor.starting:
            supervisor.settle()

    def accept(self, name: str) -> None:
        """Starts the streams of a pipeline that was started on trial."""
        self._find(name).accept()

    def pause(self, *names: str, seconds: float = STOP_SECONDS, cause: Cause | None = None) -> None:
        """Ends capture after its append and the streams after the batches under way; the position stays, and so does
        the ownership of the state directory. What the log holds waits for `resume`. Returns when nothing runs, or
        nothing but capture, where the document says so (`pause.capture`).

        Pausing what is paused changes nothing. `LifecycleError` if a pipeline does not run.
        """
        self._end(names, Ending(State.PAUSED, None, seconds, cause))

    def resume(self, *names: str, cause: Cause | None = None) -> None:
        """Goes on exactly where `pause` ended; returns as `start` does. Resuming what runs changes nothing.

        `LifecycleError` if a pipeline is neither paused nor running.
        """
        with ExitStack() as held:
            for supervisor in self._list_held(names, held):
                supervisor.settle()
                if supervisor.state not in (State.PAUSED, State.RUNNING):
                    raise supervisor.refuse("only a paused pipeline can be resumed", "Start it.")
            self.start(*names, cause=cause)

    def drain(self, *names: str, seconds: float = DRAIN_SECONDS, cause: Cause | None = None) -> None:
        """Ends capture, delivers what the log holds for at most `seconds`, and stops. Returns when nothing runs; the
        status says what is left to deliver. A `stop` from another thread cuts it short.

        Draining what is created, stopped or failed changes nothing. `LifecycleError` if a pipeline is paused: nothing
        of it would be delivered.
        """
        self._end(names, Ending(State.STOPPED, time.monotonic() + seconds, STOP_SECONDS, cause))

    def stop(self, *names: str, seconds: float = STOP_SECONDS, cause: Cause | None = None) -> None:
        """Ends capture after its append and the streams after the batches under way, or after `seconds`. What the log
        holds is delivered after the next start. Returns when nothing runs and the state directories are free.

        Stopping what does not run changes nothing; what is paused becomes stopped.
        """
        self._end(names, Ending(State.STOPPED, None, seconds, cause))

    def restart(self, *names: str, seconds: float = STOP_SECONDS, cause: Cause | None = None) -> None:
        """`stop`, then `start`, whatever the state."""
        self.stop(*names, seconds=seconds, cause=cause)
        self.start(*names, cause=cause)

    def remove(
        self, *names: str, seconds: float = STOP_SECONDS, cause: Cause | None = None, comes_back: bool = False
    ) -> None:
        """Stops pipelines and forgets them. Their state directories stay: added again, they go on. What `comes_back` at
        once, with another document, keeps its counters."""
        with ExitStack() as held:
            supervisors = self._list_held(names, held)
            self.stop(*names, seconds=seconds, cause=cause)
            for supervisor in supervisors:
                supervisor.removed = True
                self.metrics.forget(supervisor.pipeline.name, counters=not comes_back)
            with self._changing:
                self._supervisors = {name: each for name, each in self._supervisors.items() if not each.removed}

    def close(self, *, seconds: float = STOP_SECONDS) -> None:
        """Stops everything, lets the subscribers hear of it, and ends the Spark session if it is ours. May be called
        again."""
        with self._changing:
            self._closed = True
            supervisors = list(self._supervisors.values())
        ending = Ending(State.STOPPED, None, seconds)
        self._finish(supervisors, ending)
        for supervisor in supervisors:  # another thread may just have started it; nobody can any more
            with supervisor.starting:
                self._finish([supervisor], ending)
        self._subscribers.close()
        if self._stalls is not None:
            self._stalls.close()
        if self._tracer is not None:
            self._tracer.close()
        with self._session_changing:
            if self._spark is not None and self._given is None:
                from tidemill.stream.spark.session import close_session

                close_session(self._spark)
                self._spark = None
            if self._java is not None:
                self._java.close()
                self._java = None

    # ---------------------------------------------------------------- how

    def _list_held(self, names: tuple[str, ...], held: ExitStack) -> list[Supervisor]:
        """In the order of `names`, held against other starts and removals; always taken in one order."""
        found = {name: self._find(name) for name in names}
        for name in sorted(found):
            held.enter_context(found[name].starting)
        for name, supervisor in found.items():
            if supervisor.removed:
                raise _unknown(name, self.names)
        self._refuse_if_closed()
        return list(found.values())

    def _end(self, names: tuple[str, ...], ending: Ending) -> None:
        self._refuse_if_closed()
        self._finish([self._find(name) for name in dict.fromkeys(names)], ending)

    def _finish(self, supervisors: list[Supervisor], ending: Ending) -> None:
        """All are asked before any is waited for."""
        for supervisor in supervisors:
            supervisor.check(ending)
        waits = [supervisor.ask(ending) for supervisor in supervisors]
        for supervisor, wait in zip(supervisors, waits, strict=True):
            if wait is None:
                with supervisor.starting:  # it may be just starting
                    wait = supervisor.ask(ending)
            if wait is not None:
                wait()
            if ending.into is State.STOPPED:
                with supervisor.starting:
                    supervisor.release(ending.cause)

    def _session(self, first: Pipeline) -> SparkSession:
        """Made once; another one if Spark's Java process died."""
        from tidemill.stream.spark.session import forget_session, is_alive

        with self._session_changing:
            if self._said is not None and not self._logs:
                self._logs = True
                events.configure(stream=os.fdopen(open_file(self._said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a"))
            if self._given is None and self._spark is not None and not is_alive(self._spark):
                forget_session(self._spark)
                self._spark = None
            if self._spark is None:
                pipelines = self._runnable([each.pipeline for each in self._supervisors.values()])
                java, self._java = self._java, None
                self._spark = open_session(pipelines, log_of(first), java)
            if self._stalls is None:
                self._stalls = StallWatch(self.metrics.stalled_seconds.inc)
                self._stalls.begin()
            return self._spark

    def _runnable(self, pipelines: Sequence[Pipeline]) -> list[Pipeline]:
        return [each for each in pipelines if self._runs is None or each.name in self._runs]

    def _find(self, name: str) -> Supervisor:
        supervisor = self._supervisors.get(name)
        if supervisor is None:
            raise _unknown(name, self.names)
        return supervisor

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise LifecycleError("this runtime is closed", fix="Make a new one.")


def _unknown(name: str, known: list[str]) -> UnknownPipeline:
    listed = f"There are: {', '.join(known)}." if known else "None was added yet."
    return UnknownPipeline(f'there is no pipeline "{name}"', fix=f"Add it first. {listed}")
