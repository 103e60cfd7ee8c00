"""What operators ask of pipelines: start, pause, resume, stop, drain, restart, recover. Whichever server is asked, the
process that runs the pipeline does it (elsewhere.py).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tidemill.errors import LeaseHeld, LifecycleError
from tidemill.service.cause import Cause
from tidemill.service.maintenance.recovery import PipelineRecovery, capture_from_now, copy_again
from tidemill.service.run.status import State
from tidemill.service.server import managed as m
from tidemill.service.server.fleet import usable
from tidemill.service.server.managed import PipelineView
from tidemill.service.server.scheduled import ScheduledFleet

REQUEST_SECONDS = 120.0
"""For what another process does at our request: a restart, a change that is tried out."""


class RecoveryMode(enum.StrEnum):
    """How a pipeline goes on after a lost position: with all tables copied again, or without what was lost."""

    SNAPSHOT = "snapshot"
    ACCEPT_GAP = "accept_gap"


@dataclass(frozen=True, slots=True)
class RecoveredPipeline:
    """`consequence` is what was confirmed by asking for it."""

    pipeline: str
    mode: RecoveryMode
    consequence: str
    done: PipelineRecovery


class LifecycleFleet(ScheduledFleet):
    """Every method from any thread. `cause` is who asks. Each change is in the audit trail when its call returns."""

    def start(self, name: str, cause: Cause) -> PipelineView:
        """What failed starts again; what runs goes on."""
        with self._turn(name):
            self.audit(cause, "start", name)
            self._want(name, m.RUNNING, cause)
            here = False
            with suppress(LeaseHeld):  # the server that has it sees what is wanted, and starts it if it does not run
                self._start(name, cause)
                here = True
        if not here:
            self._await(name, m.RUNNING)
        return self.view(name)

    def resume(self, name: str, cause: Cause) -> PipelineView:
        with self._turn(name):
            ended = self.runtime.status(name).state in (State.CREATED, State.STOPPED)
            paused = self.view(name).state == m.PAUSED and ended
        if paused:
            return self.start(name, cause)  # paused when the server stopped, by another server, or between two runs
        return self._end(name, m.RUNNING, cause, "resume", lambda: self.runtime.resume(name, cause=cause))

    def pause(self, name: str, cause: Cause) -> PipelineView:
        return self._end(name, m.PAUSED, cause, "pause", lambda: self._pause(name, cause))

    def stop(self, name: str, cause: Cause) -> PipelineView:
        """Also in the middle of a drain, which it cuts short."""
        usable(self._find(name))
        self.runtime.stop(name, cause=cause)
        return self._end(name, m.STOPPED, cause, "stop", lambda: self.runtime.stop(name, cause=cause))

    def drain(self, name: str, cause: Cause, *, seconds: float) -> PipelineView:
        usable(self._find(name))
        asked = {"seconds": seconds}
        if self.is_elsewhere(name) and self._ask(name, "drain", asked, cause, seconds + REQUEST_SECONDS):
            return self.view(name)
        return self._end(
            name, m.STOPPED, cause, "drain", lambda: self.runtime.drain(name, seconds=seconds, cause=cause)
        )

    def restart(self, name: str, cause: Cause) -> PipelineView:
        usable(self._find(name))
        if self.is_elsewhere(name) and self._ask(name, "restart", {}, cause, REQUEST_SECONDS):
            return self.view(name)
        with self._turn(name):
            self.audit(cause, "restart", name)
            self.runtime.stop(name, cause=cause)
            self._want(name, m.RUNNING, cause)
            with suppress(LeaseHeld):
                self._start(name, cause)
        return self.view(name)

    def recover(self, name: str, mode: RecoveryMode, cause: Cause) -> RecoveredPipeline:
        """After a lost position, as `tidemill recover`. The pipeline must not run, and is not started: what was lost is
        in the answer and in the audit trail, for who decides that."""
        with self._turn(name):
            pipeline = usable(self._find(name))
            self.refuse_elsewhere(name)
            self.runtime.settle(name)
            if self.runtime.status(name).state not in (State.CREATED, State.STOPPED, State.FAILED):
                raise LifecycleError(
                    f'pipeline "{name}" is {self.view(name).state}, and is recovered only while it does not run',
                    fix="Nothing was changed. Stop it first.",
                )
            lost: list[str] = []

            def note(consequence: str) -> None:
                lost.append(consequence)
                self.audit(cause, f"recover, {mode.value}", name, consequence)

            with self._lease_of(name):
                recover = copy_again if mode is RecoveryMode.SNAPSHOT else capture_from_now
                done = recover(pipeline, note)
        return RecoveredPipeline(name, mode, ". ".join(lost), done)

    # ---------------------------------------------------------------- how

    @contextmanager
    def _lease_of(self, name: str) -> Iterator[None]:
        """So that no other server starts the pipeline meanwhile."""
        leases = self.runtime.leases
        if leases is None:
            yield
            return
        lease = leases.acquire(name)
        try:
            yield
        finally:
            leases.release(lease)

    def _end(self, name: str, desired: str, cause: Cause, action: str, call: Callable[[], None]) -> PipelineView:
        with self._turn(name):
            usable(self._find(name))
            elsewhere = self.is_elsewhere(name)
            if not elsewhere:
                self._do_as_wanted(name, desired, cause, call)
            else:
                self._check_elsewhere(name, action)
            self.audit(cause, action, name)
            self._want(name, desired, cause)
            self._start_errors.pop(name, None)
            if elsewhere and self._find(name).is_wanted:  # it is taken over when that server is gone
                self._start_errors[name] = LeaseHeld("another server runs this pipeline")
        if elsewhere:
            self._await(name, desired)
        return self.view(name)

    def _do_as_wanted(self, name: str, desired: str, cause: Cause, call: Callable[[], None]) -> None:
        """A drain takes long: what is wanted is kept first, so that the next server does not start again what this one
        was killed over. A refusal takes it back."""
        before = self._find(name).desired
        if desired != m.RUNNING:
            self._want(name, desired, cause)
        try:
            call()
        except BaseException:
            if desired != m.RUNNING:
                self._want(name, before, cause)
            raise

    def _check_elsewhere(self, name: str, action: str) -> None:
        """Refuses what the process that runs it would refuse."""
        each = self._find(name)
        runs = self.holder_elsewhere(name) is not None or (each.desired == m.RUNNING and self._has_schedule(each))
        allowed = {
            "pause": (runs or each.desired == m.PAUSED, "only a running pipeline can be paused", "Start it first."),
            "resume": (runs or each.desired == m.PAUSED, "only a paused pipeline can be resumed", "Start it."),
        }
        is_allowed, why, fix = allowed.get(action, (True, "", ""))
        if not is_allowed:
            raise LifecycleError(
                f'pipeline "{name}" is {self.view(name).state}: {why}', fix=f"Nothing was changed. {fix}"
            )
