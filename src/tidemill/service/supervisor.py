"""One pipeline of a runtime, through all its runs: each has a thread that watches it from start to end.

Only that thread touches the `PipelineRun`. Other threads ask it to end, and wait for it; the most urgent wish counts.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.config import Pipeline
from tidemill.errors import LifecycleError, TidemillError
from tidemill.service.ownership import lock_pipeline
from tidemill.service.pipeline_run import PipelineRun
from tidemill.service.run_record import RunRecord
from tidemill.service.status import PipelineStatus, SinkStatus, State
from tidemill.service.stream_group import explained
from tidemill.service.subscribers import Subscribers
from tidemill.stream.policy import policy_of
from tidemill.telemetry.context import bind
from tidemill.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WATCH_SECONDS = 0.1
_DRAIN_WATCH_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run is to end: until `drain_until` (monotonic; None: no drain) what the log holds is delivered, then the
    batches under way have `seconds`, and the state is `into`: paused or stopped."""

    into: State
    drain_until: float | None
    seconds: float

    def and_also(self, other: Ending) -> Ending:
        """The sooner end of both; who wants it stopped wins over who wants it paused."""
        into = self.into if self.into is other.into else State.STOPPED
        drains = [each.drain_until for each in (self, other) if each.drain_until is not None]
        return Ending(into, min(drains) if len(drains) == 2 else None, min(self.seconds, other.seconds))


class Supervisor:
    """Every method from any thread. `starting` is held by who starts the pipeline or takes it away."""

    def __init__(self, pipeline: Pipeline, subscribers: Subscribers, metrics: Metrics, said: Path | None) -> None:
        self.pipeline = pipeline
        self.starting = threading.RLock()
        self.removed = False
        self._subscribers, self._metrics, self._said = subscribers, metrics, said
        self._changing = threading.Lock()  # guards what is below
        self._status = _created(pipeline)
        self._owned = ExitStack()  # the state directory, from a start to a stop
        self._run: PipelineRun | None = None
        self._thread: threading.Thread | None = None
        self._ending: Ending | None = None
        self._asked = threading.Event()

    @property
    def status(self) -> PipelineStatus:
        return self._status

    @property
    def state(self) -> State:
        return self._status.state

    @property
    def error(self) -> TidemillError | None:
        """What made the last run fail."""
        return self._run.error if self._run is not None else None

    def settle(self) -> None:
        """Waits for a run that is ending or has failed; one that goes on is left alone."""
        with self._changing:
            thread = self._thread
            if thread is None or (self._ending is None and self.state is not State.FAILED):
                return
        thread.join()

    def own(self) -> bool:
        """Takes the state directory and says whether there is something to start; False: it runs. A run that is just
        ending is waited for. `starting` is held."""
        self.settle()
        if self.state is State.FAILING:
            raise self.refuse("it is delivering what it captured before capture failed", "Wait, or use restart.")
        if self.state is State.RUNNING:
            return False
        if self.state is not State.PAUSED:  # a paused pipeline has it still
            self._owned.enter_context(lock_pipeline(self.pipeline))
        return True

    def disown(self) -> None:
        """After `own`, if nothing was begun. A paused pipeline keeps what it had."""
        if self.state is not State.PAUSED:
            self._owned.close()

    def begin(self, spark: SparkSession) -> None:
        """Returns when the capture process was started. `starting` is held, and the directory owned."""
        name = self.pipeline.name
        run = PipelineRun(
            self.pipeline,
            spark,
            said=self._said,
            on_status=self._tell_status,
            on_batch=lambda report: self._subscribers.tell("on_batch", name, report),
            on_error=lambda error: self._subscribers.tell("on_error", name, error),
            metrics=self._metrics,
        )
        with bind(pipeline=name):
            try:
                run.start()
            except Exception as error:
                run.stop(0)
                raise explained(error) from error
        thread = threading.Thread(target=self._supervise, args=(run,), name=f"pipeline {name}", daemon=True)
        with self._changing:
            self._run, self._thread, self._ending = run, thread, None
            self._asked.clear()
            thread.start()

    def check(self, ending: Ending) -> None:
        """`LifecycleError` where the state does not allow to end that way."""
        stopping = self.state is State.STOPPING and self._ending is not None and self._ending.into is State.STOPPED
        if ending.into is State.PAUSED:
            if stopping or self.state not in (State.RUNNING, State.STOPPING, State.PAUSED):
                raise self.refuse("only a running pipeline can be paused", "Start it first.")
        elif ending.drain_until is not None and self.state is State.PAUSED:
            raise self.refuse("a paused pipeline delivers nothing", "Resume it first, or stop it.")

    def ask(self, ending: Ending) -> threading.Thread | None:
        """The thread to wait for, if there is a run to end."""
        with self._changing:
            self.check(ending)
            thread = self._thread
            if thread is None or not thread.is_alive():
                return None
            self._ending = self._ending.and_also(ending) if self._ending else ending
            self._asked.set()
            return thread

    def refuse(self, why: str, fix: str) -> LifecycleError:
        return LifecycleError(
            f'pipeline "{self.pipeline.name}" is {self.state}: {why}',
            where=self.pipeline.file,
            fix=f"Nothing was changed. {fix}",
        )

    def release(self) -> None:
        """A paused pipeline is stopped. `starting` is held."""
        if self.state is State.PAUSED:
            self._tell_status(replace(self._status, state=State.STOPPED))
            with closing(self.pipeline.build_state()) as state:
                RunRecord(state, self.pipeline.name).note(self._status)
            self._owned.close()

    def _supervise(self, run: PipelineRun) -> None:
        with bind(pipeline=self.pipeline.name):
            self._run_to_its_end(run)

    def _run_to_its_end(self, run: PipelineRun) -> None:
        try:
            while not self._asked.wait(_WATCH_SECONDS) and run.status.state is not State.FAILED:
                run.watch()
            if run.status.state is not State.FAILED:
                self._wind_down(run)
        except Exception as error:  # noqa: BLE001  whatever it is, the pipeline does not run any more and says so
            run.fail(explained(error))
            with suppress(Exception):  # what made the first attempt fail may make this one fail
                run.stop()
        finally:
            if run.status.state is not State.PAUSED:
                self._owned.close()

    def _wind_down(self, run: PipelineRun) -> None:
        run.stop_capture()
        if self._wish().drain_until is not None:
            run.start_delivery()
        while (until := self._wish().drain_until) is not None and time.monotonic() < until and not run.drained():
            time.sleep(_DRAIN_WATCH_SECONDS)
        run.ask_to_stop()
        wish = self._wish()
        run.stop(wish.seconds, into=wish.into)

    def _wish(self) -> Ending:
        with self._changing:
            assert self._ending is not None
            return self._ending

    def _tell_status(self, status: PipelineStatus) -> None:
        self._status = status
        self._subscribers.tell("on_status", status)


def _created(pipeline: Pipeline) -> PipelineStatus:
    waited_for = {sink: group.votes for group in policy_of(pipeline).groups for sink in group.sinks}
    sinks = tuple(SinkStatus(sink, waited_for=votes) for sink, votes in waited_for.items())
    return PipelineStatus(pipeline.name, State.CREATED, sinks=sinks)
