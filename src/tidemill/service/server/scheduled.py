"""Pipelines of a server that run by cron. To run is, for them, to wait for the next slot: `start` begins no run, a
pause ends the one that is under way, and a failed run waits for the next slot.

Any server of the state store may run the next slot: runs are taken from one queue (service/schedule/run_queue.py), and
a pipeline is leased while its run lasts.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from tidemill.config.spec.schedule import Schedule
from tidemill.contracts.installation import StoredDocument
from tidemill.errors import LifecycleError, PipelineBusy, TidemillError, UnknownPipeline
from tidemill.service.cause import Cause, current_actor
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.runtime import Runtime
from tidemill.service.schedule.one_run import OneRun
from tidemill.service.schedule.run_queue import RunQueue
from tidemill.service.schedule.slots import SlotWatch
from tidemill.service.schedule.values import UNDER_WAY, RunFailed, RunRequest, RunResult, ScheduledRun
from tidemill.service.server import managed as m
from tidemill.service.server.document_set import ControlSettings
from tidemill.service.server.elsewhere import ElsewhereFleet
from tidemill.service.server.fleet import STANDBY, usable
from tidemill.service.server.managed import Managed, PipelineView
from tidemill.service.server.repeated import RepeatedTask
from tidemill.service.server.restarts import may_mend
from tidemill.state.installation import InstallationStore
from tidemill.telemetry import events

LOOK_SECONDS = 1.0
RETRY_SECONDS = 600.0
"""After a failure that another try may mend, for so long; then the run has failed."""


class ScheduledFleet(ElsewhereFleet):
    def __init__(self, runtime: Runtime, store: InstallationStore, settings: ControlSettings) -> None:
        super().__init__(runtime, store, settings)
        leases = runtime.leases
        process = leases.holder if leases is not None else uuid.uuid4().hex
        self._ending = threading.Event()
        self._executing: set[str] = set()  # pipelines whose run is in this process
        self._idle = threading.Condition()
        self._queue = RunQueue(store.uri, process, self._execute, only=settings.runs)
        self._slots = SlotWatch(self._queue)
        self._slot_task = RepeatedTask(self._look_at_slots, seconds=LOOK_SECONDS, name="schedules")
        self._slot_error = ""

    def start_wanted(self) -> None:
        super().start_wanted()
        if not self.stopping:
            self._slot_task.begin()

    def close(self, *, drain_seconds: float) -> None:
        """A run under way is left to the next server, unless it is done in time."""
        self._ending.set()
        self._slot_task.close()
        super().close(drain_seconds=drain_seconds)
        with self._idle:
            self._idle.wait_for(lambda: not self._executing, drain_seconds)
        self._queue.close()

    # ---------------------------------------------------------------- runs

    def runs(self, name: str, limit: int = 20) -> list[ScheduledRun]:
        """Newest first; none of a pipeline that has no schedule and never had one here."""
        self._find(name)
        if not any(self._list_schedules()):
            return []
        self._begin_queue()
        return self._queue.runs(name, limit)

    def run_now(self, name: str, cause: Cause) -> ScheduledRun:
        """The run that was queued; or the one that is queued or runs already. `LifecycleError` if the pipeline has no
        schedule, or is not wanted to run."""
        try:
            with self._turn(name):
                return self._queue_run(name, cause)
        except PipelineBusy:  # a run that starts has the turn for seconds
            under_way = next((run for run in self.runs(name) if run.state in UNDER_WAY), None)
            if under_way is None or self._find(name).desired != m.RUNNING:
                raise
            return under_way

    def _queue_run(self, name: str, cause: Cause) -> ScheduledRun:
        each = self._find(name)
        if usable(each).spec.schedule is None:
            raise LifecycleError(
                f'pipeline "{name}" has no schedule', fix="It runs all the time. Runs are of those with spec.schedule."
            )
        if each.desired != m.RUNNING:
            way_on = "Resume" if each.desired == m.PAUSED else "Start"
            raise LifecycleError(f'pipeline "{name}" is {each.desired}', fix=f"Nothing was changed. {way_on} it first.")
        self._begin_queue()
        self.audit(cause, "run now", name)
        return self._queue.put(RunRequest(name, "", cause.actor))

    def _execute(self, request: RunRequest) -> RunResult:
        """In a thread of the queue."""
        with self._idle:
            self._executing.add(request.pipeline)
        try:
            result = self._one_run(request).execute()
            events.emit("schedule.run_ended", pipeline=request.pipeline, events=result.events, stopped=result.stopped)
            return result
        except RunFailed as failure:
            error = {name: failure.error.get(name, "") for name in ("code", "what", "where", "fix")}
            events.fail("schedule.run_failed", pipeline=request.pipeline, slot=request.slot, **error)
            raise
        finally:
            with self._idle:
                self._executing.discard(request.pipeline)
                self._idle.notify_all()

    def _one_run(self, request: RunRequest) -> OneRun:
        name = request.pipeline
        cause = Cause(current_actor(), f"scheduled for {request.slot}" if request.slot else f"run for {request.actor}")
        found = self._managed.get(name)
        schedule = found.pipeline.spec.schedule if found is not None and found.pipeline is not None else None
        return OneRun(
            self.runtime, name,
            start=lambda: self._start_run(name, cause),
            may_mend=lambda error: may_mend(error) or isinstance(error, UnknownPipeline),
            policy=replace(self.settings.restarts, seconds=RETRY_SECONDS),
            stopping=self._ending, cause=cause, max_empty_reads=schedule.max_empty_reads if schedule else 0,
        )  # fmt: skip

    def _start_run(self, name: str, cause: Cause) -> bool:
        """False if the pipeline is not wanted any more."""
        stored = self.store.document(name)
        if stored is None or stored.desired != m.RUNNING:
            return False
        with self._turn(name, wait=True):
            if usable(self._find(name)).spec.schedule is None:
                return False
            self.runtime.start(name, cause=cause, once=True)
        return True

    # ---------------------------------------------------------------- slots

    def _look_at_slots(self) -> None:
        try:
            if not any(self._list_schedules()):
                return
            self._begin_queue()
            wanted, unwanted = dict[str, Schedule](), dict[str, Schedule]()
            for each, schedule in self._list_schedules():
                if self._runs(each.name):
                    (wanted if each.desired == m.RUNNING else unwanted)[each.name] = schedule
            self._slots.look(wanted, unwanted)
            self._publish_waiting(wanted)
            leases = self.runtime.leases
            for run in self._queue.recover(leases.is_there if leases is not None else lambda process: False):
                events.warn("schedule.run_recovered", run=run)
            self._slot_error = ""
        except TidemillError as error:
            if error.what != self._slot_error:
                events.warn("schedule.not_looked_at", code=error.code, error=error.what, where=error.where,
                            fix=error.fix)  # fmt: skip
            self._slot_error = error.what

    def _publish_waiting(self, names: Iterable[str]) -> None:
        """For who reads the store: between two runs no process has a lease by which it could tell."""
        for name in names:
            found = self._managed.get(name)
            view = self._view(found) if found is not None else None
            if self._board is not None and view is not None and view.state == m.WAITING_FOR_SCHEDULE:
                lease = self.lease_of(name)
                status = view.status or PipelineStatus(name, State.CREATED)
                self._board.publish_waiting(status, lease.epoch if lease is not None else 0, view.next_run or "")

    def _begin_queue(self) -> None:
        if self.runtime.leases is not None:
            self.runtime.leases.announce()  # before it takes a run: others must see that its process is there
        self._queue.begin()

    def _list_schedules(self) -> Iterator[tuple[Managed, Schedule]]:
        for each in list(self._managed.values()):
            if each.pipeline is not None and each.pipeline.spec.schedule is not None:
                yield each, each.pipeline.spec.schedule

    # ---------------------------------------------------------------- what is other than for those that always run

    def _start(self, name: str, cause: Cause, *, trial: bool = False) -> None:
        if not self._has_schedule(self._find(name)):
            super()._start(name, cause, trial=trial)
            return
        self._start_errors.pop(name, None)

    def _adopt_stored(self, name: str, stored: StoredDocument | None) -> None:
        super()._adopt_stored(name, stored)
        if name in self._managed and self._has_schedule(self._managed[name]):
            self._start_errors.pop(name, None)  # no server need begin

    def _pause(self, name: str, cause: Cause) -> None:
        if self._has_schedule(self._find(name)):
            self.runtime.stop(name, cause=cause)
        else:
            super()._pause(name, cause)

    def _list_failed(self) -> Iterator[tuple[str, TidemillError]]:
        scheduled = {each.name for each, _ in self._list_schedules()}
        for name, error in super()._list_failed():
            if name not in scheduled:
                yield name, error

    def _view(self, each: Managed) -> PipelineView:
        view = super()._view(each)
        if each.pipeline is None or each.pipeline.spec.schedule is None:
            return view
        state, next_run = view.state, None
        if state in (State.CREATED, State.STOPPED):
            state = m.WAITING_FOR_SCHEDULE if each.desired == m.RUNNING else each.desired
            if self._seen_elsewhere(each.name):
                state = STANDBY if self._runs(each.name) else str(State.RUNNING)
            elif each.desired == m.RUNNING and each.name in self._executing:
                state = str(State.RUNNING)  # Spark may be starting for it, which takes seconds
        if each.desired == m.RUNNING:
            next_run = each.pipeline.spec.schedule.next_after(datetime.now(UTC)).isoformat()
        return replace(view, state=state, next_run=next_run)

    @staticmethod
    def _has_schedule(each: Managed) -> bool:
        return each.pipeline is not None and each.pipeline.spec.schedule is not None
