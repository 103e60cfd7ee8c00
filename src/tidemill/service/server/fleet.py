"""The pipelines of a server while they run: what is wanted of them, how they are, and their starts after a failure.

control.py is what operators call; this is what stands under it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from tidemill.config import Pipeline
from tidemill.config.document import Document
from tidemill.contracts.installation import AuditEntry
from tidemill.errors import (
    ErrorData,
    LeaseHeld,
    LifecycleError,
    PipelineBusy,
    TidemillError,
    UnknownPipeline,
    from_data,
    to_data,
)
from tidemill.model.clock import utc_now
from tidemill.service.cause import Cause, current_actor
from tidemill.service.run.metering import show_state
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.runtime import Runtime
from tidemill.service.server import managed as m
from tidemill.service.server.document_set import ControlSettings, DocumentSet
from tidemill.service.server.managed import LeaseView, Managed, PipelineView
from tidemill.service.server.restarts import Restarts
from tidemill.service.server.scope import WHOLE, Scope
from tidemill.service.server.start_pace import StartPace
from tidemill.state.installation import InstallationStore
from tidemill.stream.batch.failures import explain
from tidemill.telemetry import events

STANDBY = "standby"
"""Of a pipeline that another server runs: this one takes it over when that one is gone."""

TURN_SECONDS = 1.0
"""How long a call waits for another one that changes the same pipeline."""
_AUDIT_PAGE = 10_000


class Fleet:
    """Every method from any thread. Who changes a pipeline holds its turn (`_turn`)."""

    def __init__(self, runtime: Runtime, store: InstallationStore, settings: ControlSettings) -> None:
        self.runtime, self.store, self.settings = runtime, store, settings
        self._documents = DocumentSet(settings)
        self._changing = threading.Lock()  # guards what is below, and each check of a whole set of documents
        self._managed: dict[str, Managed] = {}
        self._claims: dict[str, tuple[Document, ...]] = {}  # of a change under way: the old document and the new one
        self._turns: dict[str, threading.RLock] = {}
        self._start_errors: dict[str, TidemillError] = {}
        self._specs = m.MaskedSpecs()
        self._restarts = Restarts(self._list_failed, self._start_again, policy=settings.restarts)
        self._pace = StartPace(runtime.statuses)
        self.ready = self.stopping = False

    @property
    def names(self) -> list[str]:
        return sorted(self._managed)

    def views(self, scope: Scope = WHOLE) -> list[PipelineView]:
        """By name. Waits for nothing."""
        there = sorted(self._managed.items())
        return [self._view(each) for name, each in there if scope.covers(name, each.tenant)]

    def view(self, name: str) -> PipelineView:
        return self._view(self._find(name))

    def covers(self, scope: Scope, name: str) -> bool:
        """Whether there is such a pipeline, for who has this scope."""
        found = self._managed.get(name)
        return found is not None and scope.covers(name, found.tenant)

    def tenant(self, name: str) -> str | None:
        """Whose it is; None also if there is no such pipeline."""
        found = self._managed.get(name)
        return found.tenant if found is not None else None

    def check_scope(self, scope: Scope, name: str) -> None:
        """`UnknownPipeline`, as for one that is not there, if it is somebody else's."""
        if not self.covers(scope, name):
            raise _unknown(name)

    def check_version(self, name: str, expected: Sequence[str]) -> None:
        """`ChangedMeanwhile` if its document has none of these versions."""
        found = self._find(name)
        if found.version not in expected:
            raise m.change_conflict(found)

    def pipeline(self, name: str) -> Pipeline:
        """To look into its log, checkpoints and dead letters. Its problem, if the document cannot be used."""
        return usable(self._find(name))

    def start_wanted(self) -> None:
        """Starts what is desired to run; a failure is shown, and stops no other. Blocks for seconds: Spark starts."""
        self.runtime.subscribe(on_status=self._note_completed)
        for each in list(self._managed.values()):
            if each.is_wanted and each.pipeline is not None and self._is_current(each.name):
                self._start_in_turn(each.name, Cause(current_actor(), "the server starts"))
        self.ready = True
        self._restarts.begin()

    def close(self, *, drain_seconds: float) -> None:
        """Delivers what was captured, for at most so long, and ends everything. What is desired stays as it is."""
        self.stopping = True
        self._restarts.close()
        running = [each.name for each in self.runtime.statuses() if each.state in (State.RUNNING, State.FAILING)]
        if running:
            with suppress(LifecycleError):  # a second signal has closed the runtime before this one got to it
                self.runtime.drain(*running, seconds=drain_seconds, cause=Cause(current_actor(), "the server stops"))
        self.runtime.close()
        self.store.close()

    # ---------------------------------------------------------------- for control.py

    def _check_owner(self, scope: Scope, pipeline: Pipeline) -> None:
        """State outlives its pipeline: log, dead letters and transitions of a deleted one are there still. Who has a
        tenant's token gets back what is that tenant's, and nothing of anybody else under a name that became free."""
        if not scope.tenant:
            return
        owner = self.store.owner(pipeline.name)
        if owner is None and not pipeline.state_path.exists():
            return
        if owner != scope.tenant:
            raise m.foreign_state(pipeline.name)

    def _note_owner(self, pipeline: Pipeline) -> None:
        if self.store.owner(pipeline.name) != (pipeline.tenant or ""):
            self.store.set_owner(pipeline.name, pipeline.tenant or "")

    def _want(self, name: str, desired: str, cause: Cause) -> None:
        """Only that: another server may have changed the document since this one looked."""
        self._restarts.forget(name)
        new = replace(self._find(name), desired=desired)
        if not self.store.set_desired(name, desired):
            raise _unknown(name)
        self._managed[name] = new

    def _start(self, name: str, cause: Cause, *, trial: bool = False) -> None:
        each = self._find(name)
        usable(each)
        self._start_errors.pop(name, None)
        try:
            self.runtime.start(name, cause=cause, trial=trial, paused=each.captures_paused)
        except Exception as failure:
            # A defect of ours at one pipeline's start is that pipeline's failure: the others are started.
            error = self._start_errors[name] = explain(failure)
            show_state(self.runtime.metrics, name, "" if isinstance(error, LeaseHeld) else str(State.FAILED))
            if error is failure:
                raise
            raise error from failure

    def _note_completed(self, status: PipelineStatus) -> None:
        """A pipeline that delivered what was there and ended is stopped, for every server, until somebody starts it."""
        if status.state is not State.STOPPED or self.stopping:
            return
        try:
            with self._turn(status.name, wait=True):
                # The status may be that of a run before, and the pipeline on its way to stop once more.
                stopped = self.runtime.status(status.name).state is State.STOPPED
                if stopped and self.runtime.completed(status.name) and self._find(status.name).desired == m.RUNNING:
                    self._want(status.name, m.STOPPED, Cause(current_actor(), "what was there is delivered"))
        except UnknownPipeline:
            return  # it was removed meanwhile
        except TidemillError as error:  # after a start of the server it is run once more
            events.warn("pipeline.end_not_noted", pipeline=status.name, code=error.code, error=error.what)

    def _pause(self, name: str, cause: Cause) -> None:
        self.runtime.pause(name, cause=cause)

    def _start_in_turn(self, name: str, cause: Cause) -> None:
        """One of many: when those before it are going."""
        self._pace.wait(name, lambda: self.stopping)
        if not self.stopping:
            self._start_and_tell(name, cause)

    def _start_and_tell(self, name: str, cause: Cause) -> None:
        """For who shows the pipeline's state anyway."""
        standby = isinstance(self._start_errors.get(name), LeaseHeld)
        try:
            self._start(name, cause)
        except LeaseHeld as error:
            if not standby:
                events.emit("pipeline.standby", pipeline=name, holder=error.where or "a worker")
                self._warm_up(name)
        except TidemillError as error:
            events.fail("pipeline.not_started", pipeline=name, code=error.code, error=error.what,
                        where=error.where, fix=error.fix)  # fmt: skip

    def _warm_up(self, name: str) -> None:
        try:
            self.runtime.warm_up(name)
        except TidemillError as error:  # a takeover tries again, and says so then
            events.warn("pipeline.standby_not_warm", pipeline=name, code=error.code, error=error.what)

    def _take_away(self, old: Managed, cause: Cause) -> None:
        if old.pipeline is not None:
            self.runtime.remove(old.name, cause=cause, comes_back=True)

    def _put_in_place(self, old: Managed | None, new: Managed, cause: Cause) -> None:
        """After `_take_away`. If the new one is refused the old one is there again, and started."""
        self._start_errors.pop(new.name, None)
        self._restarts.forget(new.name)
        try:
            with self._changing:
                if new.pipeline is not None:
                    self.runtime.add(new.pipeline)
                self._managed[new.name] = new
        except TidemillError:
            if old is not None and old.pipeline is not None:
                self.runtime.add(old.pipeline)
                if old.is_wanted:
                    self._start_and_tell(old.name, cause)
            raise

    def _claim(self, old: Managed | None, name: str, new: Document) -> None:
        """Until `_release` others are checked against both documents. `_changing` is held since the new one's check."""
        self._claims[name] = (old.document if old and old.document else new, new)

    def _release(self, *names: str) -> None:
        with self._changing:
            for name in names:
                self._claims.pop(name, None)

    def _sets(self, there: Sequence[Managed], without: str | None = None) -> list[list[Document]]:
        """The documents of pipelines that are there, with the old and with the new one of each change under way."""
        now = {each.name: each.document for each in there if each.document}
        claims = {name: both for name, both in self._claims.items() if name != without}
        versions = [{name: both[at] for name, both in claims.items()} for at in range(2 if claims else 1)]
        return [list((now | version).values()) for version in versions]

    def _remove(self, each: Managed, cause: Cause) -> None:
        """The document goes first: when the lease is free, no other server finds one to start the pipeline by. A server
        that is killed on the way leaves nothing that runs."""
        self.store.remove_document(each.name)
        if each.pipeline is not None:
            self.runtime.remove(each.name, cause=cause)
        self._forget_status(each.name)
        with self._changing:
            del self._managed[each.name]
        self._specs.forget(each.name)
        self._start_errors.pop(each.name, None)
        self._restarts.forget(each.name)

    @contextmanager
    def _turn(self, name: str, *, wait: bool = False) -> Iterator[None]:
        """`PipelineBusy` if somebody else has it, unless `wait`: who waits here keeps a thread from other requests."""
        turn = self._turns.setdefault(name, threading.RLock())
        if not turn.acquire(timeout=-1 if wait else TURN_SECONDS):
            raise PipelineBusy(
                f'pipeline "{name}" is being changed by somebody else',
                fix="Nothing was changed. Try again when that is done: its state and the audit trail say what it is.",
            )
        try:
            self._bring_up_to_date(name)
            yield
        finally:
            turn.release()
            if name not in self._managed:  # names that are only asked for must not pile up
                self._turns.pop(name, None)

    def audit(self, cause: Cause, action: str, name: str, detail: str = "") -> None:
        """Before or after a change that somebody asked for; a store that cannot keep it refuses the change."""
        self.store.audit(AuditEntry(utc_now(), cause.actor, action, name, detail or cause.reason))

    def audit_trail(self, scope: Scope, limit: int, before: int | None = None) -> list[AuditEntry]:
        """Newest first, only those whose number is below `before`. Where the scope is not everything, only those of
        pipelines that are there."""
        if scope.is_whole:
            return self.store.audit_trail(limit, before=before)
        found: list[AuditEntry] = []
        while len(found) < limit and (page := self.store.audit_trail(_AUDIT_PAGE, before=before)):
            found += [each for each in page if self.covers(scope, each.subject)]
            before = page[-1].number
        return found[:limit]

    def _find(self, name: str) -> Managed:
        found = self._managed.get(name)
        if found is None:
            raise _unknown(name)
        return found

    def _view(self, each: Managed) -> PipelineView:
        status, error, state = None, ErrorData(), each.desired
        try:
            status = self.runtime.status(each.name)
            error = status.error
            state = status.shown_state
        except UnknownPipeline:
            pass  # its document cannot be used, or it is being replaced just now
        if state == State.CREATED and each.desired != m.RUNNING:
            state = each.desired
        problem = each.problem or self._start_errors.get(each.name)
        if isinstance(problem, LeaseHeld):
            state, error = STANDBY, ErrorData()
        elif problem is not None:
            state, error = str(State.FAILED), to_data(problem)
        pipeline, leases = each.pipeline, self.runtime.leases
        return PipelineView(
            each.name, state, each.desired, each.origin, each.version,
            each.tenant, pipeline.labels if pipeline else {},
            self._specs.of(pipeline) if pipeline else None, each.changed_by, each.changed_at, status, error,
            LeaseView.of(leases.known(each.name), leases.holder) if leases is not None else None,
        )  # fmt: skip

    def _forget_status(self, name: str) -> None:
        """What other processes were shown of a pipeline that is removed."""

    # ---------------------------------------------------------------- restarts

    def _list_failed(self) -> Iterator[tuple[str, TidemillError]]:
        for each in list(self._managed.values()):
            if not each.is_wanted or each.pipeline is None:
                continue
            if each.name in self._start_errors:
                yield each.name, self._start_errors[each.name]
                continue
            try:
                if self.runtime.status(each.name).state is State.FAILED:
                    yield each.name, self.runtime.error(each.name) or from_data(self.runtime.status(each.name).error)
            except UnknownPipeline:  # it is being replaced
                continue

    def _is_current(self, name: str) -> bool:
        """Whether what is known of the pipeline still holds: another server may have changed it."""
        return True

    def _bring_up_to_date(self, name: str) -> None:
        """Before a change. The turn is held."""

    def _start_again(self, name: str, error: TidemillError, number: int) -> None:
        turn = self._turns.setdefault(name, threading.RLock())
        if not turn.acquire(blocking=False):  # somebody has it in hand
            return
        try:
            if name in self._managed and self._managed[name].is_wanted and self._is_current(name):
                self._start_in_turn(name, Cause(current_actor(), f"restart {number} after: {error.what}"))
        finally:
            turn.release()


def _unknown(name: str) -> UnknownPipeline:
    return UnknownPipeline(
        f'there is no pipeline "{name}"',
        fix="The list of pipelines has those that are there and that this token is for.",
    )


def usable(each: Managed) -> Pipeline:
    if each.pipeline is None:
        assert each.problem is not None
        raise each.problem
    return each.pipeline
