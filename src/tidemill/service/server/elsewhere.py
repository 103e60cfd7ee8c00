"""Pipelines that other processes of the state store run: how they are, and what they are asked for.

Whoever is asked, the process that runs a pipeline does it. What operators want (running, paused, stopped) is in the
store, and who was asked waits until it is so. What needs the run itself (drain, restart, a change that is tried out, a
removal) is a request in the store, which the process takes and answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from tidemill.contracts.installation import StoredRequest
from tidemill.contracts.lease import StoredLease
from tidemill.errors import LeaseHeld, LifecycleError, StateError, TidemillError, from_data, to_data
from tidemill.service.cause import Cause
from tidemill.service.run.status import State
from tidemill.service.runtime import Runtime
from tidemill.service.server import managed as m
from tidemill.service.server.document_set import ControlSettings
from tidemill.service.server.managed import Managed, PipelineView
from tidemill.service.server.requests import POLL_SECONDS, ask
from tidemill.service.server.shared_documents import SharedFleet
from tidemill.service.server.status_board import StatusBoard
from tidemill.state.installation import InstallationStore
from tidemill.stream.batch.failures import explain
from tidemill.telemetry import events

UNASSIGNED = "unassigned"
"""Of a pipeline that is wanted and that no process runs, at a server that leaves it to workers."""

FOLLOW_SECONDS = 90.0
"""How long who was asked waits until another process has paused, stopped or started a pipeline."""
ASSIGN_SECONDS = 5.0
"""How long it waits for any process to take a pipeline that nobody runs, or a request about it."""
TAKE_SECONDS = 30.0
"""How long the process that has a pipeline may take to hear of a request: it may be starting Spark."""


class ElsewhereFleet(SharedFleet):
    def __init__(self, runtime: Runtime, store: InstallationStore, settings: ControlSettings) -> None:
        super().__init__(runtime, store, settings)
        self._board = StatusBoard(runtime, store) if runtime.leases is not None else None
        self.worker_notes: dict[str, TidemillError] = {}  # by pipeline, from who starts workers (dispatch.py)

    # ---------------------------------------------------------------- how they are

    def _view(self, each: Managed) -> PipelineView:
        view, board = super()._view(each), self._board
        if board is None or each.pipeline is None or (view.lease is not None and view.lease.here):
            return view
        found, elsewhere = board.find(each.name), self._seen_elsewhere(each.name)
        if elsewhere and view.lease is not None:
            if found is None or found[0].epoch != view.lease.epoch:  # it is just starting
                return view if self._runs(each.name) else replace(view, state=str(State.CREATED))
            state = view.state if self._runs(each.name) else found[0].state
            return replace(view, state=state, status=found[1], error=found[1].error)
        if self._runs(each.name):
            return view
        failed = found is not None and found[0].state == State.FAILED
        if found is not None:
            view = replace(view, status=found[1], error=found[1].error if failed else view.error)
        if not each.is_wanted:
            return view
        if failed:
            return replace(view, state=str(State.FAILED))
        if each.pipeline.spec.schedule is not None:  # its worker has no lease between two runs
            return replace(view, state=str(State.STOPPED))
        note = self.worker_notes.get(each.name) or _nobody(each.name)
        return replace(view, state=UNASSIGNED, error=to_data(note))

    def _forget_status(self, name: str) -> None:
        if self._board is not None:
            self._board.forget(name)

    def _look_at_store(self) -> None:
        super()._look_at_store()
        if self._board is not None:
            self._board.look()
            self._take_requests()

    # ---------------------------------------------------------------- for who starts workers

    def wish(self, name: str) -> str | None:
        """What an operator wants of the pipeline; None if it is not there any more, or cannot be used."""
        found = self._managed.get(name)
        return found.desired if found is not None and found.pipeline is not None else None

    def is_wanted(self, name: str) -> bool:
        """Whether some process must run the pipeline."""
        found = self._managed.get(name)
        return found is not None and found.pipeline is not None and found.is_wanted

    def is_leased(self, name: str) -> bool:
        """Whether a process that is alive has it, as the last renewal saw."""
        return self._seen_elsewhere(name)

    def silent_processes(self) -> set[int]:
        """Living ones of this machine that announced themselves and do not renew. None while the store does not
        answer: they cannot renew then."""
        try:
            found = self.runtime.leases.silent() if self.runtime.leases is not None else []
        except StateError:
            return set()
        return {each.pid for each in found if each.is_here and not each.is_gone}

    def lease_of(self, name: str) -> StoredLease | None:
        return self.runtime.leases.known(name) if self.runtime.leases is not None else None

    # ---------------------------------------------------------------- what they are asked for

    def is_elsewhere(self, name: str) -> bool:
        """Whether another process must do what is asked of the pipeline: it runs it, or is the one that may."""
        return not self._runs(name) or self.holder_elsewhere(name) is not None

    def _await(self, name: str, desired: str) -> None:
        """Until the process that runs the pipeline has done what is desired, or nobody runs it."""
        board = self._board
        if board is None:
            return
        began = time.monotonic()
        while time.monotonic() - began < FOLLOW_SECONDS and not self.stopping:
            lease = self.holder_elsewhere(name)
            found = board.read(name)
            if lease is None:
                starts = desired == m.RUNNING and time.monotonic() - began < ASSIGN_SECONDS
                failed = found is not None and found[0].state == State.FAILED
                if not starts or failed:
                    return
            elif found is not None and found[0].epoch == lease.epoch and has_followed(found[1].state, desired):
                return
            time.sleep(POLL_SECONDS)

    def _ask(self, name: str, action: str, given: Mapping[str, Any], cause: Cause, seconds: float) -> bool:
        """False if nobody took the request. What went wrong there is raised here."""
        holder = self.holder_elsewhere(name)
        patient = ASSIGN_SECONDS if holder is None else TAKE_SECONDS
        answer = ask(self.store, name, action, given, cause, patient=patient, seconds=seconds)
        if answer is not None:
            self._settle_answer(name, answer)
            return True
        if holder is None:
            return False
        raise LifecycleError(
            f'pipeline "{name}" runs in another process, which does not hear: {holder.holder}',
            fix="Nothing was changed. Try again; a process that is gone loses the pipeline within seconds.",
        )

    def _settle_answer(self, name: str, answer: dict[str, Any]) -> None:
        self._bring_up_to_date(name)
        if name in self._managed:
            self._await(name, self._managed[name].desired)
        if "error" in answer:
            raise from_data(answer["error"])

    def _take_requests(self) -> None:
        for request in self.store.open_requests():
            name = request.pipeline
            new = request.action == "create" and name not in self._managed and not self.settings.is_worker
            if new or (name in self._managed and not self.is_elsewhere(name)):
                assert self.runtime.leases is not None
                if self.store.take_request(request, self.runtime.leases.holder):
                    threading.Thread(
                        target=self._answer, args=(request,), name=f"{request.action} {name}", daemon=True
                    ).start()

    def _answer(self, request: StoredRequest) -> None:
        answer: dict[str, Any] = {}
        try:
            self._carry_out(request, orjson.loads(request.document), Cause(request.actor, request.reason))
        except Exception as error:  # noqa: BLE001  who asked hears of it
            answer = {"error": to_data(explain(error))}
        try:
            self.store.answer_request(request, orjson.dumps(answer, default=str).decode())
        except TidemillError as error:
            events.warn("server.request_not_answered", pipeline=request.pipeline, action=request.action,
                        error=error.what)  # fmt: skip

    def _carry_out(self, request: StoredRequest, given: Mapping[str, Any], cause: Cause) -> None:
        """What another server was asked for; control.py knows how."""
        raise NotImplementedError

    def _start(self, name: str, cause: Cause, *, trial: bool = False) -> None:
        if not self._runs(name):
            error = self._start_errors[name] = _nobody(name)
            raise error
        super()._start(name, cause, trial=trial)


def has_followed(state: State, desired: str) -> bool:
    if state is State.FAILED:
        return True
    if desired == m.RUNNING:
        return state in (State.RUNNING, State.FAILING)
    return desired == m.PAUSED and state is State.PAUSED


def _nobody(name: str) -> LeaseHeld:
    return LeaseHeld(
        "no worker runs this pipeline",
        fix=f"Start one: tidemill worker --pipeline {name}; or let the server do it: tidemill serve --dispatch process",
    )
